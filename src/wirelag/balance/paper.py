"""The controller of the paper, for comparison: no floor, no test for chance, no limit to a share.

Law: docs/concepts/balancing.md, "The paper's controller": weight moves from backends above the high watermark to fresh
ones below the low one; if latencies rest, weights go back to fair shares.

Appendix C of B. V. Shobhana and others, *Measuring Response Latencies Under Asymmetric Routing*, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wirelag.balance.controller import Decision, Latency, Policy, Standing, WeightChange, changes_of, fair_shares
from wirelag.ebpf.service import Counts

GIVEN: Final = 0.1  # part of a weight that is given for each multiple of the smallest latency
LEAST: Final = 1e-9  # less is not moved
DOUBT: Final = 1.96  # standard errors: the interval that is shown


@dataclass(slots=True)
class PaperController:
    """Weights that follow latency. `fair` are the configured shares; `weights` the initial ones."""

    fair: dict[str, float]
    policy: Policy = field(default_factory=Policy)
    weights: dict[str, float] = field(default_factory=dict)
    _before: dict[str, Latency] = field(default_factory=dict)  # the latencies of the last interval
    _rest: int = 0  # intervals in which no latency changed

    def __post_init__(self) -> None:
        self.fair = fair_shares(self.fair)
        self.weights = (
            fair_shares({name: self.weights[name] for name in self.fair}) if self.weights else dict(self.fair)
        )

    def change(self, fair: Mapping[str, float]) -> tuple[WeightChange, ...]:
        """Change backends or shares. A new backend starts at its fair share; the others keep their proportions."""
        before, self.fair = self.weights, fair_shares(fair)
        kept = {name: before.get(name, 0.0) for name in fair}
        left = sum(self.fair[name] for name in fair if name in before)
        total = sum(kept.values())
        if total > 0:
            self.weights = {
                name: kept[name] * left / total if name in before else self.fair[name] for name in self.fair
            }
        else:
            self.weights = dict(self.fair)
        self._rest = 0
        gone, new = before.keys() - fair.keys(), fair.keys() - before.keys()
        return changes_of(before, self.weights, dict.fromkeys(gone, "removed") | dict.fromkeys(new, "added"))

    def step(self, counts: Mapping[str, Counts]) -> Decision:
        """Process an interval: the traffic and latencies of each backend."""
        known = {
            name: Latency(max(counts[name].sum_ns, counts[name].count), counts[name].count, DOUBT)
            for name in self.fair
            if name in counts and counts[name].count > 0
        }
        smallest_ns = min((latency.mean_ns for latency in known.values()), default=0.0)
        slow = [name for name, latency in known.items() if latency.mean_ns > self.policy.high * smallest_ns]
        self._rest = 0 if self._changed(known) else self._rest + 1
        self._before = known
        before, said = dict(self.weights), dict[str, str]()
        if not self._shift(slow, known, counts, said) and self._rest >= self.policy.quiet:
            for name, weight in self.weights.items():
                self.weights[name] = weight + (self.fair[name] - weight) * self.policy.regression
                said[name] = "evens out"
        standings: dict[str, Standing] = {
            name: "slow" if name in slow else "well" if name in known else "unknown" for name in self.fair
        }
        latencies = {name: known.get(name) for name in self.fair}
        return Decision(dict(self.weights), standings, latencies, changes_of(before, self.weights, said))

    def _changed(self, known: Mapping[str, Latency]) -> bool:
        """Whether a latency differs from that of the interval before."""
        factor = self.policy.high / self.policy.low
        both = [(known[name].mean_ns, self._before[name].mean_ns) for name in known if name in self._before]
        return any(now > factor * then or then > factor * now for now, then in both)

    def _shift(
        self, slow: list[str], known: Mapping[str, Latency], counts: Mapping[str, Counts], said: dict[str, str]
    ) -> bool:
        """Move weight from slow backends to fresh ones; return whether any moved."""
        if not slow:
            return False
        smallest_ns = min(latency.mean_ns for latency in known.values())
        given = {name: self.weights[name] * min(1.0, GIVEN * known[name].mean_ns / smallest_ns) for name in slow}
        freshest = max(_freshness(counts[name]) for name in slow)
        takers = [
            name
            for name, latency in known.items()
            if latency.mean_ns < self.policy.low * smallest_ns and _freshness(counts[name]) >= freshest
        ]
        total = sum(given.values())
        if not takers or total < LEAST:
            return False
        taken = {name: min(total / len(takers), self.policy.increment * self.fair[name]) for name in takers}
        part = sum(taken.values()) / total
        for name, weight in given.items():
            self.weights[name] -= weight * part
            said[name] = f"slow, {known[name].mean_ns / smallest_ns:.1f} times the fastest"
        for name, weight in taken.items():
            self.weights[name] += weight
            said[name] = "takes over"
        return True


def _freshness(counts: Counts) -> float:
    """Requests per connection that is open at the end of the interval; none open counts as one."""
    return counts.requests / max(1, counts.connections)
