"""The parts inside one process, relative to other tools, on one core: everything is printed as a ratio.

    python benchmarks/run.py [--packets 2000000]

Each pair is run alternately several times and the best of each is taken, so that noise affects both alike.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import flows as receiver
import pirate as responses
import plan as planning
from oneway import DIFFERENCE, PACKETS, columns, estimate, lda_of, lda_of_file, reconciliation
from reading import memory_of_reading, read_columns
from rtt import FRIDGE, MATCH, measured, memory_of_matching

WIRELAG = str(Path(sys.executable).with_name("wirelag"))
TSHARK_PACKETS = 200_000


def best_s(works: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """The shortest time of each, run in turn."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def program(*words: str | Path) -> Callable[[], object]:
    """A program whose output is discarded."""
    command = [str(word) for word in words]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def line(what: str, ratio: float, target: str, holds: bool) -> bool:
    """Print one comparison."""
    print(f"{what:<66} {ratio:8.2f}x   target {target:<8} {'holds' if holds else 'MISSED'}", flush=True)
    return holds


def reading(capture: Path, packets: int) -> list[bool]:
    """Reading to columns, compared with tcpdump and tshark."""
    short = capture.with_name("short.pcap")
    subprocess.run(["editcap", "-r", capture, short, f"1-{TSHARK_PACKETS}"], check=True)
    best = best_s(
        {
            "columns": lambda: read_columns(capture, ids=False),
            "ids": lambda: read_columns(capture, ids=True),
            "tcpdump": program("tcpdump", "-r", capture, "-w", os.devnull),
        }
    )
    tshark = best_s({"tshark": program("tshark", "-r", short, "-T", "fields", "-e", "tcp.seq")}, rounds=1)["tshark"]
    rates = {name: packets / seconds / 1e6 for name, seconds in best.items()}
    rates["tshark"] = TSHARK_PACKETS / tshark / 1e6
    print("  ".join(f"{name} {rate:.3g} Mpps" for name, rate in rates.items()))
    faster, slower = rates["columns"] / rates["tcpdump"], rates["ids"] / rates["tcpdump"]
    than_tshark = rates["columns"] / rates["tshark"]
    return [
        line("reading to columns / tcpdump -r X -w /dev/null", faster, ">= 2", faster >= 2),
        line("reading to columns with packet ids / tcpdump", slower, ">= 1.5", slower >= 1.5),
        line("reading to columns / tshark", than_tshark, ">= 200", than_tshark >= 200),
    ]


def memory(capture: Path) -> list[bool]:
    """Peak private memory while 1 GB is read, from a pipe that repeats the capture."""
    peak = memory_of_reading(capture, gigabytes=1.0)
    print(f"peak of private memory over 1 GB of packets: {peak / 1e6:.0f} MB")
    return [line("private memory / 200 MB", peak / 200e6, "<= 1", peak <= 200e6)]


def round_trips(capture: Path, packets: int) -> list[bool]:
    """Round-trip delays, exact and from a fridge of 2^16 slots, compared with tcptrace and tshark; includes reading."""
    short = capture.with_name("short.pcap")
    subprocess.run(["editcap", "-r", capture, short, f"1-{TSHARK_PACKETS}"], check=True)
    best = best_s(
        {
            "match": lambda: measured(capture, MATCH.meter("tap")),
            "fridge": lambda: measured(capture, FRIDGE.meter("tap")),
            "tcptrace": program("tcptrace", "-nr", capture),
        },
        rounds=5,
    )
    words = ("-Y", "tcp.analysis.ack_rtt", "-T", "fields", "-e", "tcp.analysis.ack_rtt")
    tshark = best_s({"tshark": program("tshark", "-r", short, *words)}, rounds=1)["tshark"]
    rates = {name: packets / seconds / 1e6 for name, seconds in best.items()}
    rates["tshark"] = TSHARK_PACKETS / tshark / 1e6
    print("  ".join(f"{name} {rate:.3g} Mpps" for name, rate in rates.items()))
    meter, peak = FRIDGE.meter("tap"), memory_of_matching(capture)
    exact, few = measured(capture, MATCH.meter("tap")).distribution(), measured(capture, meter).distribution()
    print(f"match: {exact.samples:,} samples; fridge: {few.samples:,} samples, {meter.bytes:,} bytes of slots")
    match, than_tshark = rates["match"] / rates["tcptrace"], rates["match"] / rates["tshark"]
    fridge, stated = rates["fridge"] / rates["tcptrace"], meter.bytes / (24 << 16)
    return [
        line("reading and match / tcptrace -nr", match, ">= 4", match >= 4),
        line("reading and match / tshark ack_rtt", than_tshark, ">= 100", than_tshark >= 100),
        line("reading and match, private memory / 200 MB", peak / 200e6, "<= 1", peak <= 200e6),
        line("reading and fridge of 2^16 slots / tcptrace -nr", fridge, ">= 10", fridge >= 10),
        line("bytes of its slots / 24 * 2^16", stated, "== 1", stated == 1),
    ]


