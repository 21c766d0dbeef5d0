"""A client's lateness from TCP timestamps, in plain Python: a part of `pirate_auto.py`.

Follows the section "Clocks" of `docs/reference/pirate.md`.
"""

from dataclasses import dataclass, field

from tests.oracles.pirate_modes import ClientPacket
from tests.oracles.pirate_modes import behind as apart

UNKNOWN, ONE_MS = 0, 4
TICKS_NS = (0, 1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 10_000_000, 100_000_000)
LATEST = 2**30


def circle(a: int) -> int:
    """On the circle of 32 bits; `apart(a, b)` is the law's a ~ b."""
    return a % 2**32


def units(us: int) -> int:
    return us * 1000 >> 10


def said(ticks: int, span: int) -> int:
    """The tick that was counted this often in a span."""
    if ticks < 8:
        return UNKNOWN
    for tick, ns in enumerate(TICKS_NS):
        if tick != UNKNOWN and abs(ticks * ns - span * 1024) <= span * 1024 >> 2:
            return tick
    return UNKNOWN


@dataclass
class Tick:
    number: int = ONE_MS
    doubt: int | None = None

    @property
    def ns(self) -> int:
        return TICKS_NS[self.number]

    def settle(self, number: int) -> bool:
        """Whether it changed."""
        if number == self.number:
            self.doubt = None
        elif number == self.doubt:
            self.number, self.doubt = number, None
            return True
        else:
            self.doubt = number
        return False


@dataclass
class Clock:
    """The clocks of the server (echo) and of the client (own), as far as known."""

    echo_tick: Tick = field(default_factory=Tick)
    own_tick: Tick = field(default_factory=Tick)
    echo_origin: int = 0
    own_ahead: int = 0  # the minimum by which the client's clock is ahead of the echo
    base_ns: int = 0
    is_sure: bool = False  # a measurement was certain of the tick
    base_at: int = 0
    usual: int = 0
    measured_from: int = 0
    measured_gap: int = 0
    measured_echo: int = 0
    measured_own: int = 0

    def begin(self, row: ClientPacket, t: int) -> None:
        self.echo_origin, self.own_ahead = row.tsecr, circle(row.tsval - row.tsecr)
        self.base_ns, self.base_at = row.time_ns, t
        self.usual = self.echo_tick.ns >> 11

    def begin_measure(self, row: ClientPacket, t: int, dt: int) -> None:
        self.measured_from, self.measured_gap = t, dt
        self.measured_echo, self.measured_own = row.tsecr, row.tsval

    def measure(self, row: ClientPacket, t: int, dt: int, advance: int) -> bool:
        """Measure ticks; return whether the echo's changed."""
        span = circle(t - self.measured_from)
        gap = self.measured_gap = max(self.measured_gap, dt)
        if advance <= 0:
            return False
        if (span < 2 * gap and dt < gap >> 3) or span > 2**30:
            self.begin_measure(row, t, dt)
            return False
        echoes, owns = circle(row.tsecr - self.measured_echo), circle(row.tsval - self.measured_own)
        if span < 2**17 or span < 4 * gap or (echoes < 8 and span < 2**20):
            return False
        echo_changed = self.echo_tick.settle(said(echoes, span))
        own_changed = self.own_tick.settle(said(owns, span))
        if echo_changed and not self.is_sure:
            self.base_ns = row.time_ns - 1024 * circle(t - self.base_at)
            self.usual = self.echo_tick.ns >> 11
        elif echo_changed:
            self.begin(row, t)
        if own_changed if self.is_sure else self.echo_tick.doubt is None:
            self.is_sure, self.base_at = True, t
        self.begin_measure(row, t, dt)
        return echo_changed

    def lateness(self, row: ClientPacket, t: int, dt: int) -> int:
        """How much later than usual the client sent this after a response; only if the echo tick is known."""
        tick_ns = self.echo_tick.ns
        if apart(row.tsecr, self.echo_origin) >= 2**30:
            self.echo_origin = circle(self.echo_origin + 2**30)
            self.base_ns += 2**30 * tick_ns
        seen_ns = row.time_ns - apart(row.tsecr, self.echo_origin) * tick_ns
        self.base_ns = min(self.base_ns + (dt >> 5), seen_ns)
        late = (seen_ns - self.base_ns) >> 10
        if self.own_tick.number == self.echo_tick.number and self.is_sure:
            ahead = circle(row.tsval - row.tsecr)
            if circle(t - self.base_at) > units(16_000_000):
                self.own_ahead = circle(self.own_ahead + 1)
                self.base_at = t
            if apart(ahead, self.own_ahead) < 0:
                self.own_ahead, self.base_at = ahead, t
            late = min(late, (apart(ahead, self.own_ahead) + 1) * tick_ns >> 10)
        return min(late, LATEST)
