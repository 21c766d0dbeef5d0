"""All segments in one short reply, for a page of a thousand: the last minute of each, judged by its objectives.

Law: it is made at most once in AGAIN_S, however many ask. What the store alone knows (after a restart) is read once,
for all segments together; one whose results are all in blocks, since it is no longer measured, is read by itself.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wirelag.collector.objectives import VERDICTS, Objectives, pattern_of
from wirelag.collector.store import MINUTE_NS, SUMMED, Row
from wirelag.protocol.results import Ends, named_ends

if TYPE_CHECKING:
    from wirelag.collector.loop import Collector

AGAIN_S: Final = 1.0
EVER_NS: Final = (0, 2**62)
_INTERVALS: Final = {"mean": "mean", "p99": "0.99", "loss": "loss"}  # as reports call them
_BEFORE: Final = re.compile(r"[^-_]+")
Report = Mapping[str, Any]  # as the API serves it


class Sites:
    """Where points are: by the operator's table (`"fra-*" = "Frankfurt"`), else what precedes their first - or _."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = [(pattern_of(points), site) for points, site in names.items()]

    def of(self, point: str) -> str:
        """The site of a point.

        >>> Sites({"fra-*": "Frankfurt"}).of("fra-1"), Sites({}).of("ber_2")
        ('Frankfurt', 'ber')
        """
        for pattern, site in self._names:
            if pattern.fullmatch(point):
                return site
        found = _BEFORE.match(point)
        return found[0] if found else point


def row(
    segment: str,
    ends: Ends | None,
    latest: Mapping[str, Any] | None,
    minute: Mapping[str, Any] | None,
    objectives: Objectives,
    sites: Sites,
) -> dict[str, Any]:
    """A segment: figures of its last minute, and when the latest interval was. Null is not known."""
    about: dict[str, Any] = {
        "segment": segment,
        "upstream": None if ends is None else ends.upstream,
        "downstream": None if ends is None else ends.downstream,
        "sites": None if ends is None else [sites.of(ends.upstream), sites.of(ends.downstream)],
        "end": None,
    }
    told = minute or latest
    if told is None:
        return about
    latest = latest or told
    ci95 = told["ci95"]
    judged = [(one, *one.judge(told)) for one in objectives.of(segment)]
    verdicts = [verdict for _, _, verdict in judged]
    return about | {
        "end": latest["end"],
        "length": latest["end"] - latest["start"],
        "covers": [told["start"], told["end"]],
        "mean": _short(told["mean"]),
        "p99": _short(told["quantiles"]["0.99"]),
        "loss": _short(told["loss"]),
        "ci95": {name: [*map(_short, ci95[key])] for name, key in _INTERVALS.items() if key in ci95},
        "clock": told["clock"],
        "unseen": told["unseen"]["upstream"] + told["unseen"]["downstream"],
        "missed": told["missed"],
        "reason": told["reason"],
        "verdict": next((one for one in VERDICTS if one in verdicts), None),
        "objectives": [
            {"objective": one.text, "bound": one.bound, "value": _short(value), "verdict": verdict}
            for one, value, verdict in judged
        ],
    }


def _when(one: Row) -> Report:
    """All that is shown of the latest interval, if there is a minute."""
    return {"start": one.start_ns / 1e9, "end": (one.start_ns + one.length_ns) / 1e9}


def _short(value: float | None) -> float | None:
    """Six digits: a page shows three."""
    return None if value is None else float(f"{value:.6g}")


class Overview:
    """The overview of a collector."""

    def __init__(self, collector: Collector, objectives: Objectives, sites: Sites) -> None:
        self._of = collector
        self._objectives, self._sites = objectives, sites
        self._made = -AGAIN_S, b""
        self._stored: dict[str, tuple[Report | None, Report | None]] = {}  # by segment: latest, and minute
        self._is_read = False  # the store was, for all
        self._lock = threading.Lock()

    def judge_by(self, objectives: Objectives, sites: Sites) -> None:
        """Take other objectives and sites from now on."""
        with self._lock:
            self._objectives, self._sites, self._made = objectives, sites, (-AGAIN_S, b"")

    def text(self) -> bytes:
        """The reply, as JSON; in any thread."""
        with self._lock:
            if time.monotonic() - self._made[0] >= AGAIN_S:
                rows = [self._row(name, ends) for name, ends in sorted(self._named().items())]
                made = {"now": self._of.clock() / 1e9, "segments": rows}
                self._made = time.monotonic(), json.dumps(made, separators=(",", ":")).encode()
            return self._made[1]

    def _named(self) -> dict[str, Ends | None]:
        """All segments that are measured, or have results."""
        ends: dict[str, Ends | None] = {one.segment: one for one in self._of.rounds.segments}
        for name, _ in self._of.store.series():
            ends.setdefault(name, named_ends(name))
        return ends

    def _row(self, segment: str, ends: Ends | None) -> dict[str, Any]:
        recent = self._of.recent
        latest: Report | None = recent.latest[segment].report if segment in recent.latest else None
        minute: Report | None = recent.minute(segment)
        if latest is None:
            latest, minute = (self._of.elsewhere(segment, settled) for settled in (False, True))
            if latest is None:
                latest, minute = self._known(segment)
            else:
                self._stored[segment] = latest, minute  # of another collector: it is not told again soon
        return row(segment, ends, latest, minute, self._objectives, self._sites)

    def _known(self, segment: str) -> tuple[Report | None, Report | None]:
        """What the store has of a segment, or another collector has told."""
        if not self._is_read:
            self._stored, self._is_read = self._read_all() | self._stored, True
        if segment not in self._stored:
            self._stored[segment] = self._read(segment)
        return self._stored[segment]

    def _read_all(self) -> dict[str, tuple[Report | None, Report | None]]:
        """The same for all segments that have results outside of blocks."""
        last: dict[str, Row] = {}
        minutes: dict[str, Row] = {}
        for one in self._of.store.latest():
            if one.length_ns == MINUTE_NS:
                minutes[one.segment] = one
            elif one.segment not in last or last[one.segment].start_ns < one.start_ns:
                last[one.segment] = one
        found: dict[str, tuple[Report | None, Report | None]] = {
            name: (one.to_json() if name not in minutes else _when(one), None) for name, one in last.items()
        }
        for name, one in minutes.items():
            told = one.to_json()
            found[name] = found.get(name, (told, None))[0], told
        return found

    def _read(self, segment: str) -> tuple[Report | None, Report | None]:
        """What the store has of a segment: its latest interval and its latest minute, if it has minutes."""
        lengths = self._of.store.lengths_ns(segment, None)
        found = [self._of.store.rows(segment, None, length, EVER_NS, 1) for length in lengths if length not in SUMMED]
        last = max((rows[-1] for rows in found if rows), key=lambda one: one.start_ns, default=None)
        minutes = self._of.store.rows(segment, None, MINUTE_NS, EVER_NS, 1) if MINUTE_NS in lengths else []
        minute = minutes[-1].to_json() if minutes else None
        return (minute if last is None else last.to_json()), minute