def two_points(capture: Path) -> list[bool]:
    """LDA's meter, and the cost of an estimate once an interval has ended."""
    batches = columns(PACKETS)
    rda, ups, downs = reconciliation()
    lda, up, down = estimate()
    best = best_s(
        {
            "columns": lambda: lda_of(batches),
            "file": lambda: lda_of_file(capture),
            "tcptrace": program("tcptrace", "-nr", capture),
            "reconcile": lambda: rda.decode(ups, downs),
            "estimate": lambda: lda.cross(up, down),
        },
        rounds=5,
    )
    decoded = rda.decode(ups, downs)
    print(f"{len(decoded.numbers):,} of {DIFFERENCE:,} differences decoded in {best['reconcile'] * 1e3:.1f} ms")
    print(f"mean and deviation over {lda.rows:,} buckets in {best['estimate'] * 1e3:.2f} ms")
    rate, faster = PACKETS / best["columns"] / 1e6, best["tcptrace"] / best["file"]
    return [
        line("lda from columns / 20 Mpps", rate / 20, ">= 1", rate >= 20),
        line("reading and lda / tcptrace -nr", faster, ">= 8", faster >= 8),
        line("rda: 10,000 differences / 20 ms", best["reconcile"] / 0.020, "<= 1", best["reconcile"] <= 0.020),
        line(
            "mean and deviation of 20,000 buckets / 3 ms", best["estimate"] / 0.003, "<= 1", best["estimate"] <= 0.003
        ),
    ]


def flows(capture: Path) -> list[bool]:
    """The receiver of rli at a million flows; `wirelag flows` compared with other tools that list flows."""
    meter, kernel = (rate / 1e6 for rate in receiver.packets_per_s())
    print(f"rli, {receiver.FLOWS:,} flows in its table: meter {meter:.3g} Mpps, its kernel {kernel:.3g} Mpps")
    table, records, observing, cutting = receiver.memory()
    print(
        f"rli: table and buffer {table / 1e6:.0f} MB, memory grew by {observing / 1e6:.0f} MB; "
        f"{records:,} records at the cut, by {cutting / 1e6:.0f} MB"
    )
    behind, short = capture.with_name("behind.pcap"), capture.with_name("short.pcap")
    outputs = "-o", capture.with_name("before.pcap"), "-o", behind
    subprocess.run([WIRELAG, "simulate", "--queue", "0.7", *outputs, "--quiet"], check=True)
    subprocess.run(["editcap", "-r", behind, short, f"1-{TSHARK_PACKETS}"], check=True)
    best = best_s(
        {
            "flows": program(WIRELAG, "flows", behind, "--quiet"),
            "tcptrace": program("tcptrace", "-nr", behind),
            "short": program(WIRELAG, "flows", short, "--quiet"),
        },
        rounds=3,
    )
    tshark = best_s({"tshark": program("tshark", "-r", short, "-q", "-z", "conv,tcp")}, rounds=1)["tshark"]
    print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in {**best, "tshark (short)": tshark}.items()))
    stated = table + receiver.RECORD_BYTES * records + receiver.CUT_BYTES
    than_tcptrace, than_tshark = best["tcptrace"] / best["flows"], tshark / best["short"]
    return [
        line("rli from columns at 1,000,000 flows / 8 Mpps", meter / 8, ">= 1", meter >= 8),
        line("memory while observing / table and buffer", observing / table, "<= 1", observing <= table),
        line("memory at the cut / table, buffer and records", cutting / stated, "<= 1", cutting <= stated),
        line("wirelag flows / tcptrace -nr", than_tcptrace, ">= 1", than_tcptrace >= 1),
        line("wirelag flows / tshark -z conv,tcp", than_tshark, ">= 4", than_tshark >= 4),
    ]


def one_way_mirror() -> list[bool]:
    """`auto` of pirate at a hundred thousand connections."""
    meter, kernel = (rate / 1e6 for rate in responses.packets_per_s())
    print(f"pirate, {responses.FLOWS:,} connections in its table: meter {meter:.3g} Mpps, its kernel {kernel:.3g} Mpps")
    return [line("pirate from columns at 100,000 connections / 8 Mpps", meter / 8, ">= 1", meter >= 8)]


def plans() -> list[bool]:
    """Which routers to upgrade, for the size of Sprint, and for 5,000; in seconds on this machine."""
    small, large = planning.planned_s(*planning.SPRINT), planning.planned_s(*planning.LARGE)
    print(f"plan: 315 routers, 45 upgrades {small:.2f} s; 5,000 routers, 45 upgrades {large:.0f} s")
    return [
        line("plan of 315 routers / 2 s", small / 2, "<= 1", small <= 2),
        line("plan of 5,000 routers / 5 min", large / 300, "<= 1", large <= 300),
    ]


def main() -> None:
    """Make a capture, run all, and exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=2_000_000)
    packets = parser.parse_args().packets
    for tool in ("tcpdump", "tshark", "tcptrace", "editcap"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: tests/install-debian-packages installs it")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as directory:
        capture = Path(directory, "capture.pcap")
        subprocess.run([WIRELAG, "simulate", "--packets", str(packets), "-o", capture, "--quiet"], check=True)
        print(f"{packets:,} packets, {capture.stat().st_size / 1e6:.0f} MB, one core")
        held = [*reading(capture, packets), *memory(capture)]
        packets = packets * 7 // 5  # over 80,000 connections
        subprocess.run([WIRELAG, "simulate", "--packets", str(packets), "-o", capture, "--quiet"], check=True)
        print(f"{packets:,} packets")
        held += round_trips(capture, packets)
        held += two_points(capture)
        held += flows(capture)
    held += one_way_mirror()
    held += plans()
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
