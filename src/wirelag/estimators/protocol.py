"""The protocols that methods follow: a meter at a vantage point, an estimator over their synopses.

Law: `can` states what a method can do. No other room compares a method's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Grouping
    from wirelag.packets.interval import Interval
    from wirelag.report import Report
    from wirelag.synopses.crossing import Crossing

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Capabilities(NamedTuple):
    """What a method can do beyond `meter` and `estimate`."""

    live: bool = True  # for live traffic: its memory and messages do not grow with the packets
    in_kernel: bool = False  # ebpf/ has a program of its name
    delimited: bool = False  # both points must cut at the same packets; neighbouring synopses can be added
    second_round: bool = False  # the collector may ask for more, so agents keep the past
    one_sided: bool = False  # the downstream point measures alone, between references of the upstream one
    ordered: bool = False  # packets must come in order of time, so on one core
    by_mark: bool = True  # classes of traffic may be those of DSCP
    each_packet: bool = False  # the delay of each packet is known, and where it is in its captures


class Meter(Protocol[S_co]):
    """Live state at one vantage point."""

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add packets of the open interval, and tag samples with their group.

        It neither changes the batch, nor keeps it unless it lasts.
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


class Sent(Estimator[Any], Protocol):
    """An estimator whose synopses agents send."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    can: ClassVar[Capabilities]

    @property
    def seed(self) -> int:
        """The seed of its hashes."""
        ...

    @property
    def bytes(self) -> int:
        """The memory of a meter."""
        ...

    def synopsis(self, fields: Mapping[str, Any]) -> Any:
        """A synopsis from the fields that arrived; a ValueError if they are not one."""
        ...


class TwoPoint(Sent, Protocol):
    """An estimator for which both points keep synopses."""

    @property
    def tail(self) -> int:
        """Packets sampled for quantiles."""
        ...

    def cross(self, up: Any, down: Any) -> Crossing:
        """The crossing of an interval's packets."""
        ...

    def of_class(self, most: int) -> Any:
        """The estimator of one of `classes` classes, which share the memory of one estimator."""
        ...

    def for_agent(self, rows: int | None) -> Any:
        """The same, with a synopsis small enough to send each interval; `rows` if the user chose them."""
        ...

    def cost(self, packets: int, loss: float) -> tuple[int, int]:
        """Bytes of a synopsis of `packets` packets, and bytes sent at this loss rate."""
        ...


class Additive(TwoPoint, Protocol):
    """An estimator whose synopses of neighbouring intervals can be added."""

    def added(self, first: Any, second: Any) -> Any:
        """Merge two neighbouring synopses."""
        ...
