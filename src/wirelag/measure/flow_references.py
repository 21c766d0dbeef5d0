"""Where references come from: packets that carry their time, or a capture of the other side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from wirelag.measure.flow_rows import Choice, FlowRow, summary
from wirelag.measure.points import PointPair
from wirelag.units import format_time, many

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.clocks.fit import Clock
    from wirelag.estimators.rli import Rli
    from wirelag.measure.points import CapturePoint, Progress
    from wirelag.packets.addresses import Direction
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.interval import Interval
    from wirelag.report import Report
    from wirelag.synopses.flows import Flows
    from wirelag.twopoint.alignment import Alignment
    from wirelag.twopoint.references import References

NO_BETTER: Final = 0.9  # share of the mean's error: neighbours with more predict nothing
REFUSED: Final = {
    "foreign": "from another stream",
    "size": "of another size",
    "malformed": "without a time",
    "time": "with an implausible time",
    "repeated": "repeated",
    "sequence": "out of sequence",
}


@dataclass
class Referred:
    """Flows that were measured with references, and how."""

    names: str  # names of the captures
    flows: Flows
    intervals: list[tuple[Report, FlowRow]]
    choice: Choice
    statistics: CaptureStatistics
    warnings: list[str]
    notes: list[str] = field(default_factory=list)
    clock: Clock | None = None  # with two captures


def alone(
    estimator: Rli, capture: Capture, way: Direction | None, interval_ns: int | None, choice: Choice, progress: Progress
) -> Referred:
    """Measure with STAMP packets as references."""
    packets: Iterable[PacketBatch] = progress(capture)
    if way:
        packets = (_travelling(batch, way, estimator) for batch in packets)
    together, lines = _observed(packets, interval_ns, Meters(estimator, interval_ns is not None), choice)
    names = ", ".join(capture.names)
    found = Referred(names, together, lines, choice, capture.statistics, capture.warnings)
    found.notes += _both_ways(together) if way is None else []
    return found


def _travelling(batch: PacketBatch, way: Direction, estimator: Rli) -> PacketBatch:
    """Packets of this direction, and possible references."""
    import numpy as np

    rows = way.rows(batch)
    rows[estimator.possible(batch)] = True
    return batch if rows.all() else batch[np.flatnonzero(rows)]


def _both_ways(flows: Flows) -> list[str]:
    """Warn of a tap in both directions: half of its packets did not pass the queue."""
    import numpy as np

    keys = flows.column("key")
    back = int(np.isin(keys ^ np.uint64(1), keys).sum())
    if 10 * back < len(keys) or not back:
        return []
    return [
        f"{back:,} of {len(keys):,} flows are seen in both directions: those opposite to the references did not pass "
        f"the queue, and their delays mean nothing; choose with --direction 'SRC>DST'"
    ]


def against(
    estimator: Rli,
    points: list[CapturePoint],
    way: Direction | None,
    every: int,
    interval_ns: int | None,
    choice: Choice,
) -> Referred:
    """Measure with packets that both sides captured as references; each capture is read twice."""
    from wirelag.packets.packet_id import PacketId
    from wirelag.twopoint.references import References

    up, down = points
    pair = PointPair(up, down, PacketId(), 0, interval_ns is not None)
    alignment, _ = pair.align(way, "auto")
    sent = (alignment.select("upstream", batch) for batch in up.batches(pair.packet_id))
    references = References(sent, every, alignment.least_ns)
    ways, notes = _ways(alignment, every)
    meters = Meters(estimator, interval_ns is not None, ways, references)
    choice = replace(choice, course=alignment.courses["downstream"], direction=way)
    packets = (_not_backward(batch, alignment) for batch in down.batches(pair.packet_id))
    together, lines = _observed(packets, interval_ns, meters, choice)
    assert down.read
    warnings = [line for point in points if point.read for line in point.read.warnings]
    notes = [*pair.notes, *alignment.notes, *notes]
    return Referred(down.name, together, lines, choice, down.read.statistics, warnings, notes, alignment.clock)


def _ways(alignment: Alignment, every: int) -> tuple[npt.NDArray[np.uint64], list[str]]:
    """Find address pairs on another route, and note how well references predict delays."""
    from wirelag.twopoint.locality import locality

    up_ns, down_ns = alignment.forward
    thinning = max(1.0, alignment.common_packets / max(1, len(up_ns)))
    apart = max(1, round(every / thinning / 2))
    found = locality(down_ns, alignment.clock.correct(down_ns) - up_ns, alignment.forward_pairs, apart)
    notes = []
    if len(found.ways):
        notes.append(
            f"other routes: delays of {many(len(found.ways), 'address pair')} are unlike those of the others; each has "
            f"references of its own"
        )
    if found.error is not None and found.error > NO_BETTER and thinning <= every:
        notes.append(
            "neighbouring packets are not alike here: references predict delays no better than their mean does, "
            "so do not trust the means of flows with few packets"
        )
    return found.ways, notes


class Meters:
    """A meter for each route, the last for all others; they share memory, buffer and records.

    With `in_parts` there is a second set, which is cut at intervals. Law: the figures of the whole come from a meter
    that is never cut, so that intervals, which only change what is shown, do not change them.
    """

    def __init__(
        self,
        estimator: Rli,
        in_parts: bool,
        ways: npt.NDArray[np.uint64] | None = None,
        references: References | None = None,
    ) -> None:
        self._ways, self._references, self.most_flows = ways, references, estimator.most_flows
        count = 1 if ways is None else len(ways) + 1
        share = replace(
            estimator,
            memory=max(1 << 10, estimator.memory // count),
            buffer=max(1, estimator.buffer // count),
            most_flows=max(1, estimator.most_flows // count),
        )
        self._sets = [[share.meter("downstream") for _ in range(count)] for _ in range(1 + in_parts)]

    def observe(self, batch: PacketBatch) -> None:
        """Take packets, with those that are references."""
        if self._references is None or self._ways is None:
            for meters in self._sets:
                meters[0].observe(batch)
            return
        for way, part in self._parts(batch):
            found = self._references.find(part, way)
            for meters in self._sets:
                meters[way].observe_with(part, *found)

    def _parts(self, batch: PacketBatch) -> Iterator[tuple[int, PacketBatch]]:
        import numpy as np

        from wirelag.packets.addresses import address_keys, pair_keys

        if self._ways is None or not len(self._ways):
            yield 0, batch
            return
        keys = pair_keys(address_keys(batch.src), address_keys(batch.dst))
        place = np.searchsorted(self._ways, keys)
        ways = np.where(np.isin(keys, self._ways), place, len(self._ways))
        for way in range(len(self._sets[0])):
            rows = np.flatnonzero(ways == way)
            if len(rows):
                yield way, batch[rows]

    def cut(self, interval: Interval, last: bool) -> Flows:
        """The flows of all routes in an interval; the queue is that of the last."""
        return self._cut(1, interval, last)

    def finish(self, interval: Interval) -> Flows:
        """The flows of all routes in the whole capture."""
        return self._cut(0, interval, True)

    def _cut(self, which: int, interval: Interval, last: bool) -> Flows:
        from wirelag.synopses.flows import added

        parts = [meter.cut(interval, last) for meter in self._sets[which]]
        return added(parts) if len(parts) > 1 else parts[0]


def _not_backward(batch: PacketBatch, alignment: Alignment) -> PacketBatch:
    """All packets that may have been in the queue, on upstream's clock; those upstream never saw used the link, too."""
    import numpy as np

    from wirelag.twopoint.direction import BACKWARD

    if not len(batch):
        return batch
    courses = alignment.courses["downstream"].of(batch, alignment.direction)
    kept = batch[np.flatnonzero(courses != BACKWARD)]
    return kept.at_times(alignment.clock.correct(kept.time_ns)) if alignment.clock.corrects else kept


