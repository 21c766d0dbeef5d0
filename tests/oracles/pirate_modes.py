"""Response latency from gaps between client packets, in plain Python: gap, modes, ack, window, syn.

The independent twin of `kernels/pirate_modes.h`, and the tests' oracle for it. Both follow
`docs/reference/pirate-modes.md`, section by section, and not each other. After Vannarth Shobhana et al., *Measuring
Response Latencies Under Asymmetric Routing*.

`Front` is common to the methods, for one flow: `packet` and `finish` return an epoch, or None. A `Rule` is specific to
a method; `Syn` is simpler than that.
"""

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

METHODS = ("gap", "modes", "ack", "in_flight", "syn", "auto", "blind")
REASONS = (
    *("answered", "too_few", "spontaneous", "joined", "think", "reordered"),
    *("coalesced", "no_gap", "crowd", "initial", "not_tcp"),
    *("too_fast", "multicast", "tunnel", "paced", "acks"),
)
FIN, SYN, RST, ACK = 1, 2, 4, 16
HAS_TCP = 1
TIMES = range(2**62)
FULL_LENGTH = 1400
MOST = 65535
MOST_MODES = 7
LONGEST_LAG_NS = 2**40


class ClientPacket(NamedTuple):
    """A packet from the client to the server, with the kernels' fields."""

    time_ns: int
    key: int = 1
    seq: int = 0
    ack: int = 0
    tsval: int = 0
    tsecr: int = 0
    length: int = 128
    payload: int = 100
    ip_id: int = 0
    mss: int = 0
    tcp_flags: int = 0
    has: int = 0

    def flagged(self, flags: int) -> bool:
        return bool(self.has & HAS_TCP and self.tcp_flags & flags)

    @property
    def is_tcp(self) -> bool:
        return bool(self.has & HAS_TCP)


class Settings(NamedTuple):
    epoch_ns: int = 500_000_000
    fewest: int = 4
    gap_ns: int = 1_000_000
    literal: bool = False


def travelled(hop_limit: int) -> bool:
    """Whether a packet passed more than two routers."""
    return hop_limit > 0 and next(first for first in (64, 128, 255) if hop_limit <= first) - hop_limit > 2


@dataclass(frozen=True)
class Epoch:
    """The result of a flow for an epoch, here without its key."""

    start_ns: int
    end_ns: int
    sum_ns: int
    count: int
    reason: str
    in_flight: int
    requests: int
    lost: int
    network_ns: int


def behind(a: int, b: int) -> int:
    return (a - b + 2**31) % 2**32 - 2**31


def clamp(a: int, low: int, high: int) -> int:
    return max(low, min(a, high))


