"""Delays of groups over time: close to those of all samples, in bounded memory."""

import numpy as np
import pytest

from tests.oracles.group_times import NaiveGroupTimes
from wirelag import _kernels
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.stats.distribution import Distribution
from wirelag.synopses import group_times
from wirelag.synopses.group_times import MOST_SLOTS, GroupTimes
from wirelag.synopses.samples import SampleBatch

START_NS = 1_700_000_000 * 10**9


def batches(count: int, groups: int, seconds: float, seed: int) -> list[tuple[PacketBatch, SampleBatch]]:
    rng = np.random.default_rng(seed)
    made = []
    for times_ns in np.array_split(START_NS + np.sort(rng.integers(0, round(seconds * 1e9), count)), 7):
        columns = {name: np.zeros((len(times_ns), width) if width > 1 else len(times_ns), dtype)
                   for name, dtype, width in COLUMNS}  # fmt: skip
        columns["time_ns"] = times_ns
        tags = rng.integers(1, groups + 1, len(times_ns)).astype(np.uint64) << np.uint64(40)
        delays_ns, legs = rng.lognormal(15, 1, len(times_ns)).astype(np.int64), rng.integers(0, 2, len(times_ns))
        samples = SampleBatch(np.arange(len(times_ns)), delays_ns, legs.astype(np.uint8), (), legs, None, tags)
        made.append((PacketBatch(columns), samples))
    return made


@pytest.mark.parametrize("seconds", [1e-4, 0.7, 3600])
def test_each_group_has_its_delays_and_times(seconds: float) -> None:
    given, times = batches(20_000, 5, seconds, 1), GroupTimes("server")
    for packets, samples in given:
        times.add(packets, samples)
    tag = 3 << 40
    mine = [(one.tags == tag) & (one.legs == 0) for _, one in given]
    at_ns = np.concatenate([packets.time_ns[some] for (packets, _), some in zip(given, mine, strict=True)])
    delays_ns = np.concatenate([one.delays_ns[some] for (_, one), some in zip(given, mine, strict=True)])
    found = times.of(tag, [0.5])
    assert found is not None
    assert MOST_SLOTS / 6 < len(found.when) <= MOST_SLOTS + 1
    weights = [int(((at_ns >= when.start_ns) & (at_ns < when.end_ns)).sum()) for when in found.when]
    assert [ns is None for ns in found.quantiles_ns[0]] == [not weight for weight in weights]
    assert found.whole.weight == len(at_ns)
    when, middle_ns, _ = max(zip(found.when, found.quantiles_ns[0], weights, strict=True), key=lambda one: one[2])
    here = delays_ns[(at_ns >= when.start_ns) & (at_ns < when.end_ns)]
    assert middle_ns is not None
    low_ns, high_ns = np.quantile(here, [0.49, 0.51], method="inverted_cdf")
    assert low_ns / 1.1 < middle_ns < high_ns * 1.1
    assert times.of(99, [0.5]) is None
    assert times.left_out == 0


def test_memory_is_bounded_and_what_did_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_times, "MOST_CELLS", 100)
    times = GroupTimes()
    for packets, samples in batches(5_000, 1_000, 10, 2):
        times.add(packets, samples)
    tags = np.arange(1, 1_001).astype(np.uint64) << np.uint64(40)
    kept = [0 if (found := times.of(int(tag), [])) is None else sum(found.counts) for tag in tags]
    assert sum(one > 0 for one in kept) <= 100
    assert sum(kept) + times.left_out == 5_000
    assert times.left_out > 0


@pytest.mark.parametrize(("most_cells", "most_slots"), [(1 << 15, 120), (100, 120), (64, 7), (1, 1)])
def test_counts_are_those_of_the_twin_however_they_are_split(most_cells: int, most_slots: int) -> None:
    rng = np.random.default_rng(most_cells)
    count = 600
    times_ns = np.cumsum(rng.integers(-500, 3_000, count) * 10 ** rng.integers(0, 7, count)) - 10**9
    ends_ns = [-1, 0, 1, 2, 2**41 - 1, 2**41, 2**62]
    delays_ns = np.concatenate((ends_ns, 2 ** rng.uniform(0, 45, count - len(ends_ns)))).astype(np.int64)
    tags, weights = rng.integers(1, 40, count).astype(np.uint64), rng.integers(1, 9, count)
    legs, rows = rng.integers(0, 2, count).astype(np.uint8), np.arange(count, dtype=np.uint32)
    naive = NaiveGroupTimes(most_cells, most_slots)
    for tag, time_ns, delay_ns, weight, leg in zip(tags, times_ns, delays_ns, weights, legs, strict=True):
        if leg == 0:
            naive.add(int(tag), int(time_ns), int(delay_ns), int(weight))
    for parts in (1, 17):
        kernel = _kernels.GroupTimes(most_cells, most_slots)
        for some in np.array_split(rows, parts):
            kernel.add(times_ns, some, legs[some], delays_ns[some], weights[some], tags[some], 1)
        told = kernel.first, kernel.last, kernel.length_ns, kernel.left_out
        assert told == (naive.first, naive.last, naive.length_ns, naive.left_out)
        found, slots = {}, range(kernel.first, kernel.last + 1)
        for tag in range(1, 40):
            out = np.zeros((len(slots), _kernels.EIGHTHS), np.uint32)
            if kernel.counts(tag, out.reshape(-1)):
                for slot, counts in zip(slots, out, strict=True):
                    if held := np.flatnonzero(counts).tolist():
                        found[tag, slot] = {place: int(counts[place]) for place in held}
        assert found == naive.cells


def test_figures_are_those_of_the_delays() -> None:
    middles = _kernels.eighth_middles()
    assert middles == [round(2.0 ** ((eighth + 0.5) / 8)) for eighth in range(_kernels.EIGHTHS)]
    rng, times, tag = np.random.default_rng(3), GroupTimes(), 7
    each, whole = [Distribution() for _ in range(6)], Distribution()
    for slot, first in enumerate((0, 30, 48, 200, _kernels.EIGHTHS - 1, None)):
        held = [tag] if first is None else [*range(first, _kernels.EIGHTHS, 3)]
        delays_ns, weights = np.array(middles)[held], rng.integers(1, 2**20, len(held))
        tags = np.full(len(held), tag + (first is None), np.uint64)  # in the last slot the group has none
        rows, legs = np.arange(len(held), dtype=np.uint32), np.zeros(len(held), np.uint8)
        times.kernel.add(np.full(len(held), 1_000 * slot), rows, legs, delays_ns, weights, tags, 3)
        if first is not None:
            each[slot].add(delays_ns, weights)
            whole.merge(each[slot])
    shares = [0, 0.5, 0.99, 1]
    found = times.of(tag, shares)
    assert found is not None
    assert found.quantiles_ns == [[delays.quantile_ns(q) for delays in each] for q in shares]
    assert found.quantiles_ns[1][-1] is None
    assert [found.whole.quantile_ns(q) for q in shares] == [whole.quantile_ns(q) for q in shares]
    assert (found.whole.weight, found.whole.sum_ns) == (whole.weight, whole.sum_ns)
