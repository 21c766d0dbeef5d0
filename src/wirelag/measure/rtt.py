"""Round-trip delay at one point: the time from a request to its response, as both pass.

Every request is matched with its response: exactly, or, with `memory`, by a fridge, unbiased in a few kilobytes.
A delay belongs to a leg: to the server and back, or to the client and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from wirelag.capture.ahead import cores_of
from wirelag.errors import SettingError
from wirelag.measure.groups import Groups
from wirelag.measure.interval_entries import IntervalEntries
from wirelag.measure.questions import Broken, Questions, with_groups
from wirelag.measure.result import DelayResult, Entry, doubt, shape_only
from wirelag.measure.rtt_notes import counts_of, coverage_of, sent_again, span_of
from wirelag.measure.slowest import listed
from wirelag.units import Duration, Share, Size, duration_ns, one_of, share, size_bytes, within

if TYPE_CHECKING:
    from wirelag.capture.sample_file import SampleColumns
    from wirelag.capture.source import Packets, PacketSource
    from wirelag.capture.table import Table
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.match import Match
    from wirelag.measure.points import Progress
    from wirelag.measure.rtt_heard import Cut, Heard
    from wirelag.packets.filters import Filter
    from wirelag.render.flow_records import FlowRecord
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_times import GroupTimes
    from wirelag.synopses.samples import Figures, Samples, Sink
    from wirelag.synopses.timeline import Timeline

    _Legs = dict[str, Distribution]

GROUPS: Final = ("flow", "client", "server", "subnet", "port")
LEGS: Final = ("server", "client", "both", "mixed")
RANKED: Final = {"client": "client"}  # groups that are ranked by another leg than the server's
RETRANSMITTED: Final = ("drop", "first")
LEAST_MEMORY: Final = 1 << 10
MOST_FRIDGES: Final = 8
MOST_SLOTS: Final = 1 << 28
LEAST_TABLE: Final = 1 << 10
MOST_MEMORY: Final = 1 << 37
ROWS_AT_ONCE: Final = 4096  # entries whose rows are written at once


@dataclass(frozen=True, kw_only=True, eq=False)
class RttSettings:
    """What to match, how, and what to report besides the total."""

    match: tuple[str, ...] | None = None  # None: all that need no option
    retransmitted: str = "drop"
    table_memory: int = 128 << 20
    memory: int | None = None  # size of a fridge; None: exact
    slots: tuple[int, ...] = ()
    entry_probability: tuple[float, ...] = ()
    seed: int = 0
    cores: int = 1
    leg: str = "server"  # of the figures that come first
    interval_ns: int | None = None
    groups: Groups = field(default_factory=Groups)
    questions: Questions = field(default_factory=Questions)

    def __post_init__(self) -> None:
        from wirelag.estimators.matchers import MATCHERS

        for name in self.match or ():
            one_of(name, MATCHERS, "match")
        one_of(self.retransmitted, RETRANSMITTED, "retransmitted")
        one_of(self.leg, LEGS, "leg")
        if self.match is not None and not self.match:
            raise SettingError("match", "names nothing to match")
        within(self.table_memory, LEAST_TABLE, MOST_MEMORY, "table_memory")
        within(self.seed, 0, (1 << 64) - 1, "seed")
        if self.entry_probability and not self.slots:
            raise SettingError("entry_probability", "needs --slots")
        if self.method == "fridge":
            self._check_fridge()

    def _check_fridge(self) -> None:
        slots, probabilities = self.slots, self.entry_probability
        if self.match and "quic-spin" in self.match:
            raise SettingError("match", "a fridge keeps no connections, so it cannot time the spin bit")
        if probabilities and len(probabilities) != len(slots):
            raise SettingError("entry_probability", "give one for each of --slots")
        if any(not 0 < p <= 1 for p in probabilities) or sum(probabilities) > 1:
            raise SettingError("entry_probability", "must be above 0, and at most 1 in total")
        if any(not 1 <= m <= MOST_SLOTS or m & (m - 1) for m in slots) or len(slots) > MOST_FRIDGES:
            raise SettingError("slots", f"must be powers of two, for at most {MOST_FRIDGES} fridges")
        if self.memory is not None:
            if self.memory < LEAST_MEMORY:
                raise SettingError("memory", "must be at least 1KiB")
            within(self.memory, LEAST_MEMORY, MOST_MEMORY, "memory")

    @property
    def ranked(self) -> str:
        """The leg by which groups are in order, and which the slowest delays are of; without groups the one asked for.

        Servers are ranked by the way to the server, clients by the way to the client.
        """
        if self.leg in ("both", "mixed") or self.groups.by is None:
            return self.leg
        return RANKED.get(self.groups.by, "server")

    @property
    def method(self) -> Literal["match", "fridge"]:
        """The estimator's name."""
        return "fridge" if self.memory is not None or self.slots else "match"

    def estimator(self, later: bool = False) -> Match | Fridge:
        """The estimator; `later`: a thread of its own may add up samples."""
        if self.method == "match":
            from wirelag.estimators.match import AUTO, Match

            first = self.retransmitted == "first"
            return Match(self.match or AUTO, first, self.table_memory, self.cores, later)
        from wirelag.estimators.fridge import AUTO as MATCHED
        from wirelag.estimators.fridge import Fridge

        size = 64 << 10 if self.memory is None else self.memory
        return Fridge(self.match or MATCHED, size, self.slots, self.entry_probability, self.seed)


