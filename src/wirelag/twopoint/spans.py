"""Two points: meters at both, synopses of the same interval into crossings, and packets that straddle its edges.

A packet belongs to the interval in which it was sent: those that only upstream saw in an interval are held for later
ones before they count as lost. If delimiters cut intervals, everything that either point cut between two common
delimiters is added up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from wirelag.estimators.drive import cut_by_time
from wirelag.estimators.protocol import Capabilities, Estimator, Meter
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import EARLIEST_NS
from wirelag.packets.grouping import OTHER, Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import CONTROL, Delimiters, split_at_delimiters
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import MOST, DelaySample
from wirelag.twopoint.in_step import NO_STEPS, Ints, by_turns, in_step, whole_input

ALL: Final = 0  # the tag of everything, beside the classes
PATIENCE_NS: Final = 10**9  # a packet is not lost before so long after its interval, or the interval's own length

Synopses = dict[int, Any]  # by class
Cross = Callable[[Interval, int, Any, Any], Crossing]  # for an interval and a class
Added = Callable[[Any, Any], Any]  # merges two synopses of neighbouring intervals


@runtime_checkable
class Crosses(Estimator[Any], Protocol):
    """A two-point estimator."""

    name: ClassVar[str]
    can: ClassVar[Capabilities]

    def cross(self, up: Any, down: Any) -> Crossing:
        """The fate of an interval's packets."""
        ...

    def of_class(self, most: int) -> Any:
        """The estimator of one class, if there are at most `most`."""
        ...


@runtime_checkable
class Adds(Crosses, Protocol):
    """An estimator whose synopses of neighbouring intervals can be added."""

    def added(self, first: Any, second: Any) -> Any:
        """Merge two synopses."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """The synopses of an interval at one point: of everything, and of each class."""

    interval: Interval
    synopses: Synopses
    known: frozenset[int] | None = None  # classes that were measured by themselves; None: all that came

    def joined(self, after: Cut, added: Added) -> Cut:
        """Merge it with its neighbour; a class that was known in one of them only belongs to "other"."""
        synopses: Synopses = {}
        known = self.known if after.known is None else after.known
        if self.known is not None and after.known is not None:
            known = self.known & after.known
        for cut in (self, after):
            for tag, synopsis in cut.synopses.items():
                kept = tag in (ALL, OTHER) or known is None or tag in known
                tag = tag if kept else OTHER
                synopses[tag] = added(synopses[tag], synopsis) if tag in synopses else synopsis
        return Cut(replace(self.interval, end_ns=after.interval.end_ns), synopses, known)


@dataclass(slots=True)
class Span:
    """An interval and the fate of its packets: of all, and of each class."""

    interval: Interval
    crossings: dict[int, Crossing]
    open_ended: bool = False  # one edge is the beginning or the end of a capture, not a delimiter
    lost_delimiters: int = 0  # delimiters seen by one point only: the intervals on both sides are merged here

    @property
    def whole(self) -> Crossing:
        """All packets."""
        return self.crossings[ALL]


class ClassMeter:
    """One meter for everything, and one per class of traffic."""

    def __init__(self, estimator: Crosses, point: str, grouping: Grouping | None) -> None:
        self._estimator, self._point, self._grouping = estimator, point, grouping
        self._meters: dict[int, Meter[Any]] = {ALL: estimator.meter(point)}
        self._of_class: Crosses = estimator
        if grouping is not None:
            self._of_class = estimator.of_class(grouping.most)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take in packets, each also in its class."""
        self._meters[ALL].observe(packets)
        if self._grouping is None:
            return
        tags = self._grouping.tags(packets, np.arange(len(packets)), np.ones(len(packets), np.uint8))
        order = np.argsort(tags, kind="stable")
        distinct, starts = np.unique(tags[order], return_index=True)
        for tag, mine in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
            if tag not in self._meters:
                self._meters[tag] = self._of_class.meter(self._point)
            columns = {"time_ns": packets.time_ns[mine], "packet_id": packets.packet_id[mine]}
            self._meters[tag].observe(PacketBatch(columns))

    def added(self, first: Any, second: Any) -> Any:
        """Merge two synopses of neighbouring intervals."""
        assert isinstance(self._estimator, Adds)
        return self._estimator.added(first, second)

    def cut(self, interval: Interval) -> Cut:
        """The synopses of the interval."""
        known = None if self._grouping is None else self._grouping.known
        return Cut(interval, {tag: meter.cut(interval) for tag, meter in self._meters.items()}, known)

    def revise(self, cut: Cut) -> None:
        """After a cut with more classes than fit: those with the most packets are measured from now on."""
        if self._grouping is None or cut.known is None:
            return
        self._grouping.revise({tag: one.packets for tag, one in cut.synopses.items()})
        known = self._grouping.tagged
        self._meters = {tag: one for tag, one in self._meters.items() if tag in (ALL, OTHER) or tag in known}


