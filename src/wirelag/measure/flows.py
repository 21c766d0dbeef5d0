"""The one-way delay of every flow behind a queue, interpolated between sparse reference packets.

References are STAMP packets that a sender injects before the queue, or packets that a second capture also holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.capture.ahead import cores_of
from wirelag.errors import SettingError, WirelagError
from wirelag.measure.groups import OTHER, Groups, other_note
from wirelag.measure.hints import hint
from wirelag.measure.oneway import direction_of
from wirelag.measure.points import Progress, ReadOptions, points_of
from wirelag.measure.questions import Broken, Questions, failing_groups, with_groups
from wirelag.measure.result import Result
from wirelag.stats.ranking import FEWEST, Few
from wirelag.units import (
    Duration,
    Share,
    Size,
    duration_ns,
    format_duration,
    format_rate,
    many,
    one_of,
    share,
    size_bytes,
    within,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.files import Capture
    from wirelag.capture.source import PathOrFile
    from wirelag.capture.table import Table
    from wirelag.clocks.fit import Clock
    from wirelag.estimators.rli import Rli
    from wirelag.measure.flow_references import Referred
    from wirelag.measure.flow_rows import FlowRow
    from wirelag.packets.addresses import Direction
    from wirelag.packets.filters import Filter
    from wirelag.render.flow_records import FlowRecord
    from wirelag.report import Report
    from wirelag.stats.sla import Mean
    from wirelag.synopses.flows import Flows

SOURCES: Final = ("stamp", "marked", "capture")
METHODS: Final = ("busy", "linear", "left")
GROUPS: Final = ("flow", "client", "server", "subnet", "port")
GROUP_BYTES: Final = 2_000  # of a group: its row, key and name
SPARSE_NS: Final = 60 * 10**9  # captures: interpolate over at most this time between references
TRUSTED_NS: Final = 1 << 34  # captures: references are not forged, so the delay may change by this much


@dataclass(frozen=True, kw_only=True)
class FlowsSettings:
    """Where references come from, how to interpolate between them, and what to report."""

    reference: str = "stamp"
    method: str = "busy"
    drain: int | None = None  # bytes a second; None: learned
    overhead: int = 0
    mark: int | None = None
    every: int = 20
    memory: int = 128 << 20
    inactive_ns: int = 15 * 10**9
    active_ns: int = 30 * 60 * 10**9
    hold: float = 1.0
    direction: Direction | None = None
    interval_ns: int | None = None
    groups: Groups = field(default_factory=lambda: Groups("flow", GROUPS))
    most_flows: int = 20  # lines of the table
    questions: Questions = field(default_factory=Questions)
    each_group: bool = False  # whether agreements must hold for each flow or group

    def __post_init__(self) -> None:
        one_of(self.reference, SOURCES, "reference")
        one_of(self.method, METHODS, "method")
        within(self.overhead, -100, 1000, "overhead")
        within(self.memory, 1 << 10, 1 << 37, "memory")
        within(self.every, 1, 1 << 20, "every")
        within(self.most_flows, 0, 1 << 40, "most_flows")
        if self.mark is not None:
            within(self.mark, 0, 63, "mark")
        if not 0 < self.hold <= 1:
            raise SettingError("hold", "must be above 0 and at most 1")
        if any(sla.name != "mean" for sla in self.questions.slas):
            raise SettingError("sla", "flows knows only the mean: write mean<10ms")

    def estimator(self) -> Rli:
        """The estimator."""
        from wirelag.estimators.rli import Rli

        made = Rli(
            self.method,  # type: ignore[arg-type]
            self.memory,
            self.drain,
            overhead=self.overhead,
            inactive_ns=self.inactive_ns,
            active_ns=self.active_ns,
            hold=self.hold,
            mark=self.mark,
        )
        if self.reference != "capture":
            return made
        return replace(made, bracket_ns=SPARSE_NS, early_ns=TRUSTED_NS, late_ns=TRUSTED_NS)


@dataclass(repr=False, eq=False)
class FlowsResult(Result):
    """One-way delay: of every flow, by group, over time and in total."""

    command: ClassVar[str] = "flows"
    report: Report
    total: FlowRow
    chosen: Flows
    settings: FlowsSettings
    intervals: list[tuple[Report, FlowRow]] = field(default_factory=list)
    groups: list[FlowRow] = field(default_factory=list)
    clock: Clock | None = None  # with two captures
    subject: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    coverage: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # references that were not used, by reason

    @property
    def by(self) -> str:
        """What is listed: flows or groups."""
        return self.settings.groups.by or "flow"

    @property
    def count(self) -> int:
        """How many flows or groups there are."""
        return len(self.chosen) if self.by == "flow" else len(self.groups)

    @cached_property
    def few(self) -> Few:
        """Flows or groups with too few packets timed for a place: how many come before them, and how many there are."""
        import numpy as np

        groups = [row.timed for row in self.groups if row.key != OTHER]
        timed = self.chosen.merged().column("timed") if self.by == "flow" else np.array(groups, np.uint64)
        enough = int(np.count_nonzero(timed >= np.uint64(FEWEST)))
        return enough, int(np.count_nonzero(timed)) - enough

    @property
    def few_notes(self) -> list[str]:
        """Which of them would be first."""
        before, few = self.few
        if not few or before + few < 2:
            return []
        what = "flows" if self.by == "flow" else "groups"
        have = f"fewer than {FEWEST} packets timed, too few to tell how slow they are"
        if not before:
            return [f"all {what} have {have}"]
        first = next(self.rows_of(self.chosen, before + 1, before)) if self.by == "flow" else self.groups[before]
        said = f"{first.key}, {format_duration((first.mean or 0.0) * 1e9)} ({many(first.timed, 'packet')})"
        return [f"{few:,} {what} come after the others, since they have {have}; the slowest of them: {said}"]

    @staticmethod
    def rows_of(flows: Flows, most: int | None = None, first: int = 0) -> Iterator[FlowRow]:
        """A row for each of these flows, slowest first, those with few packets timed last; or for some of them."""
        from wirelag.measure.flow_rows import flow_rows

        return flow_rows(flows, most, first)

    def flows(self) -> Iterator[FlowRow]:
        """A row for each flow, slowest first, those with few packets timed last."""
        return self.rows_of(self.chosen)

    def shown(self) -> list[FlowRow]:
        """The slowest flows or groups, those that the table shows."""
        most = self.settings.most_flows
        return list(self.rows_of(self.chosen, most)) if self.by == "flow" else self.groups[:most]

    @property
    def _mean(self) -> Mean:
        from wirelag.stats.sla import Mean

        return Mean(None if self.report.mean is None else self.report.mean * 1e9)

    @property
    def verdicts(self) -> list[str]:
        """Whether service-level agreements hold, in words."""
        return with_groups(self.settings.questions.sentences(self._mean), self.broken)

    @cached_property
    def broken(self) -> dict[str, Broken]:
        """How flows or groups meet agreements, where these are about each."""
        from wirelag.stats.sla import Mean

        asked = self.settings.questions
        if not asked.slas or not self.settings.each_group:
            return {}
        rows = self.flows() if self.by == "flow" else iter(self.groups)
        means = ((row, Mean(None if row.mean is None else row.mean * 1e9)) for row in rows)
        return failing_groups((row.key, asked.of(mean), row.timed) for row, mean in means)

    @property
    def holds(self) -> bool:
        together = self.settings.questions.of(self._mean).hold
        return together and not any(groups.failing for groups in self.broken.values())

    def to_dict(self) -> dict[str, Any]:
        return self._summary() | {"flows": [row.to_dict() for row in self.flows()]}

    def _summary(self) -> dict[str, Any]:
        plain = self.report.to_json("flows") | {"reference": self.settings.reference, "notes": self.notes}
        plain |= {"partial": True} if self.partial else {}
        if self.clock is not None:
            plain["clock"] = self.clock.to_json()
        plain |= self.settings.questions.of(self._mean).beside(self.broken).to_dict()
        plain["intervals"] = [part.to_json() for part, _ in self.intervals]
        plain["groups"] = [row.to_dict() for row in self.groups]
        return plain

    def to_json_text(self) -> Iterable[str]:
        """The JSON in pieces, with the flows last, one per line: there may be a million."""
        yield json.dumps(self._summary(), indent=2).removesuffix("\n}") + ',\n  "flows": ['
        between = "\n    "
        for row in self.flows():
            yield between + json.dumps(row.to_dict())
            between = ",\n    "
        yield "\n  ]\n}\n"

    def parts(self) -> Iterable[dict[str, Any]]:
        return (part.to_json() for part in [part for part, _ in self.intervals] or [self.report])

    def flow_records(self) -> Iterator[FlowRecord]:
        from wirelag.render.flow_records import of_flows

        return of_flows(self.chosen.merged())

    def rows(self) -> list[dict[str, Any]]:
        return list(self.rows_table().rows())

    def rows_table(self) -> Table:
        from wirelag.render.flows import rows_table

        return rows_table(self)

    def table(self) -> list[str]:
        from wirelag.render.flows import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.flows_page import page

        return page(self)


def flows(
    source: PathOrFile | Sequence[PathOrFile],
    *,
    upstream: PathOrFile | None = None,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    direction: str | None = None,
    method: str = "busy",
    drain: str | None = None,
    overhead: int = 0,
    reference: str | None = None,
    mark: int | None = None,
    every: int = 20,
    memory: Size = "128MiB",
    inactive: Duration = "15s",
    active: Duration = "30m",
    hold: Share = 1.0,
    interval: Duration | None = None,
    by: str | None = None,
    most_flows: int = 20,
    group_memory: Size = "256MiB",
    ipv4_prefix: int = 24,
    ipv6_prefix: int = 48,
    sla: Sequence[str] | str = (),
    cores: int | None = None,
    progress: Progress = iter,
    on: Any = None,
) -> FlowsResult:
    """Measure the one-way delay of every flow behind a queue, from sparse reference packets.

    `source` was captured behind the queue. References are STAMP packets in it, or, with `upstream`, packets that this
    capture from before the queue also holds. `drain` is the rate of the queue ("2Gbps"); by default it is learned.
    Flows are listed unless `by` is given; with `by`, agreements must hold for each flow or group. `on` works on it
    elsewhere, as in `rtt`: one task reads everything, since all packets pass one queue.
    """
    from wirelag.stats.queue_drain import parse_drain

    settings = FlowsSettings(
        reference=_reference(reference, upstream, mark, source),
        method=method,
        drain=None if drain is None else parse_drain(drain),
        overhead=overhead,
        mark=mark,
        every=every,
        memory=size_bytes(memory, "memory"),
        inactive_ns=duration_ns(inactive, "inactive"),
        active_ns=duration_ns(active, "active"),
        hold=share(hold, "hold"),
        direction=direction_of(direction),
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        groups=Groups(by or "flow", GROUPS, size_bytes(group_memory, "group_memory"), ipv4_prefix, ipv6_prefix),
        most_flows=most_flows,
        questions=Questions.parse((), sla).need_no_legs(),
        each_group=by is not None,
    )
    from wirelag.packets.filters import Filter

    reading = ReadOptions(Filter.of(filter), tunnels, progress, cores_of(cores))
    if on is None:
        return measure_flows(source, upstream, settings, reading)
    from wirelag.measure.fleet import Fleet
    from wirelag.measure.flows_many import flows_on

    return flows_on(Fleet.of(on), source, upstream, settings, reading)


def _reference(
    reference: str | None, upstream: PathOrFile | None, mark: int | None, captures: PathOrFile | Sequence[PathOrFile]
) -> str:
    """Where references come from; a second capture implies "capture"."""
    source = reference or ("capture" if upstream else "stamp" if mark is None else "marked")
    one_of(source, SOURCES, "reference")
    if source != "capture" and upstream:
        raise SettingError("upstream", "needs --reference capture")
    if (source == "marked") != (mark is not None):
        why = "needs the mark: --mark DSCP" if mark is None else "takes no --mark"
        raise SettingError("reference", f"{source} {why}")
    if source == "capture" and not upstream:
        raise SettingError("reference", "needs the capture of the other side: --upstream FILE")
    several = not isinstance(captures, str) and isinstance(captures, Sequence) and len(captures) > 1
    if source == "capture" and several:
        raise SettingError("reference", "capture takes one capture of each side")
    return source


def measure_flows(
    source: PathOrFile | Sequence[PathOrFile],
    upstream: PathOrFile | None,
    settings: FlowsSettings,
    reading: ReadOptions,
) -> FlowsResult:
    """The same, with checked settings."""
    from wirelag.capture.files import Capture
    from wirelag.capture.source import list_files
    from wirelag.measure.flow_references import against, alone, refused
    from wirelag.measure.flow_rows import Choice, group_rows, summary
    from wirelag.packets.packet_id import PacketId

    estimator, wanted = settings.estimator(), reading.filter
    # References and the queue need all packets; flows are selected afterwards.
    reading = replace(reading, filter=replace(wanted, nets=(), ports=(), protocols=(), expression=""))
    choice = Choice(wanted)
    if upstream is not None:
        points = points_of([upstream, source], reading)  # type: ignore[list-item]
        if wanted.expression:
            choice = Choice(wanted, keys=_passing(points[1].files, wanted, reading))
        found = against(estimator, points, settings.direction, settings.every, settings.interval_ns, choice)
        read = points[1].read
    else:
        files = dict(list_files(source))
        if wanted.expression:
            (point,) = points_of([source], reading)  # type: ignore[list-item]  # it keeps what standard input held
            files, choice = point.files, Choice(wanted, keys=_passing(point.files, wanted, reading))
        capture = Capture(
            list(files),
            names=files,
            filter=reading.filter,
            packet_id=PacketId(),
            tunnels=reading.tunnels,
            cores=reading.cores,
        )
        found = alone(estimator, capture, settings.direction, settings.interval_ns, choice, reading.progress)
        read = capture
    _need_references(found, settings.reference, read)
    statistics = found.statistics
    chosen, report, total = summary(found.flows, found.choice, "all", "all")
    report = replace(report, packets=statistics.packets, skipped=statistics.skipped)
    grouping = settings.groups.grouping(GROUP_BYTES) if settings.groups.by != "flow" else None
    counts = {"packets": statistics.packets, "of the selected flows": chosen.counts.get("regular", 0)}
    counts |= {"timed": report.samples, **{f"skipped: {why}": n for why, n in statistics.skipped.items()}}
    rows, more = group_rows(chosen, grouping) if grouping else ((), 0)
    groups = sorted(rows, key=lambda row: row.key == OTHER)
    held = sum(row.timed for row in groups if row.key == OTHER)
    result = FlowsResult(
        report,
        total,
        chosen,
        settings,
        intervals=found.intervals,
        groups=groups,
        clock=found.clock,
        subject=found.names,
        notes=[*found.notes, *_notes(chosen), *other_note(f"{more:,}", held, report.samples, settings.groups.memory)],
        warnings=found.warnings,
        coverage=_coverage(found, chosen, report, settings.reference),
        counts=counts,
        refused=refused(chosen),
    )
    result.notes += result.few_notes
    return result


def _passing(files: dict[str, str], wanted: Filter, reading: ReadOptions) -> npt.NDArray[np.uint64]:
    """The keys of flows with a packet that passes tcpdump's expression."""
    import numpy as np

    from wirelag.capture.files import Capture
    from wirelag.estimators.rli import directed_keys

    keys = np.empty(0, np.uint64)
    capture = Capture(list(files), names=files, filter=wanted, tunnels=reading.tunnels)
    for batch in reading.progress(capture):
        keys = np.union1d(keys, directed_keys(batch))
    return keys


