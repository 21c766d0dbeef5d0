"""What a service manager is told: that the program is ready, and that it still works (sd_notify of systemd).

Law: without NOTIFY_SOCKET nothing is sent; a manager that does not listen changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress


def notify(line: str) -> None:
    """Send a line: READY=1, WATCHDOG=1, STATUS=text."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line_out:
        line_out.setblocking(False)
        line_out.sendto(line.encode(), "\0" + where[1:] if where.startswith("@") else where)


def watchdog_s() -> float | None:
    """How often the manager wants to hear that the program works; None if it does not want to."""
    given, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not given.isdecimal() or not int(given) or process not in ("", str(os.getpid())):
        return None
    return int(given) / 2e6


async def watched(works: Callable[[], bool]) -> None:
    """Tell the manager that the program is ready, and then, while it works, that it does; returns if nobody listens."""
    notify("READY=1")
    every_s = watchdog_s()
    while every_s is not None:
        if works():
            notify("WATCHDOG=1")
        await asyncio.sleep(every_s)
