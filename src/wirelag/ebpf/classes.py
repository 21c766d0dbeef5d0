"""Classes of LDA in the kernel (bpf/classes.h): their names, and the list of those that have cells of their own.

Law: the first `most` classes that come are known, as in packets/grouping.py. Once more have come, a newer list holds
those with the most packets, from a later piece on, with a quarter of its places left for others: classes that were
known are counted exactly, the rest in a table of fixed size where the one with the fewest packets of a row makes place
(Space-Saving). A class with more packets than its row's share is in it, however many others come. Names of classes are
kept while they are listed, and somewhat longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.cells import EVERYTHING, REMAINDER, WORDS, Numbers
from wirelag.ebpf.hooks import Hooks
from wirelag.packets.grouping import OTHER, OTHER_KEY, Grouping, kept_of

WAYS: Final = 8  # as in bpf/classes.h
PROBES: Final = 16
BY: Final = {"flow": 1, "client": 2, "server": 3, "prefix": 4, "dscp": 5}
HEAVY: Final = np.dtype([("hash", "u8"), ("packets", "u8"), ("words", "u8", WORDS)])
SOON: Final = 2  # pieces until a newer list holds


def _sizes(most: int) -> tuple[int, int]:
    """Places of a list, enough that none is crowded; and rows of the table."""
    return 1 << (4 * most - 1).bit_length(), 1 << max(0, (4 * most // WAYS - 1).bit_length())


def constants_of(grouping: Grouping | None, segments: int) -> tuple[dict[str, int], dict[str, int | bytes]]:
    """The sizes of the maps, and the constants of the program."""
    if grouping is None:
        return {}, {}
    places, rows = _sizes(grouping.most)
    high = 2**128 - 2 ** (128 - grouping.ipv6_prefix)
    masks = [2**64 - 2 ** (32 - grouping.ipv4_prefix), high >> 64, high & 2**64 - 1]
    sizes = {
        "classes": segments * 2 * places,
        "class_cells": cpus() * segments * (places + 1),
        "heavy": cpus() * segments * rows,
    }
    return sizes, {
        "class_by": BY[grouping.by],
        "class_most": grouping.most,
        "class_mask": places - 1,
        "heavy_mask": rows - 1,
        "class_nets": np.array(masks, np.uint64).tobytes(),
    }


class Classes:
    """The classes of one segment."""

    def __init__(self, hooks: Hooks, grouping: Grouping, segment: int, here: Any) -> None:
        places, _ = _sizes(grouping.most)
        segments = len(hooks.memory("classes")) // (2 * places)
        self.keys: dict[int, str] = {OTHER: OTHER_KEY}
        self._tags: dict[int, int] = {}  # by hash
        self._numbered = OTHER
        self._grouping, self._here = grouping, here
        self._lists = hooks.memory("classes").reshape(segments, 2, places)[segment]
        self._heavy = hooks.memory("heavy", HEAVY).reshape(hooks.cpus, segments, -1)[:, segment]
        cells = hooks.memory("class_cells").reshape(hooks.cpus, segments, places + 1)
        cells[:, segment] = (np.arange(hooks.cpus) * (len(hooks.memory("stock")) // hooks.cpus))[:, np.newaxis]
        self._lists[:] = 0
        self._heavy[:] = 0
        self._here["known"] = self._here["overflowed"] = 0
        self._here["lists"] = 0
        self._packets: Counter[int] = Counter()  # of the last piece, by hash

    def tagged(self, numbers: Numbers, headers: Any) -> dict[int, list[int]]:
        """The cells of each class."""
        found: dict[int, list[int]] = {}
        order = np.argsort(headers["first_ns"], kind="stable")
        for i in order.tolist():
            if (hash_ := int(headers["hash"][i])) == EVERYTHING:
                continue
            found.setdefault(self._tag(hash_, headers["words"][i].tolist()), []).append(int(numbers[i]))
            if hash_ != REMAINDER:
                self._packets[hash_] += int(headers["packets"][i])
        return found

    def _tag(self, hash_: int, words: Sequence[int]) -> int:
        if hash_ == REMAINDER:
            return OTHER
        if hash_ not in self._tags:
            self._numbered += 1
            self._tags[hash_] = self._numbered
            self.keys[self._tags[hash_]] = self._grouping.name(words)
        return self._tags[hash_]

    def _list_of(self, piece: int) -> int:
        lists = int(self._here["lists"][0])
        return lists & 1 if piece >= lists >> 1 else 1 - (lists & 1)

    def known(self, piece: int) -> frozenset[int] | None:
        """The classes that a piece counts by themselves, once not all are."""
        if not self._here["overflowed"][0].any() and not int(self._here["lists"][0]):
            return None
        listed = self._lists[self._list_of(piece)]
        return frozenset(self._tags.get(int(one), -1) for one in listed[listed > 0])

    def revise(self, piece: int) -> None:
        """After more classes than fit: list those with the most packets, for pieces after this one, the open one."""
        here = self._here
        counts, self._packets = self._packets, Counter()
        lists = int(here["lists"][0])
        now, later = lists & 1, 1 - (lists & 1)
        if piece < lists >> 1 or not int(here["overflowed"][0][now]):
            return
        for one in self._heavy[self._heavy["packets"] > 0]:
            counts[int(one["hash"])] += int(one["packets"])
        self._heavy[:] = 0
        self._lists[later] = 0
        listed = [hash_ for hash_, _ in counts.most_common(kept_of(self._grouping.most))]
        for hash_ in listed:
            self._put(later, hash_)
        here["known"][0][later] = len(listed)
        here["overflowed"][0][later] = 0
        here["lists"][0] = piece + SOON << 1 | later
        self._forget(set(self._lists[self._lists > 0].tolist()))

    def _forget(self, listed: set[int]) -> None:
        """Forget names, oldest first, if there are many; never those of a list."""
        for hash_ in [hash_ for hash_ in self._tags if hash_ not in listed][: -4 * self._grouping.most or None]:
            del self.keys[self._tags.pop(hash_)]

    def _put(self, which: int, hash_: int) -> None:
        places = self._lists[which]
        for i in range(PROBES):
            if not places[(hash_ + i) % len(places)]:
                places[(hash_ + i) % len(places)] = hash_
                return
