"""Who talks to whom, when and how much: connections, and their flights of segments.

A flight is what one side sends without waiting for the other: the SYN, a request, one slow-start round of a response, a
FIN. A connection is a list of flights. This module does not deal with packets or loss; `flights` times the plan.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.sim.scenario import Scenario

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CLIENT: Final = 0
SERVER: Final = 1

# Kinds of flights. All but DATA carry one segment that takes one sequence number; a DNS message counts as one too.
SYN: Final = 0
SYN_ACK: Final = 1
DATA: Final = 2
FIN: Final = 3
LAST_FIN: Final = 4
QUERY: Final = 5
ANSWER: Final = 6

FIRST_ROUND: Final = 10  # segments in the first slow-start round; it doubles with every round
SMALLEST_RESPONSE: Final = 1_000  # bytes
LARGEST_RESPONSE: Final = 3_000_000
RESPONSE_SHAPE: Final = 1.1  # shape of the bounded Pareto distribution of response sizes
MOST_EXCHANGES: Final = 10
REUSED_PORTS: Final = 0.01  # share of connections that are repeated later on the same four-tuple
SHORTEST_RTT_NS: Final = 1_000
LONGEST_RTT_NS: Final = 30 * 10**9
AT_ONCE: Final = 1_000  # minimum ns before a host sends something new: later than its acknowledgement
LAST_TURN: Final = 255  # the turn of the FIN exchange; 0 is the handshake, 1.. are request and response


@dataclass(frozen=True)
class Hosts:
    """Constants of each host over the whole simulation."""

    server_scale: npt.NDArray[np.float64]  # factor of the round-trip time
    ports_used: Ints  # per client

    @classmethod
    def draw(cls, scenario: Scenario, rng: np.random.Generator) -> "Hosts":
        """Give every server its own distance."""
        scale = np.exp(rng.normal(0.0, 0.3, scenario.servers))
        return cls(scale / scale.mean(), np.zeros(scenario.clients, np.int64))


@dataclass(frozen=True)
class Connections:
    """One row per TCP connection or DNS exchange."""

    start_ns: Ints
    client: Ints
    server: Ints
    client_port: Ints
    server_port: Ints
    near_ns: Ints  # one way between the client and the (first) vantage point
    far_ns: Ints  # one way between the (last) vantage point and the server
    ipv6: Bools
    timestamps: Bools
    dns: Bools
    dead: Bools  # without a response
    again: Bools  # has the four-tuple of the previous row, and starts after it

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def segment_size(self) -> Ints:
        """Largest payload: what remains of an Ethernet frame after the headers."""
        return 1460 - 20 * self.ipv6 - 12 * self.timestamps


@dataclass(frozen=True)
class Flights:
    """One row per flight, the flights of a connection one after the other."""

    connection: Ints
    sender: Ints
    kind: Ints
    size: Ints  # payload bytes
    segments: Ints
    wait_ns: Ints  # from the moment it could be sent to the moment it is
    turn: Ints

    def __len__(self) -> int:
        return len(self.connection)


def draw_connections(scenario: Scenario, hosts: Hosts, count: int, rng: np.random.Generator) -> Connections:
    """Draw connections; given their number, a Poisson process spreads their starts uniformly over the span."""
    again = np.zeros(count, np.bool_)
    again[1::2] = rng.random(count)[1::2] < 2 * REUSED_PORTS
    source = np.arange(count) - again
    client = rng.integers(0, scenario.clients, count)[source]
    server = rng.integers(0, scenario.servers, count)[source]
    dns = (rng.random(count) < scenario.dns)[source]
    drawn = scenario.rtt_distribution.draw(rng, count) * hosts.server_scale[server]
    rtt = np.clip(drawn, SHORTEST_RTT_NS, LONGEST_RTT_NS)[source]
    share = rng.uniform(0.1, 0.4, count)[source]
    return Connections(
        start_ns=rng.integers(0, scenario.duration_ns, count),
        client=client,
        server=server,
        client_port=_next_ports(hosts, client)[source],
        server_port=np.where(dns, 53, np.where(server % 4 == 0, 8443, 443)),
        near_ns=(rtt / 2 * share).astype(np.int64),
        far_ns=(rtt / 2 * (1 - share)).astype(np.int64),
        ipv6=(rng.random(count) < scenario.ipv6)[source],
        timestamps=(rng.random(count) < 0.9)[source] & ~dns,
        dns=dns,
        dead=(rng.random(count) < scenario.unanswered)[source],
        again=again,
    )


def _next_ports(hosts: Hosts, client: Ints) -> Ints:
    """Ephemeral ports, counted up per client, so that no four-tuple repeats by accident."""
    order = np.argsort(client, kind="stable")
    counts = np.bincount(client, minlength=len(hosts.ports_used))
    within = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    ports = np.empty_like(client)
    ports[order] = within + hosts.ports_used[client[order]]
    hosts.ports_used[:] += counts
    return 32_768 + ports % 28_232


def plan_flights(connections: Connections, rng: np.random.Generator) -> Flights:
    """Lay out every connection as handshake, exchanges of request and response, FINs; or as DNS query and response."""
    tcp = np.flatnonzero(~connections.dns)
    dns = np.flatnonzero(connections.dns)
    talking = tcp[~connections.dead[tcp]]
    answered = dns[~connections.dead[dns]]
    exchanges = np.minimum(rng.geometric(1 / 3, len(talking)), MOST_EXCHANGES)
    rows = [
        _single(tcp, CLIENT, SYN, 0, np.zeros(len(tcp))),
        _single(talking, SERVER, SYN_ACK, 0, rng.uniform(20e3, 60e3, len(talking))),
        *_exchanges(connections, np.repeat(talking, exchanges), count_up(exchanges) + 1, rng),
        _single(talking, CLIENT, FIN, LAST_TURN, rng.exponential(50e6, len(talking))),
        _single(talking, SERVER, LAST_FIN, LAST_TURN, rng.uniform(20e3, 60e3, len(talking))),
        _single(dns, CLIENT, QUERY, 1, np.zeros(len(dns))),
        _single(answered, SERVER, ANSWER, 1, rng.exponential(1e6, len(answered))),
    ]
    table = np.concatenate(rows, axis=1)
    # Stable: the rounds of one response keep their order, and so do a request and its response.
    table = table[:, np.argsort(table[0] * 256 + table[6], kind="stable")]
    return Flights(*table)


def _single(connection: Ints, sender: int, kind: int, turn: int, wait: npt.NDArray[np.float64]) -> Ints:
    table = np.zeros((7, len(connection)), np.int64)
    table[0] = connection
    table[[1, 2, 4, 6]] = np.array([sender, kind, 1, turn])[:, None]
    table[5] = wait.astype(np.int64) + AT_ONCE
    return table


def _exchanges(connections: Connections, connection: Ints, turn: Ints, rng: np.random.Generator) -> list[Ints]:
    size = connections.segment_size[connection]
    # Most requests fit one segment; one in eight is an upload of a few.
    request = rng.integers(100, 1_400, len(turn)) + (rng.random(len(turn)) < 0.125) * rng.integers(0, 12_000, len(turn))
    think = np.where(turn == 1, rng.exponential(200e3, len(turn)), rng.exponential(300e6, len(turn)))
    low, high = (bound**-RESPONSE_SHAPE for bound in (SMALLEST_RESPONSE, LARGEST_RESPONSE))
    response = ((low - rng.random(len(turn)) * (low - high)) ** (-1 / RESPONSE_SHAPE)).astype(np.int64)
    service = 5e6 * np.exp(rng.normal(0.0, 1.0, len(turn)))

    # Rounds of 10, 20, 40, ... segments: the first r rounds hold 10 * (2^r - 1).
    rounds = np.ceil(np.log2(-(-response // size) / FIRST_ROUND + 1)).astype(np.int64)
    number = count_up(rounds)
    each = np.repeat(np.arange(len(turn)), rounds)
    before = np.minimum(FIRST_ROUND * (2**number - 1) * size[each], response[each])
    until = np.minimum(FIRST_ROUND * (2 ** (number + 1) - 1) * size[each], response[each])
    wait = np.where(number == 0, service[each], 10e3)
    return [
        _data(connection, CLIENT, request, size, think, turn),
        _data(connection[each], SERVER, until - before, size[each], wait, turn[each]),
    ]


def _data(
    connection: Ints, sender: int, size: Ints, segment_size: Ints, wait: npt.NDArray[np.float64], turn: Ints
) -> Ints:
    sides = np.full(len(turn), sender)
    kinds = np.full(len(turn), DATA)
    return np.stack([connection, sides, kinds, size, -(-size // segment_size), wait.astype(np.int64) + AT_ONCE, turn])


def count_up(counts: Ints) -> Ints:
    """0, 1, ..., n-1 for every n.

    >>> count_up(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
