"""The share of the load for each backend, from response latencies: no I/O, no clock, one interval at a time.

Laws:
- Weights add up to 1. None is below its floor: a backend without traffic cannot show that it has recovered. All that
  are slow, silent or suspect share one floor: together they stay below 1% of connections, so p99 is the others'.
- Latency is a sum over a count, over all connections of a backend and as many past intervals as can be trusted. What
  contradicts the past replaces it. No samples mean unknown, never unchanged.
- Weight leaves a backend as soon as an unfinished interval shows that it is slow, since each connection that it still
  gets stays with it. All else waits for the interval's end.
- A backend is slow if it is significantly above the high watermark. Significance follows from the number of samples,
  the scatter of interval means, and the number of backends tested. A slow backend loses the part of its weight by which
  its latency exceeds the watermark, to backends below the low watermark that are at least as fresh; each of these gains
  a limited increment in an interval, up to a few times its fair share. (Near the watermark steps are small: where load
  causes the latency, large ones would oscillate.)
- After some quiet intervals weights return to fair shares; while any backend is slow, only among the healthy ones.
- A backend that gets requests and never responds, while others do, is silent, and is cut down to its floor.

After appendix C of B. V. Shobhana and others, *Measuring Response Latencies Under Asymmetric Routing*, 2026;
docs/concepts/balancing.md has the differences and their reasons.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Final, Literal

from wirelag.ebpf.service import Counts
from wirelag.units import format_duration

Standing = Literal["well", "slow", "silent", "unknown"]
SILENT: Final = "is asked and does not answer"
LOOKS: Final = 5  # times that an interval is looked at; the last is its end
SCATTER: Final = 64  # interval means from which their scatter is learned
TELLING: Final = 8  # samples below which a mean shows nothing about that
MEDIAN_OF_SQUARES: Final = 0.455  # median of squared normal deviates


@dataclass(frozen=True, slots=True)
class Policy:
    """The parameters. Watermarks are multiples of the smallest latency, times are intervals."""

    high: float = 1.5
    low: float = 1.2
    floor: float | None = None  # of all slow ones together; None: 0.8%, or a tenth of an equal share if that is less
    increment: float = 0.25  # largest gain of a backend per interval, in fair shares
    most: float = 3.0  # largest weight of a backend, in fair shares
    quiet: int = 3
    regression: float = 0.25  # part of the way back to fair shares, per interval
    enough: int = 1024  # samples of a latency, if it takes several intervals
    chance: float = 0.005  # probability per interval that chance makes any backend look slow
    fading: float = 0.8  # weight of a slow backend's past after an interval, so that it can recover
    forget: int = 5  # intervals without samples after which a latency is void
    attempts: int = 20  # missing responses after which a backend is silent

    def floors(self, fair: Mapping[str, float]) -> dict[str, float]:
        """The least weight of each backend, if it alone is slow."""
        floor = min(0.008, 0.1 / max(1, len(fair))) if self.floor is None else self.floor
        return {name: min(floor, share) for name, share in fair.items()}


@dataclass(frozen=True, slots=True)
class Latency:
    """A mean and its uncertainty: `doubt` standard errors, if latencies scatter by their mean."""

    sum_ns: float
    samples: float
    doubt: float

    @property
    def mean_ns(self) -> float:
        """The sum over the count."""
        return self.sum_ns / self.samples

    @property
    def least_ns(self) -> float:
        """A lower bound of the truth."""
        return self.mean_ns / (1 + self.doubt / math.sqrt(self.samples))

    @property
    def most_ns(self) -> float:
        """An upper bound of the truth: few samples of skewed latencies are much more often too small than too large."""
        return self.mean_ns * math.exp(self.doubt / math.sqrt(self.samples) + self.doubt / self.samples)

    def exceeds(self, other: Latency, factor: float) -> bool:
        """Whether it is significantly more than `factor` times the other."""
        return self.least_ns > factor * other.most_ns


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A weight that moved."""

    name: str
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of an interval."""

    weights: dict[str, float]
    standings: dict[str, Standing]
    latencies: dict[str, Latency | None]
    changes: tuple[WeightChange, ...]


@dataclass(slots=True)
class _Past:
    """The state of a backend."""

    latency: Latency | None = None
    unheard: int = 0  # intervals without samples
    unasked: int = 0  # intervals without requests
    missing: float = 0.0  # responses that it owes
    further: int = 0  # later requests on its connections since then, which prove responses
    slow: bool = False
    silent: bool = False
    suspect: bool = False  # was slow or silent when last heard
    connections: int = 0  # at the end of the last interval
    freshness: float | None = None


@dataclass(slots=True)
class Controller:
    """Weights that follow latency. `fair` are the configured shares; `weights` the initial ones."""

    fair: dict[str, float]
    policy: Policy = field(default_factory=Policy)
    weights: dict[str, float] = field(default_factory=dict)
    _past: dict[str, _Past] = field(default_factory=dict)
    _quiet: int = 0
    _before: dict[str, float] = field(default_factory=dict)  # weights when the interval began
    _said: dict[str, str] = field(default_factory=dict)  # why they moved since
    _acted: dict[str, int] = field(default_factory=dict)  # samples of slow ones that were acted upon
    _gained: dict[str, float] = field(default_factory=dict)  # weight that takers got in this interval
    _scatter: deque[float] = field(default_factory=lambda: deque(maxlen=SCATTER))

    def __post_init__(self) -> None:
        begin, self.weights = self.weights, {}
        fair, self.fair = self.fair, {}
        self._enter(fair, {name: begin.get(name, 0.0) for name in fair} if begin else fair_shares(fair))

    def change(self, fair: Mapping[str, float]) -> tuple[WeightChange, ...]:
        """Change backends or shares. A new backend starts at its floor; the others keep their proportions."""
        before = dict(self.weights)
        self._enter(fair, {name: self.weights.get(name, 0.0) for name in fair})
        gone, new = before.keys() - fair.keys(), fair.keys() - before.keys()
        return changes_of(before, self.weights, dict.fromkeys(gone, "removed") | dict.fromkeys(new, "added"))

    def floors(self) -> dict[str, float]:
        """The least weight of each backend now."""
        ill = sum(past.slow or past.silent or past.suspect for past in self._past.values())
        return {name: floor / max(1, ill) for name, floor in self.policy.floors(self.fair).items()}

    def step(self, counts: Mapping[str, Counts]) -> Decision:
        """Process an interval: the traffic and latencies of each backend."""
        self._learn(counts)
        doubt = self._doubt()
        changed = [self._hear(name, counts.get(name, Counts()), doubt) for name in self.fair]
        self._miss(counts)
        smallest = self._judge()
        said = self._said
        ill = [name for name in self.fair if self._past[name].slow or self._past[name].silent]
        latencies = {name: past.latency for name, past in self._past.items()}
        if smallest is not None and self._shift(ill, latencies, smallest, said):
            self._quiet = 0
        else:
            self._quiet = 0 if any(changed) else self._quiet + 1
            if self._quiet >= self.policy.quiet:
                self._even(set(ill), said)
        self._enough_tried(said)
        floors = self.floors()  # they rise when fewer are slow
        if low := [name for name, weight in self.weights.items() if weight < floors[name] - 1e-12]:
            self.weights = settled(self.weights, floors)
            said.update(dict.fromkeys(low, "has more of the floor"))
        changes = changes_of(self._before, self.weights, said)
        self._begin_interval()
        return Decision(dict(self.weights), self._standings(), latencies, changes)

    def _begin_interval(self) -> None:
        """Nothing has moved in it yet, and each backend may gain what an interval allows."""
        self._before, self._said, self._acted, self._gained = dict(self.weights), {}, {}, {}

    def react(self, counts: Mapping[str, Counts]) -> bool:
        """Move weight from backends that an unfinished interval, so far, shows to be slow; return whether any moved."""
        doubt = self._doubt(LOOKS)
        latencies = {
            name: self._with(past, counts[name], doubt)[0]
            if name in counts and counts[name].count > 0
            else past.latency
            for name, past in self._past.items()
        }
        smallest = _smallest(latencies.values())
        if smallest is None:
            return False
        ill = []
        for name, latency in latencies.items():
            news = counts[name].count if name in counts else 0
            above = latency is not None and latency.exceeds(smallest, self.policy.high)
            if news > self._acted.get(name, 0) and above and not self._past[name].suspect:
                self._acted[name] = news
                ill.append(name)
        return self._shift(ill, latencies, smallest, self._said)

    def _enter(self, fair: Mapping[str, float], weights: dict[str, float]) -> None:
        self.fair = fair_shares(fair)
        self._past = {name: self._past.get(name) or _Past() for name in fair}
        self.weights = settled(weights, self.floors())
        self._quiet = 0
        self._begin_interval()

    def _learn(self, counts: Mapping[str, Counts]) -> None:
        """Learn squared deviations of means from the past; 1 on average if latencies scatter by their mean."""
        for name, past in self._past.items():
            now, old = counts.get(name, Counts()), past.latency
            if old is not None and not past.slow and now.count >= TELLING:
                ratio = now.sum_ns / now.count / old.mean_ns
                self._scatter.append((ratio - 1) ** 2 / (1 / now.count + 1 / old.samples))

    def _doubt(self, looks: int = 1) -> float:
        """Standard errors attributed to chance, which has `looks` opportunities in an interval.

        By the median of scatter: one backend that gets slow makes no other uncertain.
        """
        scatter = median(self._scatter) / MEDIAN_OF_SQUARES if len(self._scatter) == SCATTER else 1.0
        return NormalDist().inv_cdf(1 - self.policy.chance / len(self.fair) / looks) * math.sqrt(max(1.0, scatter))

    def _hear(self, name: str, now: Counts, doubt: float) -> bool:
        """Add samples of a backend; return whether its latency changed."""
        past, policy = self._past[name], self.policy
        open_for = (past.connections + now.connections) / 2  # a draining backend has few at the end, but had more
        past.freshness = now.requests / open_for if open_for else None
        past.connections = now.connections
        if now.count <= 0:
            past.unheard += 1
            past.unasked = 0 if _asked(now) else past.unasked + 1
            past.further += now.requests - now.opened
            if past.unheard >= policy.forget:
                past.latency = None
            if past.unasked >= policy.forget:  # its old latency is outdated
                past.suspect = past.suspect or past.slow or past.silent
                past.slow, past.silent, past.missing = False, False, 0.0
            return False
        past.unheard, past.unasked, past.missing, past.further = 0, 0, 0.0, -now.connections
        past.slow = past.slow or past.suspect  # until its mean is below the watermark, as for any slow one
        past.silent = past.suspect = False
        past.latency, changed = self._with(past, now, doubt)
        return changed

    def _with(self, past: _Past, now: Counts, doubt: float) -> tuple[Latency, bool]:
        """A latency with these samples, and whether they contradict what it was."""
        policy, old, new = self.policy, past.latency, Latency(max(now.sum_ns, now.count), now.count, doubt)  # 1 ns each
        if old is None:
            return new, False
        factor = policy.high / policy.low
        if new.exceeds(old, factor) or old.exceeds(new, factor):
            return new, True
        kept = min(old.samples * (policy.fading if past.slow else 1.0), max(0.0, policy.enough - now.count))
        return Latency(new.sum_ns + old.mean_ns * kept, now.count + kept, doubt), False

    def _miss(self, counts: Mapping[str, Counts]) -> None:
        """Count the responses owed: as many as others gave for the same number of requests.

        A backend without any is silent; unless its connections keep sending requests: then responses came, too late to
        measure.
        """
        answers, asked = (sum(f(counts[n]) for n in self.fair if n in counts) for f in (lambda c: c.count, _asked))
        for name, past in self._past.items():
            now = counts.get(name, Counts())
            if now.count == 0 and asked > _asked(now):
                past.missing += _asked(now) * answers / (asked - _asked(now))
                if past.missing >= self.policy.attempts and past.unheard >= self.policy.quiet:  # epochs take time
                    past.silent, past.slow, past.latency = past.further <= 0, past.further > 0, None

    def _judge(self) -> Latency | None:
        """Decide who is slow, compared with the smallest latency."""
        smallest = _smallest(past.latency for past in self._past.values())
        if smallest is None:
            return None
        limit_ns = self.policy.high * smallest.most_ns
        for past in self._past.values():
            if past.latency is not None:
                above = past.latency.exceeds(smallest, self.policy.high)
                past.slow = above or (past.slow and past.latency.mean_ns > limit_ns)
        return smallest

    def _shift(
        self, ill: list[str], latencies: Mapping[str, Latency | None], smallest: Latency, said: dict[str, str]
    ) -> bool:
        """Move weight from slow or silent backends to those that can take it."""
        floors, taken, why = self.floors(), dict[str, float](), dict[str, str]()
        for name in ill:
            over, latency = self.weights[name] - floors[name], latencies[name]
            part = 1.0 if latency is None else max(0.0, 1 - self.policy.high * smallest.mean_ns / latency.mean_ns)
            if over > 1e-9:
                taken[name] = min(over, self.weights[name] * part)
                why[name] = SILENT if self._past[name].silent else _slowness(latency, smallest)
        room = {name: self._room(name) for name in self._takers(ill, latencies, smallest)}
        total = min(sum(taken.values()), sum(room.values()))
        if total <= 0:
            return False
        said.update(why)
        part = total / sum(taken.values())
        for name, weight in taken.items():
            self.weights[name] -= weight * part
        for name, weight in _filled(self.weights, self.fair, room, total).items():
            self.weights[name] += weight
            self._gained[name] = self._gained.get(name, 0.0) + weight
            said[name] = "takes over"
        self.weights = settled(self.weights, floors)
        return True

    def _room(self, name: str) -> float:
        """The weight that a backend can take. Even the fastest has a limit: it may be fast because it fails."""
        policy, fair, gained = self.policy, self.fair[name], self._gained.get(name, 0.0)
        return max(0.0, min(policy.increment * fair - gained, policy.most * fair - self.weights[name]))

    def _takers(self, ill: Collection[str], latencies: Mapping[str, Latency | None], smallest: Latency) -> list[str]:
        """Backends below the low watermark with at least as many requests per connection as any slow one."""
        pasts = [self._past[name] for name in ill if not self._past[name].silent]
        freshest = max((past.freshness for past in pasts if past.freshness is not None), default=0.0)
        limit_ns = self.policy.low * smallest.most_ns
        found = []
        for name, past in self._past.items():
            fresh, latency = past.freshness is not None and past.freshness >= freshest, latencies[name]
            if fresh and latency is not None and not past.slow and latency.mean_ns <= limit_ns and name not in ill:
                found.append(name)
        return found

    def _even(self, ill: set[str], said: dict[str, str]) -> None:
        """Move part of the way to fair shares of the healthy backends' total."""
        well = [name for name in self.fair if name not in ill and not self._waits(name)]
        together, fair = (sum(shares[name] for name in well) for shares in (self.weights, self.fair))
        gains, losses = dict[str, float](), dict[str, float]()
        for name in well:
            weight, aim = self.weights[name], together * self.fair[name] / fair
            known = self._past[name].latency is not None
            step = (aim - weight) * (self.policy.regression if abs(aim - weight) > 0.01 * aim else 1.0)
            if step > 0:
                gains[name] = min(step, self.policy.increment * self.fair[name] if known else weight)
            elif step < 0:
                losses[name] = -step
            said[name] = "evens out" if known or step < 0 else "not heard of, is tried"
        moved = min(sum(gains.values()), sum(losses.values()))
        if moved > 0:
            for steps, sign in ((gains, 1), (losses, -1)):
                part = sign * moved / sum(steps.values())
                for name, step in steps.items():
                    self.weights[name] += step * part
            self.weights = settled(self.weights, self.floors())

    def _enough_tried(self, said: dict[str, str]) -> None:
        """Take back what a suspect got to be tried, as soon as it has connections that will show how it is."""
        floors = self.floors()
        over = [
            name
            for name, past in self._past.items()
            if past.suspect and past.unasked == 0 and self.weights[name] > floors[name] + 1e-9
        ]
        if not over or len(over) == len(self._past):
            return
        before = dict(self.weights)
        self.weights = settled(self.weights | {name: floors[name] for name in over}, floors)
        for name in over:
            said[name] = "is tried enough"
        for name, weight in self.weights.items():
            if weight - before[name] > 1e-9:
                said.setdefault(name, "takes over")

    def _waits(self, name: str) -> bool:
        """Whether it is a suspect that is not to be tried yet: it is tried after a long time without traffic."""
        past = self._past[name]
        return past.suspect and (past.unasked == 0 or past.unasked % self.policy.forget > 0)

    def _standings(self) -> dict[str, Standing]:
        return {
            name: "silent" if past.silent else "slow" if past.slow else "unknown" if past.latency is None else "well"
            for name, past in self._past.items()
        }