@dataclass(repr=False, eq=False)
class RttResult(DelayResult):
    """Round-trip delay: in total, to the server and to the client, over time, by group."""

    command: ClassVar[str] = "rtt"
    ranked: str = ""  # the leg by which groups are in order
    timeline: Timeline | None = None  # for pages
    group_times: GroupTimes | None = None
    coverage: str = ""  # the last note
    asked: tuple[str, ...] = ()  # what was asked of all delays, in words
    broken: dict[str, Broken] = field(default_factory=dict)  # agreements that a group breaks
    span_ns: tuple[int, int] | None = None  # the first and the last packet, where known

    def rows(self) -> list[dict[str, Any]]:
        """A row for each entry and leg."""
        from wirelag.render.rows import rows_by_leg

        return [row for entry in self._entries() for row in rows_by_leg(entry)]

    def tables(self) -> Iterator[Table]:
        """The rows as columns, in parts: groups may be many."""
        from wirelag.render.rows import rows_by_leg, table_of

        entries = self._entries()
        while some := [row for entry in islice(entries, ROWS_AT_ONCE) for row in rows_by_leg(entry)]:
            yield table_of(some, self.command)

    def aside(self, form: str) -> list[str]:
        from wirelag.render.output import OF_FLOWS

        said = super().aside(form)
        if form in OF_FLOWS and not self.all_kept:
            held = sum(leg.report.samples for leg in self.groups[-1].legs.values())
            said += [f"{held:,} round trips of flows that did not fit --group-memory have no record"]
        return said

    def flow_records(self) -> Iterator[FlowRecord]:
        from wirelag.render.flow_records import of_round_trips

        if self.by != "flow":
            raise SettingError("by", "must be flow for a format of flows: add --by flow")
        return of_round_trips(self._each_group(), self.span_ns)

    def _entries(self) -> Iterator[Entry]:
        return chain((self.total, *self.intervals), self._each_group())

    def _groups_fail(self) -> bool:
        return bool(self.broken)

    def table(self) -> list[str]:
        from wirelag.render.rtt import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.rtt import page

        return page(self)


def rtt(
    source: PacketSource,
    *,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    force: bool = False,
    duration: Duration | None = None,
    match: str | Sequence[str] = "auto",
    retransmitted: str = "drop",
    table_memory: Size = "128MiB",
    memory: Size | None = None,
    slots: Sequence[int] = (),
    entry_probability: Sequence[Share] = (),
    seed: int = 0,
    leg: str = "server",
    interval: Duration | None = None,
    by: str | None = None,
    group_memory: Size = "256MiB",
    sort: str | None = None,
    top: int | None = None,
    ipv4_prefix: int = 24,
    ipv6_prefix: int = 48,
    above: Sequence[Duration] | Duration = (),
    sla: Sequence[str] | str = (),
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    cores: int | None = None,
    progress: Progress = iter,
    on: Any = None,
) -> RttResult:
    """Measure round-trip delay: the time from a request to its response, as both pass the capture point.

    Figures are those of a leg: `leg` is "server" (the path to the server and back), "client", "both" (the sum of both
    for each connection) or "mixed"; each entry holds both in `legs`. `source` is a capture, several, an interface
    (with `duration`) or packet batches. `by` groups by flow, client, server, subnet or port, and keeps all groups that
    fit `group_memory`, beyond that those with the most samples. `memory` replaces exact matching by a fridge of that
    size. `samples=True` keeps every delay (`Result.samples`); a path writes them to a Parquet or CSV file.
    `charts=False` skips what only the page needs. Captures that hold the same packets are refused, unless `force` is
    set. `cores` may work on it (default: all); no result depends on how many. `on` works on it elsewhere: "local" (a
    process for each core), "dask://HOST:PORT", a client of Dask, or a `Fleet`.
    """
    settings = RttSettings(
        match=None if match == "auto" else tuple(match.split(",") if isinstance(match, str) else match),
        retransmitted=retransmitted,
        table_memory=size_bytes(table_memory, "table_memory"),
        memory=None if memory is None else size_bytes(memory, "memory"),
        slots=tuple(slots),
        entry_probability=tuple(share(one, "entry_probability") for one in entry_probability),
        seed=seed,
        cores=cores_of(cores),
        leg=leg,
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        groups=Groups(by, GROUPS, size_bytes(group_memory, "group_memory"), ipv4_prefix, ipv6_prefix, sort, top),
        questions=Questions.parse(above, sla),
    )
    if on is not None:
        from wirelag.measure.fleet import Fleet
        from wirelag.measure.rtt_many import need_divisible, rtt_on

        need_divisible(samples)
        return rtt_on(Fleet.of(on), source, settings, filter=filter, tunnels=tunnels, force=force, charts=charts)
    from wirelag.capture.source import open_packets

    listen_ns = None if duration is None else duration_ns(duration, "duration")
    packets = open_packets(source, filter=filter, tunnels=tunnels, duration_ns=listen_ns, cores=settings.cores)
    twice = []
    if len(packets.names) > 1:
        from wirelag.measure.copies import refuse_copies

        twice = refuse_copies(packets, force)
    result = measure_rtt(packets, settings, samples=samples, charts=charts, progress=progress)
    result.warnings += twice
    return result


