"""The heaviest of many keys in bounded memory, counted batch by batch.

Guarantee: at most 2 `most` keys are held. A key that was counted more often than `floor`, the largest count that ever
left, is held; its count is too large by at most `floor` (Space-Saving: A. Metwally, D. Agrawal and A. El Abbadi, ICDT
2005; several leave at once, as in *Mergeable Summaries*, P. Agarwal et al., PODS 2012).
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, ...]


@dataclass(slots=True)
class Heaviest:
    """Counts of keys, each with what its name needs."""

    most: int
    floor: int = 0
    _counts: dict[Key, int] = field(default_factory=dict)
    _names: dict[Key, Key] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: Key, name: Key, count: int) -> None:
        """Count a key; one that comes anew counts as if it had come as often as any that left."""
        if key not in self._counts:
            self._names[key] = name
            self._counts[key] = self.floor
        self._counts[key] += count
        if len(self._counts) >= 2 * self.most:
            self._make_room()

    def _make_room(self) -> None:
        order = sorted(self._counts.items(), key=lambda one: -one[1])
        self.floor = max(self.floor, order[self.most][1])
        self._counts = dict(order[: self.most])
        self._names = {key: self._names[key] for key in self._counts}

    def heaviest(self) -> list[tuple[int, Key, Key]]:
        """Count, key and name of each, the heaviest first."""
        found = [(count, key, self._names[key]) for key, count in self._counts.items()]
        return sorted(found, key=lambda one: -one[0])
