"""The commands that people run, from start to answer, beside other tools: every line is a ratio with its target.

    python benchmarks/commands.py [--packets 2000000,10000000] [--rounds 3] [--longest 40000000]

Commands are run alternately and the best time of each is taken, so that noise affects all alike. All cores work, unless
a line says one. Captures are simulated; the machine should be idle.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import WIRELAG, best_s, line, program

SMALL = 7_000  # packets: a file on which start-up is all that counts
RTT_TARGETS = {2_000_000: (10, 12), 10_000_000: (25, 30)}  # times tcptrace: exact, and with a fridge
READ = "import sys, wirelag.capture.pcap as pcap; [sum(1 for _ in pcap.CaptureFile(one)) for one in sys.argv[1:]]"


def simulate(path: Path, packets: int, *words: str | Path) -> Path:
    """A simulated capture."""
    command = [WIRELAG, "simulate", "--packets", str(packets), "-o", path, *words, "--quiet"]
    subprocess.run([str(word) for word in command], check=True)
    return path


def at_most(what: str, ratio: float, most: float) -> bool:
    """Print a ratio that should be small."""
    return line(what, ratio, f"<= {most:g}", ratio <= most)


def at_least(what: str, ratio: float, least: float) -> bool:
    """Print a ratio that should be large."""
    return line(what, ratio, f">= {least:g}", ratio >= least)


def peak_memory(*words: str | Path) -> int:
    """The most memory that a command holds, in bytes."""
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024


def starting(directory: Path, rounds: int) -> list[bool]:
    """Start-up, beside that of numpy."""
    small = simulate(directory / "small.pcap", SMALL)
    works: dict[str, Callable[[], object]] = {"numpy": program(sys.executable, "-c", "import numpy")}
    for word in ("--help", "--version"):
        works[word] = program(WIRELAG, word)
    for word in ("info", "rtt", "response"):
        works[word] = program(WIRELAG, word, small)
    best = best_s(works, 3 * rounds)
    return [
        at_most(f"wirelag {word} ({SMALL:,} packets) / import numpy", best[word] / best["numpy"], most)
        for word, most in (("--help", 0.6), ("--version", 0.6), ("info", 1.6), ("rtt", 1.6), ("response", 1.6))
    ]


def one_point(directory: Path, packets: int, rounds: int) -> list[bool]:
    """Questions to one capture."""
    capture, page = simulate(directory / "capture.pcap", packets), directory / "page.html"
    rtt = (WIRELAG, "rtt", capture, "--format", "json")
    best = best_s(
        {
            "tcptrace": program("tcptrace", "-nr", capture),
            "tcpdump": program("tcpdump", "-r", capture, "-w", os.devnull),
            "rtt": program(*rtt),
            "one core": program(*rtt, "--cores", "1"),
            "fridge": program(*rtt, "--memory", "1MiB"),
            "grouped": program(*rtt, "--by", "server", "--interval", "1s", "--html", page),
            "info": program(WIRELAG, "info", capture),
            "response": program(WIRELAG, "response", capture, "--format", "json"),
        },
        rounds,
    )
    print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items()), flush=True)
    exact, fridge = RTT_TARGETS.get(packets, RTT_TARGETS[2_000_000])
    held = [
        at_least("wirelag rtt / tcptrace -nr", best["tcptrace"] / best["rtt"], exact),
        at_least("wirelag rtt --memory 1MiB (fridge) / tcptrace -nr", best["tcptrace"] / best["fridge"], fridge),
        at_least("wirelag info / tcpdump -r X -w /dev/null", best["tcpdump"] / best["info"], 1),
        at_most("time of rtt --by server --interval 1s --html / rtt", best["grouped"] / best["rtt"], 1.5),
        at_most("memory of rtt / 200 MB", peak_memory(*rtt) / 200e6, 1),
    ]
    if packets >= 10_000_000:
        held.append(at_least("rtt on all cores / on one core", best["one core"] / best["rtt"], 1.8))
    return held


def compressed(directory: Path, packets: int, rounds: int) -> list[bool]:
    """Compressed captures, beside only decompressing them."""
    capture, held = simulate(directory / "capture.pcap", packets), []
    for tool, ending in (("gzip", "gz"), ("zstd", "zst")):
        packed = capture.with_suffix(f".pcap.{ending}")
        with packed.open("wb") as out:
            subprocess.run([tool, "-c", "-q", capture], check=True, stdout=out)
        works = {"rtt": program(WIRELAG, "rtt", packed), "alone": program(tool, "-dc", packed)}
        best = best_s(works, rounds)
        held.append(at_most(f"time of rtt of a .{ending} / {tool} -dc", best["rtt"] / best["alone"], 1.15))
        packed.unlink()
    return held


def two_points(directory: Path, packets: int, rounds: int) -> list[bool]:
    """The join of two captures, beside only reading both to columns."""
    before, behind = directory / "before.pcap", directory / "behind.pcap"
    simulate(before, packets, "-o", behind, "--points", "2")
    best = best_s(
        {
            "oneway": program(WIRELAG, "oneway", before, behind, "--estimator", "join", "--format", "json"),
            "read": program(sys.executable, "-c", READ, before, behind),
        },
        rounds,
    )
    return [at_most("time of oneway (join) of two captures / reading both", best["oneway"] / best["read"], 2.5)]


def growth(directory: Path, longest: int, rounds: int) -> list[bool]:
    """Twice the packets, again and again: time doubles, memory stays."""
    held, before, packets = [], 0.0, 2_500_000
    while packets <= longest:
        capture = simulate(directory / "capture.pcap", packets)
        rtt = (WIRELAG, "rtt", capture, "--format", "json")
        seconds, memory = best_s({"rtt": program(*rtt)}, rounds)["rtt"], peak_memory(*rtt)
        print(f"{packets:,} packets: {seconds:.2f} s, {memory / 1e6:.0f} MB")
        if before:
            held.append(at_most(f"time of rtt, {packets:,} packets / half of them", seconds / before, 2.05))
        held.append(at_most(f"memory of rtt, {packets:,} packets / 200 MB", memory / 200e6, 1))
        before, packets = seconds, 2 * packets
    return held


def main() -> None:
    """Run all, and exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", default="2000000,10000000", help="sizes of captures")
    parser.add_argument("--longest", type=int, default=40_000_000, help="packets of the longest capture (growth)")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for tool in ("tcpdump", "tcptrace", "gzip", "zstd"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: tests/install-debian-packages installs it")
    sizes = [int(size) for size in asked.packets.split(",")]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        held = starting(directory, asked.rounds)
        for packets in sizes:
            print(f"{packets:,} packets, {len(os.sched_getaffinity(0))} cores")
            held += one_point(directory, packets, asked.rounds)
        held += compressed(directory, sizes[0], asked.rounds)
        held += two_points(directory, sizes[-1], asked.rounds)
        held += growth(directory, asked.longest, asked.rounds)
        simulated = best_s({"simulate": lambda: simulate(directory / "capture.pcap", 10_000_000)}, 2)["simulate"]
        held.append(at_most("simulate 10,000,000 packets / 12 s", simulated / 12, 1))
    print(f"{sum(held)} of {len(held)} hold")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
