"""The batches of a command: a progress bar when work takes over a second and a person waits, and ^C between batches."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.packets.batch import PacketBatch

PATIENCE_S = 1.0
_WIDTH = 30


def progress(quiet: bool) -> Callable[[Packets], Iterable[PacketBatch]]:
    """A wrapper for the batches of a source, with a bar on a terminal unless quiet."""
    return iter if quiet or not sys.stderr.isatty() else _with_bar


def stoppable(quiet: bool) -> Callable[[Packets], Iterable[PacketBatch]]:
    """The same for a command that can answer from the packets so far: the first ^C ends its input."""
    STOP.shown = progress(quiet)
    return STOP.batches


class _Stop:
    """The first ^C ends the input, between two batches or while it waits for one; a second ^C ends the command."""

    def __init__(self) -> None:
        self.stopped = False  # whether the input was ended early
        self.shown: Callable[[Packets], Iterable[PacketBatch]] = iter
        self._reading = False
        self._inputs, self._before = 0, signal.getsignal(signal.SIGINT)

    def batches(self, capture: Packets) -> Iterator[PacketBatch]:
        """The batches until ^C."""
        if self.stopped:
            raise KeyboardInterrupt  # an input that was not begun has no part to report
        batches = iter(self.shown(capture))
        if not self._inputs:
            self._before = signal.signal(signal.SIGINT, self._end)
        self._inputs += 1
        try:
            while not self.stopped:
                try:
                    self._reading = True
                    batch = next(batches, None)
                    self._reading = False
                except KeyboardInterrupt:
                    break
                if batch is None:
                    return
                yield batch
        finally:
            self._reading = False
            self._inputs -= 1
            if not self._inputs:
                signal.signal(signal.SIGINT, self._before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True
        if self._reading:  # it may wait for a pipe
            raise KeyboardInterrupt


STOP = _Stop()


def _with_bar(capture: Packets) -> Iterator[PacketBatch]:
    shown = time.monotonic() + PATIENCE_S
    drawn = False
    try:
        for batch in capture:
            yield batch
            if time.monotonic() >= shown:
                _draw(capture)
                drawn = True
                shown = time.monotonic() + 0.1
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _draw(capture: Packets) -> None:
    packets, done = capture.statistics.packets, getattr(capture, "progress", None)
    bar = "" if done is None else f"{'#' * round(done * _WIDTH):-<{_WIDTH}} {done:4.0%} "
    print(f"\r\x1b[K{bar}{packets:,} packets", end="", file=sys.stderr, flush=True)


def bytes_bar(quiet: bool) -> Callable[[int, int], None] | None:
    """A bar over bytes, with their rate and the time left, on a terminal unless quiet."""
    return None if quiet or not sys.stderr.isatty() else _BytesBar().show


class _BytesBar:
    """How much of the captures is done. The rate is since tasks began; what an earlier run did is not in it."""

    def __init__(self) -> None:
        self._began, self._before = 0.0, -1

    def show(self, done: int, whole: int) -> None:
        """Draw it; wipe it out at the end."""
        from wirelag.units import format_duration, format_size

        if self._before < 0:
            self._began, self._before = time.monotonic(), done
        if done >= whole:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return
        seconds = time.monotonic() - self._began
        rate = (done - self._before) / seconds if seconds > 0 else 0.0
        left = f", {format_duration((whole - done) / rate * 1e9)} left" if rate else ""
        bar = f"{'#' * round(done / whole * _WIDTH):-<{_WIDTH}} {done / whole:4.0%}"
        text = f"{bar} {format_size(done)} of {format_size(whole)}, {format_size(int(rate))}/s{left}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
