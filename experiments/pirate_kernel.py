"""Pirate: `auto` inside the kernel on the scenarios of the lab, beside `auto` on the capture of the same packets.

Errors are signed, of the mean of each epoch of each flow (500 ms or more), against the client's log: the same score for
both. Scenarios without TCP headers are left out: in the kernel `auto` follows only TCP. Needs root.

    python experiments/pirate_kernel.py [--quick] [--held-back] [--seed N] [--method auto|modes] [NAME...]
"""

import argparse

from pirate_lab import (
    QUICK_S,
    SEED,
    answered,
    answers,
    estimator_of,
    need_root,
    percent,
    reasons,
    recorded,
    signed,
)
from traces import show

from lab.scenarios import SCENARIOS, held_back
from lab.score import Score, score
from lab.servers import UDP

QUICK = ("w1-exponential", "w4-parallel-lan")
HEADER = ("scenario", "epochs", "median", "within 15%", "abstained", "off by > 50%", "abstained because")


def main() -> None:
    chosen = arguments()
    need_root()
    known = [
        name for name, one in SCENARIOS.items() if one.client.logs and not one.tunnels and one.server.protocol != UDP
    ]
    inside: dict[str, tuple[Score, str]] = {}
    outside: dict[str, tuple[Score, str]] = {}
    for name in chosen.names or (QUICK if chosen.quick else known):
        scenario = held_back(SCENARIOS[name]) if chosen.held_back else SCENARIOS[name]
        with recorded(scenario, QUICK_S if chosen.quick else None, chosen.seed, chosen.method) as record:
            assert record.in_kernel is not None
            from_file = answered(record.capture, estimator_of(chosen.method))
            for found, epochs in ((inside, record.in_kernel), (outside, from_file)):
                found[name] = score(record.truth, answers(epochs)), reasons(epochs)
    show(f"{chosen.method} in the kernel: epochs, %", HEADER, [row(name, *one) for name, one in inside.items()])
    show(f"{chosen.method} on the capture: epochs, %", HEADER, [row(name, *one) for name, one in outside.items()])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two scenarios of two seconds")
    parser.add_argument("--held-back", action="store_true", help="other service times and sizes")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--method", choices=("auto", "modes"), default="auto")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; default: all with TCP headers")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    return chosen


def row(name: str, one: Score, why: str) -> tuple[object, ...]:
    """Shares in percent; those of errors are of the epochs with an estimate."""
    shares = percent(one.close), percent(one.abstained), percent(one.far_off)
    return name, one.epochs, signed(one.median), *shares, why


if __name__ == "__main__":
    main()
