"""Packets of a capture into parts: what this point kept of each interval of each segment. No I/O.

Law: by the clock, every interval gets a part, even without packets, from the one in which the agent started to the one
in which it ended; time during which it did not run is not covered, nor is an interval in which the clock was set, or
that it skipped: what the other end saw then is not lost. Interval k is cut at the first packet of k + 1, or when the
capture is empty and the clock is `grace` past its end. A later packet counts in the open interval (intervals.py),
unless the clock itself was set back by more than a second. At delimiters, a part is complete half an interval after its
end, once no other packet can replace the delimiter. Packets that the capture dropped in an interval are unseen in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.agent.config import Measured
from wirelag.agent.edges import Closed, Edges
from wirelag.agent.in_kernel import KernelMeter, KernelMeters
from wirelag.estimators.rli import Rli, RliMeter
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.colours import Coloured, split_at_colours
from wirelag.packets.grouping import OTHER
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters, split, split_at_delimiters
from wirelag.packets.stamp import PORT
from wirelag.protocol.messages import Seen
from wirelag.protocol.terms import one_sided
from wirelag.synopses.cache import Cached
from wirelag.synopses.delay_sample import spared
from wirelag.synopses.flows import Flows
from wirelag.twopoint.spans import ALL, ClassMeter, Cut

READINGS: Final = 1000  # readings of the capture's counters kept for an interval
BACK_NS: Final = 10**9  # a time that goes back by more than this means that the clock was set
LONGEST_GAP: Final = 60  # intervals without a packet that are reported one by one; beyond, the clock has stepped


@dataclass(frozen=True, slots=True)
class CutPart:
    """What this point kept of an interval of a segment."""

    measured: Measured
    cut: Cut
    keys: Mapping[int, str]  # names of classes
    overflow: bool  # there were more classes than allowed
    seen: Seen
    closed_by: int | None = None  # the delimiter that ended it, final
    idle: bool = False  # no packet passed, so that the clock cut it although packets do so otherwise
    ahead_ns: tuple[int, int] | None = None  # bounds of what the downstream clock is ahead, by two-way times


class Unseen:
    """Packets that the capture dropped, by interval.

    The kernel counts them without times: they are spread evenly between two readings. Successive intervals contain all
    of them, each once.
    """

    def __init__(self, interval_ns: int, began_ns: int = 0) -> None:
        """No packet was dropped before `began_ns`."""
        self._least_ns = interval_ns // READINGS
        self._times_ns: list[int] = [began_ns]
        self._totals: list[int] = [0]

    @classmethod
    def since(cls, interval_ns: int, began_ns: int, dropped: int) -> Unseen:
        """From now on: the packets that were dropped before do not count."""
        unseen = cls(interval_ns, began_ns)
        unseen._totals = [dropped]
        return unseen

    def read(self, total: int, now_ns: int) -> None:
        """Record the total dropped until now."""
        now_ns = max(now_ns, self._times_ns[-1])
        if len(self._times_ns) > 1 and now_ns - self._times_ns[-2] < self._least_ns:
            self._times_ns[-1], self._totals[-1] = now_ns, total
        else:
            self._times_ns.append(now_ns)
            self._totals.append(total)

    def begin_anew(self, now_ns: int) -> None:
        """Restart: the clock has stepped back to now."""
        self._times_ns, self._totals = [now_ns], self._totals[-1:]

    def during(self, interval: Interval) -> int:
        """Drops of an interval that has ended; earlier ones are not requested again."""
        first, last = (self._until(ns) for ns in (interval.start_ns, interval.end_ns))
        old = max(0, bisect_right(self._times_ns, interval.start_ns - self._least_ns) - 1)
        del self._times_ns[:old], self._totals[:old]
        return last - first

    def _until(self, time_ns: int) -> int:
        i = bisect_right(self._times_ns, time_ns)
        if i == 0 or i == len(self._times_ns):
            return self._totals[max(0, i - 1)]
        before_ns, before = self._times_ns[i - 1], self._totals[i - 1]
        return before + (self._totals[i] - before) * (time_ns - before_ns) // (self._times_ns[i] - before_ns)


class _Share:
    """A segment's share of a capture's drops: the kernel counts drops without looking at them.

    Law: a capture drops packets of a segment in proportion to those captured. For an interval without captured packets,
    the share is that of the previous one.
    """

    def __init__(self, unseen: Unseen) -> None:
        self._unseen = unseen
        self._captured = self._selected = 0
        self._last = 1.0

    def count(self, captured: int, selected: int) -> None:
        """Count packets of the capture, and those of the segment."""
        self._captured += captured
        self._selected += selected

    def seen(self, packets: int, interval: Interval, covered_ns: int) -> Seen:
        """The coverage of an interval that has ended."""
        if self._captured:
            self._last = self._selected / self._captured
        unseen, captured = round(self._unseen.during(interval) * self._last), self._captured
        self._captured = self._selected = 0
        return Seen(packets, unseen, covered_ns, captured)


class _Stream:
    """The meters of one segment."""

    def __init__(self, measured: Measured, unseen: Unseen, in_kernel: KernelMeter | None = None) -> None:
        """`in_kernel`: the meter, if it runs in the kernel."""
        self.measured, self.share, self._in_kernel = measured, _Share(unseen), in_kernel
        delimiters = measured.terms.delimiters
        # Meters need only ids and times; classes and control packets need more.
        self._few = measured.terms.by is None and (delimiters is None or delimiters.by_id)
        self._grouping = measured.grouping()
        if self._grouping is not None:
            self._grouping.watch_others()
        self.meter: ClassMeter | KernelMeter = in_kernel or ClassMeter(
            measured.terms.two_point, "upstream", self._grouping
        )

    def added(self, first: Any, second: Any) -> Any:
        """Merge synopses of neighbouring intervals."""
        return self.meter.added(first, second)

    def selected(self, packets: PacketBatch) -> PacketBatch:
        """The packets of this segment; each packet must be passed once."""
        selected = self._selected(packets)
        self.share.count(len(packets), len(selected))
        return selected

    def _selected(self, packets: PacketBatch) -> PacketBatch:
        measured = self.measured
        if measured.way is None and not measured.references_only:
            return packets
        wanted = np.ones(len(packets), np.bool_) if measured.way is None else measured.way.rows(packets)
        if measured.references_only:
            wanted &= (packets.of_kind(Kind.STAMP) & (packets.dst_port == PORT)) | self._control(packets)
        if wanted.all():
            return packets
        if self._few:
            return PacketBatch({"time_ns": packets.time_ns[wanted], "packet_id": packets.packet_id[wanted]})
        return packets[wanted]

    def _control(self, packets: PacketBatch) -> npt.NDArray[np.bool_]:
        """Mask of control packets: they do not belong to the segment, but cut it."""
        delimiters = self.measured.terms.delimiters
        port = delimiters.control_port if delimiters else None
        return np.asarray(packets.of_kind(Kind.UDP) & (packets.dst_port == (port or 0)))

    def observe(self, packets: PacketBatch) -> None:
        """Add packets of this segment."""
        if len(packets):
            self.meter.observe(packets)

    def late(self, packets: PacketBatch) -> Callable[[Interval], Cut]:
        """What cuts late packets of the interval before the open one."""
        meter = ClassMeter(self.measured.terms.two_point, "upstream", self._grouping)
        meter.observe(packets)
        return meter.cut

    def cut(self, interval: Interval) -> Cut:
        """The cut of an interval, without empty classes; if not all had room, the largest have it from now on."""
        cut = self.meter.cut(interval)
        self.meter.revise(cut)
        return replace(cut, synopses={tag: s for tag, s in cut.synopses.items() if tag == ALL or s.packets})

    def close(self) -> None:
        """Measure no more."""
        if self._in_kernel is not None:
            self._in_kernel.close()

    def _spared(self, cut: Cut) -> Cut:
        """With the tail's sample reduced to what is sent; inside a router both ends are here, and nothing is."""
        if self.measured.end is not None:
            return cut
        most = self.measured.terms.two_point.tail
        synopses = {
            tag: one if isinstance(one, Cached) else replace(one, tail=spared(one.tail, most))
            for tag, one in cut.synopses.items()
        }
        return replace(cut, synopses=synopses)

    def part(self, cut: Cut, covered_ns: int) -> CutPart:
        """The part, with the names of its classes."""
        if self._in_kernel is not None:
            seen = Seen(cut.synopses[ALL].packets, self._in_kernel.unseen(), covered_ns)
            return CutPart(self.measured, self._spared(cut), self._in_kernel.keys(cut), OTHER in cut.synopses, seen)
        keys = self._grouping.keys if self._grouping is not None else {}
        seen = self.share.seen(cut.synopses[ALL].packets, cut.interval, covered_ns)
        return CutPart(self.measured, self._spared(cut), keys, OTHER in cut.synopses, seen)


