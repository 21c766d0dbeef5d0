"""Answers: are lists, verdicts and intervals built from samples right? 200 captures with known truth.

Each capture has exchanges of clients with 30 servers, or the packets of one queue at two points. All delays pass queues
with 55, 70, 85 or 95% load, so that neighbours in time are alike. The truth of an interval is the long-run value. A
list is not said where intervals do not tell the servers apart that are in the wrong order. "+-" is twice the standard
error of a share, from how captures differ.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from answer_captures import SLOWEST, Crossings, Law, RoundTrips, crossings, round_trips
from traces import show

import wirelag
from wirelag.measure.result import DelayResult, Entry

LOADS = (0.55, 0.7, 0.85, 0.95)
PACKETS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
ASKED = ("mean", "p50", "p90", "p99")
MARGINS = (0.75, 1.33)  # of the truth: an agreement that does not hold, and one that does
QUANTILES = ("0.5", "0.9", "0.99")


class Tally:
    """How often something was right, by what it is and by capture: answers about one capture are not independent."""

    def __init__(self) -> None:
        self.told: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))  # said, right
        self.silent: dict[str, int] = defaultdict(int)

    def add(self, capture: int, what: str, right: bool | None) -> None:
        """Count an answer; None: it was not given."""
        if right is None:
            self.silent[what] += 1
        else:
            one = self.told[what][capture]
            one[0] += 1
            one[1] += right

    def rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """One for each kind, and their sum."""
        kinds = sorted({*self.told, *self.silent})
        for what in kinds:
            yield (what, *self._row([what]))
        if len(kinds) > 1:
            yield ("all", *self._row(kinds))

    def _row(self, kinds: list[str]) -> tuple[str, str, str, str]:
        each = np.array([cell for what in kinds for cell in self.told[what].values()], float).reshape(-1, 2)
        silent = str(sum(self.silent[what] for what in kinds))
        said, right = each.sum(axis=0)
        if not said:
            return "-", "-", "0", silent
        apart = each[:, 1] - right / said * each[:, 0]
        error = math.sqrt(float(apart @ apart)) / said
        return f"{right / said:.1%}", f"{2 * error:.1%}", f"{said:.0f}", silent


def truth(law: Law | Crossings, figure: str) -> float:
    """The long-run value of a figure, as a report or an agreement names it."""
    if figure == "mean":
        return law.mean
    return law.quantile(float(figure.removeprefix("p")) / (100 if figure.startswith("p") else 1))


def cover(capture: int, tally: Tally, what: str, ci95: Any, law: Law | Crossings) -> None:
    """Count the intervals of one report."""
    for figure in ("mean", *QUANTILES):
        ends = ci95.get(figure)
        tally.add(capture, what, None if ends is None else ends[0] <= truth(law, figure) <= ends[1])


def ask(capture: int, tally: Tally, result_of: Any, laws: dict[str, Law]) -> None:
    """Put agreements with known verdicts, about one leg and about both."""
    asked: dict[str, bool] = {}
    for figure in ASKED:
        for leg, law in laws.items():
            asked |= {f"{leg}.{figure}<{truth(law, figure) * margin * 1e6:.0f}us": margin > 1 for margin in MARGINS}
        longest = max(truth(law, figure) for law in laws.values())
        asked |= {f"{figure}<{longest * margin * 1e6:.0f}us": margin > 1 for margin in MARGINS}
    for verdict in result_of(sla=list(asked)).to_dict()["sla"]:
        right = None if verdict["holds"] is None else verdict["holds"] == asked[verdict["question"]]
        tally.add(capture, "agreements", right)


def _right(grouped: Any, truth: list[str]) -> bool | None:
    """Whether the slowest are in the right order; None: not all are, and those that are not are not told apart."""
    found = [entry.key for entry in grouped.groups[: SLOWEST + 1]]
    if found[:SLOWEST] == truth[:SLOWEST]:
        return True
    place = {name: number for number, name in enumerate(truth)}
    wrong = {one for one, after in pairwise(found) if place[one] > place[after]}
    return None if wrong and wrong <= set(grouped.not_told_apart()) else False


def examine_round_trips(
    capture: int, trips: RoundTrips, late: bool, lists: Tally, verdicts: Tally, intervals: Tally
) -> None:
    """All answers of `rtt` on one capture."""
    for sort in ("p50", "mean", "p99"):
        grouped = wirelag.rtt(trips.path, by="server", sort=sort, top=SLOWEST + 1)
        lists.add(capture, f"by {sort}", _right(grouped, trips.servers))
    laws = {"server": trips.to_server, "client": trips.to_client}
    if late:  # the long run differs from this capture
        return
    ask(capture, verdicts, lambda **options: wirelag.rtt(trips.path, **options), laws)
    over_time = wirelag.rtt(trips.path, interval="15s")
    for leg, law in laws.items():
        cover(capture, intervals, "rtt, total", over_time.total.legs[leg].report.ci95, law)
        for entry in over_time.intervals:
            if leg in entry.legs:
                cover(capture, intervals, "rtt, intervals", entry.legs[leg].report.ci95, law)
    for entry in grouped.groups:
        cover(capture, intervals, "rtt, groups", entry.legs["server"].report.ci95, trips.of_server(entry.key))


def examine_crossings(capture: int, pair: Crossings, intervals: Tally) -> None:
    """All answers of `oneway` on two captures."""
    result: DelayResult = wirelag.oneway(pair.up, pair.down, clock="none", by="source", interval="5s")
    whole: list[tuple[str, list[Entry]]] = [
        ("oneway, total", [result.total]),
        ("oneway, intervals", result.intervals),
        ("oneway, groups", result.groups),
    ]
    for what, entries in whole:
        for entry in entries:
            cover(capture, intervals, what, entry.report.ci95, pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few captures: seconds, rough numbers")
    parser.add_argument("--seed", type=int, default=0, help="of the first capture: others of the same kinds")
    chosen = parser.parse_args()
    captures = 16 if chosen.quick else 200
    lists, verdicts, intervals = Tally(), Tally(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chosen.seed, chosen.seed + captures):
            load = LOADS[seed % len(LOADS)]
            if seed // len(LOADS) % 2:
                packets = PACKETS[seed // (2 * len(LOADS)) % len(PACKETS)]
                examine_crossings(seed, crossings(Path(folder), seed, load, packets), intervals)
            else:
                late = seed // (2 * len(LOADS)) % 2 == 1
                trips = round_trips(Path(folder) / "trips.pcap", seed, load, late)
                examine_round_trips(seed, trips, late, lists, verdicts, intervals)
    header = ("", "right", "+-", "answers", "not said")
    show(f"lists of the {SLOWEST} slowest servers, in order", header, lists.rows())
    show("verdicts on agreements that are met or missed by a quarter or more", header, verdicts.rows())
    show("95% intervals that hold the long-run value", header, intervals.rows())


if __name__ == "__main__":
    main()
