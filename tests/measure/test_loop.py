"""Intervals and the driver loop, with estimators small enough to check by hand."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import split
from wirelag.report import Report


def packets_at(times_ns: list[int]) -> PacketBatch:
    batch = PacketBatch.empty()
    others = ("blocks", "lasts", "port")  # that are no columns
    columns = {name: np.zeros((len(times_ns), *getattr(batch, name).shape[1:]), getattr(batch, name).dtype)
               for name in PacketBatch.__slots__ if name[0] != "_" and name not in others}  # fmt: skip
    columns["time_ns"] = np.array(times_ns, np.int64)
    return PacketBatch(columns)


def in_batches(times_ns: list[int], cuts: list[int]) -> Iterator[PacketBatch]:
    edges = [0, *sorted(cut % (len(times_ns) + 1) for cut in cuts), len(times_ns)]
    for start, end in itertools.pairwise(edges):
        yield packets_at(times_ns[start:end])


@dataclass(frozen=True)
class Counting:
    """Counts packets at two points; the report is the difference of the counts."""

    points = ("upstream", "downstream")

    def meter(self, point: str) -> "CountingMeter":
        return CountingMeter()

    def estimate(self, *synopses: int) -> Report:
        upstream, downstream = synopses
        return Report("counting", "one_way", packets=upstream + downstream, details={"lost": upstream - downstream})


@dataclass
class CountingMeter:
    packets: int = 0
    intervals: list[Interval] = field(default_factory=list)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        self.packets += len(packets)

    def cut(self, interval: Interval) -> int:
        seen, self.packets = self.packets, 0
        return seen


def test_packets_fall_into_intervals_aligned_to_the_epoch() -> None:
    parts = list(split([packets_at([5, 10, 19, 20, 45])], 10))
    assert [(i.start_ns, i.end_ns, p.time_ns.tolist()) for i, p in parts] == [
        (0, 10, [5]),
        (10, 20, [10, 19]),
        (20, 30, [20]),
        (40, 50, [45]),
    ]


def test_a_time_that_goes_back_stays_in_the_open_interval() -> None:
    parts = list(split([packets_at([15, 25]), packets_at([12, 26])], 10))
    assert [(i.start_ns, p.time_ns.tolist()) for i, p in parts] == [(10, [15]), (20, [25]), (20, [12, 26])]


times = st.lists(st.integers(-(10**18), 4 * 10**18) | st.integers(0, 100), max_size=60)


@given(times, st.lists(st.integers(0, 60), max_size=8), st.integers(1, 50))
def test_any_split_gives_the_same_intervals(times_ns: list[int], cuts: list[int], interval_ns: int) -> None:
    def counted(batches: Iterator[PacketBatch]) -> dict[Interval, int]:
        counts: dict[Interval, int] = {}
        for interval, part in split(batches, interval_ns):
            counts[interval] = counts.get(interval, 0) + len(part)
        return counts

    assert counted(in_batches(times_ns, cuts)) == counted(in_batches(times_ns, []))
    assert sum(counted(in_batches(times_ns, cuts)).values()) == len(times_ns)


@given(times, times, st.lists(st.integers(0, 60), max_size=6))
def test_measure_reports_every_interval_that_a_point_saw(up: list[int], down: list[int], cuts: list[int]) -> None:
    sources = {"upstream": in_batches(up, cuts), "downstream": in_batches(down, cuts)}
    reports = list(wirelag.run(Counting(), sources, 10))
    assert sum(report.packets for report in reports) == len(up) + len(down)
    starts = [report.interval.start_ns for report in reports if report.interval]
    assert starts == sorted(set(starts))
    if up == sorted(up) and down == sorted(down):
        expected = {t // 10 for t in up} | {t // 10 for t in down}
        assert starts == [10 * index for index in sorted(expected)]
        for report in reports:
            assert report.interval
            inside = range(report.interval.start_ns, report.interval.end_ns)
            assert report.details["lost"] == sum(t in inside for t in up) - sum(t in inside for t in down)


def test_without_a_length_there_is_one_report_even_without_packets() -> None:
    sources = {"upstream": [packets_at([30, 5]), packets_at([90])], "downstream": [packets_at([40])]}
    (report,) = wirelag.run(Counting(), sources)
    assert (report.interval, report.packets, report.details["lost"]) == (Interval(5, 91), 4, 2)
    (report,) = wirelag.run(Counting(), {"upstream": [], "downstream": []})
    assert (report.interval, report.packets) == (Interval(0, 0), 0)
    assert list(wirelag.run(Counting(), {"upstream": [], "downstream": []}, 10)) == []


def test_packets_of_the_wrong_points_are_refused() -> None:
    with pytest.raises(ValueError, match="needs packets of upstream, downstream, not of tap"):
        next(wirelag.run(Counting(), {"tap": []}))
