"""Those who listen to results and changes as they come. Law: a listener that does not keep up is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wirelag.collector.following import TopologyChange
from wirelag.collector.store import Kept

MOST_LISTENERS: Final = 256
MOST_UNHEARD: Final = 256  # results waiting for a listener


@dataclass(frozen=True, slots=True)
class Said:
    """A result of a whole segment that another collector has told."""

    segment: str
    report: dict[str, Any]


News = Sequence[Said | Kept] | TopologyChange  # what listeners receive


class Listeners:
    """All who listen now."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Queue[News | None]] = set()

    async def listen(self) -> AsyncIterator[News]:
        """News as they come; ends if a listener does not keep up, or too many listen."""
        if len(self._waiting) >= MOST_LISTENERS:
            return
        mine: asyncio.Queue[News | None] = asyncio.Queue(MOST_UNHEARD)
        self._waiting.add(mine)
        try:
            while (said := await mine.get()) is not None:
                yield said
        finally:
            self._waiting.discard(mine)

    def tell(self, said: News) -> None:
        """Tell all of them, if there is something to tell."""
        for listener in list(self._waiting) if said else ():
            try:
                listener.put_nowait(said)
            except asyncio.QueueFull:
                self._dismiss(listener)

    def close(self) -> None:
        """Disconnect all."""
        for listener in list(self._waiting):
            self._dismiss(listener)

    def _dismiss(self, listener: asyncio.Queue[News | None]) -> None:
        self._waiting.discard(listener)
        while not listener.empty():
            listener.get_nowait()
        listener.put_nowait(None)