def cuts(
    estimator: Crosses,
    point: str,
    batches: Iterable[PacketBatch],
    interval_ns: int | None = None,
    delimiters: Delimiters | None = None,
    grouping: Grouping | None = None,
) -> Iterator[Cut]:
    """The cuts of one point: at delimiters, by the clock, or everything as one."""
    meter = ClassMeter(estimator, point, grouping)
    if delimiters is not None:
        yield from _at_delimiters(meter, batches, delimiters)
        return
    for _, cut in cut_by_time(meter, batches, interval_ns):
        yield cut


def _at_delimiters(meter: ClassMeter, batches: Iterable[PacketBatch], delimiters: Delimiters) -> Iterator[Cut]:
    opened: Interval | None = None  # the open interval
    waiting: Cut | None = None  # the one before it, whose end may still be revoked
    for packets, edge in split_at_delimiters(batches, delimiters):
        if len(packets):
            start_ns = int(packets.time_ns[0]) if opened is None else opened.start_ns
            name = None if opened is None else opened.name
            opened = Interval(start_ns, max(start_ns, int(packets.time_ns.max())) + 1, name)
            meter.observe(packets)
        if edge is None:
            continue
        if opened is not None:
            part = meter.cut(replace(opened, end_ns=edge.time_ns))
            if edge.instead and waiting is not None:
                waiting = waiting.joined(part, meter.added)
            else:
                if waiting is not None:
                    yield waiting
                waiting = replace(part, interval=replace(part.interval, name=None)) if edge.instead else part
        opened = Interval(edge.time_ns, edge.time_ns + 1, edge.name)
    if waiting is not None:
        yield waiting
    if opened is not None:
        yield meter.cut(opened)


def spans_between(
    estimator: Crosses,
    sources: Mapping[str, Iterable[PacketBatch]],
    interval_ns: int | None = None,
    delimiters: Delimiters | None = None,
    grouping: Grouping | None = None,
    ahead_ns: int | None = None,
    steps: tuple[Ints, Ints] = NO_STEPS,
    whole: Callable[[], bool] = whole_input,
) -> Iterator[Span]:
    """The fate of the packets of each interval, in order of time.

    `steps` are the times of some common packets at both points. `whole` says, at the end of a source, whether all of it
    was read. If not, there are only packets that both points can have seen.
    """
    read = {p: _Read(sources[p]) for p in estimator.points}
    ups, downs = (cuts(estimator, p, read[p], interval_ns, delimiters, grouping) for p in estimator.points)
    empty = {point: estimator.meter(point).cut(Interval(0, 0)) for point in estimator.points}
    pairs: Iterator[Pair]
    if delimiters is not None:
        assert isinstance(estimator, Adds)
        numbered = delimiters.control_port is not None
        found = paired_by_delimiters(*_in_turn(ups, downs), estimator.added, numbered)
        pairs = iter(found if whole() else found[:-1])  # nothing ends the last one
    elif interval_ns is None:
        packets = in_step(read, steps, whole) if grouping or whole is not whole_input else by_turns(read)
        pairs = iter([_everything(estimator, packets, grouping)])
    else:
        pairs = paired_by_clock(ups, downs)

    def cross(interval: Interval, tag: int, up: Any, down: Any) -> Crossing:
        crossing = estimator.cross(up, down)
        return crossing if crossing.wire_bytes else crossing.with_bytes(down.to_fields())

    spans = crossed(pairs, cross, *(empty[p] for p in estimator.points))
    spans = settled(spans, interval_ns or 0, ahead_ns)
    if interval_ns is None or delimiters is not None:
        return spans
    return _complete(spans, [read[p] for p in estimator.points], steps, whole)


