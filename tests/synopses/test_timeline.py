"""Delays over time: every part has the delays of its time, however they came and whatever travelled."""

import pickle

import numpy as np
import pytest

from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.synopses.samples import LEGS, SampleBatch
from wirelag.synopses.timeline import MOST_SLOTS, Timeline

START_NS = 1_700_000_000 * 10**9


def batch(times_ns: np.ndarray, delays_ns: np.ndarray, legs: np.ndarray) -> tuple[PacketBatch, SampleBatch]:
    columns = {name: np.zeros((len(times_ns), width) if width > 1 else len(times_ns), dtype)
               for name, dtype, width in COLUMNS}  # fmt: skip
    columns["time_ns"] = times_ns
    return PacketBatch(columns), SampleBatch(np.arange(len(times_ns)), delays_ns, legs, (), legs)


@pytest.mark.parametrize("interval_ns", [None, 10**8])
@pytest.mark.parametrize("seconds", [1e-5, 3.0, 500.0])
def test_parts_have_the_delays_of_their_time_however_they_are_split(seconds: float, interval_ns: int | None) -> None:
    rng = np.random.default_rng(round(seconds * 10))
    times_ns = START_NS + rng.integers(0, round(seconds * 1e9), 900)
    times_ns[:300] = START_NS + rng.integers(0, round(seconds * 1e7), 300)  # slots become longer, and travel so
    delays_ns, legs = rng.lognormal(15, 1, 900).astype(np.int64), rng.integers(0, 2, 900).astype(np.uint8)
    whole, apart = Timeline(interval_ns), [Timeline(interval_ns) for _ in range(3)]
    for at in range(0, 900, 100):
        some = slice(at, at + 100)
        for timeline in (whole, apart[at // 300]):
            timeline.add(*batch(times_ns[some], delays_ns[some], legs[some]))
    merged = Timeline(interval_ns)
    for other in apart:
        merged.merge(pickle.loads(pickle.dumps(other)))
    merged.merge(Timeline(interval_ns))
    for timeline in (whole, merged):
        for leg, name in enumerate(LEGS):
            parts = timeline.parts(name)
            assert len(parts) <= MOST_SLOTS
            assert parts[0][0].start_ns <= times_ns.min() < parts[0][0].end_ns
            assert parts[-1][0].start_ns <= times_ns.max() < parts[-1][0].end_ns
            for when, found in parts:
                mine = delays_ns[(times_ns >= when.start_ns) & (times_ns < when.end_ns) & (legs == leg)]
                assert (found.samples, found.sum_ns) == (len(mine), mine.sum())
                assert not len(mine) or (found.min_ns, found.max_ns) == (mine.min(), mine.max())
    assert [when for when, _ in merged.parts("server")] == [when for when, _ in whole.parts("server")]


def test_nothing_has_no_parts() -> None:
    assert Timeline().parts("server") == []
