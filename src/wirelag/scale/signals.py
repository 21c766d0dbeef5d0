"""^C and SIGTERM while workers of this machine start, and while they work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived: a command that has processes and files ends as with ^C, but for its exit code."""

    code = 128 + signal.SIGTERM


@contextmanager
def terminated_in_order() -> Iterator[None]:
    """Raise `Terminated` at the first SIGTERM, instead of ending at once."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what it ends is at it
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def without_interrupt() -> Iterator[None]:
    """Threads and processes that begin here never hear ^C, which goes to all of a terminal; this one hears it after.

    So it hears SIGTERM: a cluster that is half started cannot be ended in order.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # whoever starts it hears ^C again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    terminated: list[int] = []
    may_handle = threading.current_thread() is threading.main_thread()
    handled = signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number)) if may_handle else None
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if may_handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if handled is None else handled)
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)
