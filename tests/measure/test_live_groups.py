"""Groups of live traffic: all that fit a stated memory, then those with the most samples."""

from collections import Counter

import numpy as np
import pytest

from wirelag.measure.live import BIN_BYTES, GROUP_BYTES, GroupPart, LiveGroups, LiveInterval, Sums
from wirelag.packets.grouping import OTHER_KEY
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.stats.distribution import Distribution

NO_REPORT = Report("match", "round_trip")


def interval(delays: dict[str, list[int]]) -> LiveInterval:
    parts = []
    for key, each_ns in delays.items():
        found, sums = Distribution(), Sums()
        found.add(np.array(each_ns, np.int64))
        sums.add(len(each_ns), sum(each_ns))
        parts.append(GroupPart(key, "match", "server", sums, (), found.compact()))
    return LiveInterval(Interval(0, 1), NO_REPORT, Distribution(), by_group=parts)


def held_bytes(groups: LiveGroups) -> int:
    small = [key for key in groups.sums if key[0] != OTHER_KEY]
    return sum(GROUP_BYTES + BIN_BYTES * len(groups.delays[key].bins) for key in small)


@pytest.mark.every(2)
@pytest.mark.parametrize("memory", [40_000, 200_000])
def test_memory_is_never_exceeded_and_large_groups_stay(memory: int) -> None:
    """Without the floor a group that comes late would never stay."""
    rng, true = np.random.default_rng(4), Counter[str]()
    groups, sum_ns = LiveGroups(memory), 0
    for second in range(40):
        names = [f"small {int(n)}" for n in rng.integers(0, 3_000, 120)]
        names += ["early"] * 40 + (["late"] * 60 if second >= 20 else [])
        delays: dict[str, list[int]] = {}
        for name in names:
            delays.setdefault(name, []).append(int(rng.lognormal(15, 1)))
        true.update(names)
        sum_ns += sum(map(sum, delays.values()))
        groups.add(interval(delays))
        assert held_bytes(groups) <= memory
    assert sum(sums.samples for sums in groups.sums.values()) == true.total()
    assert sum(sums.sum_ns for sums in groups.sums.values()) == sum_ns
    assert sum(delays.samples for delays in groups.delays.values()) == true.total()
    found = {name: sums.samples for (name, *_), sums in groups.sums.items()}
    for name, count in true.items():
        if count > groups.floor:
            assert name in found
            assert count - groups.floor <= found[name] <= count
    assert {"early", "late", OTHER_KEY} <= set(found)
    assert any("did not fit --group-memory" in note for note in groups.notes())


def test_a_small_group_takes_little() -> None:
    """As dense histograms, 128 MiB would hold 419 groups of one delay each."""
    groups = LiveGroups(32 << 20)
    groups.add(interval({f"group {n}": [1_000 + n] for n in range(15_000)}))
    assert len(groups) == 15_000
    assert not groups.notes()
    slowest = groups.entries("round_trip", 3)
    assert [entry.key for entry in slowest] == ["group 14999", "group 14998", "group 14997"]
    assert [entry.report.max for entry in slowest] == [15_999e-9, 15_998e-9, 15_997e-9]


def test_sparse_sums_equal_dense_ones() -> None:
    rng = np.random.default_rng(1)
    parts = []
    for count in (0, 1, 500, 3):
        part = Distribution()
        part.add(rng.lognormal(14, 2, count).astype(np.int64), rng.integers(1, 9, count))
        parts.append(part)
    dense, sparse = Distribution(), Distribution().compact()
    for part in parts:
        dense.merge(part)
        sparse = sparse.plus(part)
    assert len(sparse.bins) == np.count_nonzero(dense.weights)
    for name in ("samples", "weight", "sum_ns", "sum_squares", "min_ns", "max_ns", "std_ns", "effective_samples"):
        assert getattr(sparse, name) == getattr(dense, name)
    for q in (0.01, 0.5, 0.9, 0.999):
        assert sparse.quantile_ns(q) == dense.quantile_ns(q)
