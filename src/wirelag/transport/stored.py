"""Messages under way, until somebody says that they are stored: the sender's side of the word that ends a message.

Law: only a collector that has committed a message says so, and whoever waits for it keeps the message until then. A
word may be lost, and a message may be sent again: the collector that has it already says so again. So nothing depends
on what a broker promises about what it has acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Awaited:
    """Words that are waited for, by what names the message; bounded by those who wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    @contextmanager
    def expect(self, name: str) -> Iterator[asyncio.Future[bool]]:
        """Begin to wait before the message is sent; the result is whether it was stored."""
        word = self._waiting.setdefault(name, asyncio.get_running_loop().create_future())
        try:
            yield word
        finally:
            if self._waiting.get(name) is word:
                del self._waiting[name]

    def stored(self, name: str) -> None:
        """Take the word that the message of this name is stored."""
        if (word := self._waiting.get(name)) is not None and not word.done():
            word.set_result(True)

    def refused(self) -> None:
        """None of these will be stored now."""
        for word in self._waiting.values():
            if not word.done():
                word.set_result(False)


async def all_stored(words: list[asyncio.Future[bool]], patience_s: float) -> bool | None:
    """Whether all are stored, or one is not; None if that is not known in time."""
    done, waiting = await asyncio.wait(words, timeout=patience_s)
    return False if not all(word.result() for word in done) else None if waiting else True
