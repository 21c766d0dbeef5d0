"""Answers: are lists, verdicts and intervals built from samples right? 200 captures with known truth.

Each capture has exchanges of clients with 30 servers, or the packets of one queue at two points. All delays pass queues
with 55, 70, 85 or 95% load, so that neighbours in time are alike. The truth of an interval is the long-run value.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from answer_captures import SLOWEST, Crossings, Law, RoundTrips, crossings, round_trips
from traces import arguments, show

import wirelag
from wirelag.measure.result import DelayResult, Entry

LOADS = (0.55, 0.7, 0.85, 0.95)
PACKETS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
ASKED = ("mean", "p50", "p90", "p99")
MARGINS = (0.75, 1.33)  # of the truth: an agreement that does not hold, and one that does
QUANTILES = ("0.5", "0.9", "0.99")


class Tally:
    """How often something was right, by what it is."""

    def __init__(self) -> None:
        self.right: dict[str, int] = defaultdict(int)
        self.said: dict[str, int] = defaultdict(int)
        self.silent: dict[str, int] = defaultdict(int)

    def add(self, what: str, right: bool | None) -> None:
        """Count an answer; None: it was not given."""
        if right is None:
            self.silent[what] += 1
        else:
            self.said[what] += 1
            self.right[what] += right

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """One for each kind, and their sum."""
        kinds = sorted({*self.said, *self.silent})
        for what in kinds:
            yield (what, *self._row([what]))
        if len(kinds) > 1:
            yield ("all", *self._row(kinds))

    def _row(self, kinds: list[str]) -> tuple[str, str, str]:
        right, said, silent = (sum(one[what] for what in kinds) for one in (self.right, self.said, self.silent))
        return f"{right / said:.1%}" if said else "-", str(said), str(silent)


def truth(law: Law | Crossings, figure: str) -> float:
    """The long-run value of a figure, as a report or an agreement names it."""
    if figure == "mean":
        return law.mean
    return law.quantile(float(figure.removeprefix("p")) / (100 if figure.startswith("p") else 1))


def cover(tally: Tally, what: str, ci95: Any, law: Law | Crossings) -> None:
    """Count the intervals of one report."""
    for figure in ("mean", *QUANTILES):
        ends = ci95.get(figure)
        tally.add(what, None if ends is None else ends[0] <= truth(law, figure) <= ends[1])


def ask(tally: Tally, result_of: Any, laws: dict[str, Law]) -> None:
    """Put agreements with known verdicts, about one leg and about both."""
    asked: dict[str, bool] = {}
    for figure in ASKED:
        for leg, law in laws.items():
            asked |= {f"{leg}.{figure}<{truth(law, figure) * margin * 1e6:.0f}us": margin > 1 for margin in MARGINS}
        longest = max(truth(law, figure) for law in laws.values())
        asked |= {f"{figure}<{longest * margin * 1e6:.0f}us": margin > 1 for margin in MARGINS}
    for verdict in result_of(sla=list(asked)).to_dict()["sla"]:
        tally.add("agreements", None if verdict["holds"] is None else verdict["holds"] == asked[verdict["question"]])


def examine_round_trips(trips: RoundTrips, late: bool, lists: Tally, verdicts: Tally, intervals: Tally) -> None:
    """All answers of `rtt` on one capture."""
    for sort in ("p50", "mean", "p99"):
        grouped = wirelag.rtt(trips.path, by="server", sort=sort, top=SLOWEST)
        found = [entry.key for entry in grouped.groups[:SLOWEST]]
        lists.add(f"by {sort}", found == trips.servers[:SLOWEST])
    laws = {"server": trips.to_server, "client": trips.to_client}
    if late:  # the long run differs from this capture
        return
    ask(verdicts, lambda **options: wirelag.rtt(trips.path, **options), laws)
    over_time = wirelag.rtt(trips.path, interval="15s")
    for leg, law in laws.items():
        cover(intervals, "rtt, total", over_time.total.legs[leg].report.ci95, law)
        for entry in over_time.intervals:
            if leg in entry.legs:
                cover(intervals, "rtt, intervals", entry.legs[leg].report.ci95, law)
    for entry in grouped.groups:
        cover(intervals, "rtt, groups", entry.legs["server"].report.ci95, trips.of_server(entry.key))


def examine_crossings(pair: Crossings, intervals: Tally) -> None:
    """All answers of `oneway` on two captures."""
    result: DelayResult = wirelag.oneway(pair.up, pair.down, clock="none", by="source", interval="5s")
    whole: list[tuple[str, list[Entry]]] = [
        ("oneway, total", [result.total]),
        ("oneway, intervals", result.intervals),
        ("oneway, groups", result.groups),
    ]
    for what, entries in whole:
        for entry in entries:
            cover(intervals, what, entry.report.ci95, pair)


def main() -> None:
    chosen = arguments(__doc__)
    captures = 16 if chosen.quick else 200
    lists, verdicts, intervals = Tally(), Tally(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(captures):
            load = LOADS[seed % len(LOADS)]
            if seed // len(LOADS) % 2:
                packets = PACKETS[seed // (2 * len(LOADS)) % len(PACKETS)]
                examine_crossings(crossings(Path(folder), seed, load, packets), intervals)
            else:
                late = seed // (2 * len(LOADS)) % 2 == 1
                trips = round_trips(Path(folder) / "trips.pcap", seed, load, late)
                examine_round_trips(trips, late, lists, verdicts, intervals)
    header = ("", "right", "answers", "not said")
    show(f"lists of the {SLOWEST} slowest servers, in order", header, lists.rows())
    show("verdicts on agreements that are met or missed by a quarter or more", header, verdicts.rows())
    show("95% intervals that hold the long-run value", header, intervals.rows())


if __name__ == "__main__":
    main()
