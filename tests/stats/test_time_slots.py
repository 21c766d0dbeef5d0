"""Slots of time: they cover what was seen, and merging is exact in any order."""

import numpy as np
import pytest

from wirelag.stats.over_time import STRETCHES, Alike
from wirelag.stats.time_slots import SLOTS, TimeSlots

rng = np.random.default_rng(3)
TIMES = np.sort(rng.integers(1_700_000_000 * 10**9, 1_700_000_300 * 10**9, 5_000))
DELAYS = rng.integers(10**5, 10**8, 5_000)
LEGS = rng.integers(0, 2, 5_000).astype(np.uint8)


def _of(*parts: slice) -> TimeSlots:
    groups = TimeSlots()
    for part in parts:
        groups.add(TIMES[part], LEGS[part], DELAYS[part])
    return groups


def test_half_of_the_slots_or_more_cover_the_time() -> None:
    counts = _of(slice(None)).counts.sum(axis=0)
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
        assert (other.counts == whole.counts).all()
        assert (other.sums == whole.sums).all()
    assert merged.over_time(5_000) == whole.over_time(5_000) is not None


def test_a_change_over_time_is_in_the_error_and_a_leg_has_its_own() -> None:
    rising = TimeSlots()
    rising.add(TIMES, LEGS, np.where(LEGS == 0, DELAYS // 100 + np.arange(5_000) * 10**5, DELAYS))
    slow, even = (rising.of_leg(leg).over_time(2_500) for leg in (0, 1))
    assert slow is not None
    assert even is not None
    assert slow.stretches < STRETCHES < even.stretches
    alone = DELAYS[LEGS == 1].std() / np.sqrt((LEGS == 1).sum())
    assert 0.6 * alone < even.error[0] < 1.8 * alone
    assert TimeSlots().over_time(0) is None


def test_a_part_rests_on_as_few_stretches_as_the_whole_shows() -> None:
    slots = _of(slice(None))
    alone = slots.over_time(5_000)
    assert alone is not None
    assert alone.stretches > STRETCHES
    within = slots.over_time(5_000, Alike(60e9, 9e15))  # of 300 s
    assert within is not None
    assert within.error == alone.error
    assert within.stretches == pytest.approx(5, rel=0.01)
    assert within.of_whole == pytest.approx(9e15 / 300e9, rel=0.01)
    assert within.error_of(0.0)[0] == max(alone.error[0], within.of_whole**0.5)