def measure_rtt(
    packets: Packets,
    settings: RttSettings,
    *,
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    progress: Progress = iter,
) -> RttResult:
    """The same, with checked settings."""
    from wirelag.capture.source import Listening
    from wirelag.measure.rtt_heard import Heard

    heard = Heard.fresh(settings, charts, slowest=not isinstance(packets, Listening))
    with ExitStack() as stack:
        kept: SampleColumns | None = None
        sinks: list[Sink] = []
        if samples is True:
            from wirelag.capture.sample_file import SampleColumns

            kept = SampleColumns()
            sinks.append(kept.add)
        elif samples is not False:
            from wirelag.capture.sample_file import SampleFile
            from wirelag.measure.points import own_file

            sinks.append(stack.enter_context(SampleFile(own_file(samples, packets.names))).add)
        if charts:
            heard.time_groups(settings)
        cuts = heard.cuts_of(packets, settings, sinks, progress)
        result = measured(cuts, heard, packets, settings)
    result.samples, result.group_times = kept, heard.times
    return told(result, packets, settings)


def told(result: RttResult, packets: Packets, settings: RttSettings) -> RttResult:
    """A result with its subject, notes and warnings."""
    result.subject, result.warnings = ", ".join(packets.names), list(packets.warnings)
    result.notes = with_groups(result.asked, result.broken) + result.notes
    again = result.report.details["counts"].get("again", 0) if settings.questions.slas else 0
    result.notes += sent_again(settings.method, settings.retransmitted, again)
    if len(result.total.legs) > 1:
        result.notes.append(LEG_NOTE)
    result.explain(packets)
    result.notes += [*result.coarse_notes(), *result.interval_notes(), result.coverage]
    return result


LEG_NOTE: Final = "a leg is the path from the capture point to the server and back, or to the client and back"


def asked_of(entry: Entry, questions: Questions, connections: Connections | None, tag: int | None) -> _Legs:
    """What questions are put to: each leg, and both together or mixed if asked for."""
    legs = {name: leg.delays for name, leg in entry.legs.items()}
    chosen = entry.report.details["leg"]
    if chosen in ("both", "mixed"):
        legs[chosen] = entry.delays
    if connections is not None and "both" not in legs and any(sla.leg == "both" for sla in questions.slas):
        legs["both"] = connections.distribution(tag)
    return legs


