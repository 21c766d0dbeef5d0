"""Client packets of closed and open loops, from a small event simulation with known latencies.

A loop keeps `in_flight` requests outstanding; each is answered after its own latency, and the client thinks and asks
again. The output is the client's packets, and for each request the time from its packet to the response. Also the
kernels' epochs of such packets.
"""

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracles.pirate_modes import ACK, METHODS, REASONS, SYN, ClientPacket, Epoch, Settings
from wirelag import _kernels

US, MS, S = 10**3, 10**6, 10**9
BEGIN_NS = 1_700_000_000 * S
TCP = 1
USUAL = Settings()
RESPONSE = 500  # bytes

Latency = Callable[[random.Random], float]


class Truth(NamedTuple):
    sent_ns: int
    latency_ns: int


class Loop(NamedTuple):
    """A client's behaviour. With `batch` it waits for all of its responses before it sends as many requests again."""

    latency: Latency  # ns
    in_flight: int = 1
    batch: bool = False
    think: Latency | None = None
    gap_ns: int = 10 * US  # between consecutive requests of a client
    rtt_ns: int = 0  # round-trip time of the handshake; 0: no handshake (UDP)
    size: Callable[[random.Random], int] = lambda _: 100  # payload
    seconds: float = 3.0
    begin_ns: int = BEGIN_NS


def constant(ns: float, jitter: float = 0.02) -> Latency:
    return lambda rng: ns * rng.uniform(1 - jitter, 1 + jitter)


def exponential(ns: float, least_ns: float = 100 * US) -> Latency:
    return lambda rng: least_ns + rng.expovariate(1 / ns)


def run(loop: Loop, seed: int) -> tuple[list[ClientPacket], list[Truth]]:
    """The client's packets and the truth of each request, both in order of time."""
    client = Client(loop, random.Random(seed))
    client.run()
    return client.packets, sorted(client.truth)


