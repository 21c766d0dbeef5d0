"""`wirelag watch`: live round-trip delay or response latency at an interface."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

from wirelag.cli.options import (
    ANSWER,
    FILTERS,
    METHOD,
    Export,
    Force,
    GroupMemory,
    Tunnels,
    check_address,
    check_flows,
    one_of,
    speed_of,
    with_filter,
)
from wirelag.cli.parser import Argument, Option, UsageError
from wirelag.errors import WirelagError
from wirelag.measure.copies import refuse_copies
from wirelag.measure.response_heard import METHODS
from wirelag.measure.rtt import GROUPS as RTT_GROUPS

if TYPE_CHECKING:
    from wirelag.capture.live import Replay, Source
    from wirelag.measure.groups import Groups
    from wirelag.measure.live import LiveInterval, LiveMeasure
    from wirelag.measure.response_heard import ResponseSettings
    from wirelag.packets.filters import Filter

QUANTITIES: Final = ("rtt", "response")
LEAST_INTERVAL_NS: Final = 100 * 10**6
INTERFACE: Final = "Where"
SHOWN_GROUPS: Final = 20


@with_filter(times=False)
def watch(
    words: Annotated[
        list[str], Argument(metavar="[IFACE] rtt|response", help="Interface (not with -r), and what to measure.")
    ],
    wanted: Filter,
    read: Annotated[
        list[str] | None,
        Option("-r", "--read", metavar="CAPTURE", help="Replay this capture instead.", panel=INTERFACE),
    ] = None,
    speed: Annotated[str, Option(metavar="Nx|max", help="Replay speed.", panel=INTERFACE)] = "1x",
    expression: Annotated[
        str | None,
        Option(
            "--filter",
            metavar="EXPRESSION",
            help="Filter in tcpdump's syntax; on an interface, the kernel applies it.",
            panel=FILTERS,
        ),
    ] = None,
    tunnels: Tunnels = False,
    force: Force = False,
    direction: Annotated[
        str, Option(metavar="both|in|out", help="Incoming packets, outgoing packets, or both.", panel=FILTERS)
    ] = "both",
    promiscuous: Annotated[
        bool, Option("--promiscuous", help="Capture packets to other hosts, too.", panel=INTERFACE)
    ] = False,
    clock: Annotated[str, Option(metavar="kernel|hardware", help="Source of timestamps.", panel=INTERFACE)] = "kernel",
    ring: Annotated[str, Option(metavar="SIZE", help="Size of the capture buffer.", panel=INTERFACE)] = "64MiB",
    cores: Annotated[int, Option(metavar="N", help="Cores that capture and match packets.", panel=INTERFACE)] = 1,
    in_kernel: Annotated[
        bool, Option("--in-kernel", help="Measure inside the kernel (eBPF).", panel=INTERFACE)
    ] = False,
    then: Annotated[
        str | None, Option(metavar="PINNED", help="XDP program to run after wirelag's.", panel=INTERFACE)
    ] = None,
    server: Annotated[
        list[str] | None, Option(metavar="PREFIX[:PORT]", help="response: networks and ports of servers.", panel=METHOD)
    ] = None,
    method: Annotated[
        str | None, Option(metavar="|".join(METHODS), help="response: as in wirelag response.", panel=METHOD)
    ] = None,
    table_memory: Annotated[str, Option(metavar="SIZE", help="Memory for connections.", panel=METHOD)] = "64MiB",
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="rtt: match in a fridge of this size, not exactly.", panel=METHOD)
    ] = None,
    interval: Annotated[str, Option(metavar="D", help="Report each interval of this length.", panel=ANSWER)] = "1s",
    by: Annotated[
        str | None,
        Option(
            metavar="|".join(RTT_GROUPS), help="Report each group, too; response: server, flow or client.", panel=ANSWER
        ),
    ] = None,
    group_memory: GroupMemory = "128MiB",
    length: Annotated[str | None, Option("--for", metavar="D", help="Exit after this time.", panel=ANSWER)] = None,
    output_format: Annotated[
        str, Option("--format", metavar="table|jsonl", help="Live view, or one line of JSON per interval.")
    ] = "table",
    prometheus: Annotated[
        str | None, Option(metavar="ADDRESS", help="Serve /metrics, too: at 127.0.0.1:9464, or at a port.")
    ] = None,
    export: Export = None,
) -> None:
    """Measure live at an interface.

    It shows round-trip delay or response latency, now and over the last minutes, and how many packets the capture
    dropped. Ctrl-C ends it with a report over all intervals. Capturing needs CAP_NET_RAW, which is given up once the
    socket is open.
    """
    from wirelag.units import duration_ns, size_bytes, within

    interface, quantity = _words(words, read or [], speed)
    one_of(output_format, ("table", "jsonl"), "--format")
    one_of(direction, ("both", "in", "out"), "--direction")
    one_of(clock, ("kernel", "hardware"), "--clock")
    interval_ns = duration_ns(interval, "interval")
    if interval_ns < LEAST_INTERVAL_NS:
        raise UsageError("must be at least 100ms", option="--interval")
    length_ns = duration_ns(length, "for") if length else None
    ring_bytes = within(size_bytes(ring, "ring"), 1 << 18, 1 << 32, "ring")
    within(cores, 1, len(os.sched_getaffinity(0)), "cores")
    if prometheus is not None:
        check_address(prometheus)
    check_flows(output_format, export, listed=quantity == "rtt" and by == "flow")

    from wirelag.capture.privileges import drop_privileges

    table_bytes = size_bytes(table_memory, "table_memory")
    response = _response_settings(quantity, _groups(quantity, by, group_memory), server or [], method, table_bytes)
    measure = _measure(response, _groups(quantity, by, group_memory), table_bytes, memory, cores)
    problem, inside = None, None
    with ExitStack() as stack:
        source: Source
        if in_kernel or then is not None:
            from wirelag.measure.live_kernel import InKernel, open_inside

            refused = {
                "-r": interface is None,
                "--filter": expression is not None,
            }
            if response is not None:
                refused |= {"--host or --net": bool(wanted.nets), "--port": bool(wanted.ports)}
                refused |= {"--proto": bool(wanted.protocols)}
            refused |= {"--promiscuous": promiscuous, "--clock hardware": clock == "hardware"}
            _refuse(in_kernel, refused)
            size = size_bytes(memory, "memory") if memory else table_bytes
            grouped = _groups(quantity, by, group_memory) if by else None
            asked = InKernel(
                interface or "", interval_ns, direction, tunnels, then, size, _in_kernel(response), wanted, grouped
            )
            opened = open_inside(asked)
            for line in [opened] if isinstance(opened, str) else opened.notes:
                _warn(line)
            inside = None if isinstance(opened, str) else opened
        if inside is not None:
            source, measure = inside.source, inside.measure
            stack.callback(source.close)
            drop_privileges()
        elif interface is None:
            live_only = {"--direction": direction != "both", "--cores": cores != 1}
            live_only |= {"--promiscuous": promiscuous, "--clock": clock != "kernel", "--ring": ring != "64MiB"}
            chosen = replace(wanted, expression=expression or "")
            source = replay = _replay(read or [], speed, live_only, chosen, tunnels, length_ns)
            for line in refuse_copies(replay.capture, force):
                _warn(line)
        else:
            from wirelag.capture.fanout import over_cores
            from wirelag.capture.live import Live

            listen = partial(
                Live,
                interface,
                filter=expression,
                wanted=wanted,
                tunnels=tunnels,
                promiscuous=promiscuous,
                direction=direction,  # type: ignore[arg-type]
                clock=clock,  # type: ignore[arg-type]
                ring_bytes=ring_bytes // cores,
            )
            source = over_cores(cores, interval_ns, lambda fanout: listen(fanout=fanout))
            stack.callback(source.close)
            drop_privileges()
        if prometheus is not None:
            from wirelag.render.watch_metrics import exporter

            stack.callback(exporter(prometheus, source, measure).close)
        stack.enter_context(_stopping(source))
        show = stack.enter_context(_shown(output_format, source, measure, by))
        if export is not None:
            from wirelag.render.ipfix_stream import IpfixStream

            stream = IpfixStream.to(export, f"watch {interface or 'captures'}", _warn)
            stack.callback(stream.close)
            show = stream.beside(show)
        from wirelag.measure.live import watch as measured

        try:
            for part, dropped in measured(source, measure, interval_ns, length_ns):
                show(part, dropped)
        except WirelagError as error:
            problem = error
        measure.finish()
    if problem is None or inside is not None or source.statistics.packets:
        _conclude(output_format, source, measure, by)
    for line in source.warnings:
        _warn(line)
    if problem is not None:
        raise problem


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _words(words: list[str], read: list[str], speed: str) -> tuple[str | None, str]:
    """The interface, if any, and what is measured."""
    *interfaces, quantity = words
    one_of(quantity, QUANTITIES, "the last word")
    if read and interfaces:
        raise UsageError("-r reads a capture: leave the interface out", option=interfaces[0])
    if not read and speed != "1x":
        raise UsageError("needs a capture (-r)", option="--speed")
    if not read and len(interfaces) != 1:
        raise UsageError(f"name one interface, for example: wirelag watch eth0 {quantity}")
    return (None if read else interfaces[0]), quantity


def _replay(
    read: list[str], speed: str, live_only: dict[str, bool], wanted: Filter, tunnels: bool, length_ns: int | None
) -> Replay:
    from wirelag.capture.live import Replay

    for option in (name for name, is_given in live_only.items() if is_given):
        raise UsageError("needs an interface; with -r, select packets with --host, --net or --port", option=option)
    return Replay(read, speed=speed_of(speed), wanted=wanted, tunnels=tunnels, length_ns=length_ns)


def _refuse(in_kernel: bool, given: dict[str, bool]) -> None:
    """Refuse options that need the packets themselves."""
    if not in_kernel:
        raise UsageError("needs --in-kernel", option="--then")
    for flag, wanted in given.items():
        if wanted:
            instead = (
                "name servers with --server NETWORK:PORT" if flag in ("--host or --net", "--port") else "leave it out"
            )
            raise UsageError(f"needs the packets themselves: {instead}, or leave out --in-kernel", option=flag)


def _in_kernel(response: ResponseSettings | None) -> ResponseSettings | None:
    """The kernel sees one direction: use pairs only on request."""
    return replace(response, method="auto") if response and response.method is None else response


def _response_settings(
    quantity: str, groups: Groups, servers: list[str], method: str | None, memory: int
) -> ResponseSettings | None:
    from wirelag.measure.response import servers_of
    from wirelag.measure.response_heard import ResponseSettings

    if quantity == "response":
        return ResponseSettings(method=method, servers=servers_of(servers), memory=memory, groups=groups)
    if servers or method:
        raise UsageError("applies to response only", option="--server" if servers else "--method")
    return None


def _groups(quantity: str, by: str | None, memory: str) -> Groups:
    from wirelag.measure.groups import Groups
    from wirelag.measure.response_heard import GROUPS
    from wirelag.units import size_bytes

    return Groups(by, GROUPS if quantity == "response" else RTT_GROUPS, size_bytes(memory, "group_memory"))


def _measure(asked: ResponseSettings | None, groups: Groups, table: int, memory: str | None, cores: int) -> LiveMeasure:
    from wirelag.measure.live import Responses, RoundTrips
    from wirelag.measure.rtt import RttSettings
    from wirelag.units import size_bytes, within

    if asked is not None:
        if memory is not None:
            raise UsageError("applies to rtt only; use --table-memory", option="--memory")
        return Responses(asked)
    size = None if memory is None else within(size_bytes(memory, "memory"), 1024, 1 << 32, "memory")
    settings = RttSettings(table_memory=table, memory=size, groups=groups, cores=cores)
    return RoundTrips(settings.estimator().meter("tap"), settings.method, groups if groups.by else None)


@contextmanager
def _stopping(source: Source) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the measurement in order; a second one ends the program."""

    def stop(number: int, frame: FrameType | None) -> None:
        source.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(
    form: str, source: Source, measure: LiveMeasure, by: str | None
) -> Iterator[Callable[[LiveInterval, int], None]]:
    """The output of an interval: a line of JSON, a line of text, or a live view."""
    if form == "jsonl":
        from wirelag.render.watch import json_line

        yield lambda part, dropped: print(json_line(part, dropped, source), flush=True)
        return
    from wirelag.render.watch import View, plain_line

    if not sys.stdout.isatty():
        from wirelag.render.output import write_lines

        yield lambda part, dropped: write_lines([plain_line(part, dropped)], sys.stdout)
        return
    from rich.live import Live as Screen

    from wirelag.measure.recent import Recent

    view = View(source, measure.quantity, Recent(measure, by), by)
    with Screen(auto_refresh=False, transient=True) as screen:

        def show(part: LiveInterval, dropped: int) -> None:
            view.add(part)
            screen.update(view.draw(screen.console), refresh=True)

        screen.update(view.draw(screen.console), refresh=True)
        yield show


