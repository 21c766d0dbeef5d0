"""Messages in batches, each of which is one commit.

Law: a message waits for others only where many came lately: then a commit for each burst costs less than one for every
few messages, and the wait of GATHER_S is lost in the work. At a small site none waits.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar

BATCH: Final = 256  # messages per commit
GATHER_S: Final = 0.01
FEW: Final = 16  # messages of a batch
_FADING: Final = 0.8  # how much of the last batches' size still counts

T = TypeVar("T")


class Batches(Generic[T]):
    """What has come, in order."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[T] = asyncio.Queue(4 * BATCH)
        self._pace = 0.0

    async def next(self) -> list[T]:
        """The next batch, of at least one."""
        batch = [await self.arrived.get()]
        if self._pace > FEW:
            await asyncio.sleep(GATHER_S)
        while len(batch) < BATCH and not self.arrived.empty():
            batch.append(self.arrived.get_nowait())
        self._pace = max(len(batch), _FADING * self._pace)
        return batch
