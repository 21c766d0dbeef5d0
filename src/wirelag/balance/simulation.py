"""Backends with queues behind a load balancer: request latency by how backends are chosen.

Connections live for an exponential time and have one request in flight at a time. They return as soon as they end (a
closed loop of `clients`), or arrive at random (an open loop of `arrivals` per second). A server has workers and one
queue; it may be slow by a factor, or dead, for a while. Server latency is learned as `pirate` would: sums over epochs
of half a second in each connection, available when they have ended, none from fewer than four responses.

Choosers differ in what they know. `equal`, `latency` and `paper` (the paper's controller) know what a balancer with
direct server return sees. `least-connections` needs the ends of connections, which it also sees. `peak-ewma` needs each
response: no such balancer can have it; it is here for comparison. So is `told`: it knows who is slow at once, and shows
what connections that stay with a slow server cost whatever a balancer does.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from wirelag.balance.controller import LOOKS, Controller, Decision, Policy
from wirelag.balance.paper import PaperController
from wirelag.ebpf.service import Counts
from wirelag.stats.distribution import place_of

Chooser = Literal["equal", "latency", "paper", "least-connections", "peak-ewma", "told"]

EPOCH_S: Final = 0.5
FEWEST: Final = 4
DECAY_S: Final = 10.0  # decay time of peak-ewma, as in Finagle


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A server that is slow for a while; a factor of 0 means dead."""

    server: int
    start_s: float
    end_s: float
    factor: float = 5.0


@dataclass(frozen=True, slots=True)
class Farm:
    """Servers, their load, and their failures."""

    servers: int = 4
    workers: int = 8
    service_s: float = 0.005
    shape: int = 2  # shape of service times: the sum of this many exponential parts
    clients: int = 64
    arrivals: float = 0.0  # connections per second, instead of clients
    think_s: float = 0.0
    lifetime_s: float = 1.0
    timeout_s: float = 3.0
    seconds: float = 40.0
    slowdowns: tuple[Slowdown, ...] = ()
    seed: int = 1


class Sent(NamedTuple):
    """A packet of a client."""

    time_s: float
    connection: int
    server: int
    kind: Literal["syn", "request", "fin"]


@dataclass(slots=True)
class Outcome:
    """The result."""

    latencies: list[float] = field(default_factory=list)  # in seconds, including requests that were given up
    failed: int = 0
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        """The quantile over all requests."""
        ordered = sorted(self.latencies)
        return ordered[place_of(q, len(ordered))]


@dataclass(slots=True)
class _Server:
    place: int
    name: str
    free: int
    queue: deque[_Connection] = field(default_factory=deque)
    factor: float = 1.0
    connections: int = 0
    outstanding: int = 0
    sum_s: float = 0.0
    count: int = 0
    requests: int = 0
    opened: int = 0
    ewma_s: float = 0.0
    stamp_s: float = 0.0


@dataclass(slots=True)
class _Connection:
    server: _Server
    end_s: float
    place: int
    sent_s: float = 0.0
    epoch_s: float = 0.0
    sum_s: float = 0.0
    count: int = 0
    number: int = 0  # number of the request in flight; a timeout of an earlier one is ignored
    closed: bool = False