def _smallest(latencies: Iterable[Latency | None]) -> Latency | None:
    known = [latency for latency in latencies if latency is not None]
    return min(known, key=lambda latency: latency.most_ns, default=None)


def settled(weights: Mapping[str, float], floors: Mapping[str, float]) -> dict[str, float]:
    """Weights that add up to 1, none below its floor; the parts above floors keep their proportions."""
    over = {name: max(0.0, weight - floors[name]) for name, weight in weights.items()}
    room, total = 1 - sum(floors[name] for name in weights), sum(over.values())
    if total <= 0:  # all are at their floors: share equally
        over, total = dict(floors), sum(floors.values())
    return {name: floors[name] + part * room / total for name, part in over.items()}


def _filled(
    weights: Mapping[str, float], fair: Mapping[str, float], room: Mapping[str, float], total: float
) -> dict[str, float]:
    """Distribute `total` to backends with room: first to those with the least of their fair share, until level."""
    low, high = 0.0, max((weights[name] + room[name]) / fair[name] for name in room)
    given = dict[str, float]()
    for _ in range(60):  # bisection: after 60 steps the level is exact
        level = (low + high) / 2
        given = {name: min(room[name], max(0.0, level * fair[name] - weights[name])) for name in room}
        low, high = (level, high) if sum(given.values()) < total else (low, level)
    return given


def _asked(counts: Counts) -> int:
    return counts.requests + counts.opened + counts.repeated


def fair_shares(fair: Mapping[str, float]) -> dict[str, float]:
    total = sum(fair.values())
    return {name: share / total for name, share in fair.items()}


def _slowness(latency: Latency | None, smallest: Latency) -> str:
    if latency is None:
        return "slow, with too few responses to tell how much"
    times = latency.mean_ns / smallest.mean_ns
    against = f"{format_duration(round(latency.mean_ns))} against {format_duration(round(smallest.mean_ns))}"
    return f"slow, {times:.1f} times the fastest ({against})"


def changes_of(
    before: Mapping[str, float], after: Mapping[str, float], said: Mapping[str, str]
) -> tuple[WeightChange, ...]:
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, 0.0), after.get(name, 0.0)
        if abs(new - old) > 1e-9:
            found.append(WeightChange(name, old, new, said.get(name, "makes room")))
    return tuple(found)
