"""Captures in pieces, and an engine that runs tasks in this process."""

import pickle
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.simulated_captures import write_simulation
from wirelag.scale.engine import Engine, Failure, GoneError, Task
from wirelag.sim import Scenario, simulate


class Here(Engine):
    """Tasks one after the other; arguments and results travel as bytes. It may go away after some."""

    name = "here"

    def __init__(self, goes_after: int | None = None, ends: BaseException | None = None) -> None:
        self.left, self.begun = goes_after, 0
        self.ends = ends or GoneError("the scheduler at here went away")

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | Failure]]:
        """The results, the last task first: the order must not matter."""
        for place in reversed(range(len(tasks))):
            if self.left is not None and self.begun >= self.left:
                raise self.ends
            self.begun += 1
            function, arguments = pickle.loads(pickle.dumps((tasks[place].function, tasks[place].arguments)))
            yield place, function(*arguments)


def simulated(path: Path, packets: int = 12_000, seed: int = 1) -> Path:
    """A capture of round trips."""
    write_simulation(simulate(Scenario(packets=packets, seed=seed)), path)
    return path


def records(path: Path) -> tuple[bytes, list[bytes]]:
    """The header of a pcap file of this machine's byte order, and its records."""
    data, at, found = path.read_bytes(), 24, []
    while at < len(data):
        length = 16 + struct.unpack_from("<I", data, at + 8)[0]
        found.append(data[at : at + length])
        at += length
    return data[:24], found


def rotated(path: Path, files: int) -> list[Path]:
    """The same packets in several files, one after the other, as tcpdump -C writes them."""
    head, every = records(path)
    edges = [len(every) * i // files for i in range(files + 1)]
    paths = [path.with_name(f"tap.pcap{i or ''}") for i in range(files)]
    for i, one in enumerate(paths):
        one.write_bytes(head + b"".join(every[edges[i] : edges[i + 1]]))
    return paths


def independent(path: Path, files: int) -> list[Path]:
    """The same packets in several files, by their hosts: no connection is in two of them."""
    head, every = records(path)
    parts: list[list[bytes]] = [[] for _ in range(files)]
    for one in every:
        if one[28:30] == b"\x08\x00":  # IPv4: a hash of both hosts
            parts[(sum(one[42:46]) + sum(one[46:50])) % files].append(one)
    paths = [path.with_name(f"{name}.pcap") for name in ["north", "south", "east", "west"][:files]]
    for one, part in zip(paths, parts, strict=True):
        one.write_bytes(head + b"".join(part))
    return paths
