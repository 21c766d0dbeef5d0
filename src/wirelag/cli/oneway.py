"""`wirelag oneway`: delay, loss and reordering between two points."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wirelag.cli.crossing_table import crossing_table, distribution_of
from wirelag.cli.method import (
    GROUPS,
    Banks,
    Buckets,
    ControlPort,
    CutBy,
    Deviation,
    Direction,
    EstimatorName,
    Losses,
    Memory,
    Nat,
    NoCheck,
    PerInterval,
    Prefix,
    Rateless,
    Rows,
    Seed,
    Tail,
    delimiters_of,
    direction_of,
    estimator_of,
    grouping_of,
    packet_id_of,
)
from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Above,
    End,
    Hosts,
    Html,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Nets,
    Output,
    OutputFormat,
    Ports,
    Protocols,
    Questions,
    Quiet,
    Start,
    Tunnels,
    apart,
    clock_text,
    duration_ns,
    make_filter,
    offset_ns,
    one_of,
    questions_of,
)
from wirelag.cli.output import Answer, Line, by_octave, write_answer
from wirelag.errors import WirelagError
from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.cli.points import Segment
    from wirelag.clocks.fit import Clock
    from wirelag.packets.addresses import Direction as Way
    from wirelag.packets.grouping import Grouping
    from wirelag.packets.intervals import Delimiters
    from wirelag.stats.sla import Sla
    from wirelag.synopses.crossing import Crossing
    from wirelag.twopoint.alignment import Alignment
    from wirelag.twopoint.spans import Span

Relation = Literal["auto", "none"] | int  # of the clocks: how to find it, or an offset in ns
Points = Annotated[
    list[str],
    typer.Argument(
        metavar="UPSTREAM DOWNSTREAM...",
        help="Captures in the order in which packets pass them, or files of `wirelag cut`; - is standard input.",
    ),
]


@dataclass
class Measured:
    """What was found between two points."""

    name: str
    clock: Clock
    estimator: str = ""
    crossings: dict[int, Crossing] = field(default_factory=dict)  # everything in one, by class
    lines: list[Line] = field(default_factory=list)  # an answer for each interval
    intervals: int = 0
    undecoded: int = 0  # of them
    lost_delimiters: int = 0
    shortest_ns: int | None = None  # of intervals that the clock cut
    keys: dict[int, str] = field(default_factory=dict)  # what classes are called
    by: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    packets: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    alignment: Alignment | None = None

    @property
    def whole(self) -> Crossing:
        """Everything in one."""
        return self.crossings[0]

    def take(self, spans: Iterable[Span], over_time: bool) -> None:
        """Add intervals up as they come; of each only its answer is kept."""
        from wirelag.twopoint.spans import total

        self.crossings = total(self._pass(spans, over_time))
        self.whole.wire_bytes = sum(crossing.wire_bytes for crossing in self.crossings.values())

    def _pass(self, spans: Iterable[Span], over_time: bool) -> Iterator[Span]:
        from wirelag.synopses.crossing import Crossing

        nothing = distribution_of(Crossing())  # of intervals only what a small picture shows is kept
        for span in spans:
            self.intervals += 1
            self.undecoded += span.whole.details.get("decoded") is False
            self.lost_delimiters += span.lost_delimiters
            if over_time:
                report = span.whole.report(self.estimator).during(span.interval)
                key = clock_text(span.interval.start_ns)
                shape = by_octave(distribution_of(span.whole))
                self.lines.append(Line("interval", key, report, nothing, shape))
            yield span

    def only_common_classes(self, known: set[int]) -> None:
        """Leave out classes that one point did not keep."""
        self.crossings = {
            tag: crossing
            for tag, crossing in self.crossings.items()
            if tag == 0 or (tag in known and crossing.sent and crossing.received)
        }


def oneway(
    points: Points,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    direction: Direction = None,
    nat: Nat = False,
    prefix: Prefix = 16,
    estimator: EstimatorName = "join",
    clock: Annotated[
        str,
        typer.Option(
            metavar="auto|none",
            help="Correct what the clocks differ by, where that shows; or take times as they are.",
            rich_help_panel=METHOD,
        ),
    ] = "auto",
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="How far the downstream clock is ahead, where that is known.", rich_help_panel=METHOD
        ),
    ] = None,
    rows: Rows = None,
    loss: Losses = None,
    packets_per_interval: PerInterval = None,
    banks: Banks = 3,
    no_check: NoCheck = False,
    buckets: Buckets = None,
    rateless: Rateless = False,
    deviation: Deviation = "rows",
    tail: Tail = 2048,
    memory: Memory = "512MiB",
    seed: Seed = 0,
    cut_by: CutBy = None,
    control_port: ControlPort = None,
    ask: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="rda from files: write what must be asked of both points.", rich_help_panel=METHOD
        ),
    ] = None,
    interval: Interval = None,
    segment_name: Annotated[
        str | None,
        typer.Option(
            "--segment",
            metavar="NAME",
            help="Say in JSON which segment of a network this is, A>B or B[A>C] say, for `wirelag path`.",
            rich_help_panel=ANSWER,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(GROUPS), help="An answer for each class of traffic, too.", rich_help_panel=ANSWER
        ),
    ] = None,
    most_groups: MostGroups = 100,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    above: Above = None,
    sla: Questions = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Measure one-way delay, loss and reordering between two points, from captures of the same traffic at both.

    More than two captures, in the order of the path, give a line for each segment. Clocks need not agree.
    """
    one_of(output_format, FORMATS, "--format")
    apart({"-o": output, "--html": html, "--ask": ask}, points)
    one_of(clock, ("auto", "none"), "--clock")
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    questions = questions_of(sla or [])
    limits = [duration_ns(text, "--above") for text in above or []]
    interval_ns = duration_ns(interval, "--interval") if interval else None
    grouping_of(by, ipv4_prefix, ipv6_prefix, most_groups)

    def method(packets: int | None) -> tuple[Any, Delimiters | None]:
        """The estimator, and how intervals of about so many packets are delimited."""
        expected = packets_per_interval or packets
        made = estimator_of(
            estimator,
            rows=rows,
            loss=loss,
            packets=packets_per_interval or (packets if loss else None),
            banks=banks,
            no_check=no_check,
            buckets=buckets,
            rateless=rateless,
            deviation=deviation,
            tail=tail,
            memory=memory,
            seed=seed,
        )
        return made, delimiters_of(made, interval_ns, cut_by, control_port, expected)

    method(None)  # wrong options are told before anything is read
    if segment_name is not None:
        from wirelag.network.segments import parse_segment

        parse_segment(segment_name)
    ids = packet_id_of(nat, prefix, seed)
    relation: Relation = ("auto" if clock == "auto" else "none") if offset is None else offset_ns(offset)
    if points.count("-") > 1:
        raise WirelagError("standard input is one capture: name a file for the other")
    if len(points) < 2:
        raise WirelagError("one-way delay needs two points: name a second capture of the same traffic")

    from wirelag.capture.synopsis_file import is_synopsis_file

    kinds = {is_synopsis_file(path) for path in points}
    if kinds == {True, False}:
        raise WirelagError("captures and files of synopses cannot be mixed: cut the captures, too (`wirelag cut`)")
    if kinds == {True}:
        from wirelag.cli.synopses import measure_synopses

        found = measure_synopses(points, relation, ask)
        if found is None:
            return
        measured = found
        segments: list[Measured] = []
    else:
        if ask is not None:
            raise typer.BadParameter("is for files of `wirelag cut`; captures need no second round", param_hint="--ask")
        from wirelag.cli.points import CapturePoint, Segment

        way = direction_of(direction) if direction else None
        stops = [CapturePoint(path, wanted, tunnels, quiet) for path in points]
        pairs = [(stops[0], stops[-1])]
        pairs += list(pairwise(stops)) if len(stops) > 2 else []
        everything = []
        for up, down in pairs:
            grouping = grouping_of(by, ipv4_prefix, ipv6_prefix, most_groups)
            segment = Segment(up, down, ids, seed)
            everything.append(measure_segment(segment, method, way, relation, interval_ns, grouping))
        measured, *segments = everything
        for part in segments:
            if part.alignment and measured.alignment and not part.alignment.agrees(measured.alignment):
                raise WirelagError(
                    f"{part.name}: packets travel the other way there than from {points[0]} to {points[-1]}: name the "
                    f"captures in the order in which packets pass them"
                )
        measured.by = by or ""
        for part in segments:
            measured.notes += [f"{part.name}: {note}" for note in part.notes if note not in measured.notes]
            measured.warnings += [line for line in part.warnings if line not in measured.warnings]
        if estimator == "lda" and cut_by == "clock":
            measured.warnings.append(CLOCK_CUT)
    answer = _answer(measured, segments)
    _add_questions(answer, measured.whole, limits, questions)
    answer.notes += measured.notes
    if segment_name is not None:
        answer.extra |= {"segment": segment_name, "floor": floor_of(measured.whole)}
    if html:
        from wirelag.cli.oneway_page import write_page

        write_page(html, answer, measured, segments, _clock_text(measured.clock))
    for line in measured.warnings:
        print(f"warning: {line}", file=sys.stderr)
    write_answer(answer, output_format, output, crossing_table)
    if not all(question.holds(measured.whole) for question in questions):
        raise typer.Exit(3)


