"""`wirelag simulate`: captures with known truth."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from wirelag.cli.options import check_outputs, share_of
from wirelag.cli.parser import Given, Option, UsageError
from wirelag.cli.simulate_queue import Discipline, DrainRate, InjectionText, Limit, MostShare, Queue, refuse_others
from wirelag.errors import need_polars
from wirelag.units import parse_duration_ns

if TYPE_CHECKING:
    import polars as pl

    from wirelag.sim.frames import Frames

TRAFFIC = "Traffic"
NETWORK = "Network"
QUEUE_DURATION: Final = "8s"
LONGEST: Final = 262_144  # bytes of a frame: the largest that libpcap takes
ENDINGS: Final = tuple(f".{form}{packed}" for form in ("pcap", "pcapng") for packed in ("", ".gz", ".zst"))


def simulate(
    given: Given,
    output: Annotated[
        list[str],
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Capture to write: .pcap or .pcapng, optionally with .gz or .zst; - is standard output. "
            "Give two with --points 2 or --queue: first the point nearer to clients.",
        ),
    ],
    truth: Annotated[str | None, Option(metavar="FILE.parquet", help="Write the truth, one row per delay.")] = None,
    packets: Annotated[int, Option(metavar="N", help="Packets in the (first) capture, exactly.")] = 100_000,
    seed: Annotated[int, Option(metavar="S", help="Seed: the same options and seed give the same bytes.")] = 1,
    points: Annotated[int, Option(metavar="1|2", help="Number of vantage points.")] = 1,
    direction: Annotated[
        str, Option(metavar="both|client", help="Capture both directions, or only client to server.")
    ] = "both",
    snaplen: Annotated[int, Option(metavar="N", help="Bytes to capture of each frame.")] = 128,
    duration: Annotated[
        str, Option(metavar="D", help=f"Duration of the traffic; with --queue {QUEUE_DURATION}.", panel=TRAFFIC)
    ] = "60s",
    servers: Annotated[
        int, Option(metavar="N", help="Number of servers, each at its own distance.", panel=TRAFFIC)
    ] = 20,
    dns: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Share of DNS exchanges among connections.", panel=TRAFFIC)
    ] = 0.1,
    ipv6: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Share of IPv6 connections.", panel=TRAFFIC)
    ] = 0.2,
    unanswered: Annotated[
        float,
        Option(parser=share_of, metavar="SHARE", help="Share of SYNs and queries without a reply.", panel=TRAFFIC),
    ] = 0.01,
    marking: Annotated[
        str | None,
        Option(metavar="D", help="Change the lowest bit of the DSCP with this period (RFC 9341).", panel=TRAFFIC),
    ] = None,
    rtt: Annotated[
        str,
        Option(
            metavar="DIST",
            help="Round-trip time of a connection: constant:10ms, uniform:1ms,5ms, exponential:5ms, "
            "lognormal:20ms,0.5 (median, sigma), weibull:50us,0.6 (mean, shape), pareto:1ms,3.",
            panel=NETWORK,
        ),
    ] = "lognormal:20ms,0.5",
    delay: Annotated[
        str, Option(metavar="DIST", help="Two points: one-way delay between them.", panel=NETWORK)
    ] = "lognormal:1ms,0.3",
    loss: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Probability that a packet is lost.", panel=NETWORK)
    ] = 0.0,
    reorder: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Probability that a packet is reordered.", panel=NETWORK)
    ] = 0.0,
    duplicate: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Probability that a packet is duplicated.", panel=NETWORK)
    ] = 0.0,
    clock_offset: Annotated[
        str, Option(metavar="D", help="Two points: how far the second clock is ahead.", panel=NETWORK)
    ] = "0s",
    clock_skew: Annotated[
        float, Option(metavar="PPM", help="Two points: how much faster the second clock runs.", panel=NETWORK)
    ] = 0.0,
    queue: Queue = None,
    drain: DrainRate = "2Gbps",
    limit: Limit = 10_000,
    discipline: Discipline = "red",
    injection: InjectionText = "adaptive",
    most_share: MostShare = 0.005,
    quiet: Annotated[bool, Option("--quiet", help="Do not print what was written.")] = False,
) -> None:
    """Simulate captures with known delays.

    The traffic is TCP connections and DNS exchanges at one point or two, with loss, reordering, duplicates and clock
    error; or bursty flows before and behind a queue, with reference packets. `wirelag score` compares a report with the
    truth.
    """
    refuse_others(given, queue)
    if direction not in ("both", "client"):
        raise UsageError(f"{direction!r} is not one of both, client", option="--direction")
    if queue is not None and len(output) != 2:
        raise UsageError(f"--queue needs 2 files, got {len(output)}", option="-o")
    if queue is None and len(output) != points and points in (1, 2):
        raise UsageError(f"--points {points} needs {points} files, got {len(output)}", option="-o")
    for path in output:
        _need_ending(path)
    check_outputs("table", {"-o": output, "--truth": truth})
    if truth:
        need_polars("Parquet")
    if not 1 <= snaplen <= LONGEST:
        raise UsageError(f"must be at least 1, and at most {LONGEST:,}", option="--snaplen")
    if points == 1 and (_duration(clock_offset, "--clock-offset") or clock_skew):
        raise UsageError("a clock error needs --points 2", option="--clock-offset, --clock-skew")

    if queue is not None:
        from wirelag.sim.queue_settings import queue_captures, simulate_queue

        span = duration if "duration" in given else QUEUE_DURATION
        passed = simulate_queue(queue, seed, span, drain, limit, discipline, injection, most_share)
        _write(queue_captures(passed, snaplen), output, snaplen, quiet)
        if truth:
            from wirelag.sim.queue_frames import packet_truth

            _write_truth(packet_truth(passed), truth, quiet)
        return

    from concurrent.futures import ThreadPoolExecutor

    from wirelag.sim import Scenario, parse_distribution
    from wirelag.sim import simulate as run

    for option, text in (("--rtt", rtt), ("--delay", delay)):
        try:
            parse_distribution(text)
        except ValueError as error:
            raise UsageError(str(error), option=option) from error
    try:
        scenario = Scenario(
            packets=packets,
            seed=seed,
            points=points,
            direction="client" if direction == "client" else "both",
            rtt=rtt,
            delay=delay,
            loss=loss,
            reorder=reorder,
            duplicate=duplicate,
            clock_offset_ns=_duration(clock_offset, "--clock-offset"),
            clock_skew_ppm=clock_skew,
            servers=servers,
            duration_ns=_duration(duration, "--duration"),
            unanswered=unanswered,
            dns=dns,
            ipv6=ipv6,
            marking_ns=0 if marking is None else _duration(marking, "--marking"),
        )
        simulation = run(scenario)
    except ValueError as error:
        raise UsageError(str(error)) from error
    captures = (
        (simulation.frames(point, snaplen), f"{len(capture.row):,} packets")
        for point, capture in enumerate(simulation.captures)
    )
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(lambda: simulation.truth) if truth else None
        _write(captures, output, snaplen, quiet)
        if truth and found:
            _write_truth(found.result(), truth, quiet)


def _need_ending(path: str) -> None:
    """The name's ending sets the format. A device, such as /dev/null, needs none."""
    place = Path(path)
    if path == "-" or (place.exists() and not place.is_file()):
        return
    if not place.name.endswith(ENDINGS):
        says = f"{path}: unknown ending: use .pcap or .pcapng, optionally with .gz or .zst"
        raise UsageError(says, option="-o")


def _duration(text: str, option: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise UsageError(str(error), option=option) from error


def _write(captures: Iterable[tuple[Iterable[Frames], str]], paths: list[str], snaplen: int, quiet: bool) -> None:
    """Write each capture to its file, and print what is in it."""
    from wirelag.capture.writer import CaptureWriter

    for path, (parts, said) in zip(paths, captures, strict=True):
        with CaptureWriter(path, snaplen) as writer:
            for frames in parts:
                writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)
        if not quiet:
            print(f"{path}: {said}", file=sys.stderr)


def _write_truth(truth: pl.DataFrame, path: str, quiet: bool) -> None:
    from wirelag.render.output import write_parquet

    write_parquet(path, truth, "--truth")
    if not quiet:
        print(f"{path}: {truth.height:,} rows of truth", file=sys.stderr)
