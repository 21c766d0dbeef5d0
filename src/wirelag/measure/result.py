"""What a question returns: figures for a program, a table for a terminal, a page with charts for a notebook.

Law: `to_dict()` is the command's JSON, byte for byte. Nothing here measures: a result holds reports, and only
presents them in another form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError, WirelagError, need_polars
from wirelag.measure.groups import OTHER, told_apart
from wirelag.measure.questions import Questions, Verdicts, failing_groups, with_groups
from wirelag.stats.ranking import FEWEST, Few
from wirelag.units import format_duration, many

if TYPE_CHECKING:
    import polars as pl

    from wirelag.capture.packet_rows import PacketDelays
    from wirelag.capture.sample_file import SampleColumns
    from wirelag.capture.source import Packets
    from wirelag.capture.table import Table
    from wirelag.measure.slowest import Slow
    from wirelag.render.flow_records import FlowRecord
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.stats.over_time import Alike
    from wirelag.stats.sla import Delays

    Shape = Sequence[float]


COARSE: Final = 0.1  # share of delays of 0 ns that tells
PARTIAL: Final = "partial: stopped before the end of the input; figures cover only the packets read until then"


class Result(ABC):
    """What every question returns."""

    command: ClassVar[str]  # the command that prints it
    notes: list[str]  # lines under the table
    warnings: list[str]  # what could not be read, one line each
    command_line: str = ""  # set if a command line asked
    partial: bool = False  # whether the input was ended before its end

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON of the command, as plain values; times in seconds."""

    def to_json_text(self) -> Iterable[str]:
        """The JSON in pieces, as the command prints it."""
        import json

        yield json.dumps(self.to_dict(), indent=2) + "\n"

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A row for each report, for CSV and Parquet; times in seconds."""

    @abstractmethod
    def parts(self) -> Iterable[dict[str, Any]]:
        """The JSON lines: intervals if there are any, else the total."""

    @abstractmethod
    def table(self) -> list[str]:
        """The lines for a terminal."""

    def page(self) -> str:
        """One self-contained HTML page; the table, unless a question has charts."""
        from wirelag.render.html.frame import table_page

        return table_page(self)

    @property
    def holds(self) -> bool:
        """Whether every service-level agreement holds."""
        return True

    def aside(self, form: str) -> list[str]:
        """What goes to standard error: the warnings, and what a format for programs has no place for."""
        return self.warnings

    def end_early(self) -> None:
        """Mark it as partial: it covers only the packets that were read."""
        self.partial = True
        self.warnings.append(PARTIAL)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a data frame, of one schema for each command."""
        need_polars("A data frame")
        import polars as pl

        return pl.concat([table.to_polars() for table in self.tables()])

    def rows_table(self) -> Table:
        """The rows as columns, of one schema for each command."""
        from wirelag.render.rows import table_of

        return table_of(self.rows(), self.command)

    def tables(self) -> Iterator[Table]:
        """The rows as columns, in parts where there may be many."""
        yield self.rows_table()

    def flow_records(self) -> Iterator[FlowRecord]:
        """A record for each flow, for formats of flows; an error if no flows are listed."""
        raise WirelagError(f"{self.command} lists no flows; rtt --by flow and flows do")

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """The page; with a path, it is also written there."""
        page = self.page()
        if path is not None:
            from wirelag.render.output import write_html

            write_html(fspath(path), page)
        return page

    def _repr_html_(self) -> str:
        """The page for a notebook's cell; a frame isolates its policy and scripts."""
        import html

        return f'<iframe srcdoc="{html.escape(self.page())}" style="width:100%;height:640px;border:0"></iframe>'

    def __str__(self) -> str:
        return "\n".join([*self.table(), *(f"warning: {line}" for line in self.warnings)])

    __repr__ = __str__


