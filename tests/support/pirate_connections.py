"""Simulated connections that resemble real traffic, whole and tampered with."""

import random
from collections.abc import Callable, Sequence
from functools import cache

from tests.oracles.pirate_modes import ClientPacket
from tests.support.client_connections import (
    ACK,
    FIN,
    IP_ID,
    PSH,
    RST,
    SYN,
    TCP,
    Connection,
    Draw,
    bimodal,
    constant,
)
from tests.support.client_loops import MS, US, S, exponential

WRAP_NS = 2**42  # times in units repeat
MANY = 2**32


def shifted(rows: Sequence[ClientPacket], begin_ns: int) -> list[ClientPacket]:
    return [row._replace(time_ns=row.time_ns - rows[0].time_ns + begin_ns) for row in rows]


def varied(service_ns: Draw, in_flight: int = 1, open_loop_ns: float = 0) -> Connection:
    """Requests and responses of any size."""
    return Connection(
        service_ns,
        in_flight,
        request=lambda rng: rng.randint(60, 1300),
        response=lambda rng: rng.randint(100, 6000),
        lost=0.03 if in_flight > 4 else 0,
        open_loop_ns=open_loop_ns,
        seconds=5,
    )


def pages() -> Connection:
    return Connection(
        exponential(2 * MS),
        in_flight=6,
        batch=True,
        serial=True,
        request=lambda rng: rng.choice((100, 100, 100, 220)),
        response=lambda rng: rng.choice((300, 9000)),
    )


CONNECTIONS: dict[str, Callable[[], Connection]] = {
    "one": lambda: Connection(exponential(2 * MS)),
    "one of whole segments": lambda: Connection(bimodal, response=constant(5 * 1448), seconds=8),
    "one of varied sizes": lambda: varied(exponential(5 * MS)),
    "sliding": lambda: Connection(exponential(5 * MS), in_flight=4),
    "sliding in turns": lambda: Connection(exponential(5 * MS), in_flight=16, serial=True),
    "sliding of varied sizes": lambda: varied(exponential(5 * MS), in_flight=4),
    "without timestamps": lambda: Connection(exponential(5 * MS), in_flight=4, has=TCP | IP_ID),
    "without anything": lambda: Connection(exponential(MS), think_ns=exponential(20 * MS), has=TCP),
    "batches": lambda: Connection(exponential(5 * MS), in_flight=4, batch=True),
    "batches at once": lambda: Connection(exponential(200 * US), in_flight=4, batch=True, rtt_ns=50 * US, seconds=1),
    "pages": pages,
    "thinks": lambda: Connection(exponential(2 * MS), think_ns=exponential(20 * MS), seconds=12),
    "thinks at times": lambda: Connection(
        exponential(2 * MS), in_flight=2, think_ns=lambda rng: 60 * MS * (rng.random() < 0.05)
    ),
    "thinks for long": lambda: Connection(exponential(2 * MS), think_ns=exponential(2 * S), seconds=400),
    "fine ticks": lambda: Connection(exponential(9 * MS), think_ns=exponential(50 * MS), tick_ns=US, seconds=20),
    "coarse ticks": lambda: Connection(
        exponential(20 * MS), in_flight=3, think_ns=exponential(99 * MS), tick_ns=10 * MS, seconds=20
    ),
    "loses": lambda: Connection(exponential(5 * MS), lost=0.03, rtt_ns=10 * MS, seconds=25, seed=3),
    "loses of varied sizes": lambda: varied(exponential(5 * MS), in_flight=8),
    "large requests": lambda: Connection(exponential(5 * MS), request=constant(8000)),
    "small segments": lambda: Connection(exponential(5 * MS), in_flight=2, response=constant(2096), mss=536),
    "huge responses": lambda: Connection(exponential(9 * MS), in_flight=3, response=constant(1 << 26), seconds=1),
    "many huge responses": lambda: Connection(exponential(9 * MS), in_flight=16, response=constant(1 << 26), seconds=1),
    "open loop": lambda: varied(exponential(2 * MS), open_loop_ns=3 * MS),
    "open loop of equal sizes": lambda: Connection(exponential(2 * MS), open_loop_ns=3 * MS, seconds=6),
}


@cache
def connection(name: str) -> list[ClientPacket]:
    """At most 6000 packets; numbers wrap after a while."""
    return wrapping(CONNECTIONS[name]().run())


def wrapping(c: Connection) -> list[ClientPacket]:
    rows = [ClientPacket(*row) for row in c.rows[:6000]]
    middle = rows[len(rows) // 3]
    before_ns = middle.time_ns - rows[0].time_ns
    return [
        row._replace(ack=(row.ack - middle.ack) % MANY, tsecr=(row.tsecr - middle.tsecr - 1) % MANY)
        for row in shifted(rows, 400_000 * WRAP_NS - before_ns)
    ]


JUMPS_NS = (-MS, MS, -S, S, 3 * S, -(2**36), 2**38, 2**38 + 1, -(2**39), 2**40 + 5, 2**41, WRAP_NS)
FLAGS = (0, FIN, SYN, RST, ACK, ACK | FIN, ACK | SYN, ACK | RST, FIN | SYN, ACK | PSH, ACK | FIN | PSH)
SEQS = (1, -1, 100, 1448, -1448, 65535, 65536, -70000, 2**22, 2**22 + 1, -(2**22) - 1, 2**31)
ACKS = (1, -1, 540, -540, 1448, 2**20, 2**28, 2**28 + 1, 2**31)
PAYLOADS = (0, 1, 4, 200, 499, 500, 1399, 1400, 1448, 8191, 8192, 65535, 2**18, 2**18 + 1, MANY - 1)
IDS = (-3, 2, 5, 63, 64, 2**15 - 1, 2**15)


def tampered(rows: Sequence[ClientPacket], rng: random.Random, share: float) -> list[ClientPacket]:
    """Change, drop, repeat and swap some rows; some changes affect later rows."""
    found: list[ClientPacket] = []
    later_ns = seqs = acks = 0
    for original in rows:
        row = original
        what = rng.randrange(13) if rng.random() < share else -1
        if what == 0:
            continue
        if what == 1:
            later_ns += rng.choice(JUMPS_NS)
        if what == 2:
            seqs += rng.choice((0, 100, 1448, 2**17, -(2**17), 2**22, 2**23))
            acks += rng.choice((0, 540, 2**17, 2**27, -(2**17)))
        row = row._replace(
            time_ns=max(-(2**63), min(row.time_ns + later_ns, 2**63 - 1)),
            seq=(row.seq + seqs + (rng.choice(SEQS) if what == 3 else 0)) % MANY,
            ack=(row.ack + acks + (rng.choice(ACKS) if what == 4 else 0)) % MANY,
            tsecr=(row.tsecr + (rng.choice((1, -1, 2**30, 2**31, 999)) if what == 5 else 0)) % MANY,
            tsval=(row.tsval + (rng.choice((1, -1, 2**30, 2**31, 999)) if what == 6 else 0)) % MANY,
            payload=rng.choice(PAYLOADS) if what == 7 else row.payload,
            ip_id=(row.ip_id + (rng.choice(IDS) if what == 8 else 0)) % 2**16,
            tcp_flags=rng.choice(FLAGS) if what == 9 else row.tcp_flags,
            has=rng.randrange(8) if what == 10 else row.has,
        )
        found += [row] * (2 if what == 11 else 1)
        if what == 12:
            last = found[-rng.randrange(2, 6) :]
            mixed = rng.sample(last, len(last))
            found[-len(last) :] = [new._replace(time_ns=old.time_ns) for new, old in zip(mixed, last, strict=True)]
    return found
