"""What more cores give `rtt` of a file, and what they cannot give: start-up is one thread.

    python benchmarks/cores.py [--packets 10000000] [--rounds 3]

Beside it: two runs at once, each on one core, which share nothing but the machine.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commands import simulate
from run import WIRELAG, best_s

SMALL = 7_000  # packets: a file on which start-up is all that counts


def at_once(*commands: list[str]) -> None:
    """Run commands beside each other."""
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    failed = sum(one.wait() != 0 for one in running)
    if failed:
        sys.exit("a command failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        capture = simulate(Path(name) / "capture.pcap", asked.packets)
        small = simulate(Path(name) / "small.pcap", SMALL)
        rtt = [WIRELAG, "rtt", str(capture), "--format", "json"]
        alone = [*rtt, "--cores", "1"]
        best = best_s(
            {
                "start": lambda: at_once([WIRELAG, "rtt", str(small), "--format", "json"]),
                "one": lambda: at_once(alone),
                "all": lambda: at_once(rtt),
                "twice": lambda: at_once(alone, alone),
            },
            asked.rounds,
        )
    print(f"rtt on one core {best['one']:.2f} s, on all {best['all']:.2f} s: {best['one'] / best['all']:.2f}x")
    print(f"two runs at once, each on one core: {2 * best['one'] / best['twice']:.2f}x the work of one")
    print(f"of this, start-up: {best['start']:.2f} s")
    for cores in (2, 4, 8):
        least = best["start"] + (best["one"] - best["start"]) / cores
        print(f"{cores} cores: at most {best['one'] / least:.1f}x, if threads cost nothing")


if __name__ == "__main__":
    main()
