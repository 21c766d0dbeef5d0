"""A progress bar on standard error, for work that takes more than a second and a person who waits for it."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.packets.batch import PacketBatch

PATIENCE_S = 1.0
_WIDTH = 30


def with_progress(capture: "Capture", quiet: bool) -> Iterator["PacketBatch"]:
    """The batches of a capture, with a bar where somebody sees it."""
    if quiet or not sys.stderr.isatty():
        yield from capture
        return
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


def _draw(capture: "Capture") -> None:
    packets, done = capture.statistics.packets, capture.progress
    bar = "" if done is None else f"{'#' * round(done * _WIDTH):-<{_WIDTH}} {done:4.0%} "
    print(f"\r\x1b[K{bar}{packets:,} packets", end="", file=sys.stderr, flush=True)
