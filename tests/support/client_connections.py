"""A client's packets on one TCP connection, from a small simulation with known latencies."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

US, MS, S = 1000, 1_000_000, 1_000_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
TCP, TIMESTAMPS, IP_ID, TRAVELLED = 1, 2, 4, 8
QUICK_ACKS = 16  # responses acknowledged at once at the beginning of a connection
START_NS = 1_700_000_000 * S + 123_456
Draw = Callable[[random.Random], float]


class Row(NamedTuple):
    """A client packet."""

    time_ns: int
    key: int = 1
    seq: int = 0
    ack: int = 0
    tsval: int = 0
    tsecr: int = 0
    length: int = 0
    payload: int = 0
    ip_id: int = 0
    mss: int = 0
    tcp_flags: int = ACK
    has: int = TCP | TIMESTAMPS | IP_ID


@dataclass
class Connection:
    """A client that keeps `in_flight` requests outstanding (all at once if `batch`), and its server."""

    service_ns: Draw
    in_flight: int = 1
    batch: bool = False
    serial: bool = False
    think_ns: Draw = lambda _: 0
    request: Draw = lambda _: 100
    response: Draw = lambda _: 540
    rtt_ns: int = 200 * US
    lost: float = 0  # share of requests lost before the vantage point, and sent again after a timeout
    tick_ns: int = MS
    has: int = TCP | TIMESTAMPS | IP_ID
    mss: int = 1460
    pieces: int = 1  # pieces of a response, 2 ms apart
    open_loop_ns: float = 0  # mean time between requests that wait for no response
    seconds: float = 4
    seed: int = 1
    rows: list[Row] = field(default_factory=list)
    truth: list[tuple[int, int]] = field(default_factory=list)

    def run(self) -> "Connection":
        self.rng = random.Random(self.seed)
        self.number = count()
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self.seq, self.acked, self.received, self.ip_id = 4_294_960_000, 77, 77, 65_000  # numbers that will wrap
        self.echo = self.server_clock(START_NS + self.rtt_ns // 2)
        self.unacked_echo: int | None = None
        self.unacked_ns = 0  # since when
        self.outstanding, self.free_ns, self.arrived_ns = 0, 0, 0
        self.end_ns = START_NS + round(self.seconds * S)
        self.packet(START_NS, 0, SYN)
        self.seq += 1
        now = START_NS + self.rtt_ns
        self.packet(now, 0, ACK)
        if self.open_loop_ns:
            self.at(now, self.spontaneous)
        else:
            self.at(now, self.send_all)
        while self.events:
            now, _, event = heapq.heappop(self.events)
            event(now)
        self.packet(now + MS, 0, ACK | FIN)
        self.rows.sort(key=lambda row: row.time_ns)
        return self

    def at(self, time_ns: int, event: Callable[[int], None]) -> None:
        heapq.heappush(self.events, (time_ns, next(self.number), event))

    def server_clock(self, time_ns: int) -> int:
        return (time_ns + 17 * S) // self.tick_ns % 2**32

    def packet(self, now: int, payload: int, flags: int, seq: int | None = None) -> None:
        self.ip_id += 1
        self.acked, self.unacked_echo, echo = self.received, None, self.unacked_echo
        self.echo = self.echo if echo is None else echo
        self.rows.append(
            Row(
                now,
                seq=(self.seq if seq is None else seq) % 2**32,
                ack=self.acked % 2**32,
                tsval=now // self.tick_ns % 2**32,
                tsecr=self.echo,
                length=payload + 52,
                payload=payload,
                ip_id=self.ip_id % 2**16,
                mss=self.mss if flags & SYN else 0,
                tcp_flags=flags,
                has=self.has,
            )
        )

    def spontaneous(self, now: int) -> None:
        if now < self.end_ns:
            self.send(now)
            self.at(now + round(self.rng.expovariate(1 / self.open_loop_ns)), self.spontaneous)

    def send_all(self, now: int) -> None:
        for i in range(self.in_flight):
            self.at(now + i * 20 * US, self.send)

    def send(self, now: int) -> None:
        size = round(self.request(self.rng))
        self.outstanding += 1
        seq, self.seq = self.seq, self.seq + size
        if self.rng.random() < self.lost:
            self.ip_id += 1
            seen = now + 200 * MS + 2 * self.rtt_ns
            self.at(seen, lambda later: self.segments(later, size, seq))
        else:
            seen = now
            self.segments(now, size, seq)
        begin = max(seen + self.rtt_ns // 2, self.free_ns if self.serial else 0)
        self.free_ns = begin + round(self.service_ns(self.rng))
        for left in reversed(range(self.pieces)):
            self.arrived_ns = max(self.arrived_ns + 2 * MS * (self.pieces > 1), self.free_ns + self.rtt_ns // 2)
            self.expect(now, left)

    def expect(self, sent_ns: int, left: int) -> None:
        echo = self.server_clock(self.arrived_ns - self.rtt_ns // 2)
        self.at(self.arrived_ns, lambda end: self.receive(end, sent_ns, echo, left))

    def segments(self, now: int, size: int, seq: int) -> None:
        for offset in range(0, size, self.mss - 12):
            payload = min(size - offset, self.mss - 12)
            self.packet(now + offset, payload, ACK | (PSH if offset + payload == size else 0), seq + offset)

    def receive(self, now: int, sent_ns: int, echo: int, left: int) -> None:
        size = round(self.response(self.rng)) // self.pieces
        self.received += size
        if self.unacked_echo is None:
            self.unacked_echo, self.unacked_ns = echo, now
        if left:
            self.packet(now, 0, ACK)
            return
        self.truth.append((sent_ns, now))
        self.outstanding -= 1
        segment = max(536, min(size, self.mss - 12))
        if len(self.truth) <= QUICK_ACKS or self.received - self.acked > segment:
            self.packet(now, 0, ACK)
        else:
            self.at(now + 40 * MS, self.delayed_ack)
        if self.open_loop_ns or now >= self.end_ns:
            return
        if not self.batch:
            self.at(now + 10 * US + round(self.think_ns(self.rng)), self.send)
        elif not self.outstanding:
            self.at(now + 10 * US + round(self.think_ns(self.rng)), self.send_all)

    def delayed_ack(self, now: int) -> None:
        if self.unacked_echo is not None and now - self.unacked_ns >= 40 * MS:
            self.packet(now, 0, ACK)


def constant(ns: float) -> Draw:
    return lambda _: ns


def bimodal(rng: random.Random) -> float:
    return rng.choice((2 * MS, 20 * MS))
