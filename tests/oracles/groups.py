"""The plain twin of groups.h: dictionaries, and units of memory that are only counted.

A group takes 7 units and each of its bins one. A group that comes when fewer than 7 units were never used, or a bin
when there is no unit at all, makes the group with the smallest count leave, of several the oldest; never the one that
needs the unit. What a group that makes room for a bin had becomes free for bins; a new group takes over the 7 units of
the one that left, and only its bins become free.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

GROUP_UNITS = 7


def units_of(size: int) -> int:
    """The units of a memory: without what finds groups, and without the first."""

    def power(most: int) -> int:
        return 1 << most.bit_length() - 1

    index = 4 * (power(size // 512) + power(size // 64) + size // 256)
    return (size - index) // 32 - 1


def bin_of(delay_ns: int) -> int:
    """Below 256 ns a bin each; above, the eight leading bits of at most 43."""
    delay_ns = min(delay_ns, 2**43 - 1)
    shift = max(0, delay_ns.bit_length() - 8)
    return shift * 128 + (delay_ns >> shift)


@dataclass
class Kept:
    """A group: its count with what may have come before, and its delays by (leg, bin)."""

    born: int
    count: int
    before: int
    bins: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # weight, squares
    delays: list[tuple[int, int, int]] = field(default_factory=list)  # leg, delay, weight


class Groups:
    """Groups by key, in a memory of limited size."""

    def __init__(self, size: int) -> None:
        self.fresh = units_of(size)  # units that were never used
        self.free = 0  # units for bins
        self.kept: dict[int, Kept] = {}
        self.other: list[tuple[int, int, int]] = []
        self.floor = self.left = self.born = 0
        self.gone: set[int] = set()
        self._heap: list[tuple[int, int, int]] = []  # count, born, key; old counts stay in it

    def add(self, key: int, leg: int, delay_ns: int, weight: int = 1) -> None:
        """Add a delay."""
        if key not in self.kept:
            if self.fresh >= GROUP_UNITS:
                self.fresh -= GROUP_UNITS
            else:
                self._leave(None)
            self.kept[key] = Kept(self.born, self.floor, self.floor)
            self.born += 1
        mine = self.kept[key]
        mine.count += 1
        heapq.heappush(self._heap, (mine.count, mine.born, key))
        place = leg, bin_of(delay_ns)
        if place not in mine.bins:
            if not self.free and not self.fresh:
                self._leave(key)
                self.free += GROUP_UNITS
            if self.free:
                self.free -= 1
            else:
                self.fresh -= 1
            mine.bins[place] = [0, 0]
        mine.bins[place][0] += weight
        mine.bins[place][1] += weight * weight
        mine.delays.append((leg, delay_ns, weight))

    def _leave(self, stays: int | None) -> None:
        aside = []
        while True:
            count, born, key = entry = heapq.heappop(self._heap)
            mine = self.kept.get(key)
            if mine is None or (mine.count, mine.born) != (count, born):
                continue
            if key != stays:
                break
            aside.append(entry)
        for entry in aside:
            heapq.heappush(self._heap, entry)
        del self.kept[key]
        self.other += mine.delays
        self.free += len(mine.bins)
        self.floor = max(self.floor, count)
        self.left += 1
        self.gone.add(key)
