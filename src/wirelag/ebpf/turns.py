"""Meters in the kernel whose intervals have two sides (bpf/turn.h).

Law: while the kernel fills one side, `ended` yields the other and empties it; an interval that is not fetched before
the next but one begins is lost, and its packets count as missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.hooks import REASONS, Direction, Hooks
from wirelag.packets.interval import Interval

TURN: Final = [("start_ns", "u8"), ("side", "u4"), ("refused", "u4"), ("name", "u8", 2), ("missed", "u8")]


def counters_of(side: list[tuple[Any, ...]], more: tuple[str, ...] = ()) -> np.dtype[Any]:
    """The counters of a CPU; `side` are a method's counters on each side of its interval, `more` those beside them."""
    both = [*TURN, ("at", np.dtype(side), 2), ("skipped", "u8", len(REASONS)), ("failed", "u8")]
    return np.dtype([*both, *((name, "u8") for name in more)])


class Turns(Hooks):
    """Programs of one stem with two sides per CPU."""

    def __init__(
        self,
        stem: str,
        interface: str | None,
        *,
        counters: np.dtype[Any],
        sizes: Mapping[str, int],
        shared: Mapping[str, int],
        constants: Mapping[str, int | bytes],
        interval_ns: int,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        """`sizes` are per CPU; maps that are `shared` have no sides."""
        self._sided = tuple(sizes)
        self._given_up = 0  # packets counted in intervals that can no longer be fetched
        super().__init__(
            stem,
            interface,
            counters=counters,
            sizes={**shared, **{name: size * cpus() for name, size in sizes.items()}},
            constants=constants,
            interval_ns=interval_ns,
            direction=direction,
            then=then,
            replayed=replayed,
        )

    def prepare(self) -> None:
        """Find the sides."""
        self.sides = {name: self.memory(name).reshape(self.cpus * 2, -1) for name in self._sided}

    def ended(self, interval: Interval) -> Iterator[tuple[Any, int]]:
        """The counters of each CPU for an interval that is over, and the number of its side; both are then emptied."""
        name = self.close_until(interval)
        for cpu, counted in enumerate(self.counters):
            for side in range(2):
                found = int(counted["name"][side])
                if found == 0 or found > name:  # a late call leaves the side being filled alone
                    continue
                if found == name:
                    yield counted["at"][side], cpu * 2 + side
                else:  # it was not fetched in time
                    self._given_up += int(counted["at"][side]["packets"])
                self._empty(cpu, side)

    def _empty(self, cpu: int, side: int) -> None:
        counted = self.counters[cpu]
        counted["at"][side] = np.zeros((), counted["at"].dtype)
        for memory in self.sides.values():
            memory[cpu * 2 + side] = 0
        counted["name"][side] = 0

    def give_up_after(self, name: int) -> None:
        """Give up intervals of a time that will come again after a clock was set back: they would block it."""
        for cpu, side in np.argwhere(self.counters["name"] > name).tolist():
            self._given_up += int(self.counters[cpu]["at"][side]["packets"])
            self._empty(cpu, side)

    def seen(self) -> LiveStatistics:
        """All counts so far."""
        missed = int(self.counters["missed"].sum()) + self._given_up
        return LiveStatistics(dropped=missed, skipped=self.skipped())
