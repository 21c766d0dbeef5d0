"""The state of agents: when each was last heard, its clock, its capture's drops, its own status.

Memory: MOST agents; beyond that only messages are counted. Messages, bytes and packets count as often as they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from wirelag.protocol.messages import MOST_TEXT, Message
from wirelag.units import format_duration

MOST: Final = 4096
MOST_NAMES: Final = 64  # status fields of an agent
MOST_NAME: Final = 64  # characters of such a name
WEEK_NS: Final = 7 * 86400 * 10**9
ALIVE_NS: Final = 30 * 10**9  # after this silence an agent counts as gone


class Presence:
    """Which agents are heard: a line when one falls silent, ends, or is back. By a clock that is never set."""

    def __init__(self, known: Iterable[str], now_s: float) -> None:
        self._heard_s = dict.fromkeys(known, now_s)  # silence before the collector started does not count
        self._silent_s: dict[str, float] = {}  # since when, as it was told
        self._ended: set[str] = set()

    def heard(self, point: str, is_ending: bool, now_s: float) -> str | None:
        """Note a message of an agent; the line that is due."""
        self._heard_s[point] = now_s
        if is_ending and point not in self._ended:
            self._ended.add(point)
            return f"{point}: the agent has ended"
        if is_ending:
            return None
        ended, since_s = point in self._ended, self._silent_s.pop(point, None)
        self._ended.discard(point)
        if since_s is not None:
            return f"{point} is heard again, after {format_duration(round(now_s - since_s) * 10**9)}"
        return f"{point} is heard again" if ended else None

    def silent(self, now_s: float) -> list[str]:
        """The lines about agents that have fallen silent since the last call."""
        found = [
            point
            for point, heard_s in self._heard_s.items()
            if now_s - heard_s > ALIVE_NS / 1e9 and point not in self._silent_s and point not in self._ended
        ]
        self._silent_s |= {point: self._heard_s[point] for point in found}
        return [f"{point}: nothing heard for {format_duration(ALIVE_NS)}" for point in found]

    def forget(self, point: str) -> None:
        """Expect nothing of an agent any more."""
        self._heard_s.pop(point, None)
        self._silent_s.pop(point, None)
        self._ended.discard(point)


class Agents:
    """Agents by name, as plain values."""

    def __init__(self, kept: Mapping[str, dict[str, Any]]) -> None:
        self._known = {
            point: said | {"says": _says(said.get("says", {}))} for point, said in kept.items() if _is_sound(said)
        }
        self._changed: set[str] = set()
        self._heard_ns: dict[str, int] = {}  # since the start, by a clock that is never set
        self._others: dict[str, dict[str, Any]] = {}  # as other collectors know them
        self.more = 0  # messages of agents beyond MOST

    def heard(self, message: Message, size: int, now_ns: int, steady_ns: int) -> bool:
        """Record an agent's message; return whether the agent is one of those kept."""
        if message.point not in self._known and len(self._known) >= MOST:
            self.more += 1
            return False
        said = self._known.setdefault(message.point, {"packets": 0, "unseen": 0, "messages": 0, "bytes": 0})
        self._changed.add(message.point)
        self._heard_ns[message.point] = steady_ns
        said["heard_ns"], said["messages"], said["bytes"] = now_ns, said["messages"] + 1, said["bytes"] + size
        if message.type == "status" or "behind_ns" not in said:
            said["behind_ns"] = now_ns - message.sent_ns
        if message.type == "status":
            said["says"] = _says(message.records[0] if message.records else {})
        if message.type in ("synopsis", "status"):
            clock = message.clock
            said["clock"] = {"synchronised": clock.synchronised, "error_ns": clock.error_ns, "source": clock.source}
        if message.type == "synopsis":
            said["estimator"], said["interval_ns"] = message.terms.estimator.name, message.interval.length_ns
        if message.type in ("synopsis", "crossing"):
            said["packets"] += message.seen.packets
            said["unseen"] += message.seen.unseen
            said["last_ns"] = max(said.get("last_ns", 0), message.interval.end_ns)
        return True

    def lively(self, now_ns: int) -> list[str]:
        """Agents that should be heard: they did not say that they end, and were heard within a week."""
        return [
            point
            for point, said in self._known.items()
            if not said["says"].get("ending") and now_ns - said.get("heard_ns", 0) < WEEK_NS
        ]

    def changed(self) -> dict[str, dict[str, Any]]:
        """The agents that changed since the last call."""
        changed, self._changed = self._changed, set()
        return {point: self._known[point] for point in changed}

    def learn(self, mine: Mapping[str, Any], others: Mapping[str, dict[str, Any]]) -> list[str]:
        """Take note of what is stored; returns the agents that other collectors have heard since the last call.

        What this one has stored and is gone was forgotten by way of another.
        """
        self._known = {point: said for point, said in self._known.items() if point in mine or point in self._changed}
        before, self._others = self._others, {point: said for point, said in others.items() if _is_sound(said)}
        return [
            point
            for point, said in self._others.items()
            if said.get("heard_ns", 0) > before.get(point, said).get("heard_ns", 0)
        ]

    def forget(self, point: str) -> bool:
        """Forget an agent; False if it is not known."""
        self._changed.discard(point)
        self._heard_ns.pop(point, None)
        known = [one.pop(point, None) for one in (self._known, self._others)]
        return any(one is not None for one in known)

    def following(self, steady_ns: int, began_ns: int = 0) -> dict[str, int]:
        """Live agents that take their m-set from the collector, and since when their current one is valid.

        Silence before the collector started does not count against an agent, nor does a clock that is set.
        """
        found = {}
        for point, said in self._known.items():
            says = said.get("says", {})
            has_ns = says.get("m_set_ns")
            silent_ns = steady_ns - self._heard_ns.get(point, began_ns)
            if type(has_ns) is int and not says.get("ending") and silent_ns < ALIVE_NS:
                found[point] = has_ns
        return found

    def inside(self) -> frozenset[str]:
        """Agents that say that they measure inside their routers."""
        return frozenset(point for point, said in self._known.items() if said.get("says", {}).get("inside") is True)

    def all(self, now_ns: int, steady_ns: int) -> list[dict[str, Any]]:
        """The JSON of the API; times in seconds."""
        found = []
        for point in sorted({**self._known, **self._others}):
            mine, theirs = self._known.get(point), self._others.get(point)
            heard_ns = None if mine is None else self._heard_ns.get(point)
            said = together(mine, theirs)
            silent_ns = now_ns - said.get("heard_ns", 0)
            if heard_ns is not None:
                silent_ns = min(silent_ns, steady_ns - heard_ns) if theirs else steady_ns - heard_ns
            found.append(_shown(point, said, silent_ns))
        return found


