"""How figures are grouped, and how many groups are kept; the rest is "other"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag.units import one_of, within

if TYPE_CHECKING:
    from wirelag.packets.grouping import Grouping

MOST: Final = 1 << 20
_SIDES: Final = {"source": "client", "destination": "server"}  # a packet's source is what rtt calls the client


@dataclass(frozen=True, slots=True)
class Groups:
    """What `by` and the options around it ask for; None: no groups."""

    by: str | None = None
    allowed: tuple[str, ...] = ()
    most: int = 1000
    ipv4_prefix: int = 24
    ipv6_prefix: int = 48

    def __post_init__(self) -> None:
        if self.by is not None:
            one_of(self.by, self.allowed, "by")
        within(self.most, 1, MOST, "most_groups")
        within(self.ipv4_prefix, 0, 32, "ipv4_prefix")
        within(self.ipv6_prefix, 0, 128, "ipv6_prefix")

    def grouping(self) -> Grouping | None:
        """A fresh grouping."""
        from wirelag.packets.grouping import Grouping

        if self.by is None:
            return None
        return Grouping(_SIDES.get(self.by, self.by), self.ipv4_prefix, self.ipv6_prefix, self.most)  # type: ignore[arg-type]
