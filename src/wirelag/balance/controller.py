"""How much of the load each backend shall get, from how late they answered: no I/O, no clock, an interval at a time.

Laws:
- Weights add up to 1. None is under its floor: whoever gets nothing cannot show that it is well again.
- Latency is a sum over a count, over all connections of a backend and as many past intervals as there is reason to
  trust. What contradicts the past replaces it. No samples mean unknown, never unchanged.
- A backend is slow when it is above the high watermark by more than chance. What chance can do follows from the number
  of samples, from how much the means of intervals scatter, and from how many backends it may wrong. A slow one loses
  the part of its weight by which its latency is above the watermark, to those below the low one that are at least as
  fresh, which take a limited increment each, up to a few times their fair share. (Near the watermark steps are small:
  where load makes the latency, large ones would swing.)
- After some quiet intervals weights go back to fair shares; while anyone is slow, only among those that are well.
- One that is asked and never answers, where others do, is silent, and loses all down to its floor.

After appendix C of B. V. Shobhana and others, *Measuring Response Latencies Under Asymmetric Routing*, 2026; how it
differs, and why: docs/concepts/balancing.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Final, Literal

from wirelag.ebpf.service import Counts
from wirelag.units import format_duration

Standing = Literal["well", "slow", "silent", "unknown"]
SILENT: Final = "is asked and does not answer"
SCATTER: Final = 64  # means of intervals from which it is learned how much they scatter
TELLING: Final = 8  # samples without which a mean says nothing of that
MEDIAN_OF_SQUARES: Final = 0.455  # of normal numbers with a deviation of 1


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that decide. Watermarks are multiples of the smallest latency, times are intervals."""

    high: float = 1.5
    low: float = 1.2
    floor: float | None = None  # of all weight; None: 0.8%, or a tenth of an equal share where that is less
    increment: float = 0.25  # what a backend may gain in an interval, of its fair share
    most: float = 3.0  # what a backend may have, in fair shares
    quiet: int = 3
    regression: float = 0.25  # of the way back to fair shares, an interval
    enough: int = 1024  # samples that a latency is made of, if it takes several intervals
    chance: float = 0.005  # how often chance may make any backend of an interval look slow
    fading: float = 0.8  # what the past of a slow backend is worth after an interval: it shall be able to recover
    forget: int = 5  # so long a latency is worth something when nothing is heard
    attempts: int = 20  # answers that are missing, and a backend is silent

    def floors(self, fair: Mapping[str, float]) -> dict[str, float]:
        """The least weight of each."""
        floor = min(0.008, 0.1 / max(1, len(fair))) if self.floor is None else self.floor
        return {name: min(floor, share) for name, share in fair.items()}


@dataclass(frozen=True, slots=True)
class Latency:
    """A mean, and how far chance may have moved it: by `doubt` standard errors, if latencies scatter by their mean."""

    sum_ns: float
    samples: float
    doubt: float

    @property
    def mean_ns(self) -> float:
        """The sum over the count."""
        return self.sum_ns / self.samples

    @property
    def least_ns(self) -> float:
        """The truth is hardly smaller."""
        return self.mean_ns / (1 + self.doubt / math.sqrt(self.samples))

    @property
    def most_ns(self) -> float:
        """The truth is hardly larger: few samples of skewed latencies are much more often too small than too large."""
        return self.mean_ns * math.exp(self.doubt / math.sqrt(self.samples) + self.doubt / self.samples)

    def exceeds(self, other: Latency, factor: float) -> bool:
        """Whether it is more than so many times the other, chance aside."""
        return self.least_ns > factor * other.most_ns


