"""What a question returns: figures for a program, a table for a terminal, a page with charts for a notebook.

Law: `to_dict()` is the command's JSON, byte for byte. Nothing here is a measurement: a result is made of reports, and
only says them in another form.
"""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar

from wirelag.measure.questions import Questions, Verdicts, failing_groups

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from wirelag.capture.sample_file import SampleColumns
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.stats.sla import Delays

    Shape = npt.NDArray[np.float64]


class Result(ABC):
    """What every question returns."""

    command: ClassVar[str]  # that prints it
    notes: list[str]  # lines under the table
    warnings: list[str]  # what could not be read, a line each
    command_line: str = ""  # where a command line asked for it

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON of the command, as plain values; times in seconds."""

    def to_json_text(self) -> Iterable[str]:
        """The JSON as the command prints it, in pieces."""
        yield json.dumps(self.to_dict(), indent=2) + "\n"

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A row for each report, as CSV and Parquet have it; times in seconds."""

    @abstractmethod
    def parts(self) -> Iterable[dict[str, Any]]:
        """What JSON lines have, a line each: intervals where they were asked for, else the whole."""

    @abstractmethod
    def table(self) -> list[str]:
        """The lines that a terminal shows."""

    def page(self) -> str:
        """One HTML page that needs nothing but itself."""
        raise NotImplementedError(f"{self.command} has no page")

    @property
    def holds(self) -> bool:
        """Whether every service-level agreement that was asked for holds."""
        return True

    def to_polars(self) -> pl.DataFrame:
        """The rows as a data frame."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """The page; with a path it is written there, too."""
        page = self.page()
        if path is not None:
            from wirelag.render.output import write_html

            write_html(fspath(path), page)
        return page

    def _repr_html_(self) -> str:
        """The page inside a notebook's cell: its policy and its scripts stay inside a frame."""
        try:
            page = self.page()
        except NotImplementedError:
            return f"<pre>{html.escape(str(self))}</pre>"
        return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:640px;border:0"></iframe>'

    def __str__(self) -> str:
        return "\n".join(self.table())

    __repr__ = __str__


@dataclass
class Entry:
    """One report and what it is of: everything, a leg, a segment, an interval or a group."""

    scope: str
    key: str
    report: Report
    delays: Distribution
    shape: Shape | None = None  # by octave, where there are too many entries to keep the delays of each
    verdicts: Verdicts = field(default_factory=Verdicts)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it, with what the questions found."""
        return self.report.to_json() | self.verdicts.to_dict()


@dataclass(repr=False)
class DelayResult(Result):
    """Delays: of everything, over time, by group. What `rtt`, `response` and `oneway` return."""

    total: Entry
    legs: list[Entry] = field(default_factory=list)  # the two directions, or the segments of a path
    intervals: list[Entry] = field(default_factory=list)
    groups: list[Entry] = field(default_factory=list)
    by: str = ""  # what groups are
    each: bool = True  # whether agreements must hold for each group, too
    subject: str = ""  # the names of the captures
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # coverage: what, and how many
    extra: dict[str, Any] = field(default_factory=dict)  # what JSON has beside the common fields
    samples: SampleColumns | None = None  # every delay, where they were asked for

    @property
    def report(self) -> Report:
        """What is said of everything."""
        return self.total.report

    @property
    def mean(self) -> float | None:
        """In seconds."""
        return self.report.mean

    @property
    def ci95(self) -> Mapping[str, tuple[float, float]]:
        """95% intervals in seconds, by figure: "mean", "0.5", "0.99"."""
        return self.report.ci95

    def quantile(self, q: float) -> float | None:
        """The delay in seconds below which a share of q lies."""
        known = self.report.quantiles.get(f"{q:g}")
        if known is not None:
            return known
        ns = self.total.delays.quantile_ns(q)
        return None if ns is None else ns / 1e9

    def ask(self, questions: Questions, delays: Delays, of_groups: Mapping[str, Delays] | None = None) -> None:
        """Put questions to everything and to every group."""
        self.total.verdicts = questions.of(delays)
        asked = {entry.key: entry.delays for entry in self.groups} if of_groups is None else of_groups
        for entry in self.groups:
            entry.verdicts = questions.of(asked[entry.key])
        self.notes += questions.sentences(delays)
        self.notes += failing_groups([(entry.key, entry.verdicts) for entry in self.groups])

    @property
    def holds(self) -> bool:
        """Whether every agreement holds for everything and, with `each`, is not known to fail for a group."""
        return self.total.verdicts.hold and not (self.each and any(entry.verdicts.fail for entry in self.groups))

    def covering(self, packets: int, skipped: dict[str, int]) -> None:
        """Say how many packets the total rests on."""
        self.total.report = replace(self.report, packets=packets, skipped=skipped)

    def to_dict(self) -> dict[str, Any]:
        plain = self.report.to_json(self.command) | self.extra | self.total.verdicts.to_dict()
        plain["intervals"] = [entry.to_dict() for entry in self.intervals]
        plain["groups"] = [{"key": entry.key} | entry.to_dict() for entry in self.groups]
        return plain

    def parts(self) -> Iterable[dict[str, Any]]:
        return (entry.to_dict() for entry in self.intervals or [self.total])

    def rows(self) -> list[dict[str, Any]]:
        from wirelag.render.rows import row_of

        segments = [entry for entry in self.legs if entry.scope == "segment"]
        return [row_of(entry) for entry in (self.total, *segments, *self.intervals, *self.groups)]