class _Run:
    def __init__(self, farm: Farm, chooser: Chooser, policy: Policy, interval_s: float) -> None:
        self.farm, self.chooser, self.interval_s = farm, chooser, interval_s
        self.random = random.Random(farm.seed)
        self.servers = [_Server(i, f"server{i + 1}", farm.workers) for i in range(farm.servers)]
        made = PaperController if chooser == "paper" else Controller
        self.controller: Controller | PaperController = made({server.name: 1.0 for server in self.servers}, policy)
        self.outcome = Outcome()
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = self._places = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, what))

    def run(self) -> Outcome:
        farm = self.farm
        for slow in farm.slowdowns:
            self.at(slow.start_s, lambda s=slow: self._slow(s.server, s.factor))  # type: ignore[misc]
            self.at(slow.end_s, lambda s=slow: self._slow(s.server, 1.0))  # type: ignore[misc]
        if farm.arrivals:
            self.at(0.0, self._arrive)
        for i in range(0 if farm.arrivals else farm.clients):
            self.at(i * farm.lifetime_s / farm.clients, self._open)
        self.at(self.interval_s, self._read)
        while self._events:
            self.now_s, _, what = heapq.heappop(self._events)
            if self.now_s > farm.seconds:
                break
            what()
        return self.outcome

    def _arrive(self) -> None:
        self.at(self.now_s + self.random.expovariate(self.farm.arrivals), self._arrive)
        self._open()

    def _slow(self, server: int, factor: float) -> None:
        one = self.servers[server]
        one.factor = factor
        while factor and one.free and one.queue:
            self._serve(one, one.queue.popleft())

    def _open(self) -> None:
        server = self._choose()
        server.connections += 1
        server.opened += 1
        lifetime_s = self.random.expovariate(1 / self.farm.lifetime_s)
        self._places += 1
        connection = _Connection(server, self.now_s + lifetime_s, self._places, epoch_s=self.now_s)
        self._log(connection, "syn")
        self._ask(connection)

    def _choose(self) -> _Server:
        if self.chooser in ("latency", "paper"):
            weights = [self.controller.weights[server.name] for server in self.servers]
            return self.random.choices(self.servers, weights)[0]
        if self.chooser == "equal":
            return self.random.choice(self.servers)
        if self.chooser == "told":
            return self.random.choice([one for one in self.servers if one.factor == 1.0] or self.servers)
        key = self._connections if self.chooser == "least-connections" else self._cost
        return min(self.servers, key=lambda server: (key(server), self.random.random()))

    def _connections(self, server: _Server) -> float:
        return server.connections

    def _cost(self, server: _Server) -> float:
        return server.ewma_s * math.exp((server.stamp_s - self.now_s) / DECAY_S) * (server.outstanding + 1)

    def _ask(self, connection: _Connection) -> None:
        """Send the next request, or end the connection."""
        server = connection.server
        if self.now_s - connection.epoch_s >= EPOCH_S or self.now_s >= connection.end_s:
            if connection.count >= FEWEST:
                server.sum_s += connection.sum_s
                server.count += connection.count
            connection.epoch_s, connection.sum_s, connection.count = self.now_s, 0.0, 0
        if self.now_s >= connection.end_s:
            self._close(connection)
            return
        connection.sent_s = self.now_s
        connection.number += 1
        self._log(connection, "request")
        server.requests += 1
        server.outstanding += 1
        if server.free and server.factor:
            self._serve(server, connection)
        else:
            server.queue.append(connection)
            number = connection.number
            self.at(self.now_s + self.farm.timeout_s, lambda: self._give_up(connection, number))

    def _serve(self, server: _Server, connection: _Connection) -> None:
        if connection.closed:
            return
        server.free -= 1
        mean_s = self.farm.service_s * (server.factor or 1.0)
        took_s = self.random.gammavariate(self.farm.shape, mean_s / self.farm.shape)
        self.at(self.now_s + took_s, lambda: self._answer(server, connection))

    def _answer(self, server: _Server, connection: _Connection) -> None:
        server.free += 1
        while server.factor and server.free and server.queue:
            self._serve(server, server.queue.popleft())
        if connection.closed:
            return
        if not server.factor:  # it died meanwhile
            number = connection.number
            self.at(connection.sent_s + self.farm.timeout_s, lambda: self._give_up(connection, number))
            return
        latency_s = self.now_s - connection.sent_s
        self._learn(server, latency_s)
        self.outcome.latencies.append(latency_s)
        connection.sum_s += latency_s
        connection.count += 1
        connection.number += 1
        think_s = self.random.expovariate(1 / self.farm.think_s) if self.farm.think_s else 0.0
        self.at(self.now_s + think_s, lambda: self._ask(connection))

    def _learn(self, server: _Server, latency_s: float) -> None:
        """Peak-EWMA: a rise counts at once, a fall over time."""
        server.outstanding -= 1
        kept = math.exp((server.stamp_s - self.now_s) / DECAY_S)
        server.ewma_s = latency_s if latency_s > server.ewma_s else server.ewma_s * kept + latency_s * (1 - kept)
        server.stamp_s = self.now_s

    def _give_up(self, connection: _Connection, number: int) -> None:
        if connection.closed or connection.number != number:
            return
        self.outcome.latencies.append(self.farm.timeout_s)
        self.outcome.failed += 1
        connection.server.outstanding -= 1
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        connection.closed = True
        self._log(connection, "fin")
        connection.server.connections -= 1
        if not self.farm.arrivals:
            self._open()

    def _log(self, connection: _Connection, kind: Literal["syn", "request", "fin"]) -> None:
        self.outcome.sent.append(Sent(self.now_s, connection.place, connection.server.place, kind))

    def _counts(self) -> dict[str, Counts]:
        return {
            one.name: Counts(
                round(one.sum_s * 1e9), one.count, 0, one.requests, one.connections, one.opened, one.requests
            )
            for one in self.servers
        }

    def _look(self) -> None:
        """Look at the interval before it ends."""
        if isinstance(self.controller, Controller):
            self.controller.react(self._counts())

    def _read(self) -> None:
        for look in range(1, LOOKS):
            self.at(self.now_s + look * self.interval_s / LOOKS, self._look)
        self.at(self.now_s + self.interval_s, self._read)
        counts = self._counts()
        for one in self.servers:
            one.sum_s, one.count, one.requests, one.opened = 0.0, 0, 0, 0
        if self.chooser in ("latency", "paper"):
            self.outcome.decisions.append((self.now_s, self.controller.step(counts)))


def simulate(farm: Farm, chooser: Chooser, policy: Policy | None = None, interval_s: float = 1.0) -> Outcome:
    """Run a farm with this chooser."""
    return _Run(farm, chooser, policy or Policy(), interval_s).run()