def _conclude(form: str, source: Source, measure: LiveMeasure, by: str | None) -> None:
    """Report all intervals."""
    from wirelag.render.watch import captured, coverage, table

    known = source.statistics
    report = replace(measure.report(), packets=known.packets, skipped=known.skipped)
    if not known.packets:
        report = replace(report, reason="no packets")
    groups = measure.groups.entries(measure.quantity, None if form == "jsonl" else SHOWN_GROUPS) if by else []
    if form == "jsonl":
        plain = report.to_json("watch")
        plain |= {"final": True, "dropped": known.dropped, "capture": captured(source), "notes": measure.notes()}
        beside = measure.estimated()
        plain |= {} if beside is None else {"estimated": beside.to_json()}
        plain["groups"] = [{"key": entry.key} | entry.to_dict() for entry in groups]
        print(json.dumps(plain), flush=True)
        return
    rows = measure.entries()
    if not rows[0].report.samples:
        rows[0].report = report
    lines = table(rows, groups, by, measure.leg_of(by))
    from wirelag.render.output import write_lines
    from wirelag.units import many

    more = len(measure.groups) - len(groups) if by else 0
    lines += [f"and {many(more, 'more group')}; --format jsonl lists all"] if more else []
    write_lines([*lines, coverage(known), *measure.notes()], sys.stdout)
