"""What a record of `auto` is made of, in plain Python: a part of `pirate_auto.py`.

Follows the section "The record" of `docs/reference/pirate.md`.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.oracles.pirate_clocks import circle
from tests.oracles.pirate_modes import MOST, ClientPacket
from tests.oracles.pirate_modes import behind as apart

CROWDS, CROWD = 3, 255  # requests are remembered in so many, of at most that many


@dataclass
class Hole:
    """Bytes that did not come yet, though later ones did."""

    start: int
    length: int


@dataclass
class Turn:
    """What was so as a flight of requests began."""

    n: int = 0
    at: int = 0
    fresh: int = 0


class Crowds:
    """Requests that were sent, the newest first: how many, and when on average."""

    def __init__(self) -> None:
        self.crowds: list[tuple[int, int]] = []

    def remember(self, k: int, s: int, w: int) -> None:
        k = min(k, CROWD)
        size, at = self.crowds[0] if self.crowds else (CROWD, 0)
        if 3 * size + 2 >= w or size + k > CROWD:
            self.crowds = [(k, s), *self.crowds[: CROWDS - 1]]
        else:
            later = max(0, apart(s, at))
            self.crowds[0] = (size + k, circle(at + later * k // (size + k)))

    def ages(self, n: int, t: int) -> int:
        """Of the n that were sent last, all together; the oldest crowd stands for what is older."""
        total = 0
        for i, (size, at) in enumerate(self.crowds):
            of_these = min(n, size) if i + 1 < len(self.crowds) else n
            total += of_these * max(0, apart(t, at))
            n -= of_these
        return total


@dataclass
class Sums:
    """What is of an epoch. `doubts` has what saturates; the sums of parts of it are on the circle."""

    area: int = 0
    completions: int = 0
    busy_sum: int = 0
    busy_count: int = 0
    flight_sum: int = 0
    flight_count: int = 0
    think_sum: int = 0
    think_count: int = 0
    requests: int = 0
    doubts: Counter[str] = field(default_factory=Counter)
    spoilt: bool = False
    not_tcp: bool = False

    def doubt(self, name: str) -> int:
        return min(self.doubts[name], MOST)


@dataclass
class Seen:
    """A packet that is taken, and what is found out about it. Not stamped: `late` is None; no ghost: `ghost` is 0."""

    row: ClientPacket
    t: int
    dt: int
    payload: int
    advance: int
    ahead: int
    late: int | None = None
    is_timed: bool = False
    patience: int = 0
    id_ahead: int = 1
    is_older: bool = False
    ghost: int = 0
    ghost_at: int = 0
    is_behind: bool = False