def floor_of(crossing: Crossing) -> float | None:
    """The shortest delay, of all or of the sample, in seconds."""
    if crossing.min_ns is not None:
        return crossing.min_ns / 1e9
    return int(crossing.tail.delays_ns.min()) / 1e9 if len(crossing.tail) else None


CLOCK_CUT = (
    "cut by the clock: packets in flight at an edge are in other intervals, and many buckets cannot be used; "
    "lda wants both points to cut at the same packets (docs/concepts/lda.md has the error)"
)


def measure_segment(
    segment: Segment,
    method: Callable[[int | None], tuple[Any, Delimiters | None]],
    way: Way | None,
    relation: Relation,
    interval_ns: int | None,
    grouping: Grouping | None,
) -> Measured:
    """Look at both captures once to see how they relate, and once more to measure."""
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.twopoint.spans import crossings

    alignment, seen = segment.align(way, relation)
    expected = seen.packets
    if interval_ns is not None:
        first_ns, last_ns = seen.span_ns
        expected = math.ceil(seen.packets * min(1.0, interval_ns / max(1, last_ns - first_ns)))
    estimator, delimiters = method(expected)
    measured = Measured(segment.name, alignment.clock, estimator.name, alignment=alignment)
    spans = crossings(estimator, segment.sources(alignment), interval_ns, delimiters, grouping, alignment.ahead_ns)
    measured.take(spans, over_time=interval_ns is not None)
    measured.shortest_ns = interval_ns if delimiters is None else None
    statistics = [point.read.statistics for point in (segment.up, segment.down) if point.read]
    measured.warnings = [line for point in (segment.up, segment.down) if point.read for line in point.read.warnings]
    together = reduce(CaptureStatistics.__add__, statistics)
    measured.packets, measured.skipped = together.packets, together.skipped
    measured.keys = dict(grouping.keys) if grouping else {}
    measured.notes = [*segment.notes, *alignment.notes]
    measured.left_out = {
        "backward": alignment.backward,
        "elsewhere": alignment.elsewhere,
        "outside": alignment.outside,
    }
    crossing = measured.whole
    if not crossing.used and not len(crossing.tail) and interval_ns is not None:
        apart = format_duration(abs((statistics[1].first_ns or 0) - (statistics[0].first_ns or 0)))
        raise WirelagError(
            f"no packet was seen at both points in an interval and the next: times in {segment.down.name} are about "
            f"{apart} from those in {segment.up.name}; use --clock auto or --offset, or a longer --interval"
        )
    measured.notes += explanations(measured)
    return measured


