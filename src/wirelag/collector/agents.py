"""What is known of agents: when each was last heard, its clock, what its capture dropped, what it says of itself.

Memory: MOST agents; of more only their number is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wirelag.messages import Message

MOST: Final = 4096
ALIVE_NS: Final = 30 * 10**9  # without a word, then an agent counts as gone


class Agents:
    """By name; what is kept is plain values."""

    def __init__(self, kept: Mapping[str, dict[str, Any]]) -> None:
        self._known = dict(kept)
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
            said["says"] = {
                name: value for record in message.records for name, value in record.items() if _plain(value)
            }
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


def _plain(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 200) or isinstance(value, bool | int | float)