class Entries:
    """Samples as entries: the figures of the leg that was asked for, and both legs beside them."""

    def __init__(self, settings: RttSettings) -> None:
        self._method, self.leg = settings.method, settings.leg

    def of(self, scope: str, key: str, samples: Samples, connections: Connections | None) -> Entry:
        """An entry over all samples, or those of a group."""
        from wirelag.synopses.samples import LEGS as PLACES

        by_leg = samples.by_leg()
        if connections is not None:
            delays = connections.distribution(samples.tag)
        elif self.leg in by_leg:
            delays = by_leg[self.leg]
        else:
            delays = samples.distribution(PLACES.index(self.leg) if self.leg in PLACES else None)
        report = samples.report_of(delays, by_leg, self._method, "round_trip", self.leg)
        entry = Entry(scope, key, report, delays)
        for name, of_leg in by_leg.items():
            entry.legs[name] = Entry(scope, key, self._of_leg(report, name), of_leg)
        return entry

    def _of_leg(self, report: Report, name: str) -> Report:
        """The report of one leg, from that of all."""
        figures = dict(report.details["legs"][name])
        figures["ci95"] = {figure: tuple(bounds) for figure, bounds in figures["ci95"].items()}
        details = {"no_interval": figures.pop("no_interval")}
        return type(report)(self._method, "round_trip", packets=report.packets, details=details, **figures)

    def interval(self, key: str, samples: Samples, connections: Connections | None) -> Entry:
        """An entry over the samples of an interval, without its delays."""
        if connections is not None or not self.at_once:
            return shape_only(self.of("interval", key, samples, connections))
        return self.told("interval", key, samples.figures(), samples.packets, dict(sorted(samples.counts.items())))

    @property
    def at_once(self) -> bool:
        """Whether the figures of legs are all that an entry needs."""
        return self.leg in ("server", "client")

    def told(
        self,
        scope: str,
        key: str,
        of_legs: dict[str, Figures],
        packets: int | None = None,
        counts: dict[str, int] | None = None,
    ) -> Entry:
        """An entry from the figures of its legs alone, without their delays; a leg without delays has none."""
        from wirelag.synopses.samples import report_of_legs

        shown = of_legs.get(self.leg, self._nothing)
        report = report_of_legs(of_legs, shown, self.leg, self._method, "round_trip", packets, counts)
        entry = Entry(scope, key, report, self._no_delays, shown.shape)
        for name, one in of_legs.items():
            entry.legs[name] = Entry(scope, key, self._of_leg(report, name), self._no_delays, one.shape)
        return entry

    @cached_property
    def _no_delays(self) -> Distribution:
        from wirelag.stats.distribution import Distribution

        return Distribution.nothing()

    @cached_property
    def _nothing(self) -> Figures:
        from wirelag.synopses.samples import Figures

        return Figures.of(self._no_delays)


def measured(cuts: Iterable[Cut], heard: Heard, packets: Packets, settings: RttSettings) -> RttResult:
    """All samples, those of each interval, and those of each group."""
    from wirelag.capture.source import Listening
    from wirelag.synopses.samples import Samples

    grouping, whole, entries = heard.groups, heard.connections, Entries(settings)
    both = settings.leg == "both"
    questions = settings.questions.of_leg(settings.leg)
    apart = settings.cores > 1 and not both and not isinstance(packets, Listening)  # connections are added to others
    total, ended = Samples(), IntervalEntries(entries.interval, apart)
    for when, part, connections in cuts:
        total.merge(part)
        if settings.interval_ns:
            ended.add(when, part, connections)
    intervals = ended.all()
    first = entries.of("all", "all", total, whole if both else None)
    if settings.interval_ns:
        _doubt_short(intervals, settings.interval_ns, first, total)
    result = RttResult(first, by=settings.groups.by or "", intervals=intervals)
    asked = asked_of(first, questions, whole, None)
    first.verdicts, result.asked = questions.of_legs(asked, first.delays), tuple(questions.sentences_of_legs(asked))
    skipped = dict(packets.statistics.skipped)
    if total.counts.get("too_long", 0):
        skipped["too_long"] = total.counts["too_long"]
    result.covering(packets.statistics.packets, skipped)
    result.span_ns = span_of(packets)
    if not packets.statistics.packets:
        result.total.report = replace(result.report, reason="no packets")
    if grouping is not None:
        assert whole is not None
        from wirelag.measure.rtt_groups import Grouped, add_groups

        grouped = Grouped(grouping, entries, whole, both, total, questions, settings.cores)
        add_groups(result, settings, grouped, page=heard.timeline is not None)
    result.counts, result.coverage = counts_of(packets, total), coverage_of(packets, total)
    result.timeline, result.slowest = heard.timeline, listed(heard.slowest)
    return result


def _doubt_short(intervals: list[Entry], length_ns: int, whole: Entry, total: Samples) -> None:
    """Widen the 95% intervals of intervals, or take them away, by how slowly all delays change."""
    from wirelag.synopses.samples import LEGS as PLACES

    alike = {name: total.alike(place) for place, name in enumerate(PLACES)}
    slower = max(alike.values())._replace(samples=whole.report.samples)
    for entry in intervals:
        said = entry.report.details
        doubt(entry, length_ns, alike.get(said["leg"], slower))
        for name, leg in entry.legs.items():
            doubt(leg, length_ns, alike[name])
            ci95 = {figure: [*bounds] for figure, bounds in leg.report.ci95.items()}
            said["legs"][name] |= {"ci95": ci95, "no_interval": leg.report.details["no_interval"]}


def legs(method: str, total: Samples) -> list[Entry]:
    """Delays to the server and to the client."""
    from wirelag.synopses.samples import LEGS as PLACES

    return [
        Entry("leg", f"to the {side}", total.report(method, "round_trip", leg=side), delays)
        for leg, side in enumerate(PLACES)
        if (delays := total.distribution(leg)).samples
    ]
