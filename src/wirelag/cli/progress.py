"""A progress bar on standard error, when work takes over a second and a person waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.packets.batch import PacketBatch

PATIENCE_S = 1.0
_WIDTH = 30


def progress(quiet: bool) -> Callable[[Packets], Iterable[PacketBatch]]:
    """A wrapper for the batches of a source, with a bar on a terminal unless quiet."""
    return iter if quiet or not sys.stderr.isatty() else _with_bar


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
