"""Memory that waiting messages take, and whose it is. No I/O.

Law: what must go is the oldest of the point that holds most. So a point that holds less than an equal share of the
memory loses nothing, whatever others send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from wirelag.protocol.messages import Message
from wirelag.synopses.crossing import Crossing

OVERHEAD: Final = 4096  # approximate bytes of a message, or of a result that waits, besides its arrays
_RECORD: Final = 512  # the same of a record
_FIELD: Final = 128  # and of a field

Held = Counter[str]  # bytes by point


def message_bytes(message: Message) -> int:
    """The memory of a message."""
    size = OVERHEAD
    for record in message.records:
        arrays = [one.nbytes for one in record.values() if isinstance(one, np.ndarray)]
        size += _RECORD + _FIELD * len(record) + sum(arrays)
    return size


def crossing_bytes(crossings: Mapping[Any, Crossing]) -> int:
    """The memory of results that wait for their neighbours."""
    arrays = (array for one in crossings.values() for array in _arrays(one))
    return OVERHEAD + _RECORD * len(crossings) + sum(int(array.nbytes) for array in arrays)


def _arrays(crossing: Crossing) -> Iterable[Any]:
    tail = crossing.tail
    yield from (tail.sent_ns, tail.delays_ns, tail.weights)
    for single in (crossing.single_up, crossing.single_down):
        if single is not None:
            yield from (single.ids, single.times_ns)


class Shares:
    """The bytes of all points, and the limit of their sum."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._by_point: Held = Counter()

    def take(self, held: Held, point: str, size: int) -> None:
        """Count bytes of a point, and note them in `held`."""
        held[point] += size
        self._by_point[point] += size
        self.bytes += size

    def release(self, held: Held) -> None:
        """Give back all that `held` notes."""
        for point, size in held.items():
            self._by_point[point] -= size
            self.bytes -= size
            if not self._by_point[point]:
                del self._by_point[point]
        held.clear()

    def excess(self) -> str | None:
        """The point that holds most, if all together hold too much; else None."""
        return None if self.bytes <= self.most_bytes else self._by_point.most_common(1)[0][0]

    def enough(self, point: str) -> bool:
        """Whether this point need not let go of more: there is room again, or another holds as much."""
        if self.bytes <= self.most_bytes - self.most_bytes // 4:
            return True
        return any(size > self._by_point[point] for other, size in self._by_point.items() if other != point)
