"""Round-trip delay at one point: the time from a request to its response, as both pass.

Every request is matched with its response: exactly, or, with `memory`, by a fridge, unbiased in a few kilobytes.
A delay belongs to a leg: to the server and back, or to the client and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from wirelag.errors import SettingError
from wirelag.measure.groups import Groups
from wirelag.measure.questions import Questions
from wirelag.measure.result import DelayResult, Entry
from wirelag.units import Duration, Size, duration_ns, format_time, one_of, size_bytes

if TYPE_CHECKING:
    from wirelag.capture.source import Packets, PacketSource
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.match import Match
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.report import Report
    from wirelag.synopses.samples import Samples, Sink
    from wirelag.synopses.timeline import Timeline

GROUPS: Final = ("flow", "client", "server", "subnet", "port")
RETRANSMITTED: Final = ("drop", "first")
LEAST_MEMORY: Final = 1 << 10
MOST_FRIDGES: Final = 8

Progress = Callable[["Packets"], Iterable["PacketBatch"]]


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
    interval_ns: int | None = None
    groups: Groups = field(default_factory=Groups)
    questions: Questions = field(default_factory=Questions)

    def __post_init__(self) -> None:
        from wirelag.estimators.matchers import MATCHERS

        for name in self.match or ():
            one_of(name, MATCHERS, "match")
        one_of(self.retransmitted, RETRANSMITTED, "retransmitted")
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
        if any(m < 1 or m & (m - 1) for m in slots) or len(slots) > MOST_FRIDGES:
            raise SettingError("slots", f"must be powers of two, for at most {MOST_FRIDGES} fridges")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise SettingError("memory", "must be at least 1KiB")

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


@dataclass(repr=False)
class RttResult(DelayResult):
    """Round-trip delay: in total, to the server and to the client, over time, by group."""

    command: ClassVar[str] = "rtt"
    timeline: Timeline | None = None  # for the page
    coverage: str = ""  # the last note

    def table(self) -> list[str]:
        from wirelag.render.rtt import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.rtt import page

        return page(self)


def rtt(
    source: PacketSource,
    *,
    filter: Filter | None = None,
    tunnels: bool = False,
    duration: Duration | None = None,
    match: str | Sequence[str] = "auto",
    retransmitted: str = "drop",
    table_memory: Size = "128MiB",
    memory: Size | None = None,
    slots: Sequence[int] = (),
    entry_probability: Sequence[float] = (),
    seed: int = 0,
    interval: Duration | None = None,
    by: str | None = None,
    most_groups: int = 1000,
    ipv4_prefix: int = 24,
    ipv6_prefix: int = 48,
    above: Sequence[Duration] | Duration = (),
    sla: Sequence[str] | str = (),
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    progress: Progress | None = None,
) -> RttResult:
    """Measure round-trip delay: the time from a request to its response, as both pass the capture point.

    `source` is a capture, several, an interface (with `duration`) or packet batches. `by` groups by flow, client,
    server, subnet or port; `memory` replaces exact matching by a fridge of that size. `samples=True` keeps every
    delay (`Result.samples`); a path writes them to a Parquet file. `charts=False` skips what only the page needs.
    """
    settings = RttSettings(
        match=None if match == "auto" else tuple(match.split(",") if isinstance(match, str) else match),
        retransmitted=retransmitted,
        table_memory=size_bytes(table_memory, "table_memory"),
        memory=None if memory is None else size_bytes(memory, "memory"),
        slots=tuple(slots),
        entry_probability=tuple(entry_probability),
        seed=seed,
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        groups=Groups(by, GROUPS, most_groups, ipv4_prefix, ipv6_prefix),
        questions=Questions.parse(above, sla),
    )
    from wirelag.capture.source import open_packets

    listen_ns = None if duration is None else duration_ns(duration, "duration")
    packets = open_packets(source, filter=filter, tunnels=tunnels, duration_ns=listen_ns)
    return measure_rtt(packets, settings, samples=samples, charts=charts, progress=progress)


def measure_rtt(
    packets: Packets,
    settings: RttSettings,
    *,
    samples: bool | str | PathLike[str] = False,
    charts: bool = True,
    progress: Progress | None = None,
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

            sinks.append(stack.enter_context(SampleFile(fspath(samples))).add)
        result = _measured(packets, settings, sinks, progress or iter)
    result.timeline, result.samples = timeline, kept
    result.subject, result.warnings = ", ".join(packets.names), list(packets.warnings)
    result.ask(settings.questions, result.total.delays)
    result.notes.append(result.coverage)
    return result


def _measured(packets: Packets, settings: RttSettings, sinks: Sequence[Sink], progress: Progress) -> RttResult:
    """All samples, those of each interval, and those of each group."""
    from wirelag.measure.loop import cut
    from wirelag.stats.distribution import Distribution
    from wirelag.synopses.samples import Samples

    estimator, grouping = replace(settings.estimator(), sinks=tuple(sinks)), settings.groups.grouping()
    total, nothing, intervals = Samples(), Distribution(), []
    for when, (part,) in cut(estimator, {"tap": progress(packets)}, settings.interval_ns, grouping):
        total.merge(part)
        if settings.interval_ns:
            report = part.report(settings.method, "round_trip").during(when)
            # Intervals keep only their shape: there may be many.
            shape = part.distribution().by_octave()
            intervals.append(Entry("interval", format_time(when.start_ns), report, nothing, shape))
    result = RttResult(_total(settings.method, packets, total), by=settings.groups.by or "", intervals=intervals)
    result.legs = legs(settings.method, total)
    if grouping:
        groups = [
            Entry(
                "group", grouping.keys[tag], total.report(settings.method, "round_trip", tag), total.distribution(tag)
            )
            for tag in total.tags
        ]
        result.groups = sorted(groups, key=lambda entry: (entry.key == "other", -(entry.report.quantiles["0.5"] or 0)))
    result.counts, result.coverage = _counts(packets, total), _coverage(packets, total)
    return result


def _total(method: str, packets: Packets, total: Samples) -> Entry:
    statistics = packets.statistics
    report = replace(total.report(method, "round_trip"), packets=statistics.packets, skipped=dict(statistics.skipped))
    if not statistics.packets:
        report = replace(report, reason="no packets")
    return Entry("all", "all", report, total.distribution())


def legs(method: str, total: Samples) -> list[Entry]:
    """Delays to the server and to the client, separately."""
    from wirelag.synopses.samples import LEGS

    return [
        Entry("leg", f"to the {side}", _leg_report(method, total, leg), delays)
        for leg, side in enumerate(LEGS)
        if (delays := total.distribution(leg=leg)).samples
    ]


def _leg_report(method: str, total: Samples, leg: int) -> Report:
    from wirelag.report import Report
    from wirelag.synopses.samples import facts

    figures = facts(total.distribution(leg=leg), total.random_groups.of_leg(leg))
    return Report(method, "round_trip", packets=total.packets, **figures)


_COUNTED: Final = {
    "evicted": "evicted because memory was full",
    "backwards": "responses timestamped before their request",
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
    if total.counts.get("backwards", 0):
        parts.append(f"{total.counts['backwards']:,} {_COUNTED['backwards']}")
    return "; ".join(parts)