class _Read:
    """The packets of a point, and the time up to which they were read."""

    def __init__(self, batches: Iterable[PacketBatch]) -> None:
        self._batches, self.latest_ns = batches, EARLIEST_NS

    def __iter__(self) -> Iterator[PacketBatch]:
        for batch in self._batches:
            if len(batch):
                self.latest_ns = max(self.latest_ns, int(batch.time_ns.max()))
            yield batch


def _everything(estimator: Crosses, packets: Iterable[tuple[str, PacketBatch]], grouping: Grouping | None) -> Pair:
    """All packets of both points as one interval, that of upstream."""
    meters = {point: ClassMeter(estimator, point, grouping) for point in estimator.points}
    spanned = {point: Interval(0, 0) for point in estimator.points}
    for point, batch in packets:
        meters[point].observe(batch)
        first_ns, last_ns, so_far = int(batch.time_ns.min()), int(batch.time_ns.max()) + 1, spanned[point]
        if so_far.length_ns:
            first_ns, last_ns = min(first_ns, so_far.start_ns), max(last_ns, so_far.end_ns)
        spanned[point] = Interval(first_ns, last_ns)
    up, down = (meters[point].cut(spanned[point]) for point in estimator.points)
    return Pair(up.interval, up.synopses, down.synopses)


def _in_turn(ups: Iterator[Cut], downs: Iterator[Cut]) -> tuple[list[Cut], list[Cut]]:
    """The cuts of both points, always read on at the one that is behind."""
    found: tuple[list[Cut], list[Cut]] = ([], [])
    left = [0, 1]
    while left:
        which = min(left, key=lambda n: found[n][-1].interval.end_ns if found[n] else EARLIEST_NS)
        cut = next((ups, downs)[which], None)
        if cut is None:
            left.remove(which)
        else:
            found[which].append(cut)
    return found


def _complete(
    spans: Iterable[Span], read: list[_Read], steps: tuple[Ints, Ints], whole: Callable[[], bool]
) -> Iterator[Span]:
    """Spans; where reading was stopped, those that both points had passed, with time for packets to arrive."""
    flight_ns = int((steps[1] - steps[0]).max()) if len(steps[0]) else 0
    up, down = read
    for span in spans:
        end_ns = span.interval.end_ns
        if whole() or (end_ns <= up.latest_ns and end_ns + flight_ns <= down.latest_ns):
            yield span


# ---- cuts of two points into pairs ----


@dataclass(frozen=True, slots=True)
class Pair:
    """The same interval at both points."""

    interval: Interval
    up: Synopses
    down: Synopses
    open_ended: bool = False
    lost_delimiters: int = 0


def paired_by_clock(ups: Iterable[Cut], downs: Iterable[Cut]) -> Iterator[Pair]:
    """Pair intervals with the same beginning; if a point did not see one, it is empty there."""
    up, down = iter(ups), iter(downs)
    left, right = next(up, None), next(down, None)
    while left is not None or right is not None:
        interval = min(cut.interval for cut in (left, right) if cut is not None)
        mine: Synopses = {}
        theirs: Synopses = {}
        if left is not None and left.interval == interval:
            mine, left = left.synopses, next(up, None)
        if right is not None and right.interval == interval:
            theirs, right = right.synopses, next(down, None)
        yield Pair(interval, mine, theirs)


def paired_by_delimiters(ups: Sequence[Cut], downs: Sequence[Cut], added: Added, numbered: bool = False) -> list[Pair]:
    """Pair what both points cut between two neighbouring common delimiters; control packets are numbered."""
    edges = _common_edges(ups, downs)
    pairs = []
    for n, ((i, j), (end_i, end_j)) in enumerate(pairwise([(0, 0), *edges, (len(ups), len(downs))])):
        mine, theirs = ups[i:end_i], downs[j:end_j]
        if not mine and not theirs:
            continue
        joined = [reduce(lambda a, b: a.joined(b, added), cuts) for cuts in (mine, theirs) if cuts]
        lost = max(0, len(mine) - 1) + max(0, len(theirs) - 1)
        if numbered:  # including those that neither point saw
            lost = max(_missing(ups[i : end_i + 1]) + len(mine[1:]), _missing(downs[j : end_j + 1]) + len(theirs[1:]))
        up, down = (joined[0].synopses if mine else {}), (joined[-1].synopses if theirs else {})
        interval = joined[0].interval if n else replace(joined[0].interval, name=None)
        pairs.append(Pair(interval, up, down, n in (0, len(edges)), lost))
    return pairs


