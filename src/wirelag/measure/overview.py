"""Many captures at a glance: each measured by itself, worst first.

Law: figures of two captures are never added up. Captures are in order of p99 to the server; those with too few samples
for that come after the others, and those that cannot be read come last, with the reason. Results are dropped as soon as
their figures are taken and their pages written, so that memory does not grow with the captures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.capture.names import CAPTURE
from wirelag.errors import SettingError, WirelagError
from wirelag.measure.result import DelayResult, Result
from wirelag.stats.ranking import FEWEST

if TYPE_CHECKING:
    from wirelag.measure.points import Progress
    from wirelag.measure.rtt import RttResult
    from wirelag.packets.filters import Filter
    from wirelag.report import Report

MAGIC: Final = tuple(bytes.fromhex(text) for text in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"))
SORT: Final = "0.99"
Write = Callable[[str, DelayResult], str]
"""Writes the page of a result, and returns its name."""


@dataclass(frozen=True)
class Seen:
    """One capture: the reports of its quantities ("server", "client", "response"), and where their pages are."""

    file: str
    packets: int = 0
    reports: Mapping[str, Report] = field(default_factory=dict)
    slowest: str = ""  # the slowest server
    pages: Mapping[str, str] = field(default_factory=dict)  # by command
    broken: Sequence[str] = ()  # verdicts on agreements that do not hold, for all servers or for one, as sentences
    warnings: Sequence[str] = ()
    reason: str = ""  # why nothing was measured
    error: str = ""  # why it cannot be read

    @property
    def place(self) -> tuple[int, float, str]:
        """Its place in the order."""
        server = self.reports.get("server")
        if self.error or server is None or not server.samples:
            return 3 if self.error else 2, 0.0, self.file
        return int(server.samples < FEWEST), -(server.quantiles[SORT] or 0.0), self.file

    def to_dict(self) -> dict[str, Any]:
        """Its figures; times in seconds."""
        plain: dict[str, Any] = {"file": self.file, "packets": self.packets, "slowest": self.slowest or None}
        for name in ("server", "client", "response"):
            report = self.reports.get(name)
            plain[name] = report.to_json() if report is not None and report.samples else None
        plain |= {"broken": list(self.broken), "warnings": list(self.warnings)}
        return plain | {"reason": self.reason or None, "error": self.error or None, "pages": dict(self.pages)}


@dataclass(repr=False, eq=False)
class OverviewResult(Result):
    """Captures, worst first."""

    command: ClassVar[str] = "report"
    captures: list[Seen]
    subject: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        """Captures that cannot be read."""
        return [one.error for one in self.captures if one.error]

    @property
    def holds(self) -> bool:
        """Whether every agreement holds in every capture."""
        return not any(one.broken for one in self.captures)

    def to_dict(self) -> dict[str, Any]:
        plain = {"command": self.command, "captures": [one.to_dict() for one in self.captures]}
        return plain | ({"partial": True} if self.partial else {})

    def rows(self) -> list[dict[str, Any]]:
        from wirelag.render.overview import row_of

        return [row_of(one) for one in self.captures]

    def parts(self) -> Iterable[dict[str, Any]]:
        return (one.to_dict() for one in self.captures)

    def table(self) -> list[str]:
        from wirelag.render.overview import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.overview import page

        return page(self)


def overview(
    *folders: str | os.PathLike[str],
    filter: Filter | str | None = None,
    tunnels: bool = False,
    sla: Sequence[str] | str = (),
    write: Write | None = None,
    cores: int | None = None,
    progress: Progress = iter,
) -> OverviewResult:
    """Measure every capture in folders, each by itself, and list them, worst first.

    Round-trip delay and response latency are measured. `write` gets each result with charts, and returns the name of
    its page. A capture that cannot be read is listed with the reason.
    """
    names = [os.fspath(folder) for folder in folders]
    paths = [path for name in names for path in find_captures(name)]
    if not paths:
        raise WirelagError(f"{', '.join(names)}: no capture in here; name a folder with captures")
    settings: dict[str, Any] = {"filter": filter, "tunnels": tunnels, "cores": cores, "progress": progress}
    seen = []
    try:
        for path in paths:
            seen.append(_look(path, settings, sla, write))
    except KeyboardInterrupt:
        if not seen:
            raise
    result = OverviewResult(sorted(seen, key=lambda one: one.place), subject=", ".join(names))
    result.partial = len(seen) < len(paths)
    result.warnings = result.errors + [line for one in result.captures for line in one.warnings]
    return result


def find_captures(folder: str) -> Iterator[str]:
    """The captures in a folder and in the folders below it, in order of their names; a file is itself.

    Folders that cannot be read come last: whoever opens one says why.
    """
    if not os.path.exists(folder):
        raise WirelagError(f"{folder}: no such folder")
    if not os.path.isdir(folder):
        yield folder
        return
    closed: list[str] = []
    for where, below, names in os.walk(folder, onerror=lambda error: closed.append(error.filename)):
        below.sort()
        yield from (path for name in sorted(names) if _is_capture(path := os.path.join(where, name)))
    yield from closed


def _is_capture(path: str) -> bool:
    """Whether a file begins like a capture; compressed and damaged ones are known by their names."""
    named = CAPTURE.search(path) is not None
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return named or file.read(4) in MAGIC
    except OSError:
        return named  # whoever opens it says why


def _look(path: str, settings: Mapping[str, Any], sla: Sequence[str] | str, write: Write | None) -> Seen:
    from wirelag.measure.response import response
    from wirelag.measure.rtt import rtt

    try:
        trips = rtt(path, by="server", sla=sla, charts=write is not None, **settings)
    except SettingError:
        raise
    except WirelagError as error:
        return Seen(path, error=str(error))
    reports = {leg: one.report for leg, one in trips.total.legs.items()}
    pages = {"rtt": write(path, trips)} if write and trips.total.legs else {}
    ranked = [one.key for one in trips.groups[:1] if one.legs.get("server")]
    with suppress(WirelagError):  # the same packets were read above: no client is among them
        waits = response(path, **settings)
        if waits.report.samples:
            reports["response"] = waits.report
            pages |= {"response": write(path, waits)} if write else {}
    return Seen(
        path,
        packets=trips.report.packets or 0,
        reports=reports,
        slowest=ranked[0] if ranked else "",
        pages=pages,
        broken=_broken(trips),
        warnings=trips.warnings,
        reason="" if reports else trips.extra.get("hint", trips.report.reason or "no samples"),
    )


def _broken(trips: RttResult) -> list[str]:
    holding = {one["question"] for one in trips.total.verdicts.sla if one["holds"]} - trips.broken.keys()
    return [line for line in trips.notes[: len(trips.asked)] if line.partition(":")[0] not in holding]
