"""Measurement equivalence classes: the cost of measuring inside routers.

Law: packets that enter a router at one port, leave it at another and share a class of service are treated alike, and
one pair of synopses is enough for them: one at the ingress, one at the egress. A router with d ports and k classes has
d^2 k such pairs (the paper's sum of d^2, for k = 1). All count, because routes change. Each synopsis exists twice: one
fills while the other is sent. After an interval the ingress sends its synopsis to the egress, which computes the
figures; the figures of all go to the monitoring station.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wirelag.estimators.protocol import TwoPoint
    from wirelag.network.plan import Plan

COPIES: Final = 2  # one fills while the other is sent
ENDS: Final = 2
ANSWER_BYTES: Final = 48  # key, sent, received, mean, deviation, interval: 8 bytes each
PAYLOAD_BYTES: Final = 1472  # of a UDP packet in a frame of Ethernet
HEADER_BYTES: Final = 66  # what such a packet has besides: preamble, Ethernet, IPv4, UDP, check, gap


@dataclass(frozen=True, slots=True)
class Size:
    """A synopsis: its memory at one end, and the most that it sends to the other after an interval."""

    bytes: int
    wire_bytes: int

    @classmethod
    def of(cls, estimator: TwoPoint, packets: int, loss: float) -> Size:
        """With this many packets in an interval, of which this share gets lost."""
        return cls(*estimator.cost(packets, loss))


@dataclass(frozen=True, slots=True)
class RouterCost:
    """The cost of measuring inside one router."""

    router: str
    ports: int  # to neighbours, and one to the outside
    ways: int  # pairs of ports
    used: int  # pairs used by current shortest paths
    synopses: int  # at both ends, without the copies
    memory_bytes: int
    control_bps: float  # synopses between ports
    answer_bps: float  # figures to the monitoring station


def framed(payload: int) -> int:
    """Bytes on the wire for this payload in UDP packets of the largest Ethernet size."""
    return payload + HEADER_BYTES * -(-payload // PAYLOAD_BYTES)


def router_cost(plan: Plan, router: str, size: Size, classes: int, interval_ns: int) -> RouterCost:
    """The cost of measuring inside a router, upgraded or not."""
    ports = plan.degree(router) + 1
    ways = ports * ports
    pairs = ways * classes
    bits_per_s = 8e9 / interval_ns
    return RouterCost(
        router,
        ports,
        ways,
        plan.ways_inside(router),
        ENDS * pairs,
        COPIES * ENDS * pairs * size.bytes,
        bits_per_s * pairs * framed(size.wire_bytes),
        bits_per_s * framed(ANSWER_BYTES * pairs),
    )