def explanations(measured: Measured) -> list[str]:
    """What a mean would hide."""
    from wirelag.stats.modes import explain_clusters

    crossing, notes = measured.whole, []
    sample = crossing.tail
    if sample.negative and not any("negative delays" in note for note in measured.notes):
        share = sample.negative / max(1, sample.weight)
        notes.append(
            f"{sample.negative:,} delays ({share:.1%}) are negative: these packets were seen downstream first, "
            f"or the clocks differ (--offset, --clock)"
        )
    mean_ns = crossing.mean_ns
    if crossing.net_loss and measured.shortest_ns and mean_ns is not None and measured.shortest_ns < 50 * mean_ns:
        notes.append(
            "intervals are hardly longer than the delay: packets that straddle an edge are left out, and those are the "
            "slow ones; use rda, or a longer --interval"
        )
    spoiled = _spoiled(crossing)
    if spoiled:
        notes.append(spoiled)
    clusters = explain_clusters(sample.sent_ns, sample.delays_ns)
    if clusters:
        begin_ns = int(sample.sent_ns.min())
        told = "; ".join(cluster.describe(begin_ns) for cluster in clusters)
        notes.append(f"delays fall into {len(clusters)} groups, far apart, whose mean says little: {told}")
    share = crossing.details.get("share", 1.0)
    if share < 1:
        notes.append(f"{share:.1%} of packets were kept for want of memory (--memory); counts are scaled")
    if measured.undecoded:
        notes.append(f"{measured.undecoded} of {measured.intervals} intervals did not decode: they want more --buckets")
    if measured.lost_delimiters:
        notes.append(
            f"{measured.lost_delimiters} delimiters were seen by one point alone: the intervals around them are joined"
        )
    return notes