class _Interpolating:
    """A segment's packets among its references, for rli: one persistent meter, because its state continues.

    A packet counts in the interval in which the reference after it arrives. Flows become classes once an interval is
    over: the largest and the slowest are not known before.
    """

    def __init__(self, measured: Measured, estimator: Rli, unseen: Unseen) -> None:
        self.measured, self.share, self._meter = measured, _Share(unseen), RliMeter(estimator)

    def selected(self, packets: PacketBatch) -> PacketBatch:
        """The packets of this segment and its references; each packet must be passed once."""
        selected = self._selected(packets)
        self.share.count(len(packets), len(selected))
        return selected

    def _selected(self, packets: PacketBatch) -> PacketBatch:
        way = self.measured.way
        wanted = np.ones(len(packets), np.bool_) if way is None else way.rows(packets)
        references = packets.of_kind(Kind.STAMP) & (packets.dst_port == PORT)
        if self.measured.references_way is not None and references.any():
            wanted = np.where(references, self.measured.references_way.rows(packets), wanted)
        return packets if wanted.all() else packets[wanted]

    def observe(self, packets: PacketBatch) -> None:
        """Add packets of this segment."""
        if len(packets):
            self._meter.observe(packets)

    def cut(self, interval: Interval) -> Cut:
        """What references have settled since the last cut; without classes no flow is listed."""
        flows = self._meter.cut(interval, last=False)
        if self.measured.terms.by is None:
            flows = replace(flows, records=flows.records[:0].copy())
        return Cut(interval, {ALL: flows})

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def part(self, cut: Cut, covered_ns: int) -> CutPart:
        """The part; its classes are made when it is sent."""
        flows: Flows = cut.synopses[ALL]
        seen = self.share.seen(flows.packets, cut.interval, covered_ns)
        return CutPart(self.measured, cut, {}, False, seen)


