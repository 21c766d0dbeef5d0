"""The parts of a record of `auto`, in plain Python: a part of `pirate_auto.py`.

Follows the section "The record" of `docs/reference/pirate.md`.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.oracles.pirate_clocks import circle
from tests.oracles.pirate_modes import MOST, ClientPacket
from tests.oracles.pirate_modes import behind as apart

CROWDS, CROWD = 3, 255  # requests are remembered in this many crowds, of at most that many


@dataclass
class Hole:
    """Bytes that have not come yet, though later ones have."""

    start: int
    length: int


@dataclass
class Turn:
    """The state at the start of a flight of requests."""

    n: int = 0
    at: int = 0
    fresh: int = 0


@dataclass
class Opening:
    """The first three packets with data: how many came, and the size of the largest, rounded down."""

    packets: int = 0
    size: int = 0

    def ends_handshake(self, payload: int, opens: bool) -> bool:
        """Whether this packet, no longer than half of the first, is no request."""
        if self.packets == 3:
            return False
        self.packets += 1
        if self.packets == 2 and opens and self.size >= 192 and 48 <= payload <= self.size // 2:
            self.size = 0
            return True
        self.size = max(self.size, rounded(min(payload, 65535)))
        return False


def rounded(size: int) -> int:
    """Its four highest bits."""
    low = max(0, size.bit_length() - 4)
    return size >> low << low


class Crowds:
    """Requests sent, newest first: number and mean time."""

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
        """The sum of the ages of the last n; the oldest crowd stands for older ones."""
        total = 0
        for i, (size, at) in enumerate(self.crowds):
            of_these = min(n, size) if i + 1 < len(self.crowds) else n
            total += of_these * max(0, apart(t, at))
            n -= of_these
        return total


@dataclass
class Sums:
    """The sums of an epoch. `doubts` saturate; sums of parts of the epoch are on the circle."""

    area: int = 0
    completions: int = 0
    busy_sum: int = 0
    busy_count: int = 0
    flight_sum: int = 0
    flight_count: int = 0
    think_sum: int = 0
    think_count: int = 0
    requests: int = 0
    waits: list[tuple[int, bool]] = field(default_factory=list)  # each with whether a request brought its end
    more: int = 0
    trailing: int = 0
    doubts: Counter[str] = field(default_factory=Counter)
    spoilt: bool = False
    not_tcp: bool = False

    def doubt(self, name: str) -> int:
        return min(self.doubts[name], MOST)


@dataclass
class Seen:
    """A packet, and what was inferred about it. Not stamped: `late` is None; no ghost: `ghost` is 0."""

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
