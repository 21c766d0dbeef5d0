"""Ports for servers of tests, which are chosen before the server uses them, or used by a second one after the first.

The kernel would give the port to the next server on this host that asks for any: each process has ports of its own,
below those that the kernel gives.
"""

import itertools
import os
import socket
from contextlib import suppress

FIRST, LAST, EACH = 20_000, 32_000, 16
_numbers = itertools.count()


def free_port() -> int:
    """A port that no other server gets by chance, even while its own is dead."""
    first = FIRST + os.getpid() % ((LAST - FIRST) // EACH) * EACH
    while True:
        port = first + next(_numbers) % EACH
        with socket.socket() as free, suppress(OSError):
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections of it may linger
            free.bind(("127.0.0.1", port))
            free.listen()
            return port
