"""Cells of LDA in the kernel (bpf/cells.h): the stock of each CPU, and the log of packets sampled for the tail.

Law: cells of a piece are added up, whichever CPU filled them; a cell goes back to its CPU's stock once it was read and
emptied. On one CPU the sum is that of user space, bit for bit; on several, the tail's entries are ordered by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.ebpf.hooks import REASONS, Hooks
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.synopses.cache import Cached

WORDS: Final = 6  # of a class
EVERYTHING: Final = 0  # in place of the hash of a class
REMAINDER: Final = 1
COUNTERS: Final = np.dtype(
    [
        *((name, "u8") for name in ("taken", "given", "written", "read")),
        ("skipped", "u8", len(REASONS)),
        ("failed", "u8"),
    ]
)
CELL: Final = np.dtype(
    [
        *((name, "u8") for name in ("owner", "hash", "packets", "first_ns", "latest_ns")),
        *((name, "u4") for name in ("level", "live", "overflowed", "spare")),
        ("words", "u8", WORDS),
        ("by_zeros", "u4", 64),
    ]
)
SAMPLED: Final = np.dtype([("id", "u8"), ("time_ns", "i8"), ("cell", "u8")])
_OWNER: Final = 56  # the place of the segment in an owner

Numbers = npt.NDArray[np.intp]


def owner(segment: int, piece: int) -> int:
    """What cells of a piece of a segment are marked with."""
    return segment + 1 << _OWNER | piece


class Cells:
    """The cells of all CPUs."""

    def __init__(self, hooks: Hooks, estimator: Lda) -> None:
        self._counters, self._estimator = hooks.counters, estimator
        self.headers = hooks.memory("cells", CELL)
        self._buckets = hooks.memory("buckets").reshape(len(self.headers), -1)
        self._stock = hooks.memory("stock").reshape(hooks.cpus, -1)
        self._log = hooks.memory("sample_log", SAMPLED).reshape(hooks.cpus, -1)
        self._sampled: dict[int, list[npt.NDArray[Any]]] = {}
        self._each = self._stock.shape[1]
        self._stock[:] = np.arange(len(self.headers)).reshape(hooks.cpus, -1)
        self._counters["given"] = self._each

    def drain(self) -> None:
        """Read the log."""
        for counted, log in zip(self._counters, self._log, strict=True):
            read, written = int(counted["read"]), int(counted["written"])
            if read == written:
                continue
            some = log[np.arange(read, written) % len(log)]
            counted["read"] = written
            order = np.argsort(some["cell"], kind="stable")
            numbers, starts = np.unique(some["cell"][order], return_index=True)
            for number, part in zip(numbers.tolist(), np.split(some[order], starts[1:]), strict=True):
                self._sampled.setdefault(number, []).append(part)

    def of(self, segment: int, piece: int) -> Numbers:
        """The cells of a piece."""
        return np.flatnonzero(self.headers["owner"] == np.uint64(owner(segment, piece)))

    def of_segment(self, segment: int) -> tuple[Numbers, npt.NDArray[np.uint64]]:
        """The cells of a segment, and their pieces."""
        owners = self.headers["owner"]
        numbers = np.flatnonzero(owners >> np.uint64(_OWNER) == np.uint64(segment + 1))
        return numbers, owners[numbers] & np.uint64((1 << _OWNER) - 1)

    def take(self, numbers: Sequence[int]) -> LdaSynopsis:
        """The sum of cells of one piece and class, which are then emptied and given back."""
        buckets = np.zeros(self._buckets.shape[1], np.uint64)
        tail = Cached.empty(self._estimator.seed)
        for number in numbers:
            header = self.headers[number]
            buckets += self._buckets[number]
            some = self._sampled.pop(number, [])
            kept = np.concatenate(some) if some else np.empty(0, SAMPLED)
            everything = Cached(
                kept["id"].copy(), kept["time_ns"].copy(), 0, int(header["packets"]), self._estimator.seed
            )
            level = 64 if header["overflowed"] else int(header["level"])
            tail = tail.followed_by(everything.at_level(level), self._estimator.tail)
            self._give_back(number)
        if len(numbers) > 1:
            tail = tail.only(np.argsort(tail.times_ns, kind="stable"))  # type: ignore[arg-type]
        return LdaSynopsis(buckets, tail)

    def drop(self, numbers: Sequence[int]) -> int:
        """Empty cells and give them back unread; return how many packets all of them had counted."""
        packets = sum(int(self.headers["packets"][n]) for n in numbers if self.headers["hash"][n] == EVERYTHING)
        for number in numbers:
            self._sampled.pop(number, None)
            self._give_back(number)
        return packets

    def _give_back(self, number: int) -> None:
        self._buckets[number] = 0
        self.headers[number] = np.zeros((), CELL)
        cpu = number // self._each
        given = int(self._counters[cpu]["given"])
        self._stock[cpu, given % self._each] = number
        self._counters[cpu]["given"] = given + 1
