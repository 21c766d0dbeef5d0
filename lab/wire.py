"""The wire between the client and the switch: delay, jitter, loss, reordering and rate of each direction."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.network import Network
from lab.processes import Process, program


@dataclass(frozen=True)
class Direction:
    """Properties of one direction."""

    delay_us: int = 0
    jitter_us: int = 0  # above or below the delay, uniform; preserves the order
    loss: float = 0.0
    held: float = 0.0  # share held back, which may be overtaken
    hold_us: int = 0  # for at most this long, uniform
    mbit: float = 0.0  # 0: unlimited
    queue_us: int = 0  # a frame that would wait longer for its turn is lost; 0: none is

    def arguments(self, name: str) -> list[str]:
        """Arguments for the program."""
        return [
            f"{name}-delay-us={self.delay_us}",
            f"{name}-jitter-us={self.jitter_us}",
            f"{name}-loss={self.loss}",
            f"{name}-held={self.held}",
            f"{name}-hold-us={self.hold_us}",
            f"{name}-mbit={self.mbit}",
            f"{name}-queue-us={self.queue_us}",
        ]


@dataclass(frozen=True)
class Wire:
    """`up`: from the client; `down`: to it."""

    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)

    def start(self, network: Network, folder: Path, seed: int) -> Process:
        """Start it; nothing gets through before."""
        arguments = ["a=near", "b=far", f"seed={seed}", *self.up.arguments("up"), *self.down.arguments("down")]
        process = network.start("wire", [program("wire"), *arguments], folder / "wire.txt")
        process.wait_for_line("^ready")
        return process


def statistics(wire: Process) -> dict[str, Any]:
    """Stop the wire; return its statistics."""
    answer: dict[str, Any] = json.loads(wire.stop().splitlines()[-1])
    return answer
