"""The two protocols that every method follows: a meter at a vantage point, an estimator over what meters yield."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Interval
from wirelag.report import Report

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Meter(Protocol[S_co]):
    """Live state at one vantage point."""

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take in packets of the interval that is open, and tag samples with their group.

        The batch is not kept and not changed.
        """
        ...

    def cut(self, interval: Interval) -> S_co:
        """End the interval and yield its synopsis; what straddles the edge stays inside."""
        ...


class Estimator(Protocol[S]):
    """Parameters and mathematics, no I/O: a frozen dataclass."""

    points: ClassVar[tuple[str, ...]]
    """The vantage points: `("tap",)`, or `("upstream", "downstream")`."""

    def meter(self, point: str) -> Meter[S]:
        """A fresh meter for one vantage point."""
        ...

    def estimate(self, *synopses: S) -> Report:
        """What the synopses of one interval say, in the order of `points`."""
        ...