def _need_references(found: Referred, source: str, read: Capture | None) -> None:
    """Without references: say why, and what to do."""
    counts = found.flows.counts
    if counts.get("accepted", 0):
        return
    refused = _refused_text(found.flows)
    if source == "capture":
        raise WirelagError(
            f"{found.names}: no packet in both captures was drawn as a reference{refused and f' ({refused})'}; "
            f"draw more of them: --every 5"
        )
    which = "UDP port 862" if source == "stamp" else "any UDP port, with the mark"
    what = f"no reference packet could be used ({refused})" if refused else "no reference packets"
    if line := hint(read, "flows") if read and not refused else "":
        raise WirelagError(f"{found.names}: {what}: {line}")
    raise WirelagError(
        f"{found.names}: {what}; send some from before the queue (STAMP, RFC 8762, {which}), "
        f"or name a capture from there: --reference capture --upstream FILE"
    )


def _refused_text(flows: Flows) -> str:
    from wirelag.measure.flow_references import refused

    return ", ".join(f"{n:,} {why}" for why, n in refused(flows).items())


def _notes(flows: Flows) -> list[str]:
    """Notes on what the figures alone would hide."""
    notes, counts = [], flows.counts
    if flows.fallback:
        part = "" if flows.used == "linear" else f" for {flows.straight:,} of {flows.settled:,} packets"
        way_out = "" if flows.drain.bytes_per_s else " (--drain)"
        notes.append(f"busy fell back to linear{part}: {flows.fallback}{way_out}")
    elif flows.method == "busy" and counts.get("untrusted", 0):
        notes.append(f"{counts['untrusted']:,} packets were timed by linear: the queue was not known yet")
    if counts.get("rejected_time", 0) > counts.get("accepted", 0):
        notes.append("most references have implausible times: does the sender's clock step?")
    evicted = counts.get("evicted", 0)
    if evicted:
        notes.append(f"{evicted:,} flows were evicted because memory was full, and may be counted again (--memory)")
    if counts.get("unlisted", 0):
        notes.append(f"{counts['unlisted']:,} flow records are not listed: there were too many")
    if counts.get("unheld", 0):
        notes.append(f"{counts['unheld']:,} packets belong to no flow (--hold)")
    return notes


def _coverage(found: Referred, flows: Flows, report: Report, source: str) -> list[str]:
    """What the figures rest on."""
    share, regular = report.details["coverage"], flows.counts.get("regular", 0)
    lines = [f"{many(found.statistics.packets, 'packet')}; {flows.timed:,} of {regular:,} timed"]
    lines[0] += "" if share is None else f" ({share:.2%})"
    skipped = sum(found.statistics.skipped.values())
    lines[0] += f"; {skipped:,} skipped" if skipped else ""
    refused = _refused_text(flows)
    used = f"{flows.counts.get('accepted', 0):,} references used"
    lines.append(used + (f", not used: {refused}" if refused else ""))
    instead = " instead of busy" if flows.used != flows.method else ""
    parts = [f"method {flows.used}{instead}"]
    if flows.drain.bytes_per_s:
        parts.append(f"the queue drains at {format_rate(8 * flows.drain.bytes_per_s)}")
    if flows.base_ns is not None:
        parts.append(f"the fixed delay is {format_duration(flows.base_ns)}")
    lines.append("; ".join(parts))
    if source != "capture":
        lines.append("delays are between two clocks, the sender's and the capture's: they include the clock offset")
    return lines
