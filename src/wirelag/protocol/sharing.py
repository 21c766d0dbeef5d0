"""How several collectors share the work: which partition a segment belongs to, and who owns a partition. No I/O.

Laws. A segment belongs to one partition, by its name: both of its ends, their replies and all that is stored of it. Of
the collectors that are alive, each partition has one owner, and everyone who sees the same collectors names the same
one. Each owns as many partitions as the others, or one more. Who leaves or joins moves few others.

These say who *should* work. Who may write is decided by the database alone, where a new owner raises the fence of its
partition (collector/postgres.py): two who see different collectors for a moment disturb each other, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

PARTS: Final = 24  # of 1 to 24 collectors: 2, 3, 4, 6, 8 and 12 have the same number each


def part_of(name: str) -> int:
    """The partition of a segment; of a point, for what is about no segment: its status."""
    return _number(name) % PARTS


def parts_of(segment: str | None, point: str, is_status: bool) -> list[int]:
    """The partitions of a message: one, but all if it is about every segment of its point."""
    if is_status:
        return [part_of(point)]
    return list(range(PARTS)) if segment is None else [part_of(segment)]


def owners(alive: Iterable[str]) -> dict[int, str]:
    """The owner of each partition; none if nobody is alive."""
    names = sorted(set(alive))
    if not names:
        return {}
    room = Counter({name: PARTS // len(names) for name in names})
    extra = PARTS % len(names)
    found: dict[int, str] = {}
    for part in range(PARTS):
        able = [name for name in names if room[name] > 0 or (room[name] == 0 and extra > 0)]
        best = max(able, key=lambda name: _number(f"{part} {name}"))
        extra -= room[best] == 0
        room[best] -= 1
        found[part] = best
    return found


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:8])
