"""The flows of RLI in plain Python: groups of slots, and the records that leave them.

A part of the twin in `rli.py`, after the same law (`docs/reference/rli.md`, "The flow table").
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.hashing import MASK
from tests.oracles.join import coin, scaled

REASONS = ("inactive", "active", "evicted", "cut")
INACTIVE, ACTIVE, EVICTED, CUT = range(len(REASONS))
GROUP, HOLD = 8, 9  # purposes of coins
SLOTS = 8  # slots per group
GROUP_BYTES = 1024
FULL_SLOT = 2**22  # packets
SWEEP = 16  # packets per group that is checked


class Settings(NamedTuple):
    """The parameters, in the order of the law."""

    method: int
    memory: int
    bytes_per_s: int
    buffer: int
    idle_ns: int
    bracket_ns: int
    early_ns: int
    late_ns: int
    base_ns: int
    inactive_ns: int
    active_ns: int
    hold: int
    seed: int
    burst: int = 0

    @property
    def burst_ns(self) -> int:
        """B of a shaper, 0 for a link."""
        return self.burst * 10**9 // self.bytes_per_s if self.bytes_per_s else 0


class Entry(NamedTuple):
    """An entry that waits for a reference; a mark is not a packet of a flow."""

    t: int
    b: int
    is_start: bool
    is_mark: bool
    serialisation: int = 0
    size: int = 0
    key: int = 0
    id: int = 0
    row: int = 0
    ahead: int = 0


@dataclass
class Totals:
    """Totals of packets; sums are of the delays of timed ones."""

    packets: int = 0
    bytes: int = 0
    timed: int = 0
    sum_ns: int = 0
    squares: int = 0

    def add(self, size: int, delay_ns: int | None) -> None:
        self.packets += 1
        self.bytes += size
        if delay_ns is not None:
            self.timed += 1
            self.sum_ns += delay_ns
            self.squares += delay_ns**2

    def words(self) -> list[int]:
        """As unsigned words, two each for the sums."""
        sums = self.sum_ns & MASK, self.sum_ns >> 64 & MASK, self.squares & MASK, self.squares >> 64
        return [self.packets, self.bytes, self.timed, *sums]


@dataclass
class Record:
    """An occupied slot, and the record that leaves it."""

    key: int
    first_ns: int
    first_row: int
    last_ns: int = 0
    totals: Totals = field(default_factory=Totals)
    brackets: int = 0
    last_bracket: int = 0
    reason: int = -1  # still open

    def words(self) -> list[int]:
        """As unsigned words, in the kernel's order."""
        times = [self.key, self.first_ns, self.last_ns]
        return [*times, *self.totals.words(), self.brackets, self.reason]


def silent(record: Record, now_ns: int) -> int:
    return (now_ns - record.last_ns) % 2**64


class Table:
    """Groups of 8 slots, and the records that left."""

    def __init__(self, settings: Settings, counts: Counter[str]) -> None:
        self.settings = settings
        self.counts = counts
        self.groups: list[list[Record | None]] = [
            [None] * SLOTS for _ in range(min(settings.memory // GROUP_BYTES, 2**32 - 1))
        ]
        self.cursor = 0
        self.entered = 0
        self.left: list[Record] = []

    def enter(self, entry: Entry, delay_ns: int | None, bracket: int) -> None:
        self.entered += 1
        record = self.find(entry)
        if record is not None:
            record.totals.add(entry.size, delay_ns)
            record.last_ns = entry.t
            if delay_ns is not None and (record.brackets == 0 or record.last_bracket != bracket):
                record.brackets += 1
                record.last_bracket = bracket
        if self.entered % SWEEP == 0:
            self.sweep(entry.t)

    def find(self, entry: Entry) -> Record | None:
        """The record of a packet's flow, opened if needed; None if it is not held."""
        key = entry.key or 1
        group = self.groups[scaled(coin(key, self.settings.seed, GROUP), len(self.groups))]
        new = Record(key, entry.t, entry.row)
        for i, record in enumerate(group):
            if record is not None and record.key == key:
                reason = self.ended(record, entry.t)
                if reason is None:
                    return record
                self.leave(record, reason)
                group[i] = new
                return new
        if coin(entry.id, self.settings.seed, HOLD) >> 32 >= self.settings.hold:
            self.counts["unheld"] += 1
            return None
        if None in group:
            group[group.index(None)] = new
            return new
        oldest = max((record for record in group if record is not None), key=lambda record: silent(record, entry.t))
        self.leave(oldest, INACTIVE if silent(oldest, entry.t) > self.settings.inactive_ns else EVICTED)
        group[group.index(oldest)] = new
        return new

    def ended(self, record: Record, now_ns: int) -> int | None:
        """Why a record must leave now, if it must."""
        if silent(record, now_ns) > self.settings.inactive_ns:
            return INACTIVE
        if now_ns - record.first_ns > self.settings.active_ns or record.totals.packets == FULL_SLOT:
            return ACTIVE
        return None

    def leave(self, record: Record, reason: int) -> None:
        record.reason = reason
        self.counts[REASONS[reason]] += 1
        self.left.append(record)

    def sweep(self, now_ns: int) -> None:
        """Check the group at the cursor for ended flows."""
        group = self.groups[self.cursor]
        for i, record in enumerate(group):
            reason = None if record is None else self.ended(record, now_ns)
            if record is not None and reason is not None:
                self.leave(record, reason)
                group[i] = None
        self.cursor = (self.cursor + 1) % len(self.groups)

    def cut(self) -> None:
        for group in self.groups:
            for i, record in enumerate(group):
                if record is not None:
                    self.leave(record, CUT)
                    group[i] = None
