"""Waiting for something to come true, in one way.

The patience is for what never comes: it is long enough for the busiest machine, and no test says how long a thing took.
"""

import asyncio
import select
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 180.0
PAUSE_S = 0.02

Found = TypeVar("Found")


def until(found: Callable[[], Found], what: str | Callable[[], str], pause_s: float = PAUSE_S) -> Found:
    """What `found` gives, once that is true; `what` never came, in words, or what finds them."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end, f"never came: {what if isinstance(what, str) else what()}"
        select.select([], [], [], pause_s)
    return result


async def until_soon(found: Callable[[], Found], what: str, pause_s: float = PAUSE_S) -> Found:
    """The same while other tasks go on."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end, f"never came: {what}"
        await asyncio.sleep(pause_s)
    return result
