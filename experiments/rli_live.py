"""RLI: agents measure every flow through a shaped queue (tbf), live; captures at both hosts are the truth.

The same datagrams pass the queue twice for each load. The first time the client's agent sends references by the
adaptive policy and the server's interpolates with `busy`: the defaults. The second time references go every 10 ms and
it interpolates linearly: what agents did before. The traffic is the simulator's, at its own pace; flows of fewer than
ten packets share 64 pairs of ports, so that the collector keeps every other flow. Needs root.

    python experiments/rli_live.py [--quick] [--mbit N...] [--every T...] [--seed N]      other queues, other references

`--every`: the longest time between references of the adaptive policy, instead of 2 ms.
"""

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from traces import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from lab.shaped import RECORD, Flows, Setting, run
from wirelag.sim.bursts import draw_bursts

MBIT, SECONDS, QUICK_S, SEED = 100.0, 20.0, 6.0, 2
LOADS = (0.55, 0.70, 0.88)
LEAST, SMALL = 10, 64  # packets of a flow that counts; pairs of ports of the others
IP_UDP_BYTES, LEAST_PAYLOAD, MOST_PAYLOAD = 28, 12, 1472
BEFORE = "1-in-tau, linear"


def settings(mbit: float, every: str | None) -> dict[str, Setting]:
    """What agents do by default, and what they did before; `every`: the most between adaptive references."""
    link = f'link = "{mbit:g}Mbps"'
    longest = "" if every is None else f'\npolicy = "adaptive"\nevery = "{every}"'
    return {
        "adaptive, busy": Setting(mbit, link + longest, "busy"),
        BEFORE: Setting(mbit, f'{link}\npolicy = "1-in-tau"\nevery = "10ms"', "linear"),
    }


def schedule(load: float, mbit: float, seconds: float, seed: int) -> npt.NDArray[np.void]:
    """Datagrams of many flows that load the queue."""
    bursts = draw_bursts(load * mbit * 125_000, seconds, seed)
    found = np.zeros(len(bursts), RECORD)
    found["time_ns"] = bursts.time_ns
    found["bytes"] = np.clip(bursts.size.astype(np.int64) - IP_UDP_BYTES, LEAST_PAYLOAD, MOST_PAYLOAD)
    small = np.bincount(bursts.flow, minlength=bursts.flows)[bursts.flow] < LEAST
    number = np.where(small, bursts.flow % SMALL, bursts.flow.astype(np.int64) + SMALL)
    found["flow"] = np.unique(number, return_inverse=True)[1]
    return found


def figures(
    seconds: float, mbit: float = MBIT, every: str | None = None, seed: int = SEED
) -> dict[tuple[float, str], Flows]:
    """Run every load."""
    found = {}
    for load in LOADS:
        sent = schedule(load, mbit, seconds, seed)
        for name, setting in settings(mbit, every).items():
            with TemporaryDirectory() as folder:
                found[load, name] = run(setting, sent, Path(folder))
    return found


def show_figures(title: str, found: dict[tuple[float, str], Flows]) -> None:
    rows = []
    for (load, name), one in found.items():
        errors = one.errors(LEAST)
        flows = int((one.packets >= LEAST).sum())
        before = np.median(found[load, BEFORE].errors(LEAST))
        rows.append(
            (
                f"{name}, u = {load:.2f}",
                f"{one.load:.3f}",
                f"{len(errors)} of {flows}",
                f"{1e-6 * np.average(one.true_ns, weights=one.packets):.2f}",
                f"{one.references}",
                *(f"{value:.3f}" for value in np.quantile(errors, (0.5, 0.9))),
                f"{before / np.median(errors):.1f}",
            )
        )
    header = (
        *("", "load", f"flows of {LEAST} packets", "mean delay, ms", "references"),
        *("error of the mean, 50%", "90%", "times better"),
    )
    show(title, header, rows)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s of each: rough numbers")
    parser.add_argument("--mbit", type=float, nargs="+", default=[MBIT], help="of the queue")
    parser.add_argument("--every", nargs="+", default=[None], help="the most between adaptive references")
    parser.add_argument("--seed", type=int, default=SEED, help="of the traffic")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)
    for mbit in asked.mbit:
        for every in asked.every:
            apart = "" if every is None else f", references at most {every} apart"
            found = figures(QUICK_S if asked.quick else SECONDS, mbit, every, asked.seed)
            show_figures(f"a queue of {mbit:g} Mbit/s (tbf) between two agents{apart}", found)
