"""Measurement equivalence classes: what it costs to measure inside routers.

Law: packets that enter a router at one port, leave it at another and are of one class of service are treated alike,
and one synopsis is enough for them: one where they enter, one where they leave. A router with d ports and k classes has
d^2 k such pairs of synopses (the paper's sum of d^2, for k = 1). All count, for routes change. Each synopsis is there
twice: one fills while the other is sent. After an interval the ingress sends its own to the egress, which works out the
answer; the answers of all travel to the monitoring station.
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
    """A synopsis: its memory at one end, and what it sends to the other after an interval, at most."""

    bytes: int
    wire_bytes: int

    @classmethod
    def of(cls, estimator: TwoPoint, packets: int, loss: float) -> Size:
        """With so many packets in an interval, of which this share gets lost."""
        return cls(*estimator.cost(packets, loss))


@dataclass(frozen=True, slots=True)
class RouterCost:
    """What measuring inside one router takes."""

    router: str
    ports: int  # to neighbours, and one to the outside
    ways: int  # from port to port
    used: int  # of them, by shortest paths as they are
    synopses: int  # at both ends, without the copies
    memory_bytes: int
    control_bps: float  # between ports: synopses
    answer_bps: float  # to the monitoring station


def framed(payload: int) -> int:
    """Bytes on a wire for so many bytes sent in UDP packets as large as Ethernet takes them."""
    return payload + HEADER_BYTES * -(-payload // PAYLOAD_BYTES)


def router_cost(plan: Plan, router: str, size: Size, classes: int, interval_ns: int) -> RouterCost:
    """What measuring inside a router takes, whether it is upgraded or not."""
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
