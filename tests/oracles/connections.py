"""The plain twin of kernels/connections.h: sums of delays in a dict, one entry per connection, group and stretch."""

from __future__ import annotations

from collections.abc import Callable

Key = tuple[int, int, int]
OTHER = 1
STRETCHES = 512
FEW_OF = 8
SHORTEST = 10


class PlainConnections:
    """Sums of delays and weights to the server and to the client, by flow key, tag and stretch of time."""

    def __init__(self, most: int) -> None:
        self.most, self.level, self.bits = most, 0, SHORTEST
        self.first: int | None = None
        self.last: int | None = None
        self.sums: dict[Key, list[int]] = {}

    def add(self, flow_key: int, tag: int, time_ns: int, leg: int, delay_ns: int, weight: int) -> None:
        """Add a delay."""
        if not weight:
            return
        self._reach(time_ns >> self.bits, time_ns >> self.bits)
        four = [0, 0, 0, 0]
        four[2 * leg : 2 * leg + 2] = delay_ns * weight, weight
        self._put((flow_key, tag, time_ns >> self.bits), four)

    def merge(self, other: PlainConnections) -> None:
        """Add the sums of another."""
        if other.first is None or other.last is None:
            return
        self._fold(max(0, other.bits - self.bits))
        finer = self.bits - other.bits
        self._reach(other.first >> finer, other.last >> finer)
        self._sample(max(self.level, other.level))
        for (flow_key, tag, stretch), four in list(other.sums.items()):
            self._put((flow_key, tag, stretch >> (self.bits - other.bits)), four)

    def keep(self, tags: set[int]) -> None:
        """Count groups but these to another."""
        self._again(lambda key: (key[0], key[1] if key[1] in tags else OTHER, key[2]))

    def rows(self) -> list[list[int]]:
        """All rows, in order of their keys."""
        return [[*key, *self.sums[key]] for key in sorted(self.sums)]

    def _put(self, key: Key, four: list[int]) -> None:
        if self.level and key[0] >> (64 - self.level):
            return
        mine = self.sums.setdefault(key, [0, 0, 0, 0])
        for place, value in enumerate(four):
            mine[place] += value
        while len(self.sums) > self.most // FEW_OF and self._stretches() > STRETCHES:
            self._fold(1)
        while len(self.sums) > self.most:
            self._sample(self.level + 1)

    def _sample(self, level: int) -> None:
        self.level = level
        if level:
            self.sums = {key: four for key, four in self.sums.items() if not key[0] >> (64 - level)}

    def _reach(self, first: int, last: int) -> None:
        self.first = first if self.first is None else min(first, self.first)
        self.last = last if self.last is None else max(last, self.last)

    def _stretches(self) -> int:
        assert self.first is not None
        assert self.last is not None
        return self.last - self.first + 1

    def _fold(self, doublings: int) -> None:
        self.bits += doublings
        if self.first is not None and self.last is not None:
            self.first, self.last = self.first >> doublings, self.last >> doublings
        self._again(lambda key: (key[0], key[1], key[2] >> doublings))

    def _again(self, renamed: Callable[[Key], Key]) -> None:
        before, self.sums = self.sums, {}
        for key, four in before.items():
            mine = self.sums.setdefault(renamed(key), [0, 0, 0, 0])
            for place, value in enumerate(four):
                mine[place] += value
