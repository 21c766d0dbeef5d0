"""The balancer, one interval at a time: readings in, weights out, a new table if they moved; backends come and go.

Law: a backend that leaves keeps its connections until they have ended, or until the drain limit has passed. A backend
with an unknown MAC address is left out until it is resolved; the others are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wirelag.balance.controller import Controller, Decision, Latency, WeightChange
from wirelag.balance.maglev import maglev, shares
from wirelag.balance.paper import PaperController
from wirelag.balance.settings import BackendSettings, Config
from wirelag.ebpf.service import Backend, Counts, Dataplane, Reading, Way
from wirelag.errors import WirelagError

NOTHING: Final = Counts()
FIXED: Final = (
    *(
        "name",
        "interface",
        "service",
        "tunnel",
        "interval_ns",
        "table_size",
        "connections",
        "idle_ns",
        "most_new",
        "secret",
    ),
    *("method", "controller", "pins", "prometheus", "audit"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """The record of one interval."""

    service: str  # its name
    time_ns: int
    decision: Decision
    counts: Mapping[str, Counts]
    counters: Mapping[str, int]
    draining: tuple[str, ...]
    steered: bool  # whether the weights are in use
    down: tuple[str, ...] = ()  # those that fail their health check

    @property
    def names(self) -> list[str]:
        """All backends."""
        return list(dict.fromkeys([*self.decision.weights, *self.down, *self.draining]))

    def standing(self, name: str) -> str:
        """The standing of a backend."""
        if name in self.draining:
            return "draining"
        return "down" if name in self.down else self.decision.standings[name]

    def to_json(self) -> dict[str, Any]:
        """As data; times in seconds. Unknown values are null, and `standing` holds the reason."""
        changes = {change.name: change for change in self.decision.changes}
        return {
            "command": "balance",
            "service": self.service,
            "time": self.time_ns / 1e9,
            "steered": self.steered,
            "changed": bool(changes),
            "backends": [self._backend(name, changes.get(name)) for name in self.names],
            "counters": dict(self.counters),
        }

    def _backend(self, name: str, change: WeightChange | None) -> dict[str, Any]:
        counts, latency = self.counts.get(name, NOTHING), self.decision.latencies.get(name)
        return {
            "name": name,
            "weight": round(self.decision.weights.get(name, 0.0), 9),
            "before": round(change.before, 9) if change else None,
            "reason": change.reason if change else None,
            "standing": self.standing(name),
            "latency": round(latency.mean_ns / 1e9, 9) if latency else None,
            "latency_between": _between(latency),
            "latency_samples": round(latency.samples) if latency else 0,
            "samples": counts.count,
            "abstained": counts.abstained,
            "requests": counts.requests,
            "repeated": counts.repeated,
            "connections": counts.connections,
            "opened": counts.opened,
            "packets": counts.packets,
            "bytes": counts.bytes,
        }


class Balancer:
    """Drives a controller, and a dataplane if there is one."""

    def __init__(
        self,
        config: Config,
        dataplane: Dataplane | None,
        way_of: Callable[[BackendSettings], Way],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`way_of` raises a WirelagError if a MAC address is not known; `tell` gets lines for people."""
        self.config, self._dataplane, self._way_of, self._tell = config, dataplane, way_of, tell
        self._leaving: dict[str, tuple[BackendSettings, int]] = {}  # intervals that it has drained
        self._missing: dict[str, BackendSettings] = {}  # backends with an unresolved MAC address
        self._down: dict[str, str] = {}
        self._ways, self._missing = self._resolved(config)
        self._slots: dict[str, int] = {}
        self._set_weights: dict[str, float] | None = None
        self.heard: dict[str, int] = {}  # packets of each since the start
        weights = self._begin()
        made = PaperController if config.controller == "paper" else Controller
        self.controller: Controller | PaperController = made(self._taking(), config.policy, weights)
        self._steer()

    @property
    def draining(self) -> tuple[str, ...]:
        """Backends that get no new connections but still have some."""
        return tuple(self._leaving)

    def step(self, reading: Reading) -> Step:
        """Process an interval."""
        decision = self.controller.step(reading.backends)
        for name, counts in reading.backends.items():
            self.heard[name] = self.heard.get(name, 0) + counts.packets
        self._drain(reading)
        self._look_for_missing()
        self._steer()
        return Step(
            self.config.name,
            reading.time_ns,
            decision,
            reading.backends,
            reading.counters,
            self.draining,
            self._dataplane is not None,
            tuple(name for name in self._down if name not in self.controller.fair),
        )

    def react(self, counts: Mapping[str, Counts]) -> None:
        """Take weight from backends that an unfinished interval shows to be slow."""
        if isinstance(self.controller, Controller) and self.controller.react(counts):
            self._steer()

    def set_down(self, down: Mapping[str, str]) -> None:
        """Set who fails its health check, and why: no new connections for them, until they are back, at their floor."""
        if down.keys() == self._down.keys():
            return
        before, self._down = self._down, dict(down)
        for name in down.keys() - before.keys():
            self._tell(f"{name}: down ({down[name]}): it gets no new connections")
        for name in before.keys() - down.keys():
            self._tell(f"{name}: passes its health check again, and starts at its floor")
        self._change(self._taking())

    def reload(self, config: Config) -> tuple[WeightChange, ...]:
        """Apply new settings; removed or draining backends keep their connections for a while."""
        config = replace(config, **{name: getattr(self.config, name) for name in FIXED})
        ways, missing = self._resolved(config)  # may fail, before anything has changed
        before = {one.name: one for one in self.config.backends}
        kept = self.config, self._ways, self._missing, self._leaving
        self.config, self._ways, self._missing = config, self._ways | ways, missing
        taking = self._taking()
        gone = {name: (before[name], 0) for name in self.controller.fair if name not in taking}
        self._leaving = gone | self._leaving
        try:
            self._list()
        except WirelagError:
            self.config, self._ways, self._missing, self._leaving = kept
            raise
        self.controller.policy = config.policy
        changes = self._change(taking)
        said = {"removed": "drains", "makes room": "takes over"}
        return tuple(
            replace(one, reason=said.get(one.reason, one.reason)) if one.after > one.before or not one.after else one
            for one in changes
        )

    def _change(self, taking: Mapping[str, float]) -> tuple[WeightChange, ...]:
        self._leaving = {name: since for name, since in self._leaving.items() if name not in taking}
        changes = self.controller.change(taking)
        self._list()
        self._steer(anew=True)
        return changes

    def _look_for_missing(self) -> None:
        """Try to resolve one of the missing backends."""
        for name, one in list(self._missing.items())[:1]:
            del self._missing[name]
            try:
                self._ways[name] = self._way_of(one)
            except WirelagError:
                self._missing[name] = one  # to the end of the queue
                continue
            self._tell(f"{name}: {one.address} answers now, and gets connections")
            self._change(self._taking())

    def _taking(self) -> dict[str, float]:
        """Backends that get new connections, with their fair shares."""
        there = self._there()
        return {name: share for name, share in there.items() if name not in self._down} or there

    def _there(self) -> dict[str, float]:
        """Backends with a known MAC address, with their fair shares."""
        return {name: share for name, share in self.config.fair.items() if name not in self._missing}

    def _begin(self) -> dict[str, float]:
        """List the backends; return the weights of a table that was taken over."""
        dataplane = self._dataplane
        if dataplane is None:
            return {}
        taking = self._taking()
        for one in dataplane.backends():
            if one.name not in taking:
                self._leaving[one.name] = (BackendSettings(one.name, one.address, one.way.mac, 0.0, one.via), 0)
                self._ways[one.name] = one.way
        table = dataplane.table()
        self._list()
        found = {} if table is None else shares(table, self._slots)
        return {name: found[name] for name in taking} if any(found.get(name) for name in taking) else {}

    def _resolved(self, config: Config) -> tuple[dict[str, Way], dict[str, BackendSettings]]:
        """The MAC addresses of backends that get new connections, resolved or known before; and those missing."""
        if self._dataplane is None:
            return {}, {}
        known = {(one.name, one.address, one.via): one.way for one in self._dataplane.backends()}
        ways: dict[str, Way] = {}
        missing: dict[str, BackendSettings] = {}
        errors = []
        for one in config.backends:
            if one.name not in config.fair:
                continue
            try:
                ways[one.name] = self._way_of(one)
            except WirelagError as error:
                if (one.name, one.address, one.via) in known:
                    ways[one.name] = known[one.name, one.address, one.via]
                else:
                    missing[one.name] = one
                    errors.append(f"{one.name}: {error}")
        if not ways and errors:
            raise WirelagError("\n".join(errors))
        for line in errors:
            self._tell(f"{line}; it is left out until it answers")
        return ways, missing

    def _list(self) -> None:
        if self._dataplane is None:
            return
        there = self._there()
        wanted = [one for one in self.config.backends if one.name in there]
        wanted += [one for one, _ in self._leaving.values() if one.name not in there]
        self._slots = self._dataplane.set_backends(
            [Backend(one.name, one.address, self._ways[one.name], one.name in self._down, one.via) for one in wanted]
        )

    def _drain(self, reading: Reading) -> None:
        ended = {}
        for name, (one, intervals) in self._leaving.items():  # counted, because a clock may be set
            self._leaving[name] = (one, intervals + 1)
            last = reading.backends.get(name, NOTHING)
            left = last.connections + last.closing
            if (not left and intervals) or intervals * self.config.interval_ns >= self.config.drain_ns:
                ended[name] = left
        for name, left in ended.items():
            del self._leaving[name]
            self._tell(f"{name}: drained" if not left else f"{name}: the time is up, and {left:,} connections are cut")
        if ended:
            self._list()

    def _steer(self, anew: bool = False) -> None:
        """Install a table, if weights differ from those of the last one."""
        weights = self.controller.weights
        if self._dataplane is not None and (anew or weights != self._set_weights):
            self._dataplane.set_table(maglev(weights, self._slots, self.config.table_size))
            self._set_weights = dict(weights)


def fixed(before: Config, after: Config) -> list[str]:
    """Settings that differ, but need a restart."""
    return [name.removesuffix("_ns") for name in FIXED if getattr(before, name) != getattr(after, name)]


def _between(latency: Latency | None) -> list[float] | None:
    return [round(ns / 1e9, 9) for ns in (latency.least_ns, latency.most_ns)] if latency else None