class Client:
    def __init__(self, loop: Loop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.packets: list[ClientPacket] = []
        self.truth: list[Truth] = []
        self.seq, self.ack = rng.getrandbits(32), rng.getrandbits(32)
        self.free_ns = 0  # when the client can send the next packet

    def run(self) -> None:
        loop = self.loop
        now_ns = loop.begin_ns
        if loop.rtt_ns:
            self.send(now_ns, 0, SYN)
            self.seq = (self.seq + 1) % 2**32
            now_ns += loop.rtt_ns
            self.send(now_ns, 0, ACK)
        arrivals = [self.request(now_ns + 1) for _ in range(loop.in_flight)]
        end_ns = loop.begin_ns + int(loop.seconds * S)
        while arrivals[0] < end_ns:
            if loop.batch:
                now_ns, arrivals = max(arrivals), []
                asked = self.answered(now_ns, loop.in_flight)
                arrivals = sorted(self.request(asked) for _ in range(loop.in_flight))
            else:
                asked = self.answered(arrivals[0], 1)
                heapq.heapreplace(arrivals, self.request(asked))

    def answered(self, now_ns: int, responses: int) -> int:
        """The time of the client's next request; if it thinks, it acknowledges before."""
        self.ack = (self.ack + responses * RESPONSE) % 2**32
        think_ns = int(self.loop.think(self.rng)) if self.loop.think else 0
        if think_ns > 0 and self.loop.rtt_ns:
            self.send(now_ns, 0, ACK)
        return now_ns + think_ns

    def request(self, now_ns: int) -> int:
        now_ns = max(now_ns, self.free_ns)
        self.send(now_ns, self.loop.size(self.rng), ACK)
        self.free_ns = now_ns + self.loop.gap_ns
        arrival_ns = now_ns + max(1, int(self.loop.latency(self.rng)))
        self.truth.append(Truth(now_ns, arrival_ns - now_ns))
        return arrival_ns

    def send(self, now_ns: int, payload: int, flags: int) -> None:
        if self.loop.rtt_ns:
            headers = 60 if flags & SYN else 52
            ack = 0 if flags & SYN else self.ack
            packet = ClientPacket(now_ns, seq=self.seq, ack=ack, tcp_flags=flags, has=TCP)
        else:
            headers, packet = 28, ClientPacket(now_ns)
        self.packets.append(packet._replace(length=headers + payload, payload=payload))
        self.seq = (self.seq + payload) % 2**32


def any_loop(rng: random.Random) -> Loop:
    """A loop of any kind, for a fraction of a second."""
    ns = rng.choice([0.2, 0.5, 2, 5]) * MS
    rtt_ns = rng.choice([0, 60 * US, 300 * US, 10 * MS])
    least_ns = rtt_ns + 50 * US
    jitter = rng.choice([0, 0.03, 0.1, 0.11, 0.3])
    latency = rng.choice([constant(least_ns + ns, jitter), exponential(ns, least_ns)])
    think_ns = rng.choice([0, 0, 0.3, 1.1, 1.5, 8, 60, 250]) * MS
    share = rng.choice([0.02, 0.04, 0.1, 0.5])
    return Loop(
        latency,
        in_flight=rng.choice([1, 1, 1, 2, 3, 4, 10, 11, 16]),
        batch=rng.random() < 0.3,
        think=(lambda rng: think_ns * (rng.random() < share)) if think_ns else None,
        gap_ns=rng.choice([5 * US, 40 * US, 120 * US, 600 * US]),
        rtt_ns=rtt_ns,
        size=lambda rng: rng.choice([100, 100, 100, 1448]),
        seconds=rng.choice([0.3, 1.0]),
    )


def merged(flows: Sequence[Sequence[ClientPacket]]) -> list[ClientPacket]:
    """Several connections in one flow."""
    return list(heapq.merge(*flows, key=lambda packet: packet.time_ns))


def poisson(mean_ns: float, seconds: float, seed: int) -> list[ClientPacket]:
    """Requests that no response triggers."""
    rng, now_ns, packets = random.Random(seed), float(BEGIN_NS), []
    while now_ns < BEGIN_NS + seconds * S:
        packets.append(ClientPacket(int(now_ns), length=128, payload=100))
        now_ns += rng.expovariate(1 / mean_ns)
    return packets


def true_mean(truth: Sequence[Truth], start_ns: int, end_ns: int) -> float:
    """The mean latency of requests that were answered in this time."""
    latencies = [t.latency_ns for t in truth if start_ns < t.sent_ns + t.latency_ns <= end_ns]
    return sum(latencies) / max(1, len(latencies))


COLUMNS = (
    *(np.int64, np.uint64, np.uint32, np.uint32, np.uint32, np.uint32, np.uint32, np.uint32),
    *(np.uint16, np.uint16, np.uint8, np.uint8),
)


def kernel(method: str, settings: Settings = USUAL) -> _kernels.Pirate:
    """A meter with room for many flows."""
    epoch_ns, fewest, gap_ns, literal = settings
    return _kernels.Pirate(METHODS.index(method), 1 << 20, epoch_ns, fewest, gap_ns, literal, 7)


def observe(meter: _kernels.Pirate, packets: Sequence[ClientPacket]) -> None:
    columns = zip(*packets, strict=True) if packets else [()] * len(COLUMNS)
    meter.observe(*(np.array(column, kind) for column, kind in zip(columns, COLUMNS, strict=True)))


def taken(meter: _kernels.Pirate) -> list[tuple[int, Epoch]]:
    """The epochs since the last call, each with the key of its flow; derived columns are checked here."""
    room = np.zeros((meter.epochs, len(_kernels.EPOCH_COLUMNS)), np.uint64)
    meter.take(room)
    told = []
    for words in room.view(np.int64).tolist():
        said = dict(zip(_kernels.EPOCH_COLUMNS, words, strict=True))
        names = ("start_ns", "end_ns", "sum_ns", "count", "in_flight", "requests", "lost", "network_ns")
        epoch = Epoch(reason=REASONS[said["reason"]], **{name: said[name] for name in names})
        assert (said["batch_sum_ns"], said["batch_count"]) == (epoch.sum_ns, epoch.count)
        assert said["think_sum_ns"] == said["think_count"] == 0
        told.append((said["key"], epoch))
    return told


def epochs(method: str, packets: Sequence[ClientPacket], settings: Settings = USUAL) -> list[Epoch]:
    """A method's epochs for the packets of one flow."""
    meter = kernel(method, settings)
    observe(meter, packets)
    meter.cut(packets[-1].time_ns)
    return [epoch for _, epoch in taken(meter)]


def reasons(told: Iterable[Epoch]) -> dict[str, float]:
    """The share of epochs with each reason."""
    names = [epoch.reason for epoch in told]
    return {name: names.count(name) / len(names) for name in set(names)}


def errors(told: Iterable[Epoch], truth: Sequence[Truth]) -> list[float]:
    """The relative error of each answered epoch."""
    answered = [epoch for epoch in told if epoch.count]
    return [e.sum_ns / e.count / true_mean(truth, e.start_ns, e.end_ns) - 1 for e in answered]
