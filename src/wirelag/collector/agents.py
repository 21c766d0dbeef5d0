"""What is known of agents: when each was last heard, its clock, what its capture dropped, what it says of itself.

Memory: MOST agents; of more only their number is known. Messages, their bytes and packets count as often as they come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from wirelag.protocol.messages import Message

MOST: Final = 4096
MOST_NAMES: Final = 64  # that an agent says something of
MOST_NAME: Final = 64  # characters of such a name
ALIVE_NS: Final = 30 * 10**9  # without a word, then an agent counts as gone


class Agents:
    """By name; what is kept is plain values."""

    def __init__(self, kept: Mapping[str, dict[str, Any]]) -> None:
        self._known = {point: said | {"says": _says(said.get("says", {}))} for point, said in kept.items()}
        self._changed: set[str] = set()
        self.more = 0  # messages of agents beyond MOST

    def heard(self, message: Message, size: int, now_ns: int) -> bool:
        """A message of an agent has arrived; whether it is one of those that are known."""
        if message.point not in self._known and len(self._known) >= MOST:
            self.more += 1
            return False
        said = self._known.setdefault(message.point, {"packets": 0, "unseen": 0, "messages": 0, "bytes": 0})
        self._changed.add(message.point)
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
            said["packets"] += message.seen.packets
            said["unseen"] += message.seen.unseen
            said["last_ns"] = max(said.get("last_ns", 0), message.interval.end_ns)
        return True

    def changed(self) -> dict[str, dict[str, Any]]:
        """What is new since this was last asked."""
        changed, self._changed = self._changed, set()
        return {point: self._known[point] for point in changed}

    def following(self, now_ns: int, began_ns: int = 0) -> dict[str, int]:
        """Agents that are alive and take their m-set from the collector, and since when the one holds that they have.

        What the collector did not hear before it began is nobody's silence.
        """
        found = {}
        for point, said in self._known.items():
            says = said.get("says", {})
            has_ns = says.get("m_set_ns")
            silent_ns = now_ns - max(said.get("heard_ns", 0), began_ns)
            if type(has_ns) is int and not says.get("ending") and silent_ns < ALIVE_NS:
                found[point] = has_ns
        return found

    def all(self, now_ns: int) -> list[dict[str, Any]]:
        """As the API has it; times in seconds."""
        return [_shown(point, dict(said), now_ns) for point, said in sorted(self._known.items())]


def _shown(point: str, said: dict[str, Any], now_ns: int) -> dict[str, Any]:
    clock = said.get("clock") or {"synchronised": False, "error_ns": 0, "source": "none"}
    silent_ns = now_ns - said.get("heard_ns", 0)
    return {
        "point": point,
        "alive": silent_ns < ALIVE_NS,
        "heard": said.get("heard_ns", 0) / 1e9,
        "silent": silent_ns / 1e9,
        "behind": said.get("behind_ns", 0) / 1e9,  # its clock and the network's delay together
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
    """What can be shown of what an agent says of itself."""
    fitting = (name for name, value in record.items() if len(name) <= MOST_NAME and _plain(value))
    return {name: record[name] for name in islice(fitting, MOST_NAMES)}


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 200
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < 1 << 63)
