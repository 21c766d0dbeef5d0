"""Slots of time: they cover what was seen, and merging is exact in any order."""

import numpy as np
import pytest

from wirelag.stats.over_time import STRETCHES
from wirelag.stats.spread import Spread
from wirelag.stats.time_slots import SLOTS, TimeSlots

rng = np.random.default_rng(3)
TIMES = np.sort(rng.integers(1_700_000_000 * 10**9, 1_700_000_300 * 10**9, 5_000))
DELAYS = rng.integers(10**5, 10**8, 5_000)
LEGS = rng.integers(0, 2, 5_000).astype(np.uint8)


def _of(*parts: slice) -> TimeSlots:
    groups = TimeSlots()
    for part in parts:
        groups.add(TIMES[part], np.ones(len(TIMES[part]), np.bool_), DELAYS[part])
    return groups


def test_half_of_the_slots_or_more_cover_the_time() -> None:
    counts = np.asarray(_of(slice(None)).counts)
    assert counts.sum() == len(TIMES)
    assert SLOTS / 2 <= np.flatnonzero(counts)[-1] < SLOTS


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_same_in_any_order_and_by_merging(order: tuple[int, ...]) -> None:
    parts = [slice(i * 1250, (i + 1) * 1250) for i in range(4)]
    whole = _of(slice(None))
    added = _of(*(parts[i] for i in order))
    merged = TimeSlots()
    for i in order:
        merged.merge(_of(parts[i]))
    for other in (added, merged):
        assert list(other.counts) == list(whole.counts)
        assert list(other.sums) == list(whole.sums)
    assert merged.over_time(5_000) == whole.over_time(5_000) is not None


def test_a_change_over_time_is_in_the_error_and_a_leg_has_its_own() -> None:
    rising, rows = Spread(), np.arange(5_000, dtype=np.uint32)
    delays = np.where(LEGS == 0, DELAYS // 100 + np.arange(5_000) * 10**5, DELAYS)
    rising.add(rows.astype(np.uint64), TIMES, rows, LEGS, delays)
    slow, even = (rising.of_leg(leg).over_time(2_500) for leg in (0, 1))
    assert slow is not None
    assert even is not None
    assert slow.stretches < STRETCHES < even.stretches
    alone = DELAYS[LEGS == 1].std() / np.sqrt((LEGS == 1).sum())
    assert 0.6 * alone < even.error[0] < 1.8 * alone
    assert TimeSlots().over_time(0) is None


def test_a_leg_has_the_slots_that_it_would_have_alone() -> None:
    """The other leg lasts ten times as long: before, slots were as long as it needs."""
    spread, rows = Spread(), np.arange(5_000, dtype=np.uint32)
    times = np.where(LEGS == 0, TIMES[0] + (TIMES - TIMES[0]) // 10, TIMES)
    spread.add(rows.astype(np.uint64), times, rows, LEGS, DELAYS)
    alone = TimeSlots()
    alone.add(times, LEGS == 0, DELAYS)
    assert spread.of_leg(0).over_time(2_500) == alone.over_time(2_500) is not None
    assert spread.over_time(5_000) not in (None, alone.over_time(2_500))
