"""What to simulate: all parameters of a capture, checked once."""

from dataclasses import dataclass
from typing import Literal

from wirelag.sim.distributions import Distribution, parse_distribution


@dataclass(frozen=True)
class Scenario:
    """The parameters of a simulation; the same scenario gives the same bytes.

    Attributes:
        packets: packets in the (first) capture, exactly.
        seed: seed of every random choice.
        points: vantage points, 1 or 2.
        direction: `both`, or `client` for captures that hold client->server packets only.
        rtt: round-trip time between client and server, drawn per connection, times its server's own scale.
        delay: one-way delay between two vantage points.
        loss, reorder, duplicate: probability per packet.
        clock_offset_ns, clock_skew_ppm: error of the second point's clock.
        servers, clients: how many hosts.
        duration_ns: connections arrive by a Poisson process over this span.
            unanswered: share of SYNs and DNS queries without a response.
        dns, ipv6: share of connections that are DNS exchanges, that are IPv6.
        marking_ns: hosts change the lowest bit of the DSCP with this period (RFC 9341); 0: never.

    """

    packets: int = 100_000
    seed: int = 1
    points: int = 1
    direction: Literal["both", "client"] = "both"
    rtt: str = "lognormal:20ms,0.5"
    delay: str = "lognormal:1ms,0.3"
    loss: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    clock_offset_ns: int = 0
    clock_skew_ppm: float = 0.0
    servers: int = 20
    clients: int = 500
    duration_ns: int = 60 * 10**9
    unanswered: float = 0.01
    dns: float = 0.1
    ipv6: float = 0.2
    marking_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, with a message that says what can."""
        for name in ("loss", "reorder", "duplicate"):
            if not 0 <= getattr(self, name) <= 0.5:
                raise ValueError(f"{name} is {getattr(self, name)}, must lie between 0 and 0.5")
        for name in ("unanswered", "dns", "ipv6"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must lie between 0 and 1")
        if self.points not in (1, 2):
            raise ValueError(f"points is {self.points}, must be 1 or 2")
        if self.direction not in ("both", "client"):
            raise ValueError(f"direction is {self.direction!r}, must be both or client")
        if not 1 <= self.packets <= 100_000_000:
            raise ValueError(f"packets is {self.packets}, must lie between 1 and 100,000,000")
        if not 1 <= self.servers <= 65536 or not 1 <= self.clients <= 65536:
            raise ValueError("servers and clients must lie between 1 and 65536")
        if not 10**6 <= self.duration_ns <= 24 * 3600 * 10**9:
            raise ValueError("duration must lie between 1 ms and 24 h")
        if self.marking_ns and not 10**6 <= self.marking_ns <= self.duration_ns:
            raise ValueError("marking must lie between 1 ms and the duration")
        if abs(self.clock_skew_ppm) > 10_000:
            raise ValueError(f"clock skew is {self.clock_skew_ppm} ppm, must lie between -10000 and 10000")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}, must lie between 0 and 2^63 - 1")

    @property
    def rtt_distribution(self) -> Distribution:
        """The distribution of the round-trip time."""
        return parse_distribution(self.rtt)

    @property
    def delay_distribution(self) -> Distribution:
        """The distribution of the one-way delay between two points."""
        return parse_distribution(self.delay)
