"""When a sender injects a reference packet between the packets of a link.

docs/reference/injection.md is the law and kernels/injection.h its home: the simulator runs it (`queue_pass`), and so
does the agent (`Injector`). Fractions are integers in units of 2^-32.
"""

from dataclasses import dataclass
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
    follows an ellipse between; if `longest_ns` is given, also one per so much time. The utilisation is the mean bytes
    between references divided by the mean time between them; a mean of ratios would weigh bursts too much, because a
    burst ends many short times. References never exceed `most_share` of the link's bytes, from the first packet on.
    Credit for idle time is kept for `depth_ns`. A share of 1 removes the bound.
    """

    link_bytes_per_s: int
    kind: Kind = "adaptive"
    n: int = 100
    tau_ns: int = 1_000_000
    longest_ns: int = 0
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
        if self.kind == "adaptive" and self.longest_ns and not 1_000 <= self.longest_ns <= LONGEST_NS:
            raise ValueError("the longest time between references must be 1 us to 18 minutes")
        if self.wait_ns >= {"both": self.tau_ns, "adaptive": self.longest_ns or ONE}.get(self.kind, NEVER):
            raise ValueError("a reference must wait less than tau, or the next one overtakes it")
        if not 0 < self.depth_ns <= SECOND or not 0 < self.size < 1 << 16:
            raise ValueError("depth must be at most 1 s, and the size at most 65535 bytes")
        if self.most_share < 1 and self.link_bytes_per_s * self.most_share >= ONE:
            raise ValueError("the share of references must be less than 2^32 bytes/s")

    @property
    def every_ns(self) -> int:
        """The time after which a reference is due even without packets; 0: never."""
        if self.kind == "adaptive":
            return self.longest_ns
        return self.tau_ns if self.kind in ("1-in-tau", "both") else 0

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
            self.every_ns,
            self.wait_ns,
            self.link_bytes_per_s,
            share,
            max(share * self.depth_ns, self.size * SECOND) if self.most_share < 1 else 0,
            self.size,
        )