def _observed(
    packets: Iterable[PacketBatch], interval_ns: int | None, meters: Meters, choice: Choice
) -> tuple[Flows, list[tuple[Report, FlowRow]]]:
    """The flows of the whole capture, and a line for each interval."""
    from wirelag.packets.interval import Interval
    from wirelag.packets.intervals import split

    lines: list[tuple[Report, FlowRow]] = []

    def tell(when: Interval, last: bool) -> None:
        _, report, row = summary(meters.cut(when, last), choice, "interval", format_time(when.start_ns))
        lines.append((report.during(when), row))

    now = whole = Interval(0, 0)
    for span, batch in split(packets, interval_ns):
        if interval_ns is not None and now.length_ns and span != now:
            tell(now, False)
        now = span
        whole = Interval(min(whole.start_ns, span.start_ns), max(whole.end_ns, span.end_ns)) if whole.end_ns else span
        meters.observe(batch)
    if interval_ns is not None:
        tell(now, True)
    return meters.finish(whole).shortened(meters.most_flows), lines


def refused(flows: Flows) -> dict[str, int]:
    """References that were not used, by reason."""
    rejected = {name.removeprefix("rejected_"): n for name, n in flows.counts.items() if name.startswith("rejected_")}
    return {REFUSED.get(name, name): n for name, n in rejected.items() if n}
