"""Round-trip delay at one point: the time from a request to its response, as both pass.

Every request is matched with its response: exactly, or, with `memory`, by a fridge, unbiased in a few kilobytes.
A delay belongs to a leg: to the server and back, or to the client and back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from wirelag.errors import SettingError
from wirelag.measure.copies import refuse_copies
from wirelag.measure.groups import OTHER, Groups, figure, other_note
from wirelag.measure.points import Progress
from wirelag.measure.questions import Questions, failing_groups
from wirelag.measure.result import DelayResult, Entry
from wirelag.units import Duration, Size, duration_ns, format_time, one_of, size_bytes, within

if TYPE_CHECKING:
    from wirelag.capture.source import Packets, PacketSource
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.match import Match
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.samples import SampleBatch, Samples, Sink
    from wirelag.synopses.timeline import Timeline

GROUPS: Final = ("flow", "client", "server", "subnet", "port")
LEGS: Final = ("server", "client", "both", "mixed")
RANKED: Final = {"client": "client"}  # groups that are ranked by another leg than the server's
RETRANSMITTED: Final = ("drop", "first")
LEAST_MEMORY: Final = 1 << 10
MOST_FRIDGES: Final = 8
MOST_SLOTS: Final = 1 << 28
LEAST_TABLE: Final = 1 << 10
MOST_MEMORY: Final = 1 << 37


@dataclass(frozen=True, kw_only=True)
class RttSettings:
    """What to match, how, and what to report besides the total."""

    match: tuple[str, ...] | None = None  # None: all that need no option
    retransmitted: str = "drop"
    table_memory: int = 128 << 20
    memory: int | None = None  # size of a fridge; None: exact
    slots: tuple[int, ...] = ()
    entry_probability: tuple[float, ...] = ()
    seed: int = 0
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
    def method(self) -> Literal["match", "fridge"]:
        """The estimator's name."""
        return "fridge" if self.memory is not None or self.slots else "match"

    def estimator(self) -> Match | Fridge:
        """The estimator."""
        if self.method == "match":
            from wirelag.estimators.match import AUTO, Match

            return Match(self.match or AUTO, first_copy=self.retransmitted == "first", memory=self.table_memory)
        from wirelag.estimators.fridge import AUTO as MATCHED
        from wirelag.estimators.fridge import Fridge

        size = 64 << 10 if self.memory is None else self.memory
        return Fridge(self.match or MATCHED, size, self.slots, self.entry_probability, self.seed)


@dataclass(repr=False, eq=False)
class RttResult(DelayResult):
    """Round-trip delay: in total, to the server and to the client, over time, by group."""

    command: ClassVar[str] = "rtt"
    ranked: str = ""  # the leg by which groups are in order
    timeline: Timeline | None = None  # for the page
    coverage: str = ""  # the last note

    def rows(self) -> list[dict[str, Any]]:
        """A row for each entry and leg."""
        from wirelag.render.rows import row_of

        rows = []
        for entry in (self.total, *self.intervals, *self.groups):
            when = entry.report.interval
            each = {leg: replace(one, report=one.report.during(when)) for leg, one in entry.by_leg().items()}
            rows += [_with_leg(row_of(one), leg) for leg, one in each.items()]
        return rows

    def table(self) -> list[str]:
        from wirelag.render.rtt import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.rtt import page

        return page(self)


def _with_leg(row: dict[str, Any], leg: str) -> dict[str, Any]:
    return {"scope": row["scope"], "key": row["key"], "leg": leg, **row}


