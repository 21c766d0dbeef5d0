"""Active health checks: whether servers accept a connection, or answer a request, within a time.

Law: all servers are asked at once, and the whole takes no longer than the timeout. A server that accepts and says
nothing, or ends the connection, passes a `tcp` check, and fails an `http` one; so does one whose status line is not
complete in time. What came in time counts, even if this host was too busy to look until the time was over. An OSError
means that this host could not ask, which says nothing about servers.
"""

from __future__ import annotations

import errno
import os
import re
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, Literal

Kind = Literal["tcp", "http"]
NO_REPLY: Final = "no reply"
MOST: Final = 256  # bytes of a reply that are looked at: the status line
STATUS: Final = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[ \r\n]")


def check_servers(
    servers: Mapping[str, str], port: int, kind: Kind, path: str, host: str, timeout_s: float
) -> dict[str, str]:
    """Ask each of these addresses; return why those that fail do."""
    failures, replies = dict.fromkeys(servers, NO_REPLY), dict.fromkeys(servers, b"")
    named = f"[{host}]" if ":" in host else host
    request = f"GET {path} HTTP/1.1\r\nHost: {named}\r\nUser-Agent: wirelag\r\nConnection: close\r\n\r\n".encode()
    ends_s = time.monotonic() + timeout_s
    with ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for name, address in servers.items():
            one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            stack.enter_context(one)  # closed in any case
            one.setblocking(False)
            began = one.connect_ex((address, port))
            if began not in (0, errno.EINPROGRESS):
                failures[name] = os.strerror(began).lower()
                one.close()
            else:
                waiting.register(one, selectors.EVENT_WRITE, name)
        left_s = timeout_s
        while waiting.get_map() and left_s > 0:
            left_s = max(0.0, ends_s - time.monotonic())  # 0: a last look
            for key, events in waiting.select(left_s):
                one = key.fileobj  # type: ignore[assignment]
                said = _turn(one, events, kind, request, replies, key.data)
                if said is None:
                    waiting.modify(one, selectors.EVENT_READ, key.data)
                    continue
                failures[key.data] = said
                waiting.unregister(one)
                one.close()
    return {name: why for name, why in failures.items() if why}


def _turn(
    one: socket.socket, events: int, kind: Kind, request: bytes, replies: dict[str, bytes], name: str
) -> str | None:
    """What became of a check: empty if it passed, else why not; None if there is more to wait for."""
    try:
        if events & selectors.EVENT_WRITE:
            problem = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if kind == "tcp" and problem in (0, errno.ECONNRESET):  # reset by a server that had accepted
                return ""
            if problem:
                return os.strerror(problem).lower()
            one.send(request)
            return None
        more = one.recv(MOST)
    except OSError as error:
        return (error.strerror or NO_REPLY).lower()
    replies[name] += more
    if more and b"\n" not in replies[name] and len(replies[name]) < MOST:
        return None  # the status line goes on
    status = STATUS.match(replies[name])
    if status is None:
        return "not an HTTP reply" if replies[name] else "it ends the connection without a reply"
    return "" if 200 <= int(status[1]) < 400 else f"HTTP status {int(status[1])}"
