"""Captures with known truth for answers.py: round trips through shared queues, and packets that cross one queue.

The unfinished work of a queue with random arrivals and services (M/M/1, mean service S, load r) is V, with
P(V > x) = r exp(-(1 - r) x / S): delays through it are correlated in time, and their long-run law is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.capture.writer import CaptureWriter

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SERVICE = 1e-3  # seconds
SERVERS = 30
SLOWEST = 5  # servers whose names a list must have
HEADER = np.dtype(
    [
        ("macs", "S12"), ("type", ">u2"), ("version", "u1"), ("tos", "u1"), ("length", ">u2"), ("id", ">u2"),
        ("fragment", ">u2"), ("ttl", "u1"), ("protocol", "u1"), ("checksum", ">u2"), ("source", ">u4"),
        ("target", ">u4"), ("from_port", ">u2"), ("to_port", ">u2"), ("seq", ">u4"), ("ack", ">u4"), ("offset", "u1"),
        ("flags", "u1"), ("window", ">u2"), ("sum", ">u2"), ("urgent", ">u2"),
    ]
)  # fmt: skip
SYN, ACK = 2, 16


class Queue:
    """The unfinished work of a queue as a function of time, over a while."""

    def __init__(self, rng: np.random.Generator, load: float, seconds: float) -> None:
        self.load = load
        settled = 40 * SERVICE / (1 - load) ** 2
        count = int((seconds + settled) * load / SERVICE * 1.1) + 1_000
        self._at = np.cumsum(rng.exponential(SERVICE / load, count)) - settled
        work = rng.exponential(SERVICE, count)
        before = np.concatenate(([0.0], (work[:-1] - np.diff(self._at)).cumsum()))  # it would fall without end
        self._after = before - np.minimum.accumulate(before) + work

    def __call__(self, times: Floats) -> Floats:
        """The wait of a packet that comes at each of these times."""
        last = np.maximum(np.searchsorted(self._at, times, side="right") - 1, 0)
        return np.maximum(self._after[last] - (times - self._at[last]), 0.0)

    @property
    def mean(self) -> float:
        """The long-run mean wait."""
        return self.load * SERVICE / (1 - self.load)

    def beyond(self, wait: Floats) -> Floats:
        """The long-run share of longer waits."""
        return np.where(wait < 0, 1.0, self.load * np.exp(-(1 - self.load) * np.maximum(wait, 0.0) / SERVICE))


@dataclass(frozen=True)
class Law:
    """The long-run law of delays: a fixed part, drawn from a list with these shares, and a wait."""

    fixed: Floats
    shares: Floats
    queue: Queue

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self.fixed @ self.shares) + self.queue.mean

    def quantile(self, q: float) -> float:
        """The delay below which a share of q lies."""
        low, high = 0.0, float(self.fixed.max()) + 60 * SERVICE / (1 - self.queue.load)
        for _ in range(80):
            middle = (low + high) / 2
            above = float(self.queue.beyond(middle - self.fixed) @ self.shares)
            low, high = (middle, high) if above > 1 - q else (low, middle)
        return high


@dataclass(frozen=True)
class RoundTrips:
    """A capture of exchanges, and what is true of it."""

    path: Path
    to_server: Law
    to_client: Law
    servers: list[str]  # the slowest first
    of_server: Callable[[str], Law]


def round_trips(path: Path, seed: int, load: float, late: bool, exchanges: int = 6_000) -> RoundTrips:
    """Exchanges of many clients with 30 servers through a queue each way, seen between the two.

    With `late`, slow servers are asked in the second half of the capture only.
    """
    rng = np.random.default_rng(seed)
    seconds = exchanges / 100
    there, back = Queue(rng, load, seconds + 60), Queue(rng, load * 0.9, seconds + 60)
    fixed = 3e-3 * 1.15 ** rng.permutation(SERVERS)  # of each server
    near = np.sort(rng.uniform(1e-3, 8e-3, 200))  # of each client
    each = 5
    count = exchanges // each
    server, client = rng.integers(0, SERVERS, count), rng.integers(0, len(near), count)
    begins = np.sort(rng.uniform(0, seconds, count))
    if late:
        slow = np.isin(server, np.argsort(fixed)[-SERVERS // 2 :])
        begins = np.where(slow, seconds / 2 + begins / 2, begins)
    # An exchange begins at times that do not depend on delays: so no time is seen more often than another.
    asked = begins[:, None] + np.cumsum(rng.uniform(2.5, 3.5, (count, each)), axis=1) - 3
    answered = asked + fixed[server][:, None] + there(asked)
    heard = answered + near[client][:, None] + back(answered)
    write_exchanges(path, asked, answered, heard, server, client)
    names = [f"198.51.100.{number + 1}" for number in range(SERVERS)]
    one = np.ones(1)
    return RoundTrips(
        path,
        Law(fixed, np.full(SERVERS, 1 / SERVERS), there),
        Law(near, np.full(len(near), 1 / len(near)), back),
        [names[number] for number in np.argsort(-fixed)],
        lambda name: Law(fixed[[names.index(name)]], one, there),
    )


def write_exchanges(path: Path, asked: Floats, answered: Floats, heard: Floats, server: Ints, client: Ints) -> None:
    """Write connections, one in each row of the times: a handshake, then exchanges."""
    count, each = asked.shape
    connection = np.repeat(np.arange(count), each)
    number = np.tile(np.arange(each), count)
    times, frames = [], []
    for which, at in enumerate((asked, answered, heard)):
        frame = np.zeros(count * each, HEADER)
        up = which != 1
        frame["type"], frame["version"], frame["ttl"], frame["protocol"], frame["offset"] = 0x0800, 0x45, 64, 6, 0x50
        ends = (0x0A000000 + 1 + client[connection], 0xC6336400 + 1 + server[connection])
        frame["source"], frame["target"] = ends if up else ends[::-1]
        ports = (20_000 + connection % 40_000, 443)
        frame["from_port"], frame["to_port"] = ports if up else ports[::-1]
        first = number == 0  # the handshake, then 100 bytes each way in each exchange
        size = np.where(first | (which == 2), 0, 100)
        frame["seq"] = np.where(first, which == 2, 1 + 100 * (number - 1) + (100 if which == 2 else 0))
        frame["ack"] = np.where(first, which > 0, 1 + 100 * (number - 1) + (100 if which else 0))
        frame["flags"] = np.where(first, (SYN, SYN | ACK, ACK)[which], ACK)
        frame["length"], frame["window"] = 40 + size, 8192
        times.append(at.ravel())
        frames.append(frame)
    write_frames(path, np.concatenate(times), np.frombuffer(b"".join(frame.tobytes() for frame in frames), HEADER))


@dataclass(frozen=True)
class Crossings:
    """Two captures of the same packets, and what is true of their delays."""

    up: Path
    down: Path
    mean: float
    quantile: Callable[[float], float]


def crossings(folder: Path, seed: int, load: float, packets: int) -> Crossings:
    """Packets of three flows that pass a queue, all of its packets, in order."""
    rng = np.random.default_rng(seed)
    served, gaps = rng.exponential(SERVICE, packets), rng.exponential(SERVICE / load, packets)
    first = rng.exponential(SERVICE / (1 - load)) * (rng.random() < load)
    steps = np.concatenate(([first], served[:-1] - gaps[1:])).cumsum()
    inside = steps - np.minimum(np.minimum.accumulate(steps), 0.0) + served
    sent, fixed = np.cumsum(gaps), 5e-3
    frame = np.zeros(packets, HEADER)
    frame["type"], frame["version"], frame["ttl"], frame["protocol"] = 0x0800, 0x45, 64, 17
    frame["source"], frame["target"] = 0x0A000001 + rng.integers(0, 3, packets), 0xC6336401
    frame["from_port"], frame["to_port"], frame["length"], frame["id"] = 5000, 5001, 140, np.arange(packets) & 0xFFFF
    frame["seq"] = np.arange(packets)
    up, down = folder / f"up{seed}.pcap", folder / f"down{seed}.pcap"
    write_frames(up, sent, frame)
    write_frames(down, sent + fixed + inside, frame)
    scale = SERVICE / (1 - load)
    return Crossings(up, down, fixed + scale, lambda q: fixed - math.log(1 - q) * scale)


def write_frames(path: Path, seconds: Floats, frames: npt.NDArray[Any]) -> None:
    """Write frames at these times."""
    time_ns = 1_767_225_600_000_000_000 + np.round(seconds * 1e9).astype(np.int64)
    order = np.argsort(time_ns, kind="stable")
    data = np.ascontiguousarray(frames[order])
    size = np.full(len(data), HEADER.itemsize, np.int64)
    with CaptureWriter(str(path)) as writer:
        wire = 14 + data["length"].astype(np.int64)
        writer.write(time_ns[order], data.view(np.uint8), np.arange(len(data)) * HEADER.itemsize, size, wire)
