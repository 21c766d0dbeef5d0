"""One-way delay, loss and reordering between points, from captures of the same traffic at each.

A first pass finds which packets travel from one point to the other, and the clock offset: only packets that should have
arrived can be lost, and an offset would otherwise count as delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.capture.ahead import cores_of
from wirelag.errors import NoPacketsError, SettingError, WirelagError
from wirelag.measure.groups import OTHER, Groups, in_order, other_note
from wirelag.measure.methods import GROUPS, Method
from wirelag.measure.oneway_notes import explanations, scaled_groups, used_notes
from wirelag.measure.points import PointPair, Progress, ReadOptions, Relation, points_of
from wirelag.measure.questions import Questions
from wirelag.measure.result import DelayResult, Entry, doubt
from wirelag.units import Duration, Size, duration_ns, format_duration, format_time, offset_ns, one_of, size_bytes

if TYPE_CHECKING:
    from wirelag.capture.source import PathOrFile
    from wirelag.clocks.fit import Clock
    from wirelag.measure.each_packet import EachPacket
    from wirelag.packets.addresses import Direction
    from wirelag.packets.filters import Filter
    from wirelag.synopses.crossing import Crossing
    from wirelag.twopoint.alignment import Alignment
    from wirelag.twopoint.spans import Span

CLOCKS: Final = ("auto", "none")
# Of a class: a synopsis of each point, and its crossing; of each packet in it, at a point.
CLASS_BYTES: Final = {"join": 24 << 10, "rda": 24 << 10, "lda": 96 << 10, "finecomb": 128 << 10}
PACKET_BYTES: Final = 8
CLOCK_CUT: Final = (
    "cut by the clock: packets in flight at an edge fall into different intervals, and spoil many buckets; "
    "let both points cut at the same packets (docs/concepts/lda.md gives the error)"
)


@dataclass(frozen=True, kw_only=True)
class OnewaySettings:
    """The method, how clocks relate, and what to report besides the total."""

    method: Method = field(default_factory=Method)
    direction: Direction | None = None
    relation: Relation = "auto"
    interval_ns: int | None = None
    groups: Groups = field(default_factory=Groups)
    questions: Questions = field(default_factory=Questions)
    segment: str | None = None  # segment of a network, for `path`

    def __post_init__(self) -> None:
        self.method.delimiters(self.method.make(), self.interval_ns, None)  # find a wrong choice before reading
        if self.segment is not None:
            from wirelag.network.segments import parse_segment

            try:
                parse_segment(self.segment)
            except WirelagError as error:
                raise SettingError("segment", str(error)) from None


@dataclass(repr=False, eq=False)
class OnewayResult(DelayResult):
    """One-way delay: in total, of each segment, over time, by traffic class."""

    command: ClassVar[str] = "oneway"
    measured: MeasuredPair | None = None
    clock_note: str = ""  # one of the notes

    @property
    def clock(self) -> Clock:
        """The offset of the downstream clock, and how it was found."""
        assert self.measured is not None
        return self.measured.clock

    def table(self) -> list[str]:
        from wirelag.render.oneway import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.oneway_page import page

        return page(self)


def oneway(
    *points: PathOrFile | list[PathOrFile],
    filter: Filter | str | None = None,
    tunnels: bool = False,
    direction: str | None = None,
    nat: bool = False,
    prefix: int = 16,
    estimator: str = "join",
    clock: str = "auto",
    offset: Duration | None = None,
    rows: int | None = None,
    loss: str | None = None,
    packets_per_interval: int | None = None,
    banks: int = 3,
    no_check: bool = False,
    buckets: int | None = None,
    rateless: bool = False,
    deviation: str = "rows",
    tail: int = 2048,
    memory: Size = "512MiB",
    seed: int = 0,
    cut: str | None = None,
    control_port: int | None = None,
    interval: Duration | None = None,
    segment: str | None = None,
    by: str | None = None,
    group_memory: Size = "256MiB",
    sort: str | None = None,
    top: int | None = None,
    ipv4_prefix: int = 24,
    ipv6_prefix: int = 48,
    above: Sequence[Duration] | Duration = (),
    sla: Sequence[str] | str = (),
    samples: bool | str | PathLike[str] = False,
    cores: int | None = None,
    progress: Progress = iter,
    on: Any = None,
) -> OnewayResult:
    """Measure one-way delay, loss and reordering between points, from captures of the same traffic at each.

    `points` are captures in the order packets pass them (or files of `wirelag cut`); more than two give a report for
    each segment. Clocks need not agree: `clock="auto"` corrects their offset, `offset` gives it. `samples=True` keeps
    the delay of every packet (`Result.samples`) from the first point to the last; a path writes them to a Parquet or
    CSV file. Only `join` sees each packet. `on` works on it elsewhere, as in `rtt`: a task for each segment.
    """
    settings = OnewaySettings(
        method=Method(
            estimator=estimator,
            rows=rows,
            loss=loss,
            packets_per_interval=packets_per_interval,
            banks=banks,
            no_check=no_check,
            buckets=buckets,
            rateless=rateless,
            deviation=deviation,
            tail=tail,
            memory=size_bytes(memory, "memory"),
            seed=seed,
            cut=cut,
            control_port=control_port,
            nat=nat,
            prefix=prefix,
        ),
        direction=direction_of(direction),
        relation=_relation(clock, offset),
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        groups=Groups(by, GROUPS, size_bytes(group_memory, "group_memory"), ipv4_prefix, ipv6_prefix, sort, top),
        questions=Questions.parse(above, sla).need_no_legs(),
        segment=segment,
    )
    from wirelag.packets.filters import Filter

    reading = ReadOptions(Filter.of(filter), tunnels, progress, cores_of(cores))
    if on is None:
        return measure_oneway(points, settings, reading, samples=samples)
    from wirelag.measure.fleet import Fleet
    from wirelag.measure.oneway_many import oneway_on

    if samples is not False:
        raise SettingError("samples", "the delay of every packet is more than tasks return; measure without --on")
    return oneway_on(Fleet.of(on), points, settings, reading)


def _relation(clock: str, offset: Duration | None) -> Relation:
    one_of(clock, CLOCKS, "clock")
    if offset is not None:
        return offset_ns(offset, "offset")
    return "auto" if clock == "auto" else "none"


def direction_of(text: str | None) -> Direction | None:
    """A direction as people write it, `SRC>DST`."""
    from wirelag.packets.addresses import Direction

    try:
        return None if text is None else Direction.parse(text)
    except ValueError as error:
        raise SettingError("direction", str(error)) from None


def measure_oneway(
    points: Sequence[PathOrFile | list[PathOrFile]],
    settings: OnewaySettings,
    reading: ReadOptions,
    *,
    samples: bool | str | PathLike[str] = False,
) -> OnewayResult:
    """The same, with checked settings."""
    from wirelag.measure.each_packet import EachPacket
    from wirelag.measure.synopsis_files import are_synopses, measure_synopses

    if len(points) < 2:
        raise WirelagError("one-way delay needs two points: name a second capture of the same traffic")
    each = EachPacket.of(settings.method, settings.groups.slowest, samples)
    if are_synopses(points):
        if each.samples is not False:
            raise SettingError("samples", "files of `wirelag cut` hold no single packets; give the captures")
        measured = measure_synopses([str(point) for point in points], settings, reading)
        return _result(measured, [], settings, measured.by)
    stops = points_of(points, reading)
    pairs = [(stops[0], stops[-1]), *(pairwise(stops) if len(stops) > 2 else [])]
    found: list[MeasuredPair] = []
    with each.writing([name for point in stops for name in point.paths]):
        for up, down in pairs:
            if any(point.stopped for point in stops):
                break  # what was read so far is the result
            one = measure_pair(
                PointPair(
                    up, down, settings.method.packet_id(), settings.method.seed, settings.interval_ns is not None
                ),
                settings.method,
                direction=settings.direction,
                relation=settings.relation,
                interval_ns=settings.interval_ns,
                groups=settings.groups,
                each=None if found else each,
            )
            found.append(one)
    if len(found) < len(pairs):
        found[0].notes.append(f"stopped before {len(pairs) - len(found)} segments were read")
    result = of_pairs(found, (stops[0].name, stops[-1].name), settings)
    result.slowest, result.samples = each.listed(), each.kept
    return result


def of_pairs(found: Sequence[MeasuredPair], ends: tuple[str, str], settings: OnewaySettings) -> OnewayResult:
    """The result of the first and the last point, whose names are `ends`, and of the segments between them."""
    measured, *segments = found
    for part in segments:
        if part.alignment and measured.alignment and not part.alignment.agrees(measured.alignment):
            raise WirelagError(
                f"{part.name}: packets travel against the direction from {ends[0]} to {ends[1]}: name "
                f"the captures in the order packets pass them"
            )
        measured.notes += [f"{part.name}: {note}" for note in part.notes if note not in measured.notes]
        measured.warnings += [line for line in part.warnings if line not in measured.warnings]
    if settings.method.make().can.delimited and settings.method.cut == "clock":
        measured.warnings.append(CLOCK_CUT)
    return _result(measured, segments, settings, settings.groups.by or "")


# ---- two points ----


@dataclass
class MeasuredPair:
    """What was found between two points."""

    name: str
    clock: Clock
    estimator: str = ""
    crossings: dict[int, Crossing] = field(default_factory=dict)  # all intervals in one, by class
    entries: list[Entry] = field(default_factory=list)  # one for each interval
    intervals: int = 0
    undecoded: int = 0  # intervals that did not decode
    lost_delimiters: int = 0
    keys: dict[int, str] = field(default_factory=dict)  # names of classes
    by: str = ""  # kind of classes, in files of synopses
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    packets: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    alignment: Alignment | None = None
    groups_in_other: str = ""  # how many

    @property
    def whole(self) -> Crossing:
        """All intervals in one."""
        return self.crossings[0]

    def take(self, spans: Iterable[Span], over_time: bool = False) -> None:
        """Sum intervals as they come; only the report of each is kept."""
        from wirelag.twopoint.spans import total

        self.crossings = total(self._pass(spans, over_time))
        for crossing in self.crossings.values():
            if crossing.net_loss:  # its means are from sums: what an interval is too short for, all of them may show
                crossing.checked()
        self.whole.wire_bytes = sum(crossing.wire_bytes for crossing in self.crossings.values())

    def show(self, spans: Iterable[Span]) -> None:
        """Keep the reports of intervals, which only show the whole over time."""
        from wirelag.twopoint.spans import total

        if self.undecoded:
            self.notes.append("the total did not decode: use more --buckets")
        self.intervals = self.undecoded = 0
        together = total(self._pass(spans, over_time=True))[0]
        if (
            together.net_loss
            and "contradicted" not in together.details
            and "contradicted" in together.checked().details
        ):
            self.notes.append(
                f"intervals: the sums of {self.estimator}, added up, contradict the delays of single packets: do not "
                f"trust the rows over time; those of rda and join are exact"
            )

    def _pass(self, spans: Iterable[Span], over_time: bool) -> Iterator[Span]:
        from wirelag.stats.distribution import Distribution
        from wirelag.synopses.crossing import lost_between, lost_of

        nothing = Distribution()  # intervals keep only the shape
        counted: list[Crossing] = []  # of methods that only count packets
        for span in spans:
            self.intervals += 1
            self.undecoded += span.whole.details.get("decoded") is False
            self.lost_delimiters += span.lost_delimiters
            if over_time:
                report = span.whole.report(self.estimator).during(span.interval)
                key, shape = format_time(span.interval.start_ns), span.whole.tail.distribution().by_octave()
                self.entries.append(Entry("interval", key, report, nothing, shape))
                counted += [span.whole] if span.whole.net_loss else []
            yield span
        each = lost_of([crossing.missing + crossing.came for crossing in counted])
        for row, lost, crossing in zip(self.entries, each, counted, strict=False):
            low, high = lost_between(crossing, lost, sum(each))
            loss = {"lost": lost, "lost_low": low, "lost_high": high}
            row.report = replace(row.report, details={**row.report.details, **loss})

    def only_common_classes(self, known: set[int]) -> None:
        """Leave out classes that one point did not keep."""
        self.crossings = {
            tag: crossing
            for tag, crossing in self.crossings.items()
            if tag == 0 or (tag in known and crossing.sent and crossing.received)
        }


def measure_pair(
    pair: PointPair,
    method: Method,
    *,
    direction: Direction | None = None,
    relation: Relation = "auto",
    interval_ns: int | None = None,
    groups: Groups | None = None,
    each: EachPacket | None = None,
) -> MeasuredPair:
    """Read both captures once to relate them and to count groups, and again to measure what was not kept."""
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.twopoint.in_step import whole_input
    from wirelag.twopoint.spans import spans_between

    counted = groups.delays() if groups is not None else None
    if counted is None:
        pair.keep(_kept(method, each))
    try:
        alignment, seen = pair.align(direction, relation, counted)
    except NoPacketsError as error:
        return _nothing(pair, method, str(error))
    estimator = method.make(seen.within(None))
    grouping = None
    if groups is not None and counted is not None:
        grouping = groups.largest(counted, CLASS_BYTES[estimator.name], PACKET_BYTES)
    estimator = estimator if each is None else each.told_by(estimator)
    estimator = replace(estimator, cores=pair.cores) if estimator.can.each_packet else estimator
    measured = MeasuredPair(pair.name, alignment.clock, estimator.name, alignment=alignment)
    whole = whole_input if pair.at_once else pair.whole
    spans = partial(spans_between, ahead_ns=alignment.ahead_ns, steps=alignment.steps, whole=whole)
    measured.take(spans(estimator, pair.sources(alignment), grouping=grouping))
    if not pair.whole() and not measured.whole.sent:
        raise WirelagError(f"{pair.name}: reading was stopped before any packet had passed both points")
    measured.left_out = {
        "backward": alignment.backward,
        "elsewhere": alignment.elsewhere,
        "outside": alignment.outside,
    }
    statistics = [point.read.statistics for point in (pair.up, pair.down) if point.read]
    measured.warnings = [line for point in (pair.up, pair.down) if point.read for line in point.read.warnings]
    measured.notes = [*pair.notes, *alignment.notes]
    if interval_ns is not None:  # it only changes what is shown: the total is that of everything as one interval
        if pair.whole():
            estimator = method.make(expected := seen.within(interval_ns))
            delimiters = method.delimiters(estimator, interval_ns, expected)
            measured.show(spans(estimator, pair.sources(alignment), interval_ns, delimiters))
            measured.notes += [] if pair.whole() else ["only the intervals are partial: they are read after the total"]
        else:
            measured.notes.append("stopped before intervals were read, which is after the total")
    together = reduce(CaptureStatistics.__add__, statistics)
    measured.packets, measured.skipped = together.packets, together.skipped
    measured.keys = dict(grouping.keys) if grouping else {}
    if counted is not None and grouping is not None:
        more = counted.number - grouping.most  # also groups that only travel the other way
        measured.groups_in_other = f"at most {more:,}" + ("" if counted.complete else " (estimated within 2%)")
    timed = any(entry.report.details["tail_samples"] or entry.report.samples for entry in measured.entries)
    if interval_ns is not None and not timed and pair.whole():
        way_out = "--clock auto or --offset" if relation == "none" else "an --interval that is several times as long"
        far = format_duration(abs((statistics[1].first_ns or 0) - (statistics[0].first_ns or 0)))
        raise WirelagError(
            f"no packet was seen at both points within two intervals: times in {pair.down.name} are about "
            f"{far} from those in {pair.up.name}; use {way_out}"
        )
    measured.notes += explanations(measured)
    return measured


def _kept(method: Method, each: EachPacket | None) -> int:
    """How many packets of a point to keep from the first reading on: as many as the method holds, if it holds each.

    Their endpoints are not kept.
    """
    estimator = method.make()
    if not estimator.can.each_packet or (each is not None and each.samples is not False):
        return 0
    capacity: int = estimator.capacity
    return capacity


def _nothing(pair: PointPair, method: Method, why: str) -> MeasuredPair:
    """The result between two points of which one has no packets."""
    from wirelag.clocks.fit import Clock
    from wirelag.synopses.crossing import Crossing

    measured = MeasuredPair(pair.name, Clock(), method.make().name, warnings=[why])
    read = [point.read for point in (pair.up, pair.down) if point.read]
    known = [one.statistics for one in read]
    passed = [one.packets - one.filtered - sum(one.skipped.values()) for one in known]
    sent, received = [*passed, 0, 0][:2]
    measured.crossings = {0: Crossing(sent, received, only_upstream=None, only_downstream=None, reason=why)}
    measured.warnings += [line for one in read for line in one.warnings]
    measured.packets = sum(one.packets for one in known)
    return measured


def floor_of(crossing: Crossing) -> float | None:
    """The shortest delay, of all packets or of the sample, in seconds."""
    if crossing.min_ns is not None:
        return crossing.min_ns / 1e9
    return int(crossing.tail.delays_ns.min()) / 1e9 if len(crossing.tail) else None


def _result(measured: MeasuredPair, segments: list[MeasuredPair], settings: OnewaySettings, by: str) -> OnewayResult:
    def entry(scope: str, key: str, crossing: Crossing) -> Entry:
        delays = crossing.tail.distribution()
        return Entry(scope, key, crossing.report(measured.estimator), delays if scope == "all" else delays.compact())

    result = OnewayResult(entry("all", "all", measured.whole), by=by, measured=measured)
    result.covering(measured.packets, measured.skipped)
    result.subject, result.warnings, result.intervals = measured.name, measured.warnings, measured.entries
    if result.intervals:
        alike = measured.whole.tail.alike_over_time()._replace(samples=result.report.samples)
        for row in result.intervals:
            assert row.report.interval is not None
            doubt(row, row.report.interval.length_ns, alike)
    result.segments = [entry("segment", part.name, part.whole) for part in segments]
    classes = {measured.keys[tag]: part for tag, part in measured.crossings.items() if tag}
    groups = [entry("group", key, part) for key, part in classes.items()]
    result.sort, result.top = settings.groups.sort or "mean", settings.groups.shown
    result.groups, result.few = in_order(groups, result.sort)
    result.extra = {"clock": measured.clock.to_json(), "left_out": measured.left_out}
    if segments:
        result.extra["segments"] = [
            {"key": part.name, **leg.report.to_json(), "clock": part.clock.to_json()}
            for part, leg in zip(segments, result.segments, strict=True)
        ]
    if settings.segment is not None:
        result.extra |= {"segment": settings.segment, "floor": floor_of(measured.whole)}
    result.counts = {"packets": measured.packets, **{f"skipped: {why}": n for why, n in measured.skipped.items()}}
    result.counts |= {f"left out: {why}": n for why, n in measured.left_out.items()}
    as_is = settings.relation == "none"
    result.clock_note = "clock: times as they are" if as_is else clock_text(measured.clock)
    result.notes = [_coverage(measured), result.clock_note]
    result.ask(settings.questions, measured.whole, classes)
    held = sum(part.report.details["sent"] for part in result.groups if part.key == OTHER)
    sent, memory = result.report.details["sent"], settings.groups.memory
    unfit = other_note(measured.groups_in_other, held, sent, memory, "packets") + scaled_groups(result.groups)
    unfit += used_notes(measured, result.groups)
    result.notes += unfit + result.interval_notes() + measured.notes
    result.extra["notes"] = unfit + measured.notes
    return result


def _coverage(measured: MeasuredPair) -> str:
    crossing, left_out = measured.whole, measured.left_out
    parts = [f"{crossing.sent:,} packets upstream, {crossing.received:,} downstream"]
    if crossing.only_downstream:
        parts.append(f"{crossing.only_downstream:,} seen only downstream")
    if crossing.duplicated:
        parts.append(f"{crossing.duplicated:,} duplicated")
    if crossing.ambiguous:
        parts.append(f"{crossing.ambiguous:,} not timed (different numbers of copies)")
    asked = measured.alignment is not None and measured.alignment.direction is not None
    words = {
        "backward": "travel the other way",
        "elsewhere": "not in this direction" if asked else "between hosts seen at one point only",
        "outside": "outside the time both captures cover",
    }
    parts += [f"{left_out[name]:,} {text}" for name, text in words.items() if left_out.get(name)]
    if measured.skipped:
        parts.append(f"{sum(measured.skipped.values()):,} skipped")
    parts.append(f"{crossing.wire_bytes:,} bytes between the points")
    return "; ".join(parts)


def clock_text(clock: Clock) -> str:
    if clock.method == "none":
        return "clock: nothing to correct"
    parts = []
    if clock.offset_ns:
        bound = "" if clock.offset_bound_ns is None else f" (within {format_duration(clock.offset_bound_ns)})"
        parts.append(f"{format_duration(abs(clock.offset_ns))} {'ahead' if clock.offset_ns > 0 else 'behind'}{bound}")
    if clock.skew:
        parts.append(f"{'gains' if clock.skew > 0 else 'loses'} {abs(clock.skew) * 1e6:.3g} ppm")
    parts += [f"set by {format_duration(step.size_ns)} at {format_time(step.time_ns)} UTC" for step in clock.steps]
    return f"clock ({clock.method}): downstream {', '.join(parts) or 'as given'}; corrected"
