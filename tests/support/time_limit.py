"""A time limit, so that a test fails instead of hanging."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` after this time."""

    def expired(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
