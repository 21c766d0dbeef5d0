"""Closes and counts connections that only occupy resources: the server itself waits for them for ever.

Law: a client that sends a whole request and reads the response is left alone, however long the response takes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

TICK_S: Final = 1.0
SILENT_S: Final = 10.0  # without a whole request
UNREAD_S: Final = 60.0  # with a response that is not read

Idle = dict[H11Protocol, tuple[RequestResponseCycle, float]]  # the last request of each, and since when it is idle


async def close_idle(server: uvicorn.Server, counted: Counter[str]) -> None:
    """Check all connections regularly, without end."""
    since: Idle = {}
    while True:
        await asyncio.sleep(TICK_S)
        now, idle = time.monotonic(), Idle()
        for each in list(server.server_state.connections):
            if not isinstance(each, H11Protocol):
                continue
            unread = each.flow.write_paused
            if not unread and each.cycle is not None and not each.cycle.response_complete:
                continue  # it waits for us
            last, began = since.get(each, (each.cycle, now))
            idle[each] = (each.cycle, began if last is each.cycle else now)
            if now - idle[each][1] > (UNREAD_S if unread else SILENT_S):
                counted["slow connections"] += 1
                each.transport.abort()
        since = idle
