"""Following the network: its current topology, who measures, and each agent's m-set. No I/O.

Laws. Every change is reported once, with its time. An m-set is sent as a whole, with the time since which it is valid,
until its agent confirms it: so a lost or repeated message changes nothing. Routers are named like their agents: by the
names in the settings, else by their own, with - for characters that a point's name cannot have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wirelag.errors import WirelagError
from wirelag.network.msets import Turning, insides, referenced
from wirelag.network.plan import Plan
from wirelag.network.segments import Segment
from wirelag.network.topology import Topology
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import MOST_RECORDS, Message
from wirelag.protocol.terms import Terms

MOST_NAMED: Final = 100  # names in a list of changes
LONGEST_NAME: Final = 64  # longest name of a point
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
Records = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """How the network is followed."""

    every_ns: int = 10**9
    overlap_ns: int = 30 * 10**9
    upgraded: tuple[str, ...] | None = None  # routers that measure; None: those with a live agent
    names: Mapping[str, str] = field(default_factory=dict)


def called(router: str, names: Mapping[str, str]) -> str:
    """The name of a router's agent."""
    return names.get(router) or _UNFIT.sub("-", router)[:LONGEST_NAME]


def pointed(topology: Topology, names: Mapping[str, str]) -> Topology:
    """The topology with routers named like their agents."""
    return topology.renamed({router: called(router, names) for router in topology.routers})


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """A change that was detected at a time. Lists have at most MOST_NAMED names."""

    at_ns: int
    links_up: tuple[str, ...] = ()
    links_down: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()  # links whose cost changed
    routers: tuple[str, ...] = ()  # routers that appeared or disappeared
    upgraded: tuple[str, ...] = ()  # routers that measure from now on
    no_longer: tuple[str, ...] = ()  # routers that stopped measuring
    new: tuple[str, ...] = ()  # segments
    gone: tuple[str, ...] = ()
    rerouted: tuple[str, ...] = ()  # virtual links over other routers: not comparable with before

    def to_json(self) -> dict[str, Any]:
        """The JSON of the API."""
        names = [name for name in self.__slots__ if name != "at_ns"]
        return {"at": self.at_ns / 1e9} | {name: list(getattr(self, name)[:MOST_NAMED]) for name in names}

    def __str__(self) -> str:
        """The change in words, for the log."""
        names = [name for name in self.__slots__ if name != "at_ns"]
        return "; ".join(f"{_words(name)} {_some(found)}" for name in names if (found := getattr(self, name)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What determines m-sets: while it is unchanged, so are they."""

    weights: Mapping[tuple[str, str], int]
    addresses: Mapping[str, str]
    ports: Mapping[tuple[str, str], tuple[str, str]]
    routers: frozenset[str]
    upgraded: tuple[str, ...]
    ends: frozenset[str]
    inside: frozenset[str]


class Following:
    """The state of the network, and what follows for agents."""

    def __init__(self, follow: Follow) -> None:
        self._follow = follow
        self._turning = Turning(follow.overlap_ns)
        self._before: _Seen | None = None
        self._plan: Plan | None = None
        self._m_sets: dict[str, tuple[int, Records]] = {}  # by point: valid since, records
        self._told_ns: dict[str, int] = {}  # by point: since when the m-set is valid that it was told last
        self.terms: dict[str, Terms] = {}  # of points that follow
        self.problem: str | None = None  # why the topology could not be read
        self.changed_ns = 0

    @property
    def every_s(self) -> float:
        """Seconds between two readings of the topology."""
        return self._follow.every_ns / 1e9

    @property
    def topology(self) -> Topology | None:
        """The topology as last read."""
        return None if self._plan is None else self._plan.topology

    @property
    def upgraded(self) -> tuple[str, ...]:
        """Routers that measure."""
        return () if self._before is None else self._before.upgraded

    def take(
        self, topology: Topology, alive: Collection[str], now_ns: int, inside: Collection[str] = ()
    ) -> TopologyChange | None:
        """Take a new reading of the topology, and the agents that want an m-set; return what changed.

        `inside`: those of them that measure inside their routers, too.
        """
        self.problem = None
        self._turning.pass_time(now_ns)
        topology = pointed(topology, self._follow.names)
        known = frozenset(topology.routers)
        there = known & frozenset(alive)
        upgraded = self._follow.upgraded
        named = there if upgraded is None else known & self._called(upgraded)
        measuring = tuple(sorted(named))
        weights = {(link.source, link.target): link.weight for link in topology.links}
        ends = there | frozenset(measuring)
        within = there & frozenset(inside)
        seen = _Seen(weights, topology.addresses, topology.link_addresses, known, measuring, ends, within)
        if seen == self._before:
            return None
        plan = Plan(topology, measuring)
        new, gone = self._turning.turn([*referenced(plan, ends), *insides(plan, within)], now_ns)
        rerouted = self._rerouted(plan)
        change = _difference(self._before, seen, now_ns, new, gone, rerouted)
        self._before, self._plan, self.changed_ns = seen, plan, now_ns
        self._tell(now_ns)
        return change

    def _called(self, routers: Sequence[str]) -> frozenset[str]:
        return frozenset(called(router, self._follow.names) for router in routers)

    def _rerouted(self, plan: Plan) -> list[Segment]:
        """Remaining virtual links whose cost or number of paths changed."""
        before = self._plan
        if before is None:
            return []
        found, ways = [], dict[str, tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]]()
        for segment in self._turning.current:
            if segment.kind != "virtual" or segment.at not in before.topology.routers:
                continue
            if segment.at not in ways:
                ways[segment.at] = before.ways(segment.at), plan.ways(segment.at)
            was, now = (one.get(segment.after) for one in ways[segment.at])
            if was is not None and was[1] and was != now:
                found.append(segment)
        return found

    def _tell(self, now_ns: int) -> None:
        """Make m-sets that differ from those last sent valid from now on."""
        records: dict[str, list[dict[str, Any]]] = {point: [] for point in self._m_sets}
        for one, until_ns in self._turning.held():
            about = {"segment": str(one.segment), "source": one.source, "target": one.target, "until_ns": until_ns}
            if one.segment.kind == "inside":
                records.setdefault(one.segment.at, []).append(about | {"way": "inside"})
                continue
            records.setdefault(one.segment.at, []).append(about | {"way": "out"})
            records.setdefault(one.segment.after, []).append(about | {"way": "in"})
        for point, own in records.items():
            if point not in self._m_sets or self._m_sets[point][1] != tuple(own):
                self._m_sets[point] = now_ns, tuple(own)

    def m_set(self, point: str, has_ns: int) -> tuple[int, Records] | None:
        """The m-set to send to an agent that has one valid since `has_ns`; None if there is nothing to send."""
        told = self._m_sets.get(point)
        return None if told is None or told[0] == has_ns else told

    def messages(self, alive: Mapping[str, int], now_ns: int) -> Iterator[Message]:
        """The messages for live agents with an outdated m-set, once their terms are known."""
        for point, has_ns in alive.items():
            found = self.m_set(point, has_ns)
            if found is None or point not in self.terms:
                continue
            since_ns, own = found
            place = {"start_ns": since_ns, "end_ns": since_ns, "name": None, "class": None}
            records = tuple(place | one for one in own[:MOST_RECORDS])
            interval, terms = Interval(since_ns, since_ns), self.terms[point]
            yield Message("m-set", point, None, interval, terms, records=records, sent_ns=now_ns)

    def is_new(self, message: Message) -> bool:
        """Whether this m-set is told for the first time: it is repeated until its agent confirms it."""
        before_ns, since_ns = self._told_ns.get(message.point), message.interval.start_ns
        self._told_ns[message.point] = since_ns
        return before_ns != since_ns

    def to_json(self) -> dict[str, Any]:
        """The JSON of the API, without changes."""
        topology = self.topology
        ending = [(one, until_ns / 1e9) for one, until_ns in self._turning.ending.values()]
        segments = [(one, None) for one in self._turning.current.values()] + ending
        return {
            "topology": None if topology is None else topology.name,
            "problem": self.problem,
            "routers": [] if topology is None else list(topology.routers),
            "links": [] if topology is None else topology.to_json()["links"],
            "upgraded": list(self.upgraded),
            "segments": [
                {
                    "segment": str(one.segment),
                    "source": one.source,
                    "target": one.target,
                    "until": until,
                    "reason": None if one.is_addressed else "the topology has no addresses for it",
                }
                for one, until in segments
            ],
        }

    def failed(self, error: WirelagError) -> bool:
        """Keep the topology after a failed reading; return whether the problem is new."""
        news, self.problem = self.problem is None, str(error)
        return news


def _difference(
    before: _Seen | None,
    after: _Seen,
    now_ns: int,
    new: Sequence[Segment],
    gone: Sequence[Segment],
    rerouted: Sequence[Segment],
) -> TopologyChange:
    was: Mapping[tuple[str, str], int] = {} if before is None else before.weights
    routers: frozenset[str] = frozenset() if before is None else before.routers
    measured: tuple[str, ...] = () if before is None else before.upgraded

    def names(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        return tuple(sorted(f"{one}>{other}" for one, other in pairs))

    return TopologyChange(
        now_ns,
        names(after.weights.keys() - was.keys()),
        names(was.keys() - after.weights.keys()),
        names(pair for pair in after.weights.keys() & was.keys() if after.weights[pair] != was[pair]),
        tuple(sorted(after.routers ^ routers)),
        tuple(one for one in after.upgraded if one not in measured),
        tuple(one for one in measured if one not in after.upgraded),
        tuple(map(str, new)),
        tuple(map(str, gone)),
        tuple(map(str, rerouted)),
    )


def _words(name: str) -> str:
    return {"no_longer": "no longer measuring", "upgraded": "now measuring", "new": "segments begin",
            "gone": "segments end"}.get(name, name.replace("_", " "))  # fmt: skip


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
