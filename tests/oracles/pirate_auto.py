"""Response latency by Little's law, in plain Python: client packets in, epochs out. The method `auto`.

The independent twin of `kernels/pirate_auto.h`, and the tests' oracle for it. Both follow `docs/reference/pirate.md`,
section by section, and not each other. Only clarity counts here: integers have no width, except those on the circle of
32 bits.

`Table` keeps the flows, `Flow` processes the packets of one and ends its epochs, `Record` (`pirate_record.py`) is its
state, `Clock` (`pirate_clocks.py`) interprets timestamps.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.oracles.join import coin, scaled
from tests.oracles.pirate_clocks import UNKNOWN, circle, units
from tests.oracles.pirate_modes import FIN, METHODS, MOST, REASONS, RST, SYN, TIMES, ClientPacket, Settings, clamp
from tests.oracles.pirate_modes import behind as apart
from tests.oracles.pirate_record import Record

AUTO = METHODS.index("auto")
STRAYS = 8
GROUP = 8  # purpose of a coin
SLOTS, SLOT_BYTES = 8, 256 + 56
MANY = 2**15  # completions or requests


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch, in the kernel's order; without an estimate much of it is 0."""

    key: int
    start_ns: int
    end_ns: int
    sum_ns: int = 0
    count: int = 0
    reason: int = 0
    method: int = AUTO
    in_flight: int = 0
    batch_sum_ns: int = 0
    batch_count: int = 0
    think_sum_ns: int = 0
    think_count: int = 0
    requests: int = 0
    lost: int = 0
    network_ns: int = -1
    waits: int = 0
    waits_before: int = 0
    riding: int = 0
    turns: int = 0
    more: int = 0
    doubts: int = 0
    traits: int = 0
    tick: int = 0


