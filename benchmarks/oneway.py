"""Benchmarks of the two-point methods for `benchmarks/run.py`."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import wirelag
from wirelag import _kernels
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.estimators.rda import Rda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval

LDA = Lda(512, (0, 7))
PACKETS = 2_000_000
DIFFERENCE = 10_000
BUCKETS = 20_000
WHOLE = Interval(0, 1)
_RNG = np.random.default_rng(1)


def columns(packets: int) -> list[PacketBatch]:
    """Batches as from a reader: ids and times."""
    ids = _RNG.integers(0, 2**64, packets, dtype=np.uint64)
    times_ns = 1_700_000_000 * 10**9 + np.arange(packets, dtype=np.int64) * 1_000
    whole = PacketBatch({"packet_id": ids, "time_ns": times_ns})
    return [whole[start : start + _kernels.BATCH_ROWS] for start in range(0, packets, _kernels.BATCH_ROWS)]


def lda_of(batches: list[PacketBatch]) -> LdaSynopsis:
    """A meter over batches in memory."""
    meter = LDA.meter("upstream")
    for batch in batches:
        meter.observe(batch)
    return meter.cut(WHOLE)


def lda_of_file(path: Path) -> LdaSynopsis:
    """A meter over a capture, including reading it."""
    meter = LDA.meter("upstream")
    for batch in wirelag.read(str(path)):
        meter.observe(batch)
    return meter.cut(WHOLE)


def reconciliation() -> tuple[Rda, npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The buckets of two points with 100,000 packets each, 10,000 of which only one of them saw."""
    rda = Rda()
    each = -(-int(1.8 * DIFFERENCE + 96) // rda.banks)
    numbers = _RNG.integers(0, 2**64, 110_000, dtype=np.uint64)
    times_ns = np.arange(len(numbers), dtype=np.int64)
    half = DIFFERENCE // 2
    return rda, rda.filled(numbers[half:], times_ns[half:], each), rda.filled(numbers[:-half], times_ns[:-half], each)


def estimate() -> tuple[Lda, LdaSynopsis, LdaSynopsis]:
    """An estimator of 20,000 buckets, all in use, and the synopses of two points."""
    lda = Lda(BUCKETS, (0,), tail=1)
    batches = columns(PACKETS // 4)
    ups, downs = lda.meter("upstream"), lda.meter("downstream")
    for batch in batches:
        ups.observe(batch)
        downs.observe(batch.at_times(batch.time_ns + 50_000))
    return lda, ups.cut(WHOLE), downs.cut(WHOLE)
