"""Loss bits of QUIC: blocks as their plain twin counts them, and loss of connections whose truth is known."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.loss_bits import blocks, lost
from tests.support.effort import scaled
from wirelag.estimators.loss_bits import STRETCHES, LossBits, downstream

Bits = npt.NDArray[np.bool_]


def seen(
    draw: np.random.Generator, packets: int, before: float, behind: float, burst: float = 1.0, length: int = 64
) -> tuple[Bits, Bits, int]:
    """Bits as a point between sender and receiver sees them, and how many packets were lost before it.

    Losses come in bursts of this mean length. The sender notices one 40 packets later, and marks a packet for each.
    """

    def losses(share: float) -> Bits:
        starts = draw.random(packets) < share / burst
        ends = np.minimum(np.arange(packets) + draw.geometric(1 / burst, packets), packets)
        changes = np.zeros(packets + 1, np.int64)
        np.add.at(changes, np.flatnonzero(starts), 1)
        np.add.at(changes, ends[starts], -1)
        return np.cumsum(changes[:-1]) > 0

    square = np.arange(packets) // length % 2 == 1
    early, late = losses(before), losses(behind)
    marks, unreported = np.zeros(packets, np.bool_), 0
    for i in range(packets):
        unreported += bool(i >= 40 and (early[i - 40] or late[i - 40]))
        marks[i] = unreported > 0
        unreported -= unreported > 0
    return square[~early], marks[~early], int(early.sum())


def measured(square: Bits, marks: Bits, split: int = 100) -> LossBits:
    bits = LossBits()
    for start in range(0, len(square), split):
        bits.observe(square[start : start + split], marks[start : start + split])
    bits.settle()
    return bits


@given(st.integers(0, 2**32), st.floats(0, 0.3), st.integers(0, 12), st.integers(1, 200))
def test_blocks_are_those_of_the_twin(seed: int, loss: float, late: int, split: int) -> None:
    """Whatever is lost or late, and however it is split into batches."""
    draw = np.random.default_rng(seed)
    square, marks, _ = seen(draw, 1500, loss, 0.1, burst=1 + 40 * draw.random() ** 4)
    order = np.argsort(np.arange(len(square)) + np.where(draw.random(len(square)) < 0.1, late, 0), kind="stable")
    square, marks = square[order], marks[order]
    bits = measured(square, marks, split)
    expected = blocks(list(zip(square.tolist(), marks.tolist(), strict=True)))
    if bits.is_random:  # hardly anything came, out of order
        assert len(expected) < 30
        return
    if bits.length is not None:
        sums = sum(packets for packets, _ in expected), sum(marked for _, marked in expected)
        assert (bits.whole.packets, bits.whole.marked) == sums
        sent = bits.length * bits.whole.blocks
        assert sent - bits.whole.packets == lost([packets for packets, _ in expected], bits.length)


def test_loss_before_the_point_is_exact() -> None:
    """Between the first and the last change of Q: the blocks at both ends are not whole."""
    draw = np.random.default_rng(3)
    square, marks, missing = seen(draw, 64 * 100, 0.02, 0.0)
    bits = measured(square, marks)
    assert bits.carries
    assert bits.length == 64
    assert bits.whole.blocks == 98
    assert missing - 10 <= bits.length * bits.whole.blocks - bits.whole.packets <= missing


@pytest.mark.parametrize("burst", [1.0, 8.0])
def test_intervals_hold_the_truth(burst: float) -> None:
    """The loss of a long path: before the point, behind it, and of both."""
    held, runs = np.zeros(3), scaled(240)
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        bits = measured(*seen(draw, 64 * 200, 0.01, 0.02, burst)[:2])
        before, whole = bits.upstream(), bits.end_to_end()
        # Overlapping bursts lose a little less than their sum.
        truth = tuple(1 - np.exp(-share) for share in (0.01, 0.02, 0.03))
        for i, (loss, share) in enumerate(zip((before, downstream(before, whole), whole), truth, strict=True)):
            assert loss.ci95 is not None
            held[i] += loss.ci95[0] <= share <= loss.ci95[1]
    assert held.min() >= 0.85 * runs


def test_a_block_that_is_lost_whole_is_counted() -> None:
    square = np.repeat(np.arange(40) % 2 == 1, 64)
    kept = np.repeat(np.arange(40) != 17, 64)
    bits = measured(square[kept], np.zeros(int(kept.sum()), np.bool_))
    assert bits.whole.blocks == 38
    assert 64 * bits.whole.blocks - bits.whole.packets == 64


def test_encrypted_bits_are_no_signal() -> None:
    """They are coins: nothing is measured, and only the first packets are looked at."""
    draw = np.random.default_rng(1)
    for _ in range(scaled(300)):
        bits = measured(*(draw.random(3000) < 0.5 for _ in range(2)))
        assert bits.is_random
        assert not bits.carries
        assert bits.packets == 3000


def test_memory_is_bounded() -> None:
    square, marks, missing = seen(np.random.default_rng(5), 64 * 3000, 0.01, 0.0)
    bits = measured(square, marks, 5000)
    assert len(bits.stretches) <= STRETCHES
    assert abs(64 * bits.whole.blocks - bits.whole.packets - missing) <= 10