def rtt(
    source: PacketSource,
    *,
    filter: Filter | None = None,
    tunnels: bool = False,
    force: bool = False,
    duration: Duration | None = None,
    match: str | Sequence[str] = "auto",
    retransmitted: str = "drop",
    table_memory: Size = "128MiB",
    memory: Size | None = None,
    slots: Sequence[int] = (),
    entry_probability: Sequence[float] = (),
    seed: int = 0,
    leg: str = "server",
    interval: Duration | None = None,
    by: str | None = None,
    most_groups: int = 1000,
    sort: str | None = None,
    top: int = 20,
    ipv4_prefix: int = 24,
    ipv6_prefix: int = 48,
    above: Sequence[Duration] | Duration = (),
    sla: Sequence[str] | str = (),
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    progress: Progress = iter,
) -> RttResult:
    """Measure round-trip delay: the time from a request to its response, as both pass the capture point.

    Figures are those of a leg: `leg` is "server" (the path to the server and back), "client", "both" (the sum of both
    for each connection) or "mixed"; each entry holds both in `legs`. `source` is a capture, several, an interface
    (with `duration`) or packet batches. `by` groups by flow, client, server, subnet or port; `memory` replaces exact
    matching by a fridge of that size. `samples=True` keeps every delay (`Result.samples`); a path writes them to a
    Parquet file. `charts=False` skips what only the page needs. Captures that hold the same packets are refused, unless
    `force` is set.
    """
    settings = RttSettings(
        match=None if match == "auto" else tuple(match.split(",") if isinstance(match, str) else match),
        retransmitted=retransmitted,
        table_memory=size_bytes(table_memory, "table_memory"),
        memory=None if memory is None else size_bytes(memory, "memory"),
        slots=tuple(slots),
        entry_probability=tuple(entry_probability),
        seed=seed,
        leg=leg,
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        groups=Groups(by, GROUPS, most_groups, ipv4_prefix, ipv6_prefix, sort, top),
        questions=Questions.parse(above, sla),
    )
    from wirelag.capture.source import open_packets

    listen_ns = None if duration is None else duration_ns(duration, "duration")
    packets = open_packets(source, filter=filter, tunnels=tunnels, duration_ns=listen_ns)
    if not force:
        refuse_copies(packets)
    return measure_rtt(packets, settings, samples=samples, charts=charts, progress=progress)


def measure_rtt(
    packets: Packets,
    settings: RttSettings,
    *,
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    progress: Progress = iter,
) -> RttResult:
    """The same, with checked settings."""
    from wirelag.synopses.timeline import Timeline

    timeline = Timeline(settings.interval_ns) if charts else None
    sinks: list[Sink] = [timeline.add] if timeline else []
    with ExitStack() as stack:
        kept = None
        if samples is True:
            from wirelag.capture.sample_file import SampleColumns

            kept = SampleColumns()
            sinks.append(kept.add)
        elif samples is not False:
            from wirelag.capture.sample_file import SampleFile

            sinks.append(stack.enter_context(SampleFile(_own_file(samples, packets))).add)
        result = _measured(packets, settings, sinks, progress)
    result.timeline, result.samples = timeline, kept
    result.subject, result.warnings = ", ".join(packets.names), list(packets.warnings)
    _ask(result, settings.questions)
    if len(result.total.legs) > 1:
        result.notes.append(LEG_NOTE)
    result.notes.append(result.coverage)
    return result


def _own_file(samples: str | PathLike[str], packets: Packets) -> str:
    """The file for samples; writing them over a capture would destroy it."""
    if not isinstance(samples, str | PathLike):
        raise SettingError("samples", f"{samples!r} is not True, False or a path")
    path = fspath(samples)
    for name in packets.names:
        if os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name):
            raise SettingError("samples", f"{path} is read: writing to it would destroy it; choose another file")
    return path


LEG_NOTE: Final = "a leg is the path from the capture point to the server and back, or to the client and back"


def _ask(result: RttResult, questions: Questions) -> None:
    """Put questions to both legs, in total and of every group."""
    for entry in (result.total, *result.groups):
        entry.verdicts = questions.of_legs({name: leg.delays for name, leg in entry.legs.items()}, entry.delays)
    result.notes += questions.sentences_of_legs({name: leg.delays for name, leg in result.total.legs.items()})
    result.notes += failing_groups([(entry.key, entry.verdicts) for entry in result.groups])


class _Entries:
    """Samples as entries: the figures of the leg that was asked for, and both legs beside them."""

    def __init__(self, settings: RttSettings) -> None:
        self._method, self._leg = settings.method, settings.leg

    def of(
        self, scope: str, key: str, samples: Samples, connections: Connections | None, tag: int | None = None
    ) -> Entry:
        """An entry over all samples, or those of a group."""
        from wirelag.report import Report
        from wirelag.synopses.samples import LEGS as PLACES

        if connections is not None:
            delays = connections.distribution(tag)
            report = samples.report_of(delays, self._method, "round_trip", tag, self._leg)
        else:
            delays = samples.distribution(tag, PLACES.index(self._leg) if self._leg in PLACES else None)
            report = samples.report(self._method, "round_trip", tag, self._leg)
        entry = Entry(scope, key, report, delays)
        for place, name in enumerate(PLACES):
            if name in report.details["legs"]:
                figures = dict(report.details["legs"][name])
                figures["ci95"] = {figure: tuple(bounds) for figure, bounds in figures["ci95"].items()}
                said = Report(self._method, "round_trip", packets=samples.packets, **figures)
                entry.legs[name] = Entry(scope, key, said, samples.distribution(tag, place))
        return entry