def _spoiled(crossing: Crossing) -> str | None:
    """What sums cannot see, but a sample of single delays shows."""
    sample, std = crossing.tail.delays_ns.astype(float), crossing.std_ns
    if std is None or len(sample) < 100 or std <= 4 * sample.std() + 1000:
        return None
    single = format_duration(sample.std())
    return (
        f"the deviation is {format_duration(std)}, that of {len(sample):,} single delays {single}: "
        f"buckets of equal count hold different packets (duplicates, reordering); do not trust the mean, use rda"
    )


def _answer(measured: Measured, segments: list[Measured]) -> Answer:
    def line(scope: str, key: str, crossing: Crossing, **changes: Any) -> Line:
        return Line(scope, key, replace(crossing.report(measured.estimator), **changes), distribution_of(crossing))

    total = line("all", "all", measured.whole, packets=measured.packets, skipped=measured.skipped)
    answer = Answer("oneway", total, by=measured.by)
    answer.legs = [line("segment", part.name, part.whole) for part in segments]
    answer.intervals = measured.lines
    groups = [line("group", measured.keys[tag], part) for tag, part in measured.crossings.items() if tag]
    answer.groups = sorted(groups, key=lambda one: (one.key == "other", -(one.report.mean or 0)))
    answer.extra["clock"] = measured.clock.to_json()
    answer.extra["left_out"] = measured.left_out
    if segments:
        answer.extra["segments"] = [
            {"key": part.name, **entry.report.to_json(), "clock": part.clock.to_json()}
            for part, entry in zip(segments, answer.legs, strict=True)
        ]
    answer.notes.append(_coverage(measured))
    answer.notes.append(_clock_text(measured.clock))
    answer.extra["notes"] = measured.notes
    return answer


def _coverage(measured: Measured) -> str:
    crossing, left_out = measured.whole, measured.left_out
    parts = [f"{crossing.sent:,} packets upstream, {crossing.received:,} downstream"]
    if crossing.only_downstream:
        parts.append(f"{crossing.only_downstream:,} seen downstream alone")
    if crossing.duplicated:
        parts.append(f"{crossing.duplicated:,} duplicated")
    if crossing.ambiguous:
        parts.append(f"{crossing.ambiguous:,} not timed (copies that differ in number)")
    asked = measured.alignment is not None and measured.alignment.direction is not None
    words = {
        "backward": "travel the other way",
        "elsewhere": "not of this direction" if asked else "between hosts that one point did not see",
        "outside": "outside of the time both captures cover",
    }
    parts += [f"{left_out[name]:,} {text}" for name, text in words.items() if left_out.get(name)]
    if measured.skipped:
        parts.append(f"{sum(measured.skipped.values()):,} skipped")
    parts.append(f"{crossing.wire_bytes:,} bytes between the points")
    return "; ".join(parts)


def _clock_text(clock: Clock) -> str:
    if clock.method == "none":
        return "clock: nothing to correct"
    parts = []
    if clock.offset_ns:
        bound = "" if clock.offset_bound_ns is None else f" (within {format_duration(clock.offset_bound_ns)})"
        parts.append(f"{format_duration(abs(clock.offset_ns))} {'ahead' if clock.offset_ns > 0 else 'behind'}{bound}")
    if clock.skew:
        parts.append(f"{'gains' if clock.skew > 0 else 'loses'} {abs(clock.skew) * 1e6:.3g} ppm")
    parts += [f"set by {format_duration(step.size_ns)} at {clock_text(step.time_ns)}" for step in clock.steps]
    return f"clock ({clock.method}): downstream {', '.join(parts) or 'as given'}; corrected"


def _add_questions(answer: Answer, crossing: Crossing, limits_ns: list[int], questions: list[Sla]) -> None:
    shares = []
    for limit in limits_ns:
        found = crossing.tail.share_above(limit)
        bounds = None if found is None else [found[1], found[2]]
        shares.append({"limit": limit / 1e9, "share": found[0] if found else None, "ci95": bounds})
        said = f"{found[0]:.2%} (95% interval {bounds[0]:.2%} to {bounds[1]:.2%})" if found and bounds else "cannot say"
        answer.notes.append(f"above {format_duration(limit)}: {said}")
    answer.notes += [question.answer(crossing) for question in questions]
    if shares:
        answer.extra["above"] = shares
    if questions:
        answer.extra["sla"] = [
            {"question": q.text, "holds": q.holds(crossing), "value": q.value(crossing)} for q in questions
        ]