def _common_edges(ups: Sequence[Cut], downs: Sequence[Cut]) -> list[tuple[int, int]]:
    """Where both points cut at the same packet, in the order of both: as many as possible (increasing subsequence)."""
    mine, theirs = _places(ups), _places(downs)
    common = [(i, theirs[name]) for name, i in mine.items() if name in theirs]
    ends: list[int] = []  # smallest position downstream at which a sequence of each length can end
    last: list[int] = []  # and its position in `common`
    before: list[int] = []  # predecessor of each
    for n, (_, j) in enumerate(common):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [n]
    edges = []
    n = last[-1] if last else -1
    while n >= 0:
        edges.append(common[n])
        n = before[n]
    return edges[::-1]


def _places(cuts: Sequence[Cut]) -> dict[int, int]:
    """The position of each name that a point has exactly once."""
    times = Counter(cut.interval.name for cut in cuts)
    named = ((i, cut.interval.name) for i, cut in enumerate(cuts))
    return {name: i for i, name in named if name is not None and times[name] == 1}


def _missing(cuts: Sequence[Cut]) -> int:
    """Number of control packets that a point never saw between the first and the last that it named."""
    numbers = [cut.interval.name - CONTROL for cut in cuts if cut.interval.name is not None]
    return sum((b - a - 1) % 2**32 for a, b in pairwise(numbers))


# ---- pairs into crossings ----


def crossed(pairs: Iterable[Pair], cross: Cross, empty_up: Any, empty_down: Any) -> Iterator[Span]:
    """The fate of the packets of each pair; a class that a point did not see is empty there."""
    for pair in pairs:
        tags = sorted({ALL, *pair.up, *pair.down})
        found = {
            tag: cross(pair.interval, tag, pair.up.get(tag, empty_up), pair.down.get(tag, empty_down)) for tag in tags
        }
        yield Span(pair.interval, found, pair.open_ended, pair.lost_delimiters)


def settled(
    spans: Iterable[Span], interval_ns: int, ahead_ns: int | None = None, only: Interval | None = None
) -> Iterator[Span]:
    """Spans whose straddling packets have been paired with the other point, or timed out.

    `ahead_ns` is how far the downstream clock may be ahead, if known: a packet seen earlier than that before it was
    sent is a copy of another. `only`: the interval that is wanted, if not all are; others get no delays.
    """
    patience_ns = max(PATIENCE_NS, interval_ns)
    ahead_ns = 2 * patience_ns if ahead_ns is None else ahead_ns
    waiting: deque[Span] = deque()
    for span in spans:
        while waiting and waiting[0].interval.end_ns + patience_ns <= span.interval.start_ns:
            yield _done(waiting.popleft())
        for tag, crossing in span.crossings.items():
            if crossing.unsettled:
                for earlier in waiting:
                    if tag in earlier.crossings and earlier.crossings[tag].unsettled:
                        wanted = None if only is None else (span if span.interval == only else earlier).crossings[tag]
                        earlier.crossings[tag].settle(crossing, ahead_ns, wanted)
        waiting.append(span)
    for span in waiting:
        yield _done(span)


def _done(span: Span) -> Span:
    for crossing in span.crossings.values():
        crossing.single_up = crossing.single_down = None
    return span


def total(spans: Iterable[Span]) -> dict[int, Crossing]:
    """Everything merged: all packets, and each class."""
    sums: dict[int, Crossing] = {ALL: Crossing()}
    tails: dict[int, list[DelaySample]] = {}
    lengths: Counter[int] = Counter()
    for span in spans:
        for tag, crossing in span.crossings.items():
            # Concatenate samples once at the end: one by one they would be copied repeatedly.
            sums.setdefault(tag, Crossing()).add(crossing, with_tail=False)
            tails.setdefault(tag, []).append(crossing.tail)
            lengths[tag] += len(crossing.tail)
            if lengths[tag] > 2 * MOST:
                tails[tag] = [DelaySample.together(tails[tag])]
                lengths[tag] = len(tails[tag][0])
    for tag, several in tails.items():
        sums[tag].tail = DelaySample.together(several)
    return sums
