"""RLI in plain Python: rows at the receiver in, flow records with interpolated delays out.

The independent twin of `kernels/rli.h`, and the tests' oracle for it. Both follow `docs/reference/rli.md`, section by
section, and not each other. After Lee, Duffield and Kompella, *Not All Microseconds are Equal*. Only clarity counts
here: integers have no width, except the words that leave.

`Rli` processes rows and judges references, `Delays` computes the delay of a waiting packet; `Table`, in rli_flows.py,
keeps the flows.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.rli_flows import Entry, Settings, Table, Totals

METHODS = ("linear", "left", "busy")
LINEAR, LEFT, BUSY = range(len(METHODS))
REGULAR, REFERENCE, ANOTHER = 0, 1, 3  # kinds; ANOTHER: of another stream; all others are other

LARGEST_SIZE = 2**18 - 1
TIMES = range(2**62)
FARTHEST_NS = 2**40  # between the two times of a reference
AHEAD = range(1, 2**20 + 1)  # valid steps of sequence numbers
RUN = 8  # rejected references that agree
SEGMENTS = 32
BACK = 1024  # entries among which the packet that a reference names is looked for
FLAT = 8  # bursts after which one that was neither spent nor whole was spent


class Reference(NamedTuple):
    """The contents of a reference; `previous_ns` None: nothing about the packet before it."""

    sequence: int
    sent_ns: int
    previous_ns: int | None
    previous_id: int


class Row(NamedTuple):
    """A packet as the receiver saw it. Only a reference has contents."""

    time_ns: int
    kind: int
    size: int
    key: int
    id: int
    reference: Reference | None = None


class Anchor(NamedTuple):
    """A moment (by t and by b) at which the delay without serialisation is known: as measured, and its level."""

    t: int
    b: int
    q: int
    level: int
    serialisation: int = 0


class Known(NamedTuple):
    """The packet that a reference names: its place in the list, and its delay."""

    place: int
    anchor: Anchor
    is_start: bool


class Lesson(NamedTuple):
    """How much the queue grew over a distance, and the cell that learns it."""

    cell: tuple[int, int]
    grown: int
    distance: int


class Run(NamedTuple):
    """The last of the rejected references that agree, and their number."""

    length: int
    sequence: int
    q: int


NO_RUN = Run(0, 0, 0)


def clamp(a: int, low: int, high: int) -> int:
    return max(low, min(a, high))


def bits(a: int) -> int:
    return min(31, max(0, a).bit_length())


def between(q: int, dq: int, dx: int, x: int) -> int:
    """On the line from an anchor with delay q to one dx after it and dq above it."""
    slope = 0 if dx <= 0 else clamp(dq, -(2**36), 2**36) * 2**24 // dx
    return q + (slope * clamp(x, 0, max(0, dx)) >> 24)


# Delays


@dataclass
class Cell:
    """How much the queue grew, over which distance, and the slope in units of 2^-16."""

    grown: int = 0
    distance: int = 0
    slope: int = 0


def cell_at(anchor: Anchor, base: int, distance: int) -> tuple[int, int]:
    return bits(anchor.level - base), bits(distance)


@dataclass
class Delays:
    """The state that determines a delay: references on the left, an empty queue's delay, how queues grow."""

    settings: Settings
    left: Anchor | None = None  # l
    before: Anchor | None = None  # k
    base: int = 0
    is_firm: bool = False
    fine: int = 0
    empty_ns: int = 0  # w
    checks: int = 0
    misses: int = 0
    contests: int = 0
    foretold: int = 0
    straight: int = 0
    cells: dict[tuple[int, int], Cell] = field(default_factory=dict)

    @property
    def is_trusted(self) -> bool:
        """Whether `busy` is in effect."""
        starts_empty = self.checks >= 16 and 64 * self.misses <= self.checks
        beaten = self.contests >= 16 and self.foretold > 4 * self.straight
        return self.may_be_trusted and starts_empty and not beaten

    @property
    def may_be_trusted(self) -> bool:
        return self.settings.method == BUSY and self.settings.bytes_per_s > 0

    def empty(self, t: int, q: int) -> None:
        """The queue was empty at t, and the delay was q."""
        near, above = self.settings.idle_ns + 1000, q - self.base
        if not self.is_firm or t - self.empty_ns >= self.settings.base_ns or above < -near:
            self.fine, self.empty_ns, self.is_firm = 256 * q, t, True
            self.base = self.fine >> 8
        elif above <= near:
            self.fine += (256 * q - self.fine) >> 4
            self.empty_ns = t
            self.base = self.fine >> 8
        self.checks += 1
        self.misses += q - self.base > self.settings.idle_ns + 10_000
        if self.checks == 2**16:
            self.checks >>= 1
            self.misses >>= 1

    def predicted(self, anchor: Anchor, b: int) -> int:
        x = clamp(b - anchor.b, 0, 2**32)
        slope = self.cells.get(cell_at(anchor, self.base, x), Cell()).slope
        return max(self.base, min(anchor.level + (slope * x >> 16), anchor.level + x))

    def at_start(self, entry: Entry) -> Anchor:
        level = self.base + entry.ahead
        return Anchor(entry.t, entry.b, level, level, entry.serialisation)

    def delay(self, level: int, serialisation: int) -> int:
        """The delay with `busy`: through a shaper, none is shorter than that of a packet that does not wait."""
        if self.settings.burst_ns == 0:
            return level + serialisation
        return max(level + serialisation, self.base + self.settings.burst_ns)

    def learn(self, lesson: Lesson) -> None:
        cell = self.cells.setdefault(lesson.cell, Cell())
        cell.grown += clamp(lesson.grown, -(2**34), lesson.distance)
        cell.distance += lesson.distance
        if cell.distance >= 2**40 or abs(cell.grown) >= 2**46:
            cell.grown >>= 1
            cell.distance >>= 1
        cell.slope = clamp(cell.grown * 2**16 // max(1, cell.distance), -(2**30), 2**16)

    def anchor(self, entries: Sequence[Entry], left: Anchor) -> Anchor:
        """The anchor for what follows these entries: the last start among them, or the left reference."""
        for entry in reversed(entries):
            if entry.is_start:
                return self.at_start(entry)
        return left

    def beside(self, q: int, left: Anchor, entry: Entry) -> int:
        """The delay of a packet that is not told by `busy`: how its size matters is not known of a shaper."""
        return q + (left.serialisation if self.settings.burst_ns else entry.serialisation)

    def by_left(self, entries: Sequence[Entry], i: int, left: Anchor) -> int:
        """The delay of an entry with no reference after it."""
        entry = entries[i]
        if not self.is_trusted:
            return self.beside(left.q, left, entry)
        level = self.base + entry.ahead if entry.is_start else self.predicted(self.anchor(entries[:i], left), entry.b)
        return self.delay(level, entry.serialisation)

    def by_anchors(
        self, entries: Sequence[Entry], left: Anchor, known: Known | None, right: Anchor, ends: bool
    ) -> list[int]:
        """The delays of all entries, with `busy`: by the anchors before and after each.

        `ends`: the right reference is a start.
        """
        anchors: list[tuple[int, Anchor, bool]] = []  # the place in the list, and whether it is a start
        for i, entry in enumerate(entries):
            if known is not None and i == known.place:
                anchors.append((i, known.anchor, entry.is_start))
            elif entry.is_start:
                anchors.append((i, self.at_start(entry), True))
        anchors.append((len(entries), right, ends))
        levels: list[int] = []
        a = left
        for place, n, is_start in anchors:
            for entry in entries[len(levels) : place]:
                if is_start:
                    levels.append(self.predicted(a, entry.b))
                else:
                    levels.append(between(a.level, n.level - a.level, n.b - a.b, entry.b - a.b))
            if place < len(entries):
                levels.append(n.level)
            a = n
        return [self.delay(level, entry.serialisation) for level, entry in zip(levels, entries, strict=True)]


# Rows


class Rli:
    """A receiver. `counts` are by name; `errors` by segment: number, and sum of their squares."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.table = Table(settings, self.counts)
        self.delays = Delays(settings)
        self.errors = [(0, 0)] * SEGMENTS
        self.totals = Totals()
        self.rows = 0
        self.waiting: list[Entry] = []
        self.last_ns: int | None = None  # T
        self.last_sequence: int | None = None
        self.floor: int | None = None
        self.run = NO_RUN
        self.pending: Lesson | None = None
        self.bracket = 0
        self.spent = self.spare = settings.burst_ns
        self.since = 0

    def observe(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.take(row)
            self.rows += 1

    def take(self, row: Row) -> None:
        if row.time_ns not in TIMES:
            self.counts["bad_time"] += 1
            return
        before, t, is_fresh = self.last_ns, row.time_ns, self.last_ns is None
        if before is not None and t < before - self.settings.bracket_ns:
            self.counts["steps"] += 1
            self.settle()
            self.forget()
            is_fresh = True
        elif before is not None and t < before:
            self.counts["backwards"] += 1
            t = before
        self.last_ns = t

        size = min(row.size, LARGEST_SIZE)
        rate = self.settings.bytes_per_s
        serialisation = size * (10**9 * 2**32 // rate) >> 32 if rate > 0 else 0
        is_start, ahead = self.starts(t, None if is_fresh else before, serialisation)
        if is_start:
            if self.pending is not None:
                self.delays.learn(self.pending)
            self.pending = None

        entry = Entry(
            t, t - serialisation, is_start, row.kind != REGULAR, serialisation, size, row.key, row.id, self.rows, ahead
        )
        if row.kind == REGULAR:
            self.wait(entry)
            return
        if row.reference is None:
            self.counts["others"] += 1
        else:
            if row.kind == ANOTHER:
                self.restart()
            if self.judge(entry, row.reference):
                self.accept(entry, row.reference)
                return
        if is_start:
            self.wait(entry)

    def starts(self, t: int, before: int | None, serialisation: int) -> tuple[bool, int]:
        """Whether a row did not wait, and the work before it if so; `before` None: the row is fresh."""
        idle_ns, burst_ns = self.settings.idle_ns, self.settings.burst_ns
        if self.settings.bytes_per_s == 0:
            return False, 0
        if burst_ns == 0:
            return before is not None and t - before > serialisation + idle_ns, 0
        ahead = burst_ns if before is None else max(0, self.spent - (t - before))
        self.spent = ahead + serialisation
        if before is None or self.spent + idle_ns >= burst_ns:
            self.spent, self.spare, self.since = burst_ns, burst_ns, t
            return False, ahead
        if ahead == 0:
            self.spare, self.since = burst_ns, t
        self.spare = min(self.spare, burst_ns - self.spent)
        if t - self.since <= FLAT * burst_ns:
            return True, ahead
        self.spent += self.spare
        self.spare, self.since = burst_ns, t
        return self.spent + idle_ns < burst_ns, self.spent - serialisation

    def cut(self) -> None:
        self.settle()
        self.table.cut()

    def drain(self, bytes_per_s: int, idle_ns: int, burst: int = 0) -> None:
        """Another drain rate."""
        self.settle()
        delays = self.delays
        self.pending = delays.left = delays.before = None
        delays.is_firm = False
        delays.checks = delays.misses = delays.contests = delays.foretold = delays.straight = 0
        self.settings = delays.settings = self.settings._replace(bytes_per_s=bytes_per_s, idle_ns=idle_ns, burst=burst)
        self.spent = self.spare = self.settings.burst_ns
        self.since = self.last_ns or 0

    # Waiting entries

    def wait(self, entry: Entry) -> None:
        if len(self.waiting) >= self.settings.buffer:
            self.counts["full"] += sum(not waits.is_mark for waits in self.waiting)
            self.settle()
        self.waiting.append(entry)

    def settle(self) -> None:
        """Settle without a reference on the right."""
        timed = self.totals.timed
        left, alone = self.delays.left, self.delays.before is None
        for i, entry in enumerate(self.waiting):
            if entry.is_mark:
                continue
            if left is None or alone:
                self.untimed(entry, "before")
            elif entry.t - left.t > self.settings.bracket_ns:
                self.untimed(entry, "wide")
            else:
                self.timed(entry, self.delays.by_left(self.waiting, i, left))
        self.settled(timed)

    def settle_with(self, right: Anchor, known: Known | None, ends: bool) -> None:
        """Settle with a reference on the right; `known`: the packet that it names, `ends`: it is a start."""
        timed, left = self.totals.timed, self.delays.left
        if left is None or right.t - left.t > self.settings.bracket_ns:
            for entry in self.waiting:
                if not entry.is_mark:
                    self.untimed(entry, "before" if left is None else "wide")
            self.waiting = []
            return
        if self.settings.method == LEFT:
            delays = [self.delays.beside(left.q, left, entry) for entry in self.waiting]
        elif self.delays.is_trusted:
            delays = self.delays.by_anchors(self.waiting, left, known, right, ends)
        else:
            dq, dt = right.q - left.q, right.t - left.t
            delays = [
                self.delays.beside(between(left.q, dq, dt, entry.t - left.t), left, entry) for entry in self.waiting
            ]
        for entry, delay in zip(self.waiting, delays, strict=True):
            if not entry.is_mark:
                self.timed(entry, delay)
        self.settled(timed)

    def settled(self, timed: int) -> None:
        """Clear the list; `timed`: packets with a delay before."""
        self.counts["together"] += (self.totals.timed - timed) ** 2
        self.waiting = []

    def timed(self, entry: Entry, delay: int) -> None:
        self.counts["untrusted"] += self.delays.may_be_trusted and not self.delays.is_trusted
        self.enter(entry, delay)

    def untimed(self, entry: Entry, why: str) -> None:
        self.counts[why] += 1
        self.enter(entry, None)

    def enter(self, entry: Entry, delay_ns: int | None) -> None:
        self.totals.add(entry.size, delay_ns)
        self.table.enter(entry, delay_ns, self.bracket)

    # References

    def forget(self) -> None:
        self.last_sequence = self.floor = self.pending = None
        self.delays.left = self.delays.before = None
        self.delays.is_firm = False
        self.run = NO_RUN

    def restart(self) -> None:
        self.counts["restarts"] += 1
        self.forget()
        self.settle()

    def verdict(self, sequence: int, b: int, q: int, serialisation: int) -> str | None:
        """Why a reference is rejected, if it is."""
        if self.last_sequence is not None:
            ahead = (sequence - self.last_sequence) % 2**32
            if ahead == 0:
                return "rejected_repeated"
            if ahead not in AHEAD:
                return "rejected_sequence"
        return None if self.is_likely(q + serialisation) and not self.overtakes(b - q) else "rejected_time"

    def overtakes(self, sent: int) -> bool:
        left = self.delays.left
        return left is not None and sent < left.b - left.q - self.settings.early_ns

    def is_likely(self, delay: int) -> bool:
        return self.floor is None or self.floor - self.settings.early_ns <= delay <= self.floor + self.settings.late_ns

    def judge(self, entry: Entry, reference: Reference) -> bool:
        """Whether it is accepted."""
        if reference.sent_ns not in TIMES or abs(entry.t - reference.sent_ns) > FARTHEST_NS:
            self.counts["rejected_time"] += 1
            return False
        q = entry.t - reference.sent_ns - entry.serialisation
        verdict = self.verdict(reference.sequence, entry.b, q, entry.serialisation)
        if verdict is None:
            return True
        run, left = self.run, self.delays.left
        follows = (reference.sequence - run.sequence) % 2**32 in AHEAD and abs(q - run.q) <= self.settings.late_ns
        self.run = Run(run.length + 1 if run.length > 0 and follows else 1, reference.sequence, q)
        unheard = left is None or entry.t - left.t > self.settings.bracket_ns
        alone = verdict == "rejected_time" and left is not None and self.delays.before is None
        if (self.run.length >= RUN and unheard) or (self.run.length >= 2 and alone):
            self.restart()
            return True
        self.counts[verdict] += 1
        return False

    def accept(self, entry: Entry, reference: Reference) -> None:
        self.counts["accepted"] += 1
        self.run = NO_RUN
        self.last_sequence = reference.sequence
        q, burst_ns, delays = entry.t - reference.sent_ns - entry.serialisation, self.settings.burst_ns, self.delays
        delay = q + entry.serialisation
        self.floor = delay if self.floor is None else min(self.floor, delay)
        if not delays.is_firm:
            delays.base = self.floor - (burst_ns or entry.serialisation)

        known = self.previous(reference, entry.serialisation)
        if known is not None and known.is_start:
            p, at = known.anchor, self.waiting[known.place]
            delays.empty(p.t, p.q + p.serialisation - burst_ns if burst_ns else p.q)
            known = known._replace(anchor=p._replace(level=delays.base + at.ahead if burst_ns else p.q))
        if known is None and entry.is_start:
            delays.empty(entry.t, delay - burst_ns if burst_ns else q)
        level = delays.base + entry.ahead if burst_ns and entry.is_start else q
        here = Anchor(entry.t, entry.b, q, level, entry.serialisation)

        left = delays.left
        is_usable = left is not None and here.t - left.t <= self.settings.bracket_ns
        if left is not None and is_usable:
            self.err(here, left, known, entry.is_start)
            self.pending = self.lesson(here, left, known, entry.is_start)
            behind = self.waiting[known.place + 1 :] if known is not None else []
            if self.pending is not None and (entry.is_start or any(one.is_start for one in behind)):
                delays.learn(self.pending)
                self.pending = None
        else:
            self.pending = None
        self.settle_with(here, known, entry.is_start)
        delays.before = left if is_usable else None
        delays.left = here
        self.bracket = (self.bracket + 1) % 2**32

    def previous(self, reference: Reference, serialisation: int) -> Known | None:
        """The packet that the reference names, if it waits; `serialisation`: that of the reference."""
        if reference.previous_ns is None:
            return None
        last = range(len(self.waiting) - 1, max(-1, len(self.waiting) - 1 - BACK), -1)
        place = next(
            (i for i in last if not self.waiting[i].is_mark and self.waiting[i].id == reference.previous_id), None
        )
        if place is None:
            self.counts["previous_missed"] += 1
            return None
        p = self.waiting[place]
        sent, q = reference.previous_ns, p.t - reference.previous_ns - p.serialisation
        in_order = 0 <= sent <= reference.sent_ns + self.settings.idle_ns and not self.overtakes(sent)
        if in_order and self.is_likely(q + (p.serialisation if self.settings.burst_ns else serialisation)):
            self.counts["previous_used"] += 1
            return Known(place, Anchor(p.t, p.b, q, q, p.serialisation), p.is_start)
        self.counts["previous_rejected"] += 1
        return None

    def newest(self, here: Anchor, left: Anchor, known: Known | None, is_start: bool) -> tuple[Anchor, Anchor, bool]:
        """The packet that the reference names if known, else the reference; its anchor; whether it is a start."""
        if known is None:
            return here, self.delays.anchor(self.waiting, left), is_start
        return known.anchor, self.delays.anchor(self.waiting[: known.place], left), known.is_start

    def lesson(self, here: Anchor, left: Anchor, known: Known | None, is_start: bool) -> Lesson | None:
        newest, anchor, begins = self.newest(here, left, known, is_start)
        x = newest.b - anchor.b
        if self.settings.bytes_per_s == 0 or begins or x <= 0:
            return None
        x = min(x, 2**36)
        return Lesson(cell_at(anchor, self.delays.base, x), newest.level - anchor.level, x)

    def contest(self, by_busy: int, by_line: int) -> None:
        """Record both errors at the same reference."""
        delays = self.delays
        delays.foretold += min(abs(by_busy), 2**32)
        delays.straight += min(abs(by_line), 2**32)
        delays.contests += 1
        if delays.contests == 2**12:
            delays.foretold, delays.straight, delays.contests = delays.foretold >> 1, delays.straight >> 1, 2**11

    def err(self, here: Anchor, left: Anchor, known: Known | None, is_start: bool) -> None:
        """Record the error that an estimate of a known delay would have had."""
        before = self.delays.before
        newest, anchor, begins = self.newest(here, left, known, is_start)
        by_line: int | None = None
        if before is not None and here.t > before.t:
            by_line = between(before.q, here.q - before.q, here.t - before.t, left.t - before.t)
            if self.settings.method == LEFT:
                by_line = before.q
        by_busy = off = 0
        if self.delays.may_be_trusted:
            at_start = newest.level if self.settings.burst_ns else self.delays.base
            by_busy = at_start if begins else self.delays.predicted(anchor, newest.b)
            off = newest.q + newest.serialisation - self.delays.delay(by_busy, newest.serialisation)
            if by_line is not None:
                self.contest(off, left.q - by_line)
        if self.delays.is_trusted:
            foretold, error = by_busy, off
        elif by_line is not None:
            foretold, error = by_line, left.q - by_line
        else:
            return
        segment = bits(foretold - self.delays.base)
        count, squares = self.errors[segment]
        self.errors[segment] = (count + 1, squares + min(abs(error), 2**32) ** 2)
