"""Messages in batches, each of which is one commit.

Law: a message waits for others only where many came lately: then a commit for each burst costs less than one for every
few messages, and the wait of GATHER_S is lost in the work. At a small site none waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

BATCH: Final = 256  # messages per commit
GATHER_S: Final = 0.01
FEW: Final = 16  # messages of a batch
_FADING: Final = 0.8  # how much of the last batches' size still counts

T = TypeVar("T")


class Batches(Generic[T]):
    """What has come, in order."""

    def __init__(self) -> None:
        self._arrived: deque[T] = deque()
        self._some = asyncio.Event()
        self._pace = 0.0

    @property
    def are_full(self) -> bool:
        """Whether enough wait, so that others are better left where they are."""
        return len(self._arrived) >= 4 * BATCH

    def add(self, one: T) -> None:
        """Put it at the end."""
        self._arrived.append(one)
        self._some.set()

    async def next(self) -> list[T]:
        """The next batch, of at least one."""
        while not self._arrived:
            self._some.clear()
            await self._some.wait()
        if self._pace > FEW:
            await asyncio.sleep(GATHER_S)
        batch = [self._arrived.popleft() for _ in range(min(BATCH, len(self._arrived)))]
        self._pace = max(len(batch), _FADING * self._pace)
        return batch
