"""Two points read in step: whenever reading is stopped, both have been read up to the same packet.

Law: batches of a point come in its order, none is left out unless reading is stopped, and what a point is ahead by is
bounded by the distance of two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import EARLIEST_NS

Ints = npt.NDArray[np.int64]
NO_STEPS: Final = np.empty(0, np.int64), np.empty(0, np.int64)


def whole_input() -> bool:
    """That of sources that are read to their end."""
    return True


def in_step(
    sources: Mapping[str, Iterable[PacketBatch]],
    steps: tuple[Ints, Ints] = NO_STEPS,
    whole: Callable[[], bool] = whole_input,
) -> Iterator[tuple[str, PacketBatch]]:
    """Batches of two points, each with the name of its point.

    `steps` are the times of some common packets at both. `whole` says, when a source ends, whether all of it was read;
    if not, both points end with the last of these packets that both have passed.
    """
    order = np.argsort(steps[0], kind="stable")
    passed = [np.maximum.accumulate(times[order]) for times in steps]
    heads = {
        point: _Head(iter(batches), times) for (point, batches), times in zip(sources.items(), passed, strict=True)
    }
    while True:
        behind = min((head for head in heads.values() if not head.ended), key=lambda head: head.place, default=None)
        if behind is None:
            break
        behind.read()
        if behind.ended and not whole():
            return  # the packets after the last common step have no counterpart
        place = min(head.place for head in heads.values())
        for point, head in heads.items():
            for batch in head.up_to(place):
                yield point, batch
    for point, head in heads.items():
        for batch in head.rest():
            yield point, batch


def by_turns(sources: Mapping[str, Iterable[PacketBatch]]) -> Iterator[tuple[str, PacketBatch]]:
    """The same for sources that are read to their end: one batch of each in turn."""
    left = deque((point, iter(batches)) for point, batches in sources.items())
    while left:
        point, batches = left[0]
        if (batch := next(batches, None)) is None:
            left.popleft()
            continue
        left.rotate(-1)
        if len(batch):
            yield point, batch


@dataclass(eq=False)
class _Head:
    """What was read of a point, and not handed on."""

    batches: Iterator[PacketBatch]
    steps: Ints
    ended: bool = False
    place: int = 0  # steps passed; beyond the last, one more for each batch
    _latest_ns: int = EARLIEST_NS
    _waiting: deque[tuple[PacketBatch, Ints]] = field(default_factory=deque)

    def read(self) -> None:
        """Read another batch."""
        batch = next(self.batches, None)
        if batch is None:
            self.ended, self.place = True, 2**62
            return
        if len(batch):
            times_ns = np.maximum(np.maximum.accumulate(batch.time_ns), self._latest_ns)
            self._latest_ns = int(times_ns[-1])
            self._waiting.append((batch, times_ns))
            reached = int(np.searchsorted(self.steps, self._latest_ns, side="left"))
            self.place = reached if reached < len(self.steps) else max(reached, self.place + 1)

    def up_to(self, place: int) -> Iterator[PacketBatch]:
        """Batches up to a step that was passed."""
        if place > len(self.steps):
            yield from self.rest()
        elif place:
            until_ns = int(self.steps[place - 1])
            while self._waiting:
                batch, times_ns = self._waiting[0]
                rows = int(np.searchsorted(times_ns, until_ns, side="right"))
                if rows:
                    yield batch[:rows]
                if rows < len(batch):
                    self._waiting[0] = batch[rows:], times_ns[rows:]
                    return
                self._waiting.popleft()

    def rest(self) -> Iterator[PacketBatch]:
        """All batches that are left."""
        while self._waiting:
            yield self._waiting.popleft()[0]