def _measured(packets: Packets, settings: RttSettings, sinks: Sequence[Sink], progress: Progress) -> RttResult:
    """All samples, those of each interval, and those of each group."""
    from wirelag.measure.loop import cut
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.samples import Samples

    grouping, entries = settings.groups.grouping(), _Entries(settings)
    both = settings.leg == "both"
    whole = Connections() if both or grouping else None
    part_of = Connections()

    def keep(batch: PacketBatch, samples: SampleBatch) -> None:
        part_of.add(batch, samples)  # those of the open interval

    sinks = [*sinks, keep] if whole is not None else sinks
    estimator = replace(settings.estimator(), sinks=tuple(sinks))
    total, intervals = Samples(), []
    for when, (part,) in cut(estimator, {"tap": progress(packets)}, settings.interval_ns, grouping):
        total.merge(part)
        if settings.interval_ns:
            entry = entries.of("interval", format_time(when.start_ns), part, part_of if both else None)
            entry.report = entry.report.during(when)
            intervals.append(_shape_only(entry))
        if whole is not None:
            whole.merge(part_of)
            part_of = Connections()
    total.connections = whole
    whole = whole if both else None
    result = RttResult(entries.of("all", "all", total, whole), by=settings.groups.by or "", intervals=intervals)
    skipped = dict(packets.statistics.skipped)
    if total.counts.get("too_long", 0):
        skipped["too_long"] = total.counts["too_long"]
    result.covering(packets.statistics.packets, skipped)
    if not packets.statistics.packets:
        result.total.report = replace(result.report, reason="no packets")
    if grouping:
        found = [entries.of("group", grouping.keys[tag], total, whole, tag) for tag in total.tags]
        result.ranked = settings.leg if settings.leg in ("both", "mixed") else RANKED.get(result.by, "server")
        result.sort, result.top = settings.groups.sort or "p50", settings.groups.top
        result.groups = sorted(found, key=lambda entry: _rank(entry, result.ranked, result.sort))
        result.notes += other_note(result.groups, result.report.samples, settings.groups.most)
    result.counts, result.coverage = _counts(packets, total), _coverage(packets, total)
    return result


def _rank(entry: Entry, leg: str, sort: str) -> tuple[bool, bool, float]:
    """The largest figure first on this leg; then groups without delays on it, by the other; "other" last."""
    ranked = entry.legs.get(leg) if leg in ("server", "client") else entry
    value = figure(ranked.report, sort) if ranked is not None and ranked.report.samples else None
    rest = max((figure(one.report, sort) or 0.0 for one in entry.legs.values()), default=0.0)
    return entry.key == OTHER, value is None, -(rest if value is None else value)


def _shape_only(entry: Entry) -> Entry:
    """The entry of an interval keeps only the shape of its distributions: there may be many."""
    from wirelag.stats.distribution import Distribution

    for one in (entry, *entry.legs.values()):
        one.shape, one.delays = one.delays.by_octave(), Distribution()
    return entry


def legs(method: str, total: Samples) -> list[Entry]:
    """Delays to the server and to the client, separately."""
    from wirelag.synopses.samples import LEGS as PLACES

    return [
        Entry("leg", f"to the {side}", total.report(method, "round_trip", leg=side), delays)
        for leg, side in enumerate(PLACES)
        if (delays := total.distribution(leg=leg)).samples
    ]


_COUNTED: Final = {
    "evicted": "evicted because memory was full",
    "backwards": "responses timestamped before their request",
    "too_long": "responses more than 2.44 h after their request",
}


def _counts(packets: Packets, total: Samples) -> dict[str, int]:
    statistics = packets.statistics
    counts = {"packets": statistics.packets, "examined": total.packets}
    counts |= {f"skipped: {why}": n for why, n in statistics.skipped.items()}
    return counts | {_COUNTED.get(name, name): n for name, n in total.counts.items()}


def _coverage(packets: Packets, total: Samples) -> str:
    """Coverage, as a sentence."""
    statistics, delays = packets.statistics, total.distribution()
    skipped = sum(statistics.skipped.values())
    parts = [f"{statistics.packets:,} packets", f"{total.packets:,} examined"]
    if skipped:
        parts.append(f"{skipped:,} skipped ({', '.join(f'{n:,} {why}' for why, n in statistics.skipped.items())})")
    if total.counts.get("evicted", 0):
        parts.append(f"{total.counts['evicted']:,} {_COUNTED['evicted']} (--table-memory)")
    if delays.weight != delays.samples:
        parts.append(f"{delays.samples:,} samples represent {delays.weight:,} delays")
    parts += [f"{n:,} {_COUNTED[name]}" for name in ("backwards", "too_long") if (n := total.counts.get(name, 0))]
    return "; ".join(parts)
