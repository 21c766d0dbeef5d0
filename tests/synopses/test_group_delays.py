"""Delays by group in a fixed memory: equal to the twin, within the bounds it states, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.oracles import groups as twin
from wirelag import _kernels
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER_KEY
from wirelag.stats.distribution import Distribution
from wirelag.synopses.group_delays import LEAST_MEMORY, GroupDelays, distinct

Ints = npt.NDArray[Any]


def stream(seed: int, samples: int, groups: int, skew: float) -> tuple[Ints, Ints, Ints, Ints]:
    """Keys, some far more often than others, and at the end one that has every bin; legs, delays and weights."""
    rng = np.random.default_rng(seed)
    keys = (groups * rng.random(samples) ** skew).astype(np.int64)
    delays = rng.lognormal(15, 1.5, samples).astype(np.int64)
    wide = np.exp2(rng.uniform(0, 44, 4_000)).astype(np.int64)
    keys, delays = np.append(keys, np.full(len(wide), groups + 7)), np.append(delays, wide)
    return keys, rng.integers(0, 2, len(keys)).astype(np.uint8), delays, rng.integers(1, 5, len(keys))


def packets_of(keys: Ints) -> PacketBatch:
    """A packet per key, of that server port."""
    ports = {"src_port": keys.astype(np.uint16), "dst_port": keys.astype(np.uint16)}
    return PacketBatch({"time_ns": np.arange(len(keys)), **ports})


def filled(columns: tuple[Ints, Ints, Ints, Ints], parts: int = 1, memory: int = LEAST_MEMORY) -> GroupDelays:
    found = GroupDelays("port", memory=memory)
    for keys, legs, delays, weights in zip(*(np.array_split(column, parts) for column in columns), strict=True):
        found.add(packets_of(keys), np.arange(len(keys)), legs, delays, weights)
    return found


def plain(groups: GroupDelays) -> dict[str, Any]:
    """All that is kept, as plain values."""
    return {
        group.key: (group.before, [(*sums(one), *held(one)) for one in groups.delays(group.place)])
        for group in groups.groups()
    }


def name(port: int) -> str:
    return str(port) if port else "no port"


def number(key: str) -> int:
    return int(key) if key != "no port" else 0


def sums(delays: Distribution) -> tuple[Any, ...]:
    return delays.samples, delays.weight, delays.sum_ns, delays.sum_squares, delays.min_ns, delays.max_ns


def held(delays: Distribution) -> tuple[Any, ...]:
    full = np.flatnonzero(delays.weights)
    return delays.bins[full].tolist(), delays.weights[full].tolist(), delays.squares[full].tolist()


def told(delays: list[tuple[int, int, int]], leg: int) -> tuple[Any, ...]:
    """The same from single delays."""
    mine = [(delay, weight) for one, delay, weight in delays if one == leg]
    bins: dict[int, list[int]] = {}
    for delay, weight in mine:
        cell = bins.setdefault(twin.bin_of(delay), [0, 0])
        cell[0] += weight
        cell[1] += weight * weight
    only = [delay for delay, _ in mine]
    return (
        len(mine),
        sum(weight for _, weight in mine),
        sum(delay * weight for delay, weight in mine),
        sum(delay * delay * weight for delay, weight in mine),
        min(only, default=None),
        max(only, default=None),
        sorted(bins),
        [bins[one][0] for one in sorted(bins)],
        [bins[one][1] for one in sorted(bins)],
    )


@pytest.mark.every(2)
@pytest.mark.parametrize(("groups", "skew"), [(30, 1.0), (900, 1.0), (9_000, 1.0), (60_000, 3.0)])
def test_equal_to_the_twin(groups: int, skew: float) -> None:
    columns = stream(groups, 24_000, groups, skew)
    expected = twin.Groups(LEAST_MEMORY)
    for key, leg, delay, weight in zip(*(column.tolist() for column in columns), strict=True):
        expected.add(key, leg, delay, weight)
    found = filled(columns, parts=7)
    assert (len(found), found.floor, found.complete) == (len(expected.kept), expected.floor, not expected.left)
    assert [group.key for group in found.groups() if group.place] == [name(key) for key in expected.kept]
    mine = plain(found)
    for key, one in expected.kept.items():
        assert mine[name(key)] == (one.before, [told(one.delays, leg) for leg in (0, 1)])
    if expected.left:
        assert mine[OTHER_KEY][1] == [told(expected.other, leg) for leg in (0, 1)]
        assert found.groups_in_other == pytest.approx(len(expected.gone), rel=0.04)
    assert (groups > 30) == bool(expected.left)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_hold(seed: int) -> None:
    columns = stream(seed, 100_000, 60_000, 4.0)
    found, truth = filled(columns), Counter(columns[0].tolist())
    kept = {number(group.key): group for group in found.groups() if group.place}
    assert 0 < len(kept) < len(truth)
    for key, count in truth.items():
        if key in kept:
            own = sum(one.samples for one in found.delays(kept[key].place))
            assert own <= count <= own + kept[key].before
            assert kept[key].before <= found.floor
        else:
            assert count <= found.floor
    assert sum(one.samples for group in found.groups() for one in found.delays(group.place)) == len(columns[0])
    # The largest groups have nearly all of their delays, and none of them is missing.
    for key, count in truth.most_common(20):
        assert sum(one.samples for one in found.delays(kept[key].place)) > 0.9 * count


def test_the_split_into_batches_does_not_matter() -> None:
    columns = stream(3, 30_000, 20_000, 2.0)
    assert plain(filled(columns)) == plain(filled(columns, parts=301))


def test_merging_adds_up_and_keeps_the_bounds() -> None:
    one, other = stream(1, 40_000, 60_000, 3.0), stream(2, 40_000, 60_000, 3.0)
    merged = filled(one)
    merged.merge(filled(other))
    truth = Counter([*one[0].tolist(), *other[0].tolist()])
    kept = {number(group.key): group for group in merged.groups() if group.place}
    for key, count in truth.items():
        own = sum(each.samples for each in merged.delays(kept[key].place)) if key in kept else 0
        assert own <= count <= (own + kept[key].before if key in kept else merged.floor)
    total = [Distribution(), Distribution()]
    for group in merged.groups():
        for mine, more in zip(total, merged.delays(group.place), strict=True):
            mine.merge(more)
    for leg, mine in enumerate(total):
        columns = [np.concatenate((a[a_leg == leg], b[b_leg == leg])) for a, b, a_leg, b_leg in (
            (one[2], other[2], one[1], other[1]), (one[3], other[3], one[1], other[1]))]  # fmt: skip
        whole = Distribution()
        whole.add(columns[0], columns[1])
        assert sums(mine) == sums(whole)
        assert held(mine) == held(whole)


def test_merging_is_exact_while_groups_fit() -> None:
    columns = stream(5, 20_000, 500, 1.0)
    halves = [tuple(column[part] for column in columns) for part in (slice(0, 9_000), slice(9_000, None))]
    merged, rest = (filled(half, memory=8 << 20) for half in halves)  # type: ignore[arg-type]
    merged.merge(rest)
    assert plain(merged) == plain(filled(columns, memory=8 << 20))


def test_small_groups_are_small() -> None:
    keys = np.repeat(np.arange(20_000), 3)
    delays = np.random.default_rng(1).lognormal(15, 1, len(keys)).astype(np.int64)
    found = GroupDelays("port", memory=16 << 20)
    found.add(packets_of(keys), np.arange(len(keys)), np.zeros(len(keys), np.uint8), delays)
    assert len(found) == 20_000
    assert found.bytes_used / len(found) <= 320
    assert filled(stream(1, 50_000, 60_000, 1.0)).bytes_used <= LEAST_MEMORY


@pytest.mark.parametrize("number", [0, 1, 50, 3_000, 40_000, 300_000])
def test_distinct_groups_are_estimated_within_two_percent(number: int) -> None:
    rng = np.random.default_rng(number)
    hashes = rng.integers(0, 2**64, number, np.uint64)
    ranks = np.zeros(_kernels.GROUP_REGISTERS, np.uint8)
    rest = hashes << np.uint64(14) | np.uint64(1 << 13)
    zeros = 63 - np.floor(np.log2(rest.astype(np.longdouble))).astype(int)
    np.maximum.at(ranks, (hashes >> np.uint64(50)).astype(int), (zeros + 1).astype(np.uint8))
    assert distinct(ranks) == pytest.approx(number, rel=0.02, abs=1)


def test_wrong_shapes_are_refused() -> None:
    groups = _kernels.Groups(LEAST_MEMORY, 1, 6)
    none, tags = np.empty(0, np.int64), np.empty(1, np.uint64)
    with pytest.raises(ValueError, match="a key, a leg and a tag"):
        groups.add(np.zeros(5, np.uint64), np.zeros(1, np.uint8), np.zeros(1, np.int64), none, tags)
    with pytest.raises(ValueError, match="no group is there"):
        groups.records(np.array([1], np.uint32), np.empty(_kernels.GROUP_RECORD_WORDS, np.uint64))
    with pytest.raises(ValueError, match="at least 1 MiB"):
        _kernels.Groups(1000, 1, 6)
    with pytest.raises(ValueError, match="same kind"):
        groups.merge(_kernels.Groups(LEAST_MEMORY, 2, 6))