@dataclass(eq=False)
class Entry:
    """One report and its subject: the total, a leg, a segment, an interval or a group."""

    scope: str
    key: str
    report: Report
    delays: Distribution
    shape: Shape | None = None  # by octave, where too many entries exist to keep their delays
    verdicts: Verdicts = field(default_factory=Verdicts)
    legs: dict[str, Entry] = field(default_factory=dict)  # of round trips: to the server, to the client
    estimated: Entry | None = None  # of responses: estimates beside paired exchanges
    words: Sequence[int] = ()  # of a group: what its key is made of
    tag: int | None = None  # of its group, in what is kept of groups for charts

    def by_leg(self) -> dict[str, Entry]:
        """Both legs, and the figures that come first if they are of neither, or there is no leg."""
        chosen = self.report.details["leg"]
        return dict(self.legs) if chosen in ("server", "client") and self.legs else {**self.legs, chosen: self}

    def by_method(self) -> list[Entry]:
        """The figures, and the estimates beside them."""
        return [self] if self.estimated is None else [self, self.estimated]

    def beside(self) -> dict[str, Any]:
        """The estimates as a field of JSON, if there are any."""
        return {} if self.estimated is None else {"estimated": self.estimated.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON, with the verdicts."""
        return self.report.to_json() | self.verdicts.to_dict() | self.beside()


def shape_only(entry: Entry) -> Entry:
    """Keep only the shape of the distributions of one of many entries."""
    from wirelag.stats.distribution import Distribution

    nothing = Distribution.nothing()
    for one in (entry, *entry.legs.values()):
        # Delays and how sure they are refer to each other: without this their memory would not be freed.
        one.shape, one.delays.certainty = one.delays.by_octave(), None
        one.delays = nothing
    return entry


def _most(share: float) -> str:
    """A share, where 100% is all and not most.

    >>> _most(1.0), _most(0.9963), _most(0.68)
    ('all', 'over 99% of', '68% of')
    """
    return "all" if share == 1 else f"{'over 99' if share > 0.99 else format(100 * share, '.0f')}% of"


OPEN: Final = (
    "at least: delays change so slowly that what was seen does not bound a figure from above; the upper end of the 95% "
    "interval is in JSON"
)

BARE: Final = "delays change so slowly that what was seen bounds it from neither side; its ends are in JSON"


def doubt(entry: Entry, length_ns: int, alike: Alike) -> None:
    """Widen its intervals, or take them away, by how delays of the whole are alike.

    A part that has all samples is the whole.
    """
    from wirelag.stats.over_time import within_whole

    report = entry.report
    if report.ci95 and report.samples != alike.samples:
        figures = {"mean": report.mean, "max": report.max, **report.quantiles}
        ci95, why = within_whole(report.ci95, figures, length_ns, alike)
        entry.report = replace(report, ci95=ci95, details={**report.details, "no_interval": why})


@dataclass(repr=False, eq=False)
class DelayResult(Result):
    """Delays: in total, over time, by group. What `rtt`, `response` and `oneway` return."""

    total: Entry
    segments: list[Entry] = field(default_factory=list)  # of a path
    intervals: list[Entry] = field(default_factory=list)
    groups: Sequence[Entry] = field(default_factory=list)
    by: str = ""  # kind of groups
    sort: str = ""  # the figure that groups are in order of
    ranked: str = ""  # the leg whose figure that is, if there are legs
    few: Few = (0, 0)  # groups with too few samples for their place
    top: int = 20  # groups that the table shows
    each: bool = True  # whether agreements must hold for each group, too
    subject: str = ""  # names of the captures
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # coverage, by what is counted
    extra: dict[str, Any] = field(default_factory=dict)  # fields of JSON besides the common ones
    samples: SampleColumns | PacketDelays | None = None  # every delay, on request
    slowest: list[Slow] = field(default_factory=list)  # the slowest samples, where each is known
    errors: list[str] = field(default_factory=list)  # captures that could not be read at all, if others could

    @property
    def all_kept(self) -> bool:
        """Whether no group is in "other", which comes last."""
        return not len(self.groups) or self.groups[-1].key != OTHER

    @property
    def report(self) -> Report:
        """The report over all packets."""
        return self.total.report

    @property
    def mean(self) -> float | None:
        """The mean in seconds."""
        return self.report.mean

    @property
    def ci95(self) -> Mapping[str, tuple[float, float]]:
        """95% intervals in seconds, by figure: "mean", "0.5", "0.99"."""
        return self.report.ci95

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds: a share of q of delays lies below it."""
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
            raise SettingError("q", f"{q!r} is not between 0 and 1")
        known = self.report.quantiles.get(f"{q:g}")
        if known is not None:
            return known
        ns = self.total.delays.quantile_ns(q)
        return None if ns is None else ns / 1e9

    def ask(self, questions: Questions, delays: Delays, of_groups: Mapping[str, Delays] | None = None) -> None:
        """Put questions to the total and to every group."""
        self.total.verdicts = questions.of(delays)
        asked = {entry.key: entry.delays for entry in self.groups} if of_groups is None else of_groups
        for entry in self.groups:
            entry.verdicts = questions.of(asked[entry.key])
        self.judge(questions.sentences(delays))

    def judge(self, sentences: Sequence[str]) -> None:
        """Say the verdicts on all delays and on groups in one sentence each, before anything else."""
        groups = self.groups if self.total.verdicts.sla else ()
        broken = failing_groups((entry.key, entry.verdicts, entry.report.samples) for entry in groups)
        self.total.verdicts = self.total.verdicts.beside(broken)
        self.notes = with_groups(sentences, broken, self.each) + self.notes

    @property
    def holds(self) -> bool:
        """Whether every agreement holds in total and, with `each`, is not known to fail for a group."""
        if not self.total.verdicts.sla:
            return True
        return self.total.verdicts.hold and not (self.each and self._groups_fail())

    def _groups_fail(self) -> bool:
        """Whether an agreement is known to fail for a group."""
        return any(entry.verdicts.fail for entry in self.groups)

    def coarse_notes(self) -> list[str]:
        """Where request and response often have the same time: the clock of the capture is too coarse for them."""
        whole = {f" to the {leg}": one.delays for leg, one in self.total.legs.items()} or {"": self.total.delays}
        same = {where: 1 - (delays.share_above(0) or 0.0) for where, delays in whole.items() if delays.samples}
        return [
            f"{_most(share)} delays{where} are 0 ns, since request and response have the same time: the times of this "
            "capture are too coarse for such delays"
            for where, share in same.items()
            if share >= COARSE
        ]

    def interval_notes(self) -> list[str]:
        """Why figures have no 95% interval: those of the total, or of how many others."""
        whole = {f" to the {leg}": one.report for leg, one in self.total.legs.items()} or {"": self.report}
        why = {
            where: BARE if one.is_bare() else one.details.get("no_interval")
            for where, one in whole.items()
            if "mean" not in one.ci95 or one.is_bare()
        }
        lines = [f"the mean{where} has no 95% interval: {reason}" for where, reason in why.items() if reason]
        if len(lines) == len(whole):
            return [*self._few_notes(), *lines]
        rows = *self.segments, *self.intervals, *self.groups[: self.top]  # of a million groups most are never made
        legs = [entry.legs or {"": entry} for entry in rows]  # as a table shows them
        others = [(leg, one.report) for each in legs for leg, one in each.items() if one.report.samples]
        bare = [leg for leg, one in others if one.is_bare()]
        lacking = bare + [leg for leg, one in others if "no_interval" in one.details and "mean" not in one.ci95]
        notes = [*self._few_notes(), *self.rank_notes(), *lines]
        if any(one.is_open() and not one.is_bare() for one in (*whole.values(), *(one for _, one in others))):
            notes.append(OPEN)
        if not lacking:
            return notes
        count = Counter(leg for leg, _ in others)
        told = [f"{n:,} of {count[leg]:,} rows{leg and f' to the {leg}'}" for leg, n in Counter(lacking).items()]
        too_few = "too few delays, or delays that change too slowly, to tell how much of a mean is chance"
        return [*notes, f"the mean has no 95% interval in {' and in '.join(told)}: {too_few}"]

    def not_told_apart(self) -> list[str]:
        """Keys of groups shown that 95% intervals do not tell from the next one, by the figure they are in order of."""
        if self.sort in ("", "samples", "max", "std"):  # these have no interval
            return []
        shown = [(entry.key, entry.legs.get(self.ranked, entry).report) for entry in self.groups[: self.top]]
        shown = [(key, report) for key, report in shown if key != OTHER and report.samples]
        return [key for (key, one), (_, after) in pairwise(shown) if not told_apart(one, after, self.sort)]

    def rank_notes(self) -> list[str]:
        """How many places in the order of groups may be chance; where none has an interval, another note says so."""
        shown = self.groups[: self.top]
        unsure = len(self.not_told_apart()) if any(entry.report.ci95 for entry in shown) else 0
        if not unsure:
            return []
        return [
            f"order by {self.sort}: {unsure:,} of {len(shown):,} groups may belong after the next one; 95% intervals "
            "do not tell them apart"
        ]

    def _few_notes(self) -> list[str]:
        """Which groups have too few samples for a place in the order, and which of them would be first."""
        before, groups = self.few
        if not groups or len(self.groups) < 2:
            return []
        have = f"fewer than {FEWEST} samples, too few to tell how slow"
        if not before:
            return [f"order by {self.sort}: all groups have {have} they are"]
        first = self.groups[before]
        report = first.legs.get(self.ranked, first).report
        said = f"{first.key}, {format_duration((report.figure(self.sort) or 0.0) * 1e9)}"
        return [
            f"order by {self.sort}: {groups:,} of {len(self.groups):,} groups "
            f"{'comes after the others, since it has' if groups == 1 else 'come after the others, since they have'} "
            f"{have} {'it is' if groups == 1 else 'they are'}; the largest {self.sort} among them: "
            f"{said} ({many(report.samples, 'sample')})"
        ]

    def covering(self, packets: int, skipped: dict[str, int]) -> None:
        """Set how many packets the total rests on: the same number for its legs, and for estimates beside it."""
        for one in (*self.total.legs.values(), *self.total.by_method()):
            one.report = replace(one.report, packets=packets, skipped=skipped)

    def explain(self, packets: Packets) -> None:
        """Without an estimate: say why, and what to try."""
        if any(one.report.samples for one in (*self.total.by_method(), *self.total.legs.values())):
            return
        from wirelag.measure.hints import hint

        if line := hint(packets, self.command):
            self.notes.append(line)
            self.extra["hint"] = line

    def aside(self, form: str) -> list[str]:
        line = self.extra.get("hint")
        return self.warnings + ([f"no delays: {line}"] if line and form not in ("table", "json") else [])

    def to_dict(self) -> dict[str, Any]:
        return self._summary() | {"groups": [{"key": entry.key} | entry.to_dict() for entry in self._each_group()]}

    def _summary(self) -> dict[str, Any]:
        """All but the groups, which come last."""
        plain = self.report.to_json(self.command) | self.extra | self.total.verdicts.to_dict() | self.total.beside()
        plain["intervals"] = [entry.to_dict() for entry in self.intervals]
        plain["slowest"] = [one.to_dict() for one in self.slowest]
        plain |= {"partial": True} if self.partial else {}
        plain |= {"errors": [*self.errors]} if self.errors else {}
        return plain

    def to_json_text(self) -> Iterable[str]:
        """The JSON in pieces: there may be a million groups."""
        from wirelag.render.json_text import indented

        if not self.groups:
            yield indented(self.to_dict()) + "\n"
            return
        yield indented(self._summary()).removesuffix("\n}") + ',\n  "groups": ['
        between = "\n    "
        for entry in self._each_group():
            yield between + indented({"key": entry.key} | entry.to_dict(), "    ")
            between = ",\n    "
        yield "\n  ]\n}\n"

    def _each_group(self) -> Iterable[Entry]:
        """The groups, for rows and JSON: there may be a million, and no picture of them is drawn."""
        each = getattr(self.groups, "each", None)
        return self.groups if each is None else each()

    def parts(self) -> Iterable[dict[str, Any]]:
        return (entry.to_dict() for entry in self.intervals or [self.total])

    def rows(self) -> list[dict[str, Any]]:
        from wirelag.render.rows import row_of

        return [row_of(entry) for entry in (self.total, *self.segments, *self.intervals, *self.groups)]
