"""Answers: why groups with few delays have no interval. How many of the intervals that they would have hold the truth.

One packet in 3, or in 8, of a queue by its length is a group of 32 to 127 delays; independent delays are beside them.
The statistics are those of `oneway`, without the least number of delays (`FEWEST_DELAYS`). A figure without an interval
is silent. Each share has twice its standard error beside it, from how groups differ.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import pairwise

import numpy as np
from coverage import BEGIN_NS, Cell, count, text
from coverage_reports import crossings
from delay_processes import PROCESSES, SHORT, Process
from traces import show

from wirelag.stats import over_time

EDGES = (32, 48, 64, 80, 96, 128)  # delays of a group
ONE_IN = (3, 8)
COLUMNS: dict[str, Process] = {f"queue, {process.name.rpartition(' ')[2]}": process for process in SHORT}
COLUMNS["independent"] = PROCESSES[0]


def group(rng: np.random.Generator, process: Process, one_in: int, delays: int) -> dict[str, tuple[float, float]]:
    """The intervals of a group of this many delays."""
    packets = one_in * delays
    seconds = np.sort(rng.uniform(0, process.seconds(packets), packets))
    mine = np.sort(rng.choice(packets, delays, replace=False))
    delays_ns = np.round(process.over_time(rng, seconds)[mine] * 1e9).astype(np.int64)
    sent_ns = BEGIN_NS + np.round(seconds[mine] * 1e9).astype(np.int64)
    (found,) = crossings(sent_ns, delays_ns, np.zeros(delays), 10**18)["total"]
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few groups: seconds, rough numbers")
    parser.add_argument("--seed", type=int, default=0, help="other groups of the same kinds")
    chosen = parser.parse_args()
    over_time.FEWEST_DELAYS = EDGES[0]  # type: ignore[misc]
    rows = []
    for least, end in pairwise(EDGES):
        told: dict[tuple[str, str, str, int, str], Cell] = defaultdict(Cell)
        cells = {name: Cell() for name in ("queues", *COLUMNS)}
        for place, (name, process) in enumerate(COLUMNS.items()):
            for number in range(30 if chosen.quick else 600):
                rng = np.random.default_rng([chosen.seed, number, place, least])
                ci95 = group(rng, process, ONE_IN[number % 2], int(rng.integers(least, end)))
                count(told, ("oneway", name, 0), number, {"groups": [ci95]}, process.truth)
        for (_, _, name, _, _), cell in told.items():
            cells[name].merge(cell, least)
            if name != "independent":
                cells["queues"].merge(cell, hash(name))
        rows.append((f"{least} to {end - 1}", *map(text, cells.values())))
    show(
        "95% intervals of groups that hold the long-run value, twice the error of that share, figures that are silent",
        ["delays", "queues", *COLUMNS],
        rows,
    )


if __name__ == "__main__":
    main()
