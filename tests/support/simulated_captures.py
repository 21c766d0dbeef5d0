"""Simulated captures on disk."""

from pathlib import Path

from wirelag.capture.writer import CaptureWriter
from wirelag.sim import Simulation


def write_point(simulation: Simulation, point: int, path: Path, snaplen: int = 128) -> None:
    """Write the packets of one vantage point."""
    with CaptureWriter(str(path), snaplen) as writer:
        for frames in simulation.frames(point, snaplen):
            writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)


def write_simulation(simulation: Simulation, *paths: Path, snaplen: int = 128) -> None:
    """Write the packets of each vantage point."""
    for point, path in enumerate(paths):
        write_point(simulation, point, path, snaplen)
