"""Waiting for a condition, in one way.

The timeout is only for failures: it is long enough for the busiest machine, and no test asserts how long a wait took.
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
    """Wait until `found` returns a true value, and return it; `what`, a text or a function, describes it on failure."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end, f"never came: {what if isinstance(what, str) else what()}"
        select.select([], [], [], pause_s)
    return result


async def until_soon(found: Callable[[], Found], what: str, pause_s: float = PAUSE_S) -> Found:
    """The same while other tasks run."""
    end = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < end, f"never came: {what}"
        await asyncio.sleep(pause_s)
    return result