def together(mine: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What two collectors know of an agent: they count different messages, and the later one knows its state."""
    if mine is None or theirs is None:
        return dict(mine or theirs or {})
    earlier, later = sorted((mine, theirs), key=lambda one: int(one.get("heard_ns", 0)))
    said = {**earlier, **later} | ({} if later.get("says") else {"says": earlier.get("says", {})})
    said |= {name: mine[name] + theirs[name] for name in ("packets", "unseen", "messages", "bytes")}
    last_ns = [one["last_ns"] for one in (mine, theirs) if "last_ns" in one]
    return said | ({"last_ns": max(last_ns)} if last_ns else {})


def _is_sound(said: Mapping[str, Any]) -> bool:
    """Whether what was stored is as it was written: the disk may have changed it."""
    clock = said.get("clock", {})
    numbers = [said.get(name) for name in ("packets", "unseen", "messages", "bytes")]
    numbers += [said.get(name, 0) for name in ("heard_ns", "behind_ns", "last_ns")]
    numbers += [clock.get("error_ns", 0) if isinstance(clock, dict) else None]
    names = {"synchronised", "error_ns", "source"}
    return (
        all(type(number) is int for number in numbers)
        and isinstance(said.get("says", {}), dict)
        and (not clock or clock.keys() == names)
    )


def _shown(point: str, said: dict[str, Any], silent_ns: int) -> dict[str, Any]:
    clock = said.get("clock") or {"synchronised": False, "error_ns": 0, "source": "none"}
    return {
        "point": point,
        "alive": silent_ns < ALIVE_NS,
        "heard": said.get("heard_ns", 0) / 1e9,
        "silent": silent_ns / 1e9,
        "behind": said.get("behind_ns", 0) / 1e9,  # its clock difference plus the network delay
        "last_interval": said["last_ns"] / 1e9 if "last_ns" in said else None,
        "estimator": said.get("estimator"),
        "packets": said["packets"],
        "unseen": said["unseen"],
        "messages": said["messages"],
        "bytes": said["bytes"],
        "clock": {"error": clock["error_ns"] / 1e9, "synchronised": clock["synchronised"], "source": clock["source"]},
        "says": said.get("says", {}),
    }


def _says(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an agent's status that can be shown."""
    fitting = (name for name, value in record.items() if len(name) <= MOST_NAME and _plain(name) and _plain(value))
    return {name: record[name] for name in islice(fitting, MOST_NAMES)}


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_TEXT and value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < 1 << 63)
