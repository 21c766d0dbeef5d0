"""What is known of each segment now: its latest results, and the sum of its last minute.

Laws. A minute counts each interval once, when it is settled: single intervals have too few delays for a p99, and the
latest one is not settled, so it has no loss. Memory: per segment two results and at most PARTS + 1 sums, each of
PART_NS or of one longer interval. One thread writes, any thread reads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from wirelag.collector.store import MINUTE_NS, Kept
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

PARTS: Final = 6
PART_NS: Final = MINUTE_NS // PARTS
Parts = dict[int, tuple[Interval, Tally]]  # by number of the part: what it covers, and its sum


class Recent:
    """By segment."""

    def __init__(self) -> None:
        self.latest: dict[str, Kept] = {}
        self.settled: dict[str, Kept] = {}
        self._parts: dict[str, Parts] = {}

    def take(self, kept: Kept) -> None:
        """Take a result that is more complete than the one before it."""
        segment, rank = kept.result.segment, kept.result.rank
        for known in (self.latest, self.settled) if rank >= Rank.ALONE else (self.latest,):
            last = known.get(segment)
            if last is None or kept.result.interval >= last.result.interval:
                known[segment] = kept

    def settle(self, kept: Kept) -> None:
        """Add an interval to its minute; called once for each."""
        interval, parts = kept.result.interval, dict(self._parts.get(kept.result.segment, {}))
        number, newest = interval.start_ns // PART_NS, max(parts, default=-PARTS)
        if number < newest - PARTS:
            return  # the minute is over
        covered, whole = interval, Tally()
        if number in parts:
            before, tally = parts[number]
            covered = Interval(min(before.start_ns, interval.start_ns), max(before.end_ns, interval.end_ns))
            whole = tally.copied()
        whole.add(kept.tally)
        whole.reason = kept.tally.reason
        parts[number] = covered, whole
        # Readers see the old minute or the new one.
        self._parts[kept.result.segment] = {n: one for n, one in parts.items() if n >= max(newest, number) - PARTS}

    def minute(self, segment: str) -> dict[str, Any] | None:
        """The report of the last minute, as the API serves reports; None if nothing is settled yet."""
        parts = self._parts.get(segment)
        if not parts:
            return None
        whole = Tally()
        for number in sorted(parts):
            whole.add(parts[number][1])
        whole.reason = parts[max(parts)][1].reason
        start_ns = min(covered.start_ns for covered, _ in parts.values())
        end_ns = max(covered.end_ns for covered, _ in parts.values())
        return whole.to_json(start_ns, end_ns - start_ns, True)

    def forget(self, gone: Collection[str]) -> None:
        """Forget segments that are no longer measured here."""
        self.keep({name for name in {*self.latest, *self._parts} if name not in gone})

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self.latest = {name: one for name, one in self.latest.items() if name in names}
        self.settled = {name: one for name, one in self.settled.items() if name in names}
        self._parts = {name: one for name, one in self._parts.items() if name in names}
