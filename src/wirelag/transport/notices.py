"""The log of collector and agent: lines that others can cause.

Law: whatever others do, each thing is said at most once a minute, at most MOST lines of a kind a minute, and what was
left out is counted and said. A line is one line of printable text with at most LONGEST characters. A log that cannot
be written, as on a full disk, ends nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, cast

MOST: Final = 20
EVERY_S: Final = 60.0
LONGEST: Final = 500


def shown(text: str) -> str:
    r"""Text of others, as the log shows it.

    >>> print(shown("a\nb\x1b[31m"))
    a\nb\x1b[31m
    """
    cut = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)[:LONGEST]


@dataclass(slots=True)
class _Minute:
    """What was said of one kind since it began."""

    began_s: float
    said: set[str] = field(default_factory=set)
    left_out: int = 0


class _Lasting:
    """Standard error: what cannot be written waits in its buffer, or is lost."""

    def __init__(self, to: TextIO) -> None:
        self._to = to

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._to.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._to.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)


@contextmanager
def lasting_log() -> Iterator[None]:
    """Let no line on standard error end the program, while this lasts."""
    before = sys.stderr
    sys.stderr = cast(TextIO, _Lasting(before))
    try:
        yield
    finally:
        sys.stderr = before


class Notices:
    """Says things on standard error, or as `put` does; any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, put: Callable[[str], None] | None = None) -> None:
        self._clock, self._put = clock, put or _print
        self._minutes: dict[str, _Minute] = {}  # by kind, of which there are few
        self._turn = threading.Lock()

    def say(self, kind: str, what: str, line: str) -> None:
        """Say a line, unless the same thing of this kind, or too many others, were said in this minute."""
        with self._turn:
            minute = self._minutes.get(kind)
            if minute is None or self._clock() - minute.began_s >= EVERY_S:
                self._end(kind)
                minute = self._minutes[kind] = _Minute(self._clock())
            if what in minute.said or len(minute.said) >= MOST:
                minute.left_out += 1
                return
            minute.said.add(what)
            self._put(shown(line))

    def pass_time(self) -> None:
        """Say how much was left out in minutes that have ended."""
        with self._turn:
            for kind in [name for name, one in self._minutes.items() if self._clock() - one.began_s >= EVERY_S]:
                self._end(kind)

    def _end(self, kind: str) -> None:
        minute = self._minutes.pop(kind, None)
        if minute is not None and minute.left_out:
            self._put(f"{kind}: {minute.left_out} more in the last minute")


def _print(line: str) -> None:
    print(f"wirelag: {line}", file=sys.stderr, flush=True)
