"""Injection in plain Python: packets of a link in, the send times of references out.

The independent twin of `kernels/injection.h`. Both follow `docs/reference/injection.md`.
"""

from collections.abc import Iterator
from math import isqrt

from wirelag.packets.injection import LONGEST_NS, ONE, SECOND, Injection

NEVER = 2**63 - 1


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
