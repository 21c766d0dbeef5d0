"""What more cores give `rtt` of a file, from its stages, each on one core.

    python benchmarks/cores.py [--packets 10000000] [--rounds 3]

Reading is one thread and so is adding up; matching is shared out. So no number of cores is faster than the slower of
the first two. Beside it: two runs at once, each on one core, which share nothing but the machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commands import simulate
from run import WIRELAG, best_s

from wirelag.capture.pcap import CaptureFile
from wirelag.estimators.match import Match


def stages_ns(capture: Path) -> dict[str, float]:
    """Processor time of each stage, in ns a packet."""
    meter, packets = Match().meter("tap"), 0
    spent = dict.fromkeys(("reading", "matching", "adding up"), 0.0)
    before = time.thread_time()
    for batch in CaptureFile(str(capture)):
        times = [before, time.thread_time()]
        found = meter.match(batch)
        times.append(time.thread_time())
        meter._add(batch, found, None)
        before = time.thread_time()
        for name, begun, ended in zip(spent, times, [*times[1:], before], strict=True):
            spent[name] += ended - begun
        packets += len(batch)
    return {name: seconds / packets * 1e9 for name, seconds in spent.items()}


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
        every = [stages_ns(capture) for _ in range(asked.rounds)]
        rtt = [WIRELAG, "rtt", str(capture), "--format", "json"]
        alone = [*rtt, "--cores", "1"]
        best = best_s(
            {"one": lambda: at_once(alone), "all": lambda: at_once(rtt), "twice": lambda: at_once(alone, alone)},
            asked.rounds,
        )
    least = {stage: min(one[stage] for one in every) for stage in every[0]}
    whole = sum(least.values())
    print(", ".join(f"{stage} {ns:.0f} ns" for stage, ns in least.items()), "a packet")
    print(f"rtt on one core {best['one']:.2f} s, on all {best['all']:.2f} s: {best['one'] / best['all']:.2f}x")
    print(f"two runs at once, each on one core: {2 * best['one'] / best['twice']:.2f}x the work of one")
    for cores in (2, 4, 8):
        slowest = max(least["reading"], least["adding up"], whole / cores)
        print(f"{cores} cores: at most {whole / slowest:.1f}x without start-up, if threads cost nothing")


if __name__ == "__main__":
    main()