def _stream(measured: Measured, unseen: Unseen, in_kernel: KernelMeters | None) -> _Stream | _Interpolating:
    estimator = measured.terms.estimator
    if one_sided(estimator):
        return _Interpolating(measured, estimator, unseen)
    return _Stream(measured, unseen, in_kernel.open(measured) if in_kernel is not None else None)


class ByClock:
    """Cuts every segment at the same instants of the clock."""

    def __init__(
        self,
        measured: tuple[Measured, ...],
        interval_ns: int,
        grace_ns: int,
        unseen: Unseen,
        in_kernel: KernelMeters | None = None,
    ) -> None:
        self._streams = [_stream(each, unseen, in_kernel) for each in measured]
        self._interval_ns, self._grace_ns, self._unseen = interval_ns, grace_ns, unseen
        self._began_ns: int | None = None
        self._open = 0
        self._uncovered = -1  # the last interval that a step of the clock touches

    def begin(self, now_ns: int) -> None:
        """The capture sees packets from now on."""
        self._began_ns, self._open = now_ns, now_ns // self._interval_ns

    def begin_anew(self, now_ns: int) -> Iterator[CutPart]:
        """The clock has stepped back to now: end the open interval, and count intervals from here."""
        if self._began_ns is not None and now_ns < self._open * self._interval_ns - BACK_NS:
            yield from self._cut()
            self.begin(now_ns)
            self._unseen.begin_anew(now_ns)
            self._uncovered = self._open if self._uncovered >= 0 else -1

    def stepped(self, now_ns: int) -> None:
        """The clock was set, and is `now_ns`: from the open interval to this one none is covered."""
        self._uncovered = max(self._open, now_ns // self._interval_ns)

    def take(self, packets: PacketBatch) -> Iterator[CutPart]:
        """Add packets, in capture order."""
        for interval, some in split([packets], self._interval_ns):
            if self._began_ns is None:
                self.begin(int(some.time_ns[0]))
            yield from self._advance(interval.start_ns // self._interval_ns)
            for stream in self._streams:
                stream.observe(stream.selected(some))

    def beside(self, packets: int) -> None:
        """Count captured packets that are of no segment here, and are not added."""
        for stream in self._streams:
            stream.share.count(packets, 0)

    def passed(self, now_ns: int) -> Iterator[CutPart]:
        """The capture is empty, and it is `now_ns`."""
        if self._began_ns is not None:
            yield from self._advance((now_ns - self._grace_ns) // self._interval_ns)

    def end(self, now_ns: int) -> Iterator[CutPart]:
        """End of input: the open interval is covered up to now."""
        if self._began_ns is not None:
            yield from self._advance(now_ns // self._interval_ns)
            yield from self._cut(now_ns)
        for stream in self._streams:
            stream.close()

    def _advance(self, index: int) -> Iterator[CutPart]:
        if index - self._open > LONGEST_GAP:  # the clock has stepped: nothing in between was seen
            yield from self._cut()
            self._open = index
        while self._open < index:
            yield from self._cut()
            self._open += 1

    def _cut(self, until_ns: int | None = None) -> Iterator[CutPart]:
        start_ns = self._open * self._interval_ns
        interval = Interval(start_ns, start_ns + self._interval_ns)
        end_ns = interval.end_ns if until_ns is None else min(until_ns, interval.end_ns)
        covered_ns = 0 if self._open <= self._uncovered else max(0, end_ns - max(start_ns, self._began_ns or 0))
        for stream in self._streams:
            yield stream.part(stream.cut(interval), covered_ns)


class _Delimited:
    """One segment, cut at packets: those of a capture, or those that the kernel has found."""

    def __init__(self, measured: Measured, unseen: Unseen, in_kernel: KernelMeter | None = None) -> None:
        delimiters = measured.terms.delimiters
        assert delimiters is not None
        self.stream, self._in_kernel = _Stream(measured, unseen, in_kernel), in_kernel
        half_ns = 0 if delimiters.control_port is not None else delimiters.length_ns // 2
        self._edges = Edges(half_ns, self.stream.added)
        self._next = PacketBatch.empty()
        self._pieces = _split(self._fed(), delimiters)
        self.times_ns: tuple[int, int] | None = None  # of the earliest and the latest packet that came last

    def _fed(self) -> Iterator[PacketBatch]:
        while True:
            yield self._next

    def take(self, packets: PacketBatch) -> Iterator[CutPart]:
        """Add packets; the last piece of a batch has no edge after it."""
        self._next = self.stream.selected(packets)
        self.times_ns = (int(self._next.time_ns.min()), int(self._next.time_ns.max())) if len(self._next) else None
        for piece, late, edge in self._pieces:
            if len(late) and self._edges.waits:
                self._edges.late(self.stream.late(late))
            for some in (late if not self._edges.waits else PacketBatch.empty(), piece):
                if len(some):
                    self._edges.grow(int(some.time_ns[0]), int(some.time_ns.max()))
                    self.stream.observe(some)
            if edge is None:
                return
            yield from self._parts(self._edges.at(edge, self.stream.cut))

    def passed(self, now_ns: int) -> Iterator[CutPart]:
        """The delimiter after the waiting interval is final; the kernel is asked for what has ended."""
        if self._in_kernel is not None:
            yield from self._parts(self._in_kernel.ended(self._edges, now_ns))
            self.times_ns = self._in_kernel.times_ns
        yield from self._parts(self._edges.settled(now_ns))

    def end(self) -> Iterator[CutPart]:
        """The rest."""
        if self._in_kernel is not None:
            yield from self._parts(self._in_kernel.ended(self._edges, None))
        yield from self._parts(self._edges.end(self.stream.cut))
        if self._in_kernel is not None:
            self._in_kernel.close()

    def _parts(self, closed: Iterable[Closed]) -> Iterator[CutPart]:
        for cut, by in closed:
            yield replace(self.stream.part(cut, cut.interval.length_ns), closed_by=by)


def _split(batches: Iterator[PacketBatch], delimiters: Delimiters) -> Iterator[Coloured]:
    """Parts of batches, by the rule of the delimiters; only colours have late packets."""
    if delimiters.colour is not None:
        yield from split_at_colours(batches, delimiters)
        return
    for piece, edge in split_at_delimiters(batches, delimiters):
        yield Coloured(piece, PacketBatch.empty(), edge)


class _Idle:
    """Intervals of the clock in which no packet of a segment passed, and none in the one before.

    The interval before is left out since packets may have been under way in it: the other end would not call it idle.
    """

    def __init__(self, measured: Measured, interval_ns: int, began_ns: int) -> None:
        self._measured = replace(measured, terms=replace(measured.terms, delimiters=None))
        self._interval_ns = interval_ns
        self._next = began_ns // interval_ns + 2

    def saw(self, last_ns: int) -> None:
        """Note the latest packet."""
        self._next = max(self._next, last_ns // self._interval_ns + 2)

    def until(self, now_ns: int) -> Iterator[CutPart]:
        """Idle intervals that have ended; after a gap that only a clock can make, the last of them."""
        ended = now_ns // self._interval_ns
        self._next = max(self._next, ended - LONGEST_GAP)
        while self._next < ended:
            start_ns = self._next * self._interval_ns
            interval = Interval(start_ns, start_ns + self._interval_ns)
            cut = ClassMeter(self._measured.terms.two_point, "upstream", None).cut(interval)
            yield CutPart(self._measured, cut, {}, False, Seen(0, 0, self._interval_ns), idle=True)
            self._next += 1


class AtPackets:
    """Cuts every segment at its own delimiters, for lda; while none come, it says so by the clock."""

    def __init__(
        self,
        measured: tuple[Measured, ...],
        unseen: Unseen,
        interval_ns: int = 0,
        grace_ns: int = 0,
        in_kernel: KernelMeters | None = None,
    ) -> None:
        self._measured, self._unseen, self._in_kernel = measured, unseen, in_kernel
        self._interval_ns, self._grace_ns = interval_ns, grace_ns
        self._segments = [_Delimited(each, unseen, in_kernel.open(each) if in_kernel else None) for each in measured]
        self._idle: list[_Idle] = []  # none for captures: only who listens knows that nothing passes
        self._latest_ns = 0

    def begin(self, now_ns: int) -> None:
        """The capture sees packets from now on; the first interval starts with the first of them."""
        self._idle = [_Idle(each, self._interval_ns, now_ns) for each in self._measured]

    def stepped(self, now_ns: int) -> None:
        """Do nothing: both ends cut at the same packets, whatever their clocks show."""

    def begin_anew(self, now_ns: int) -> Iterator[CutPart]:
        """The clock has stepped back to now: end the open interval."""
        if now_ns < self._latest_ns - BACK_NS:
            if self._in_kernel is None:  # the kernel finds it out by itself
                yield from self.end(now_ns)
                self._segments = [_Delimited(each, self._unseen) for each in self._measured]
            self._unseen.begin_anew(now_ns)
            self._latest_ns = now_ns
            if self._idle:
                self.begin(now_ns)

    def take(self, packets: PacketBatch) -> Iterator[CutPart]:
        """Add packets, in capture order."""
        for segment, idle in zip_longest(self._segments, self._idle):
            yield from segment.take(packets)
            if idle is not None and segment.times_ns is not None:
                yield from idle.until(segment.times_ns[0])
                idle.saw(segment.times_ns[1])
        if len(packets):
            self._latest_ns = max(self._latest_ns, int(packets.time_ns[-1]))
            yield from self.passed(self._latest_ns)

    def beside(self, packets: int) -> None:
        """Count captured packets that are of no segment here, and are not added."""
        for segment in self._segments:
            segment.stream.share.count(packets, 0)

    def passed(self, now_ns: int) -> Iterator[CutPart]:
        """It is `now_ns`."""
        for segment, idle in zip_longest(self._segments, self._idle):
            yield from segment.passed(now_ns)
            if idle is None:
                continue
            if self._in_kernel is not None and segment.times_ns is not None:
                yield from idle.until(segment.times_ns[0])
                idle.saw(segment.times_ns[1])
            yield from idle.until(now_ns - self._grace_ns)
        if self._in_kernel is not None:
            self._latest_ns = max(self._latest_ns, now_ns)

    def end(self, now_ns: int) -> Iterator[CutPart]:
        """End of input."""
        for segment in self._segments:
            yield from segment.end()


def cutter(
    measured: tuple[Measured, ...],
    interval_ns: int,
    grace_ns: int,
    unseen: Unseen,
    in_kernel: KernelMeters | None = None,
) -> ByClock | AtPackets:
    """The cutter that the terms require; `in_kernel`: the kernel measures."""
    if measured[0].terms.delimiters is None:
        return ByClock(measured, interval_ns, grace_ns, unseen, in_kernel)
    return AtPackets(measured, unseen, interval_ns, grace_ns, in_kernel)
