"""Loss before and behind one point, from two bits that QUIC senders set: Q changes every N packets, L tells of losses.

Guarantee: loss before the point is exact over the blocks that were seen whole, up to the packets that reordering moves
across the ends of the recording, as long as fewer than 8 packets of the next block overtake the last of this one, and
no two blocks in a row are lost whole. Loss on the whole path is what the sender found out about: the share of packets
with L, which come a round trip after the loss. Loss behind the point follows from both. Intervals are from how much
blocks differ, and neighbours are alike.
Memory: 256 stretches of blocks for each direction of a connection, whatever arrives.
M. Cociglio, A. Ferrieux, G. Fioccola, I. Lubashev et al., *Explicit Host-to-Network Flow Measurements Techniques*, RFC
9506, 2023; sections 3.2 (Q) and 3.3 (L). The bits of QUIC are those of draft-ferrieuxhamchaoui-quic-lossbits.

Most senders encrypt these bits, so that each is a fair coin: a direction whose Q changes more often than every fourth
of its first 96 packets has none, and one carries them if it changes at most every eighth packet. That a coin does so
for 96 packets has a probability of 10^-14.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.stats.distribution import Z95, wilson
from wirelag.stats.over_time import Error, half95, welch

CONFIRMED: Final = 8  # packets of the other value by which it leads when a block has ended
TELLS: Final = 96  # packets that tell whether the bits are a signal
OFTEN: Final = 4  # a signal changes less often than once in this many packets,
SELDOM: Final = 8  # and is one if it changes at most once in this many
LEARNED: Final = 15  # blocks from which their length is learned
FEWEST: Final = 3  # blocks that tell it
ROUNDED: Final = 15 / 16  # reordering may lengthen a block by less
STRETCHES: Final = 256
FEWEST_STRETCHES: Final = 4  # that tell how sure a loss is
BURST: Final = 16.0  # packets that a burst may lose of which none was seen
SHOWN: Final = 10  # stretches with losses that show how long bursts are

Bits = npt.NDArray[np.bool_]


class Loss(NamedTuple):
    """A share of packets that were lost, of how many, and its error; None: too few blocks tell."""

    share: float
    of: int
    error: Error | None
    lossy: int  # stretches with losses

    @property
    def _alike(self) -> float:
        """How many packets count as one, at least: few stretches with losses do not show how long bursts are."""
        return 1 + (BURST - 1) * max(0.0, 1 - self.lossy / SHOWN)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The 95% interval: that of as many independent packets as would have this error."""
        if self.error is None:
            return None
        share, most = min(max(self.share, 0.0), 1.0), self.of / self._alike
        variance = (self.error[0] * half95(self.error[1]) / Z95) ** 2
        return wilson(share, min(most, share * (1 - share) / variance) if variance and 0 < share < 1 else most)

    @property
    def half95(self) -> float | None:
        """Half of an interval of equal halves, for differences; bursts that were not seen are in it."""
        if self.error is None:
            return None
        share = (max(self.share, 0.0) * self.of + 2 * self._alike) / (self.of + 4 * self._alike)
        return max(self.error[0] * half95(self.error[1]), Z95 * math.sqrt(self._alike * share * (1 - share) / self.of))


class Stretch(NamedTuple):
    """Blocks that follow each other: how many were sent, packets that came, and those with L."""

    blocks: int
    packets: int
    marked: int


