"""The plain twin of the paper's controller (docs/concepts/balancing.md, "The paper's controller").

Written from that section: lists by place instead of names, all intervals kept instead of counters.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Heard:
    """A backend in an interval: the sum and number of its latencies, its requests, its open connections."""

    sum_ns: int
    count: int
    requests: int
    open_at_end: int

    def mean(self) -> float | None:
        return self.sum_ns / self.count if self.count else None

    def freshness(self) -> float:
        return self.requests / (self.open_at_end or 1)


@dataclass
class Twin:
    fair: list[float]
    high: float
    low: float
    increment: float
    quiet: int
    regression: float
    weights: list[float] = field(default_factory=list)
    means: list[list[float | None]] = field(default_factory=list)  # of all intervals so far

    def __post_init__(self) -> None:
        self.fair = [share / sum(self.fair) for share in self.fair]
        self.weights = list(self.fair)

    def step(self, heard: list[Heard]) -> None:
        """An interval, in the order of the section."""
        means = [one.mean() for one in heard]
        self.means.append(means)
        if not self._moved(heard, means) and self._rested():
            self.weights = [w + self.regression * (f - w) for w, f in zip(self.weights, self.fair, strict=True)]

    def _moved(self, heard: list[Heard], means: list[float | None]) -> bool:
        known = [mean for mean in means if mean is not None]
        if not known:
            return False
        least = min(known)
        slow = [i for i, mean in enumerate(means) if mean is not None and mean > self.high * least]
        gifts = {i: min(self.weights[i], self.weights[i] * (means[i] or 0) / (10 * least)) for i in slow}
        offered = sum(gifts.values())
        takers = []
        for i, mean in enumerate(means):
            fresh = all(heard[i].freshness() >= heard[other].freshness() for other in slow)
            if mean is not None and mean < self.low * least and fresh:
                takers.append(i)
        if offered < 1e-9 or not takers:
            return False
        placed = 0.0
        for i in takers:
            gets = min(offered / len(takers), self.increment * self.fair[i])
            self.weights[i] += gets
            placed += gets
        for i, gift in gifts.items():
            self.weights[i] -= gift * placed / offered
        return True

    def _rested(self) -> bool:
        """Whether in each of the last `quiet` intervals no latency differed from the one before."""
        if len(self.means) < self.quiet:
            return False
        factor = self.high / self.low
        for at in range(len(self.means) - self.quiet, len(self.means)):
            for now, then in zip(self.means[at], self.means[at - 1] if at else [None] * len(self.fair), strict=True):
                if now is not None and then is not None and max(now, then) > factor * min(now, then):
                    return False
        return True