def answer(record: Record, settings: Settings, now_ns: int, key: int) -> Epoch:
    """The result of the epoch that ends; also learns from it."""
    sums, fewest = record.sums, settings.fewest
    if record.w == 1 and sums.busy_count >= fewest:
        total, count = signed(sums.busy_sum), sums.busy_count
    else:
        total, count = littles(record), sums.completions
    reason = reason_of(record, fewest, total)
    total = clamp(total, 0, count * 2**28)
    if total > 0 and sums.completions >= fewest and reason not in ("spontaneous", "not_tcp") and not sums.spoilt:
        learn(record, total // count)
    told = Epoch(
        key=key,
        start_ns=record.start_ns,
        end_ns=clamp(now_ns, record.start_ns, record.start_ns + 4 * settings.epoch_ns),
        reason=REASONS.index(reason),
        in_flight=record.w,
        requests=sums.requests,
        lost=sums.doubt("lost"),
        network_ns=record.handshake * 1024 if record.handshake else -1,
        waits=packed([wait_code(wait) for wait, _ in reversed(sums.waits[-8:])], 8),
        waits_before=packed([wait_code(wait) for wait, _ in reversed(sums.waits[-12:-8])], 8),
        riding=packed([int(rides) for _, rides in reversed(sums.waits[-12:])], 1) + 4096 * min(sums.trailing, 15),
        turns=min(len(sums.waits), 255),
        more=min(sums.more, 255),
        doubts=min(MOST, sum(sums.doubt(name) for name in ("spontaneous", "lone", "reordered", "coalesced"))),
        traits=traits(record),
        tick=record.clock.echo_tick.number,
    )
    if reason != "answered":
        return told
    batch_sum, batch_count = sums.flight_sum, sums.flight_count
    if record.w == 1 or (sums.busy_count >= sums.flight_count and record.latency >= units(256)):
        batch_sum, batch_count = sums.busy_sum, sums.busy_count
    return replace(
        told,
        sum_ns=total * 1024,
        count=count,
        batch_sum_ns=max(0, signed(batch_sum)) * 1024,
        batch_count=batch_count,
        think_sum_ns=max(0, signed(sums.think_sum)) * 1024,
        think_count=sums.think_count,
    )


def littles(record: Record) -> int:
    """The sum of latencies by Little's law; -1: none."""
    total = min(record.sums.area, 2**50) - record.ages(record.last)
    return total if record.sums.completions and total >= 0 else -1


def reason_of(record: Record, fewest: int, total: int) -> str:
    sums, doubt = record.sums, record.sums.doubt
    if sums.not_tcp:
        return "not_tcp"
    if sums.completions < fewest or total < 0:
        return "too_few"
    if not record.knows_response and 8 * doubt("spontaneous") > sums.requests:
        return "spontaneous"
    if not record.in_step or sums.spoilt or total == 0:
        return "joined"
    if 32 * doubt("lone") > sums.requests or is_coarse(record, total):
        return "think"
    if record.w > 1 and not record.is_exact and 16 * doubt("reordered") > sums.requests:
        return "reordered"
    if not record.is_exact and 8 * doubt("coalesced") > sums.requests:
        return "coalesced"
    return "answered"


def is_coarse(record: Record, total: int) -> bool:
    """Whether its clients have long think times, and its clock ticks more slowly than it responds."""
    sums, tick = record.sums, record.clock.echo_tick.ns >> 10
    thinks = circle(sums.think_sum) > 2 * tick * sums.think_count
    return record.is_stamped and thinks and total < tick * sums.completions


def signed(total: int) -> int:
    return apart(circle(total), 0)


def learn(record: Record, mean: int) -> None:
    record.latency = mean
    if record.steady > 0:
        mean = min(mean, 2 * record.steady)
    record.steady = max(mean, record.steady >> 1)


def wait_code(wait: int) -> int:
    """Eight steps per octave."""
    octave = wait.bit_length() - 1
    return wait if wait < 8 else 8 * (octave - 2) + (wait >> (octave - 3)) % 8


def packed(values: list[int], bits: int) -> int:
    """Values in one number, the first one lowest."""
    return sum(value << bits * place for place, value in enumerate(values))


def traits(record: Record) -> int:
    is_timed = record.is_stamped and record.clock.is_sure and record.clock.echo_tick.number != UNKNOWN
    shown = (
        record.is_stamped, is_timed, record.knows_response, record.is_exact, record.in_step, record.is_far,
        record.mean.eighths > 0 and 8 * record.opening.size >= 2 * record.mean.eighths,
    )  # fmt: skip
    return packed([int(one) for one in shown], 1)


class Flow:
    """The packets of a flow, in order. A value without its flag is None."""

    def __init__(self, settings: Settings, key: int) -> None:
        self.settings = settings
        self.key = key
        self.last_ns = 0
        self.record: Record | None = None

    def packet(self, row: ClientPacket) -> Epoch | None:
        self.last_ns = now_ns = row.time_ns
        told = None
        elapsed_ns = now_ns - self.record.start_ns if self.record is not None else 0
        if self.record is not None and now_ns - self.record.start_ns > 4 * self.settings.epoch_ns:
            told = self.finish(now_ns)
        if row.flagged(SYN):
            told = told or self.finish(now_ns)
            self.record = Record(row)
            return told
        if row.flagged(RST):
            return told or self.finish(now_ns)
        if self.record is not None and self.record.is_stray(row):
            self.record.strays += 1
            self.record.sums.doubts["lost"] += 1
            if self.record.strays < STRAYS:
                return told
            told = told or self.finish(now_ns)
            self.record = None
        if self.record is None:
            self.record, elapsed_ns = Record(row), 0
        self.record.strays = 0
        self.record.packet(row, elapsed_ns)
        if told is None and (row.flagged(FIN) or self.is_over(self.record, row)):
            told = self.finish(now_ns)
        return told

    def is_over(self, record: Record, row: ClientPacket) -> bool:
        long_ns, epoch_ns = row.time_ns - record.start_ns, self.settings.epoch_ns
        has_enough = row.payload > 0 and record.sums.completions >= self.settings.fewest
        if record.sums.spoilt or max(record.sums.completions, record.sums.requests) >= MANY:
            return True
        return long_ns >= (epoch_ns if has_enough else 4 * epoch_ns)

    def finish(self, now_ns: int) -> Epoch | None:
        record, told = self.record, None
        if record is None:
            return None
        if record.is_open:
            sums = record.sums
            if sums.requests or sums.completions:
                told = answer(record, self.settings, now_ns, self.key)
            record.begin_epoch(record.last)
        record.start_ns = max(record.start_ns, now_ns)
        return told


class Table:
    """Groups of 8 slots, and the epochs that ended."""

    def __init__(self, settings: Settings, memory: int, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        groups = max(1, memory // (SLOTS * SLOT_BYTES))
        self.groups: list[list[Flow | None]] = [[None] * SLOTS for _ in range(groups)]
        self.counts: Counter[str] = Counter()
        self.given: list[Epoch] = []

    def observe(self, rows: Iterable[ClientPacket]) -> None:
        for row in rows:
            self.counts["packets"] += 1
            if row.time_ns not in TIMES:
                self.counts["bad_time"] += 1
                continue
            self.give(self.find(row.key or 1).packet(row))

    def find(self, key: int) -> Flow:
        group = self.groups[scaled(coin(key, self.seed, GROUP), len(self.groups))]
        for flow in group:
            if flow is not None and flow.key == key:
                return flow
        self.counts["flows"] += 1
        if None in group:
            slot = group.index(None)
        else:
            slot = min(range(SLOTS), key=lambda i: last_ns(group[i]))
            self.finish(group[slot], last_ns(group[slot]))
            self.counts["evicted"] += 1
        new = Flow(self.settings, key)
        group[slot] = new
        return new

    def finish(self, flow: Flow | None, now_ns: int) -> None:
        if flow is not None:
            self.give(flow.finish(now_ns))

    def give(self, epoch: Epoch | None) -> None:
        if epoch is not None:
            self.given.append(epoch)

    def cut(self, now_ns: int) -> None:
        for group in self.groups:
            for flow in group:
                self.finish(flow, now_ns)
            group[:] = [None] * SLOTS


def last_ns(flow: Flow | None) -> int:
    return 0 if flow is None else flow.last_ns
