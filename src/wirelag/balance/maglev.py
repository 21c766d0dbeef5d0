"""The weighted Maglev table: which backend a new connection goes to, by the hash of its addresses and ports.

Guarantees: shares match the weights within 1% if the table has 100 entries per backend; every backend with a weight has
an entry; equal names and weights give the same table everywhere and always, in whatever order they are listed; when
weights change, few entries change unnecessarily (docs/concepts/balancing.md has numbers).
Cost: 65,537 entries and 100 backends take milliseconds, without the GIL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np

from wirelag import _kernels
from wirelag.ebpf.service import Table

SIZE: Final = 65_537
PARTS: Final = 1 << 30  # weights are integer parts of this total


def maglev(weights: Mapping[str, float], slots: Mapping[str, int], size: int = SIZE) -> Table:
    """A table of `size` (a prime) entries, each the slot of a backend; weights are shares of any sum."""
    names = sorted(weights)
    total = sum(weights.values())
    if total <= 0 or min(weights.values()) < 0:
        raise ValueError("weights must not be negative, and one must be above 0")
    parts = np.array([_parts(weights[name], total) for name in names], np.uint32)
    first, skip = (np.array(column, np.uint32) for column in zip(*(_order(name, size) for name in names), strict=True))
    table = np.empty(size, np.int32)
    _kernels.maglev_fill(table, first, skip, parts)
    return np.array([slots[name] for name in names], np.int32)[table]


def shares(table: Table, slots: Mapping[str, int]) -> dict[str, float]:
    """Each backend's share of a table: the weights in use."""
    entries = np.bincount(table, minlength=max(slots.values(), default=0) + 1)
    return {name: float(entries[slot]) / len(table) for name, slot in slots.items()}


def is_prime(number: int) -> bool:
    """Whether it can be the size of a table."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _parts(weight: float, total: float) -> int:
    return max(1, round(weight / total * PARTS)) if weight > 0 else 0


def _order(name: str, size: int) -> tuple[int, int]:
    """The entry that a backend prefers, and the step to its next ones."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    first, skip = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return first % size, 1 + skip % (size - 1)