def burst_size(requests: int, bursts: int) -> int:
    return 0 if bursts == 0 else clamp((2 * requests + bursts) // (2 * bursts), 0, MOST)


@dataclass(frozen=True)
class Said:
    """A method's result: the values of the epoch's fields."""

    reason: str
    sum_ns: int
    count: int
    in_flight: int


@dataclass
class Flow:
    """The common state of the methods; all of it is forgotten with the flow."""

    waits: bool = False
    last: int = 0
    network: int | None = None
    next: int | None = None
    any_request: bool = False
    full: bool = False
    not_tcp: bool = False
    start: int = 0
    requests: int = 0
    gaps: int = 0
    lost: int = 0


class Turn(NamedTuple):
    """A request packet as input of a method."""

    t: int
    gap_ns: int | None
    continues: bool


class Rule(Protocol):
    """The part that is specific to a method."""

    def after_syn(self) -> None:
        """The flow began with a SYN."""

    def moves(self, row: ClientPacket, t: int, flow: Flow) -> None:
        """Step 4: a row that has an ACK number."""

    def take(self, turn: Turn, flow: Flow) -> None:
        """A request packet."""

    def completions(self, flow: Flow) -> int: ...

    def says(self, flow: Flow) -> Said: ...

    def begin_epoch(self) -> None: ...


class Front:
    """Which packets are requests, and when an epoch ends."""

    def __init__(self, settings: Settings, rule: Callable[[Settings], Rule]) -> None:
        self.settings = settings
        self.make = rule
        self.forget()

    def forget(self) -> None:
        self.flow = Flow()
        self.rule = self.make(self.settings)

    def packet(self, row: ClientPacket) -> Epoch | None:
        if row.time_ns not in TIMES:
            return None
        flow = self.flow
        t = max(row.time_ns, flow.last)
        if row.flagged(SYN):
            return self.syn(t)
        if flow.waits:
            flow.waits = False
            if row.flagged(ACK):
                flow.network = clamp(t - flow.last, 1, 2**32 - 1)
        flow.not_tcp = flow.not_tcp or not row.is_tcp
        if row.flagged(ACK):
            self.rule.moves(row, t, flow)
        is_request = self.is_request(row)
        if is_request:
            self.request(row, t)
        if row.flagged(FIN | RST):
            told = self.end(t)
            self.forget()
            return told
        if is_request and self.is_over(t):
            return self.end(t)
        return None

    def syn(self, t: int) -> Epoch | None:
        flow = self.flow
        if flow.waits:
            flow.lost = min(flow.lost + 1, MOST)
            flow.last = t
            return None
        told = self.end(flow.last)
        self.forget()
        self.flow = Flow(waits=True, last=t, start=t)
        self.rule.after_syn()
        return told

    def is_request(self, row: ClientPacket) -> bool:
        if not row.is_tcp:
            return True
        if row.payload == 0:
            return False
        end, flow = (row.seq + row.payload) % 2**32, self.flow
        if flow.next is not None and -(2**24) < behind(end, flow.next) <= 0:
            flow.lost = min(flow.lost + 1, MOST)
            return False
        flow.next = end
        return True

    def request(self, row: ClientPacket, t: int) -> None:
        flow = self.flow
        turn = Turn(t, t - flow.last if flow.any_request else None, flow.full)
        if not turn.continues:
            flow.requests += 1
        if turn.gap_ns is None:
            flow.start = t
        else:
            flow.gaps += 1
        self.rule.take(turn, flow)
        flow.last, flow.any_request, flow.full = t, True, row.length >= FULL_LENGTH

    def is_over(self, t: int) -> bool:
        flow, epoch_ns = self.flow, self.settings.epoch_ns
        if MOST in (flow.requests, flow.gaps):
            return True
        long_ns = t - flow.start
        return long_ns >= epoch_ns and (self.rule.completions(flow) >= self.settings.fewest or long_ns >= 4 * epoch_ns)

    def end(self, t: int) -> Epoch | None:
        flow, said = self.flow, self.rule.says(self.flow)
        told = None
        if flow.requests or flow.gaps or flow.lost:
            network = -1 if flow.network is None else flow.network
            end = min(t, flow.start + 4 * self.settings.epoch_ns)
            told = Epoch(flow.start, end, 0, 0, said.reason, said.in_flight, flow.requests, flow.lost, network)
            if said.reason == "answered":
                told = replace(told, sum_ns=said.sum_ns, count=said.count)
        flow.start = t
        flow.requests = flow.gaps = flow.lost = 0
        self.rule.begin_epoch()
        return told

    def finish(self) -> Epoch | None:
        return self.end(self.flow.last)


class Gap:
    """Algorithm 1: a gap longer than a fixed one starts a burst."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.burst = 0
        self.begin_epoch()

    def after_syn(self) -> None:
        pass

    def moves(self, row: ClientPacket, t: int, flow: Flow) -> None:
        pass

    def take(self, turn: Turn, flow: Flow) -> None:
        if turn.gap_ns is None:
            self.burst = turn.t
        elif turn.gap_ns > self.settings.gap_ns:
            self.sum_ns += min(turn.t - self.burst, LONGEST_LAG_NS)
            self.count += 1
            self.burst = turn.t

    def completions(self, flow: Flow) -> int:
        return self.count

    def says(self, flow: Flow) -> Said:
        fewest = self.settings.fewest
        reason = "answered"
        if self.count < fewest:
            reason = "no_gap" if flow.gaps >= 16 * fewest else "too_few"
        return Said(reason, self.sum_ns, self.count, burst_size(flow.requests, self.count))

    def begin_epoch(self) -> None:
        self.sum_ns = self.count = 0


@dataclass
class Mode:
    low: int
    high: int
    sum: int
    count: int
    candidates: int


class Modes:
    """Algorithm 2 and the proportional mode sum."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.modes: list[Mode] = []

    def after_syn(self) -> None:
        pass

    def moves(self, row: ClientPacket, t: int, flow: Flow) -> None:
        pass

    def e(self, x: int) -> int:
        return 64 if self.settings.literal else 20 + (x >> 2) + (x >> 3)

    def is_near(self, mode: Mode, g: int) -> bool:
        if g < mode.low:
            return mode.low - self.e(mode.low) <= g
        return g <= mode.high or g <= mode.high + self.e(g)

    def take(self, turn: Turn, flow: Flow) -> None:
        if turn.gap_ns is None:
            return
        g = min((turn.t >> 10) - (flow.last >> 10), 2**31)
        near = [i for i, mode in enumerate(self.modes) if self.is_near(mode, g)]
        if near:
            self.add(near[0], g, not turn.continues)
        elif len(self.modes) < MOST_MODES:
            place = bisect([mode.low for mode in self.modes], g)
            self.modes.insert(place, Mode(g, g, g, 1, int(not turn.continues)))

    def add(self, i: int, g: int, is_candidate: bool) -> None:
        mode = self.modes[i]
        mode.sum = min(mode.sum + g, 2**32 - 1)
        mode.count += 1
        mode.candidates += is_candidate
        if g < mode.low:
            mode.low = g
            self.merge(i - 1)
        elif g > mode.high:
            mode.high = g
            self.merge(i)

    def merge(self, i: int) -> None:
        """Merge mode i and the next, if both exist and are near."""
        if i < 0 or i + 1 >= len(self.modes):
            return
        a, b = self.modes[i : i + 2]
        if b.low - self.e(b.low) <= a.high:
            total = min(a.sum + b.sum, 2**32 - 1)
            merged = Mode(min(a.low, b.low), max(a.high, b.high), total, a.count + b.count, a.candidates + b.candidates)
            self.modes[i : i + 2] = [merged]

    def discarded(self, flow: Flow) -> int:
        return flow.gaps - sum(mode.count for mode in self.modes)

    def batch(self, flow: Flow) -> int | None:
        """The mode that is the inter-batch gap."""
        total = self.discarded(flow) + sum(mode.candidates for mode in self.modes)
        for i in reversed(range(len(self.modes))):
            candidates = self.modes[i].candidates
            if candidates >= 1 if self.settings.literal else candidates >= 2 and 16 * candidates >= total:
                return i
        return None

    def is_prominent(self, batch: int, flow: Flow) -> bool:
        if self.settings.literal:
            return True
        low, gaps = self.modes[batch].low, flow.gaps
        below = [mode for mode in self.modes[:batch] if 16 * mode.count >= gaps]
        return not any(4 * mode.high > low for mode in below) and 8 * self.discarded(flow) <= gaps

    def completions(self, flow: Flow) -> int:
        batch = self.batch(flow)
        return 0 if batch is None else self.modes[batch].count

    def says(self, flow: Flow) -> Said:
        batch, fewest = self.batch(flow), self.settings.fewest
        if batch is None:
            return Said("too_few" if flow.gaps < fewest else "no_gap", 0, 0, 0)
        upto, count = self.modes[: batch + 1], self.modes[batch].count
        reason = "answered"
        if flow.gaps < fewest:
            reason = "too_few"
        elif not self.is_prominent(batch, flow):
            reason = "no_gap"
        elif count < fewest:
            reason = "too_few"
        sum_ns = 1024 * sum(mode.sum for mode in upto)
        return Said(reason, sum_ns, count, burst_size(sum(mode.count for mode in upto), count))

    def begin_epoch(self) -> None:
        self.modes = []


@dataclass
class Acks:
    """The client's cumulative ACK, and when it last moved."""

    ack: int | None = None
    moved: bool = False
    moved_at: int = 0

    def move(self, row: ClientPacket, t: int) -> bool:
        if self.ack is None:
            self.ack = row.ack
        elif behind(row.ack, self.ack) > 0:
            self.ack, self.moved, self.moved_at = row.ack, True, t
            return True
        return False

    def thought(self, t: int, latency_ns: int) -> bool:
        return self.moved and t - self.moved_at > max(2**20, latency_ns >> 3)


class Ack:
    """A request is triggered if the ACK has moved."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.begin_epoch()
        self.acks = Acks()
        self.burst: int | None = None
        self.size = 0

    def after_syn(self) -> None:
        pass

    def begin_epoch(self) -> None:
        self.sum_ns = self.count = self.alone = 0

    def moves(self, row: ClientPacket, t: int, flow: Flow) -> None:
        self.acks.move(row, t)

    def take(self, turn: Turn, flow: Flow) -> None:
        if turn.continues:
            return
        if self.burst is None:
            self.burst, self.size = turn.t, 1
        elif self.acks.moved:
            latency_ns = min(turn.t - self.burst, LONGEST_LAG_NS)
            self.sum_ns += latency_ns
            self.count += 1
            if self.size == 1 and self.acks.thought(turn.t, latency_ns):
                self.alone += 1
            self.burst, self.size = turn.t, 1
        else:
            self.size = min(self.size + 1, MOST)
        self.acks.moved = False

    def completions(self, flow: Flow) -> int:
        return self.count

    def says(self, flow: Flow) -> Said:
        reason = "answered"
        if flow.not_tcp:
            reason = "not_tcp"
        elif self.count < self.settings.fewest:
            reason = "too_few"
        elif 32 * self.alone > self.count:
            reason = "think"
        return Said(reason, self.sum_ns, self.count, burst_size(flow.requests, self.count))


class InFlight:
    """Request i + W is triggered by the response of request i."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.begin_epoch()
        self.acks = Acks()
        self.opening = False
        self.w = self.mark = self.since = 0

    def after_syn(self) -> None:
        self.opening = True

    def begin_epoch(self) -> None:
        self.sum_ns = self.count = self.alone = 0

    def moves(self, row: ClientPacket, t: int, flow: Flow) -> None:
        if self.acks.move(row, t) and self.opening and flow.any_request:
            self.w, self.opening = self.since + 1, False

    def take(self, turn: Turn, flow: Flow) -> None:
        if turn.continues:
            return
        moved, self.acks.moved = self.acks.moved, False
        is_known = self.w > 0 or self.opening
        if turn.gap_ns is None or (turn.gap_ns >= 2**29 and not is_known):
            self.opening = self.opening or turn.gap_ns is not None
            self.mark, self.since = turn.t, 0
            return
        self.since = min(self.since + 1, 65534)
        if self.w == 0 or self.since < self.w:
            return
        lag_ns = min(turn.t - self.mark, LONGEST_LAG_NS)
        self.sum_ns += lag_ns
        self.count += 1
        if self.w == 1 and moved and turn.t - self.acks.moved_at > max(2**20, lag_ns >> 3):
            self.alone += 1
        self.mark, self.since = turn.t, 0

    def completions(self, flow: Flow) -> int:
        return self.w * self.count

    def says(self, flow: Flow) -> Said:
        reason = "answered"
        if flow.not_tcp:
            reason = "not_tcp"
        elif self.w == 0 and not self.opening:
            reason = "joined"
        elif self.completions(flow) < self.settings.fewest:
            reason = "too_few"
        elif self.w in (10, 11):
            reason = "initial"
        elif 32 * self.alone > self.count:
            reason = "think"
        return Said(reason, self.w * self.sum_ns, min(self.completions(flow), 2**32 - 1), self.w)


@dataclass
class Syn:
    """From the SYN to its ACK: the network's share."""

    settings: Settings
    waits: bool = False
    answered: bool = False
    not_tcp: bool = False
    start: int = 0
    last: int = 0
    requests: int = 0
    lost: int = 0

    def packet(self, row: ClientPacket) -> Epoch | None:
        if row.time_ns not in TIMES:
            return None
        t = max(row.time_ns, self.last)
        if row.flagged(SYN):
            return self.syn(t)
        if not (self.requests or self.lost or self.waits):
            self.start = t
        self.requests = min(self.requests + 1, MOST)
        self.last = t
        self.not_tcp = self.not_tcp or not row.is_tcp
        told = None
        is_answer = self.waits and row.flagged(ACK)
        self.waits = False
        if is_answer:
            network_ns = clamp(t - self.start, 1, 2**32 - 1)
            told = replace(self.epoch("answered", t), sum_ns=network_ns, count=1, network_ns=network_ns)
            self.requests = self.lost = 0
            self.answered = True
        if row.flagged(FIN | RST):
            told = told or self.end(t)
            self.forget()
        return told

    def syn(self, t: int) -> Epoch | None:
        told = None
        if self.waits:
            self.lost = min(self.lost + 1, MOST)
        else:
            told = self.end(self.last)
            self.forget()
            self.waits = True
        self.start = self.last = t
        return told

    def forget(self) -> None:
        self.waits = self.answered = self.not_tcp = False
        self.start = self.last = self.requests = self.lost = 0

    def epoch(self, reason: str, end: int) -> Epoch:
        end = min(end, self.start + 4 * self.settings.epoch_ns)
        return Epoch(self.start, end, 0, 0, reason, 0, self.requests, self.lost, -1)

    def end(self, t: int) -> Epoch | None:
        told = None
        if not self.answered and (self.requests or self.lost):
            told = self.epoch("not_tcp" if self.not_tcp else "too_few" if self.waits else "joined", t)
        self.requests = self.lost = 0
        return told

    def finish(self) -> Epoch | None:
        return self.end(self.last)


RULES: dict[str, Callable[[Settings], Rule]] = {"gap": Gap, "modes": Modes, "ack": Ack, "in_flight": InFlight}
