"""Two results of the same question: what got slower, where, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from wirelag.errors import WirelagError
from wirelag.measure.result import Result

if TYPE_CHECKING:
    from wirelag.measure.comparison import Comparison

Comparable: TypeAlias = "Result | Mapping[str, Any] | str | PathLike[str]"
"""A result, its JSON as a dict, or a file that holds it."""


@dataclass(repr=False, eq=False)
class CompareResult(Result):
    """What changed: in all traffic, in its legs, and in the groups that both have."""

    command: ClassVar[str] = "compare"
    comparison: Comparison
    everything: bool = False  # whether the table shows every group
    subject: str = ""  # names of the reports
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_worse(self) -> bool:
        """Whether delay or loss got worse anywhere by more than chance."""
        return self.comparison.is_worse

    def to_dict(self) -> dict[str, Any]:
        return self.comparison.to_json()

    def rows(self) -> list[dict[str, Any]]:
        return [{"key": part.key} | change.to_row() for part in self.comparison.parts for change in part.changes]

    def parts(self) -> Iterable[dict[str, Any]]:
        return [part.to_json() for part in self.comparison.parts]

    def table(self) -> list[str]:
        from wirelag.render.compare import table

        return table(self.comparison, self.everything)

    def page(self) -> str:
        from wirelag.render.compare import page

        return page(self)


def compare(before: Comparable, after: Comparable, *, everything: bool = False) -> CompareResult:
    """Compare two results: what got slower, where, by how much, and whether by more than chance.

    Both are results of `rtt`, `response`, `oneway` or `flows`, or files of their JSON.
    """
    from wirelag.measure.comparison import ReportError
    from wirelag.measure.comparison import compare as compare_reports

    if before == after == "-":
        raise WirelagError("standard input is one report: name a file for the other")
    contents = _content(before), _content(after)
    try:
        comparison = compare_reports(*contents)
    except ReportError as error:
        one, other = _name(before, "the first"), _name(after, "the second")
        name = {"before": one, "after": other, "both": f"{one} and {other}"}[error.side]
        raise WirelagError(f"{name}: {error}") from None
    subject = f"{_name(before, 'the first')} and {_name(after, 'the second')}"
    return CompareResult(comparison, everything, subject, notes=list(comparison.notes))


def _content(given: Comparable) -> Mapping[str, Any]:
    from wirelag.capture.report_file import read_report

    if isinstance(given, Result):
        return given.to_dict()
    return read_report(fspath(given)) if isinstance(given, str | PathLike) else given


def _name(given: Comparable, otherwise: str) -> str:
    return fspath(given) if isinstance(given, str | PathLike) else otherwise