@dataclass(frozen=True, slots=True)
class Change:
    """A weight that moved."""

    name: str
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What an interval led to."""

    weights: dict[str, float]
    standings: dict[str, Standing]
    latencies: dict[str, Latency | None]
    changes: tuple[Change, ...]


@dataclass(slots=True)
class _Past:
    """What is remembered of a backend."""

    latency: Latency | None = None
    unheard: int = 0  # intervals since there were samples
    unasked: int = 0  # intervals since anything was asked
    missing: float = 0.0  # answers that it owes
    further: int = 0  # requests beyond the first of each connection since then: somebody answered these
    slow: bool = False
    silent: bool = False
    suspect: bool = False  # was slow or silent when last heard of
    connections: int = 0  # at the end of the last interval
    freshness: float | None = None


@dataclass(slots=True)
class Controller:
    """Weights that follow latency. `fair` are shares as they were configured; `weights` those to begin with."""

    fair: dict[str, float]
    policy: Policy = field(default_factory=Policy)
    weights: dict[str, float] = field(default_factory=dict)
    _past: dict[str, _Past] = field(default_factory=dict)
    _quiet: int = 0
    _scatter: deque[float] = field(default_factory=lambda: deque(maxlen=SCATTER))

    def __post_init__(self) -> None:
        begin, self.weights = self.weights, {}
        fair, self.fair = self.fair, {}
        self._enter(fair, {name: begin.get(name, 0.0) for name in fair} if begin else _shares(fair))

    def change(self, fair: Mapping[str, float]) -> tuple[Change, ...]:
        """Other backends or other shares from now on. A new one begins at its floor; the others keep their measure."""
        before = dict(self.weights)
        self._enter(fair, {name: self.weights.get(name, 0.0) for name in fair})
        gone, new = before.keys() - fair.keys(), fair.keys() - before.keys()
        return _changes(before, self.weights, dict.fromkeys(gone, "removed") | dict.fromkeys(new, "added"))

    def step(self, counts: Mapping[str, Counts]) -> Decision:
        """Take in an interval: what each backend got and answered in it."""
        self._learn(counts)
        doubt = self._doubt()
        changed = [self._hear(name, counts.get(name, Counts()), doubt) for name in self.fair]
        self._miss(counts)
        smallest = self._judge()
        before, said = dict(self.weights), dict[str, str]()
        ill = [name for name in self.fair if self._past[name].slow or self._past[name].silent]
        if smallest is not None and self._shift(ill, smallest, said):
            self._quiet = 0
        else:
            self._quiet = 0 if any(changed) else self._quiet + 1
            if self._quiet >= self.policy.quiet:
                self._even(set(ill), said)
        latencies = {name: past.latency for name, past in self._past.items()}
        return Decision(dict(self.weights), self._standings(), latencies, _changes(before, self.weights, said))

    def _enter(self, fair: Mapping[str, float], weights: dict[str, float]) -> None:
        self.fair = _shares(fair)
        self._past = {name: self._past.get(name) or _Past() for name in fair}
        self.weights = settled(weights, self.policy.floors(self.fair))
        self._quiet = 0

    def _learn(self, counts: Mapping[str, Counts]) -> None:
        """Squares of how far means are from the past; on average 1 where latencies scatter by their mean."""
        for name, past in self._past.items():
            now, old = counts.get(name, Counts()), past.latency
            if old is not None and not past.slow and now.count >= TELLING:
                ratio = now.sum_ns / now.count / old.mean_ns
                self._scatter.append((ratio - 1) ** 2 / (1 / now.count + 1 / old.samples))

    def _doubt(self) -> float:
        """Standard errors that are put down to chance. The median: one that gets slow makes nobody else uncertain."""
        scatter = median(self._scatter) / MEDIAN_OF_SQUARES if len(self._scatter) == SCATTER else 1.0
        return NormalDist().inv_cdf(1 - self.policy.chance / len(self.fair)) * math.sqrt(max(1.0, scatter))

    def _hear(self, name: str, now: Counts, doubt: float) -> bool:
        """Take in samples of a backend; whether its latency is another than before."""
        past, policy = self._past[name], self.policy
        open_for = (past.connections + now.connections) / 2  # what drains has few connections at the end, but had more
        past.freshness = now.requests / open_for if open_for else None
        past.connections = now.connections
        if now.count <= 0:
            past.unheard += 1
            past.unasked = 0 if _asked(now) else past.unasked + 1
            past.further += now.requests - now.opened
            if past.unheard >= policy.forget:
                past.latency = None
            if past.unasked >= policy.forget:  # what it once was says little any more
                past.suspect = past.suspect or past.slow or past.silent
                past.slow, past.silent, past.missing = False, False, 0.0
            return False
        old, new = past.latency, Latency(max(now.sum_ns, now.count), now.count, doubt)  # a ns at least
        past.unheard, past.unasked, past.missing, past.further = 0, 0, 0.0, -now.connections
        past.silent = past.suspect = False
        if old is None:
            past.latency = new
            return False
        factor = policy.high / policy.low
        if new.exceeds(old, factor) or old.exceeds(new, factor):
            past.latency = new
            return True
        kept = min(old.samples * (policy.fading if past.slow else 1.0), max(0.0, policy.enough - now.count))
        past.latency = Latency(new.sum_ns + old.mean_ns * kept, now.count + kept, doubt)
        return False

    def _miss(self, counts: Mapping[str, Counts]) -> None:
        """Count the answers that are owed: as many as others gave for as much that was asked.

        Without any, a backend is silent; but where connections go on asking, responses came, too late to be measured.
        """
        answers, asked = (sum(f(counts[n]) for n in self.fair if n in counts) for f in (lambda c: c.count, _asked))
        for name, past in self._past.items():
            now = counts.get(name, Counts())
            if now.count == 0 and asked > _asked(now):
                past.missing += _asked(now) * answers / (asked - _asked(now))
                if past.missing >= self.policy.attempts and past.unheard >= self.policy.quiet:  # epochs take time
                    past.silent, past.slow, past.latency = past.further <= 0, past.further > 0, None

    def _judge(self) -> Latency | None:
        """Say who is slow, in comparison with the smallest latency."""
        known = [past.latency for past in self._past.values() if past.latency is not None]
        if not known:
            return None
        smallest = min(known, key=lambda latency: latency.most_ns)
        limit_ns = self.policy.high * smallest.most_ns
        for past in self._past.values():
            if past.latency is not None:
                above = past.latency.exceeds(smallest, self.policy.high)
                past.slow = above or (past.slow and past.latency.mean_ns > limit_ns)
        return smallest

    def _shift(self, ill: list[str], smallest: Latency, said: dict[str, str]) -> bool:
        """Move weight from those that are slow or silent to those that can take it."""
        floors = self.policy.floors(self.fair)
        taken = dict[str, float]()
        for name in ill:
            over, latency = self.weights[name] - floors[name], self._past[name].latency
            part = 1.0 if latency is None else max(0.0, 1 - self.policy.high * smallest.mean_ns / latency.mean_ns)
            if over > 1e-9:
                taken[name] = min(over, self.weights[name] * part)
                said[name] = SILENT if self._past[name].silent else _slowness(latency, smallest)
        room = {name: self._room(name) for name in self._takers(ill, smallest)}
        total = min(sum(taken.values()), sum(room.values()))
        if total <= 0:
            said.clear()
            return False
        part = total / sum(taken.values())
        for name, weight in taken.items():
            self.weights[name] -= weight * part
        for name, weight in _filled(self.weights, self.fair, room, total).items():
            self.weights[name] += weight
            said[name] = "takes over"
        self.weights = settled(self.weights, floors)
        return True

    def _room(self, name: str) -> float:
        """What a backend can take. Also the fastest takes no more than it can bear: it may be fast because it fails."""
        policy, fair = self.policy, self.fair[name]
        return max(0.0, min(policy.increment * fair, policy.most * fair - self.weights[name]))

    def _takers(self, ill: Iterable[str], smallest: Latency) -> list[str]:
        """Below the low watermark, and at least as many requests for each connection as any slow one has."""
        pasts = [self._past[name] for name in ill if self._past[name].slow]
        freshest = max((past.freshness for past in pasts if past.freshness is not None), default=0.0)
        limit_ns = self.policy.low * smallest.most_ns
        found = []
        for name, past in self._past.items():
            fresh = past.freshness is not None and past.freshness >= freshest
            if fresh and past.latency is not None and not past.slow and past.latency.mean_ns <= limit_ns:
                found.append(name)
        return found

    def _even(self, ill: set[str], said: dict[str, str]) -> None:
        """Go some of the way to fair shares of what those that are well have together."""
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
            self.weights = settled(self.weights, self.policy.floors(self.fair))

    def _waits(self, name: str) -> bool:
        """Whether it is a suspect whose turn to be tried has not come: that is when nothing has come to it for long."""
        past = self._past[name]
        return past.suspect and (past.unasked == 0 or past.unasked % self.policy.forget > 0)

    def _standings(self) -> dict[str, Standing]:
        return {
            name: "silent" if past.silent else "slow" if past.slow else "unknown" if past.latency is None else "well"
            for name, past in self._past.items()
        }


def settled(weights: Mapping[str, float], floors: Mapping[str, float]) -> dict[str, float]:
    """Weights that add up to 1, none under its floor; what is above floors keeps its proportions."""
    over = {name: max(0.0, weight - floors[name]) for name, weight in weights.items()}
    room, total = 1 - sum(floors[name] for name in weights), sum(over.values())
    if total <= 0:  # all are at their floors: nobody has more reason than another
        over, total = dict(floors), sum(floors.values())
    return {name: floors[name] + part * room / total for name, part in over.items()}


def _filled(
    weights: Mapping[str, float], fair: Mapping[str, float], room: Mapping[str, float], total: float
) -> dict[str, float]:
    """How `total` is given to those with room: first to whom has least of its fair share, until they are level."""
    low, high = 0.0, max((weights[name] + room[name]) / fair[name] for name in room)
    given = dict[str, float]()
    for _ in range(60):  # by bisection: halved so often, the level is exact
        level = (low + high) / 2
        given = {name: min(room[name], max(0.0, level * fair[name] - weights[name])) for name in room}
        low, high = (level, high) if sum(given.values()) < total else (low, level)
    return given


def _asked(counts: Counts) -> int:
    return counts.requests + counts.opened + counts.repeated


def _shares(fair: Mapping[str, float]) -> dict[str, float]:
    total = sum(fair.values())
    return {name: share / total for name, share in fair.items()}


def _slowness(latency: Latency | None, smallest: Latency) -> str:
    if latency is None:
        return "slow, with too few answers to tell how much"
    times = latency.mean_ns / smallest.mean_ns
    against = f"{format_duration(round(latency.mean_ns))} against {format_duration(round(smallest.mean_ns))}"
    return f"slow, {times:.1f} times the fastest ({against})"


def _changes(before: Mapping[str, float], after: Mapping[str, float], said: Mapping[str, str]) -> tuple[Change, ...]:
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, 0.0), after.get(name, 0.0)
        if abs(new - old) > 1e-9:
            found.append(Change(name, old, new, said.get(name, "makes room")))
    return tuple(found)
