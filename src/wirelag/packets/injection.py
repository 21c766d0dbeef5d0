"""When a sender injects a reference packet between the packets of a link.

docs/reference/injection.md is the law; the simulator's kernels/queue.h follows it too. Fractions are integers in units
of 2^-32, so that both agree on every reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Final, Literal

ONE: Final = 1 << 32
SECOND: Final = 10**9
LONGEST_NS: Final = 1 << 40
NEVER: Final = (1 << 63) - 1

Kind = Literal["1-in-n", "1-in-tau", "both", "adaptive"]
Rule = tuple[int, int, int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Injection:
    """One reference per `n` packets, per `tau_ns`, per whichever comes first, or by the link's utilisation.

    `adaptive` sends one per `n_least` packets up to utilisation `busy_least`, one per `n_most` from `busy_most` on, and
    follows an ellipse between. The utilisation is the mean bytes between references divided by the mean time between
    them; a mean of ratios would weigh bursts too much, because a burst ends many short times.
    References never exceed `most_share` of the link's bytes, from the first packet on. Credit for idle time is kept for
    `depth_ns`. A share of 1 removes the bound.
    """

    link_bytes_per_s: int
    kind: Kind = "adaptive"
    n: int = 100
    tau_ns: int = 1_000_000
    n_least: int = 10
    n_most: int = 300
    busy_least: float = 0.60
    busy_most: float = 0.85
    alpha: float = 0.01
    most_share: float = 0.005
    depth_ns: int = 1_000_000
    wait_ns: int = 1_000
    size: int = 92  # bytes of the IP packet

    def __post_init__(self) -> None:
        if self.kind not in ("1-in-n", "1-in-tau", "both", "adaptive"):
            raise ValueError(f"{self.kind!r} is not one of 1-in-n, 1-in-tau, both, adaptive")
        if not 0 < self.link_bytes_per_s < 1 << 40:
            raise ValueError("the rate of a link must be 1 to 2^40 bytes/s")
        if min(self.n, self.n_least) < 1 or self.n_most < self.n_least:
            raise ValueError("n, n_least and n_most must be at least 1, and n_most at least n_least")
        if not 0 <= self.busy_least < self.busy_most <= 1 or not 0 < self.alpha <= 1 or not 0 < self.most_share <= 1:
            raise ValueError("utilisations, alpha and most_share must be fractions, and busy_least below busy_most")
        if not 1_000 <= self.tau_ns <= LONGEST_NS or not 0 <= self.wait_ns <= LONGEST_NS:
            raise ValueError("tau must be 1 us to 18 minutes, and the wait at most that")
        if self.kind == "both" and self.wait_ns >= self.tau_ns:
            raise ValueError("a reference must wait less than tau, or the next one overtakes it")
        if not 0 < self.depth_ns <= SECOND or not 0 < self.size < 1 << 16:
            raise ValueError("depth must be at most 1 s, and the size at most 65535 bytes")
        if self.most_share < 1 and self.link_bytes_per_s * self.most_share >= ONE:
            raise ValueError("the share of references must be less than 2^32 bytes/s")

    @property
    def rule(self) -> Rule:
        """The rule for the kernel: rates, utilisations, alpha, times, capacity, share, maximum credit, size."""
        adaptive, by_count = self.kind == "adaptive", self.kind in ("1-in-n", "both")
        least = -(-ONE // (self.n_most if adaptive else self.n)) if adaptive or by_count else 0
        most = -(-ONE // self.n_least) if adaptive else least
        share = int(self.link_bytes_per_s * self.most_share) if self.most_share < 1 else 0
        return (
            least,
            most,
            int(self.busy_least * ONE),
            int(self.busy_most * ONE),
            max(1, int(self.alpha * ONE)),
            self.tau_ns if self.kind in ("1-in-tau", "both") else 0,
            self.wait_ns,
            self.link_bytes_per_s,
            share,
            max(share * self.depth_ns, self.size * SECOND) if self.most_share < 1 else 0,
            self.size,
        )


class Injector:
    """A running injection: call `due` before each packet, then `packet`.

    >>> injector = Injector(Injection(125_000_000, "1-in-n", n=2, most_share=1))
    >>> for time_ns in (0, 5_000, 6_000, 9_000):
    ...     print(list(injector.due(time_ns)))
    ...     injector.packet(time_ns, 100)
    []
    []
    [6000]
    []
    >>> list(injector.due())
    [10000]
    """

    def __init__(self, injection: Injection) -> None:
        (
            self._rate_least,
            self._rate_most,
            self._busy_least,
            self._busy_most,
            self._alpha,
            self._tau_ns,
            self._wait_ns,
            self._bytes_per_s,
            self._share_per_s,
            self._depth,
            self._size,
        ) = injection.rule
        self._rate = self._rate_least
        self._packets = self._bytes = 0
        self._last_ns: int | None = None
        self._due_ns = NEVER
        self._mean_bytes = self._mean_ns = 0
        self._credit = self._credit_ns = 0
        self.refused = 0  # references by time that exceeded the share

    def due(self, time_ns: int | None = None) -> Iterator[int]:
        """The send times of references up to and including this time; without a time, of the one that is pending."""
        while True:
            by_time = self._due_ns == NEVER
            due_ns = (
                self._last_ns + self._tau_ns if by_time and self._tau_ns and self._last_ns is not None else self._due_ns
            )
            if due_ns == NEVER or (by_time if time_ns is None else due_ns > time_ns):
                return
            self._due_ns = NEVER
            if not by_time:
                yield due_ns
            elif self._affords(due_ns):
                self._decide(due_ns)
                yield due_ns
            else:
                self._last_ns = due_ns
                self.refused += 1

    def packet(self, time_ns: int, size: int) -> None:
        """Record that a regular packet was sent."""
        if self._last_ns is None:
            self._last_ns = self._credit_ns = time_ns
        self._packets += 1
        self._bytes += size
        if self._due_ns == NEVER and self._packets * self._rate >= ONE and self._affords(time_ns):
            self._decide(time_ns)
            self._due_ns = time_ns + self._wait_ns

    def _affords(self, time_ns: int) -> bool:
        if not self._depth:
            return True
        passed_ns = min(time_ns - self._credit_ns, SECOND)
        self._credit = min(self._credit + passed_ns * self._share_per_s, self._depth)
        self._credit_ns = time_ns
        return self._credit >= self._size * SECOND

    def _decide(self, time_ns: int) -> None:
        """Pay for a reference and compute the new rate."""
        passed_ns = min(time_ns - (self._last_ns or 0), LONGEST_NS)
        self._credit -= self._size * SECOND if self._depth else 0
        self._mean_bytes = self._smooth(self._mean_bytes, min(self._bytes, LONGEST_NS) << 16)
        self._mean_ns = self._smooth(self._mean_ns, passed_ns << 16)
        self._packets = self._bytes = 0
        self._last_ns = time_ns
        capacity = self._mean_ns * self._bytes_per_s
        used = (self._mean_bytes * SECOND << 32) // capacity if capacity else self._busy_most
        busy = min(max(used, self._busy_least), self._busy_most)
        place = ((busy - self._busy_least) << 32) // (self._busy_most - self._busy_least)
        height = isqrt((1 << 64) - place * place)  # height of the ellipse
        self._rate = self._rate_least + ((self._rate_most - self._rate_least) * height >> 32)

    def _smooth(self, mean: int, value: int) -> int:
        return (mean * (ONE - self._alpha) + value * self._alpha) >> 32
