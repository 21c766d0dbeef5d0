"""The collector follows the network: the topology as it is now, who measures, and each agent's m-set. No I/O.

Laws. Whatever changes is told once, with its time. An m-set is told whole, under the time since which it holds, until
its agent says that it has it: so a message that gets lost, or comes twice, changes nothing. Routers are called as
agents are: by their names in the settings, else by their own with - for what a point's name cannot have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wirelag.errors import WirelagError
from wirelag.network.msets import Turning, referenced
from wirelag.network.plan import Plan
from wirelag.network.segments import Segment
from wirelag.network.topology import Topology

MOST_NAMED: Final = 100  # names in a list of what has changed
LONGEST_NAME: Final = 64  # of a point
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
Records = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """How the network is followed."""

    every_ns: int = 10**9
    overlap_ns: int = 30 * 10**9
    upgraded: tuple[str, ...] | None = None  # routers that measure; None: those whose agents are alive
    names: Mapping[str, str] = field(default_factory=dict)


def called(router: str, names: Mapping[str, str]) -> str:
    """What the agent of a router is called."""
    return names.get(router) or _UNFIT.sub("-", router)[:LONGEST_NAME]


def pointed(topology: Topology, names: Mapping[str, str]) -> Topology:
    """The same with routers called as their agents are."""
    return topology.renamed({router: called(router, names) for router in topology.routers})


@dataclass(frozen=True, slots=True)
class Change:
    """What was seen to be different, at a time. Lists have MOST_NAMED names at most."""

    at_ns: int
    links_up: tuple[str, ...] = ()
    links_down: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()  # links that cost more or less than before
    routers: tuple[str, ...] = ()  # that came or went
    upgraded: tuple[str, ...] = ()  # routers that measure from now on
    no_longer: tuple[str, ...] = ()  # and that did
    new: tuple[str, ...] = ()  # segments
    gone: tuple[str, ...] = ()
    rerouted: tuple[str, ...] = ()  # virtual links over other routers: what they were is not comparable

    def to_json(self) -> dict[str, Any]:
        """As the API has it."""
        names = [name for name in self.__slots__ if name != "at_ns"]
        return {"at": self.at_ns / 1e9} | {name: list(getattr(self, name)[:MOST_NAMED]) for name in names}

    def __str__(self) -> str:
        """In words, for the log."""
        names = [name for name in self.__slots__ if name != "at_ns"]
        return "; ".join(f"{_words(name)} {_some(found)}" for name in names if (found := getattr(self, name)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What decides m-sets: while it is the same they are."""

    weights: Mapping[tuple[str, str], int]
    addresses: Mapping[str, str]
    ports: Mapping[tuple[str, str], tuple[str, str]]
    routers: frozenset[str]
    upgraded: tuple[str, ...]
    ends: frozenset[str]


class Following:
    """What is known of the network, and what follows for agents."""

    def __init__(self, follow: Follow) -> None:
        self._follow = follow
        self._turning = Turning(follow.overlap_ns)
        self._before: _Seen | None = None
        self._plan: Plan | None = None
        self._m_sets: dict[str, tuple[int, Records]] = {}  # by point: since when, what
        self.problem: str | None = None  # why the topology could not be read
        self.changed_ns = 0

    @property
    def every_s(self) -> float:
        """Between two readings of the topology."""
        return self._follow.every_ns / 1e9

    @property
    def topology(self) -> Topology | None:
        """As it was last read."""
        return None if self._plan is None else self._plan.topology

    @property
    def upgraded(self) -> tuple[str, ...]:
        """Routers that measure."""
        return () if self._before is None else self._before.upgraded

    def take(self, topology: Topology, alive: Collection[str], now_ns: int) -> Change | None:
        """The topology was read, and these agents ask for their m-set; what is different from before."""
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
        seen = _Seen(weights, topology.addresses, topology.link_addresses, known, measuring, ends)
        if seen == self._before:
            return None
        plan = Plan(topology, measuring)
        new, gone = self._turning.turn(referenced(plan, ends), now_ns)
        rerouted = self._rerouted(plan)
        change = _difference(self._before, seen, now_ns, new, gone, rerouted)
        self._before, self._plan, self.changed_ns = seen, plan, now_ns
        self._tell(now_ns)
        return change

    def _called(self, routers: Sequence[str]) -> frozenset[str]:
        return frozenset(called(router, self._follow.names) for router in routers)

    def _rerouted(self, plan: Plan) -> list[Segment]:
        """Virtual links that stay, and cost something else or have more or fewer paths."""
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
        """m-sets that are different from those last told hold from now on."""
        records: dict[str, list[dict[str, Any]]] = {point: [] for point in self._m_sets}
        for one, until_ns in self._turning.held():
            about = {"segment": str(one.segment), "source": one.source, "target": one.target, "until_ns": until_ns}
            records.setdefault(one.segment.at, []).append(about | {"way": "out"})
            records.setdefault(one.segment.after, []).append(about | {"way": "in"})
        for point, own in records.items():
            if point not in self._m_sets or self._m_sets[point][1] != tuple(own):
                self._m_sets[point] = now_ns, tuple(own)

    def m_set(self, point: str, has_ns: int) -> tuple[int, Records] | None:
        """What an agent must be told, which has an m-set that holds since then; None: nothing."""
        told = self._m_sets.get(point)
        return None if told is None or told[0] == has_ns else told

    def to_json(self) -> dict[str, Any]:
        """As the API has it, without changes."""
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
        """The topology could not be read: it stays as it was. Whether that is news."""
        news, self.problem = self.problem is None, str(error)
        return news


def _difference(
    before: _Seen | None,
    after: _Seen,
    now_ns: int,
    new: Sequence[Segment],
    gone: Sequence[Segment],
    rerouted: Sequence[Segment],
) -> Change:
    was: Mapping[tuple[str, str], int] = {} if before is None else before.weights
    routers: frozenset[str] = frozenset() if before is None else before.routers
    measured: tuple[str, ...] = () if before is None else before.upgraded

    def names(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        return tuple(sorted(f"{one}>{other}" for one, other in pairs))

    return Change(
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
