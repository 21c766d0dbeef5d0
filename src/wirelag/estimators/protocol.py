"""The two protocols of every method: a meter at a vantage point, and an estimator over the meters' synopses."""

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
        """Add packets of the open interval, and tag samples with their group.

        It neither keeps nor changes the batch.
        """
        ...

    def cut(self, interval: Interval) -> S_co:
        """End the interval and return its synopsis; state that straddles the edge stays inside."""
        ...


class Estimator(Protocol[S]):
    """Parameters and mathematics without I/O: a frozen dataclass."""

    points: ClassVar[tuple[str, ...]]
    """The vantage points: `("tap",)`, or `("upstream", "downstream")`."""

    def meter(self, point: str) -> Meter[S]:
        """A fresh meter for one vantage point."""
        ...

    def estimate(self, *synopses: S) -> Report:
        """The report of one interval's synopses, given in the order of `points`."""
        ...
