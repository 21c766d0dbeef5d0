"""Counts by key, from interval to interval: what is known of flows, or of servers.

Memory: 8 bytes a word and a count; whoever keeps it says how many keys stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.packets.distinct import places_among

Array = npt.NDArray[Any]


class KeyCounts:
    """Keys, each a row of words, with their counts; the one heard last comes last."""

    def __init__(self, words: int, columns: int) -> None:
        self.keys = np.empty((0, words), np.uint64)
        self.counts = np.empty((0, columns), np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def places(self, keys: Array) -> npt.NDArray[np.int64]:
        """The place of each of these keys; -1: nothing is known of it."""
        return places_among(self.keys, keys)

    def add(self, keys: Array, counts: Array) -> Array:
        """Add counts of keys, all different, which now are the ones heard last; returns all that is known of them."""
        if len(self.keys):
            places = self.places(keys)
            known = places >= 0
            counts = counts.copy()
            counts[known] += self.counts[places[known]]
            stay = np.ones(len(self.keys), np.bool_)
            stay[places[known]] = False
            self.keys, self.counts = self.keys[stay], self.counts[stay]
        self.keys, self.counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
        return counts

    def forget(self, most: int) -> None:
        """Keep the `most` that were heard last."""
        self.keys, self.counts = self.keys[-most:], self.counts[-most:]