@dataclass
class LossBits:
    """Q and L of one direction. How packets are split into batches does not matter."""

    given: int | None = None  # the length of blocks, if it is known
    packets: int = 0
    marked: int = 0  # packets with L
    changes: int = 0  # of Q, from one packet to the next
    is_random: bool = False  # Q changes as an encrypted bit does: then only packets are counted
    length: int | None = None  # of a block, as sent
    stretches: list[Stretch] = field(default_factory=list)
    _value: bool | None = None  # Q of the block that is open
    _last: bool = False  # Q of the last packet
    _open: tuple[int, int] = (0, 0)  # packets of it, and those with L
    _other: tuple[int, int] = (0, 0)  # the same of the other value, since it came up
    _lead: int = 0
    _first: bool = True  # no block has ended yet: this one began before the recording
    _waiting: list[tuple[int, int]] = field(default_factory=list)  # blocks, until their length is known
    _width: int = 1  # blocks of a stretch

    def observe(self, square: Bits, marks: Bits) -> None:
        """Look at the bits of these packets, in their order."""
        first = max(0, TELLS - self.packets)
        if first < len(square) and first:
            self.observe(square[:first], marks[:first])
            square, marks = square[first:], marks[first:]
        if self.is_random or not len(square):
            self.packets += len(square)
            return
        changes = np.flatnonzero(np.diff(square)) + 1
        edges = [0, *changes.tolist(), len(square)]
        counted = np.concatenate(([0], np.cumsum(marks)))
        self.changes += len(changes) + (self._value is not None and bool(square[0]) != self._last)
        self._last = bool(square[-1])
        for start, end in pairwise(edges):
            self._run(bool(square[start]), end - start, int(counted[end] - counted[start]))
        self.packets += len(square)
        self.marked += int(counted[-1])
        if self.packets == TELLS:
            self.is_random = self.changes * OFTEN > TELLS

    def _run(self, value: bool, count: int, marked: int) -> None:
        """Add packets of one value."""
        if self._value is None:
            self._value = value
        if value == self._value:
            self._open = self._open[0] + count, self._open[1] + marked
            self._lead = max(0, self._lead - count)
            if not self._lead:  # the others were late or early
                self._open = self._open[0] + self._other[0], self._open[1] + self._other[1]
                self._other = 0, 0
            return
        self._other = self._other[0] + count, self._other[1] + marked
        self._lead += count
        if self._lead >= CONFIRMED:
            if not self._first:
                self._ended(*self._open)
            self._first, self._value, self._lead = False, value, 0
            self._open, self._other = self._other, (0, 0)

    def _ended(self, packets: int, marked: int) -> None:
        if self.length is None:
            self._waiting.append((packets, marked))
            if self.given or len(self._waiting) == LEARNED:
                self.settle()
        else:
            self._keep(packets, marked)

    def settle(self) -> None:
        """Decide how long blocks are, if enough have been seen."""
        if self.length is None and (self.given or len(self._waiting) >= FEWEST):
            middle = sorted(packets for packets, _ in self._waiting)[len(self._waiting) // 2] if self._waiting else 0
            self.length = self.given or 1 << max(0, math.ceil(middle * ROUNDED) - 1).bit_length()
            for block in self._waiting:
                self._keep(*block)
            self._waiting.clear()

    def _keep(self, packets: int, marked: int) -> None:
        """Add a run of one value: a block, or several with those between them lost."""
        assert self.length is not None
        seen = max(1, math.ceil((packets - CONFIRMED) / self.length))
        more = Stretch(2 * seen - 1, packets, marked)
        if self.stretches and self.stretches[-1].blocks < self._width:
            self.stretches[-1] = _sum((self.stretches[-1], more))
            return
        self.stretches.append(more)
        if len(self.stretches) > STRETCHES:
            pairs = zip(self.stretches[::2], [*self.stretches[1::2], Stretch(0, 0, 0)], strict=False)
            self.stretches, self._width = [_sum(pair) for pair in pairs], 2 * self._width

    @property
    def carries(self) -> bool:
        """Whether Q is a signal, of which enough was seen to measure."""
        return (
            not self.is_random
            and self.packets >= TELLS
            and self.changes * SELDOM <= self.packets
            and bool(self.stretches)
        )

    @property
    def whole(self) -> Stretch:
        """All blocks that were seen whole."""
        return _sum(self.stretches)

    def upstream(self) -> Loss:
        """Loss between the sender and this point."""
        sent = (self.length or 0) * self.whole.blocks
        lost = [(self.length or 0) * one.blocks - one.packets for one in self.stretches]
        return Loss(sum(lost) / sent, sent, self._error(lost, sent), sum(one > 0 for one in lost))

    def end_to_end(self) -> Loss:
        """Loss between the sender and the receiver, as the sender reports it."""
        marked = [one.marked for one in self.stretches]
        error = self._error(marked, self.whole.packets)
        return Loss(self.marked / self.packets, self.packets, error, sum(one > 0 for one in marked))

    def _error(self, counts: list[int], whole: int) -> Error | None:
        """The error of a share that stretches have different counts of; neighbours are alike."""
        n = len(counts)
        if n < FEWEST_STRETCHES or not whole:
            return None
        mean = math.fsum(counts) / n
        around = [count - mean for count in counts]
        variance = math.fsum(one * one for one in around) / (n - 1)
        if not variance:
            return 0.0, n - 1.0
        alike = max(0.0, math.fsum(a * b for a, b in pairwise(around)) / (n - 1) / variance)
        told = max(2.0, n * (1 - alike) / (1 + alike))
        return math.sqrt(variance / told) * n / whole, told - 1


class Rest(NamedTuple):
    """Loss behind the point, and its 95% interval; chance alone may put it below 0."""

    share: float
    ci95: tuple[float, float] | None


def downstream(upstream: Loss, end_to_end: Loss) -> Rest:
    """What the whole path lost of what arrived here."""
    arrived = 1 - upstream.share
    if arrived <= 0:
        return Rest(0.0, None)
    share = (end_to_end.share - upstream.share) / arrived
    before, whole = upstream.half95, end_to_end.half95
    if before is None or whole is None:
        return Rest(share, None)
    half = math.hypot(before, whole) / arrived
    return Rest(share, (min(max(share - half, 0.0), 1.0), min(max(share + half, 0.0), 1.0)))


def together(losses: Iterable[Loss]) -> Loss:
    """Several directions as one."""
    known = list(losses)
    of = sum(one.of for one in known)
    share, lossy = sum(one.share * one.of for one in known) / of, sum(one.lossy for one in known)
    errors = [(one.error[0] * one.of / of, one.error[1]) for one in known if one.error is not None]
    if len(errors) < len(known):
        return Loss(share, of, None, lossy)
    error, freedom = welch(errors)
    return Loss(share, of, (error, min(freedom, float(of))), lossy)


def _sum(stretches: Iterable[Stretch]) -> Stretch:
    columns: Any = list(zip(*stretches, strict=True)) or [(0,), (0,), (0,)]
    return Stretch(*map(sum, columns))
