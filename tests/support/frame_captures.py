"""Frames as a capture."""

from collections.abc import Iterable
from pathlib import Path

from wirelag.capture.writer import CaptureWriter
from wirelag.sim.frames import Frames


def write(path: Path, frames: Iterable[Frames]) -> Path:
    with CaptureWriter(str(path), 128) as writer:
        for part in frames:
            writer.write(part.time_ns, part.buffer, part.offset, part.captured, part.wire)
    return path
