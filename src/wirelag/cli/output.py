"""Reports as a table, JSON, JSON lines, CSV or Parquet, on standard output or in a file."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wirelag.errors import WirelagError
from wirelag.units import format_duration

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution

    Shape = npt.NDArray[np.float64]

CROSSING_COLUMNS = ("sent", "received", "lost", "reordered", "duplicated", "negative", "used", "wire_bytes")
RESPONSE_COLUMNS = (
    *("answered", "epochs", "confidence", "in_flight", "batch", "think", "network"),
    *("exchanges", "first_byte", "server", "transfer"),
)
JSON_WAY_OUT = "write it with --format json -o FILE"
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class Line:
    """One answer and what it is of: everything, a leg, an interval or a group."""

    scope: str
    key: str
    report: Report
    delays: Distribution
    shape: Shape | None = None  # by octave, where there are too many answers to keep the delays of each


@dataclass
class Answer:
    """All that a command has to say."""

    command: str
    total: Line
    legs: list[Line] = field(default_factory=list)
    intervals: list[Line] = field(default_factory=list)
    groups: list[Line] = field(default_factory=list)
    by: str = ""
    notes: list[str] = field(default_factory=list)  # lines under the table
    extra: dict[str, Any] = field(default_factory=dict)  # beside the contract's fields in JSON

    @property
    def lines(self) -> list[Line]:
        """Every answer."""
        return [self.total, *(line for line in self.legs if line.scope == "segment"), *self.intervals, *self.groups]

    def to_json(self) -> dict[str, Any]:
        """The JSON contract."""
        plain = self.total.report.to_json(self.command) | self.extra
        plain["intervals"] = [line.report.to_json() for line in self.intervals]
        plain["groups"] = [{"key": line.key} | line.report.to_json() for line in self.groups]
        return plain


def write_answer(
    answer: Answer, form: str, path: str | None, as_table: Callable[[Answer], list[str]] | None = None
) -> None:
    """Print or write an answer in one of the formats; a command may have a table of its own."""
    parts = (line.report.to_json() for line in answer.intervals or [answer.total])
    forms = Forms(answer.command, lambda: (as_table or table)(answer), answer.to_json, parts, lambda: _rows(answer))
    write_forms(forms, form, path)


@dataclass(frozen=True, slots=True)
class Forms:
    """What a command says, as each format wants it; made when it is wanted."""

    command: str
    lines: Callable[[], list[str]]  # for a person
    plain: Callable[[], dict[str, Any]]  # JSON
    parts: Iterable[dict[str, Any]]  # JSON lines
    rows: Callable[[], list[dict[str, Any]]]  # CSV, Parquet


def write_forms(forms: Forms, form: str, path: str | None) -> None:
    """Print or write it in one of the formats."""
    if form == "parquet" and path is None:
        raise WirelagError("Parquet is not for a terminal: name a file with -o")
    if form in ("csv", "parquet"):
        import polars as pl

        frame = pl.DataFrame(forms.rows(), infer_schema_length=None)
        with opened(path, binary=form == "parquet") as out:
            frame.write_parquet(out) if form == "parquet" else out.write(frame.write_csv())
        return
    with opened(path) as out:
        if form == "table":
            out.write("\n".join(forms.lines()) + "\n")
        elif form == "json":
            out.write(json.dumps(forms.plain(), indent=2) + "\n")
        else:
            out.writelines(json.dumps({"command": forms.command} | part) + "\n" for part in forms.parts)


@contextmanager
def opened(path: str | None, binary: bool = False, option: str = "-o") -> Iterator[IO[Any]]:
    """A file to write to, or standard output; an error names the file."""
    if path is None or path == "-":
        with _gathered(sys.stdout.buffer) if binary else nullcontext(sys.stdout) as out:
            yield out
        return
    try:
        with Path(path).open("wb" if binary else "w") as file, _gathered(file) if binary else nullcontext(file) as out:
            yield out
    except OSError as error:
        raise WirelagError(f"{path}: cannot write ({error.strerror}); choose another file with {option}") from None


@contextmanager
def _gathered(out: IO[bytes]) -> Iterator[IO[bytes]]:
    """All bytes at once: polars, where it writes to a full disk by itself, says that the table is wrong."""
    gathered = io.BytesIO()
    yield gathered
    out.write(gathered.getbuffer())


def read_report(path: str) -> dict[str, Any]:
    """A report in JSON, of a file or of standard input."""
    name = "standard input" if path == "-" else path
    if path == "-" and (sys.stdin is None or sys.stdin.isatty()):
        raise WirelagError("standard input is a terminal: pipe a report into it, or name a file")
    try:
        text = (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode()
    except OSError as error:
        raise WirelagError(f"{name}: cannot read: {error.strerror or error}; name a report in JSON") from None
    except ValueError:
        raise WirelagError(f"{name}: is not JSON but something that is no text; {JSON_WAY_OUT}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[: error.pos].strip().startswith("{"):
            raise WirelagError(f"{name}: holds several JSON objects, wants one; {JSON_WAY_OUT}, not jsonl") from None
        raise WirelagError(f"{name}: is not JSON (line {error.lineno}: {error.msg}); {JSON_WAY_OUT}") from None
    except (ValueError, RecursionError):
        raise WirelagError(f"{name}: is no JSON that can be read; {JSON_WAY_OUT}") from None
    if not isinstance(content, dict):
        raise WirelagError(f"{name}: is not a report: wants one JSON object; {JSON_WAY_OUT}")
    return content


def _rows(answer: Answer) -> list[dict[str, Any]]:
    """A row for each answer; times in seconds."""
    rows = []
    for line in answer.lines:
        report, interval = line.report, line.report.interval
        row: dict[str, Any] = {
            "scope": line.scope,
            "key": line.key,
            "start": interval.start_ns / 1e9 if interval else None,
            "end": interval.end_ns / 1e9 if interval else None,
            "packets": report.packets,
            "samples": report.samples,
            **{name: getattr(report, name) for name in ("mean", "std", "min", "max")},
            **{f"p{float(q) * 100:g}": value for q, value in report.quantiles.items()},
        }
        for name in ("mean", *report.quantiles):
            low, high = report.ci95.get(name, (None, None))
            label = "mean" if name == "mean" else f"p{float(name) * 100:g}"
            row |= {f"{label}_low": low, f"{label}_high": high}
        if report.quantity == "one_way":
            row |= {name: report.details.get(name) for name in CROSSING_COLUMNS}
        if report.quantity == "response":
            row |= {name: report.details.get(name) for name in RESPONSE_COLUMNS} | {"reason": report.reason}
        rows.append(row)
    return rows


def table(answer: Answer) -> list[str]:
    """The answer for a person: one line each, with a small picture of the distribution."""
    everything = [answer.total, *answer.legs, *answer.intervals, *answer.groups]
    width = min(44, max(len(line.key) for line in everything))
    span = octaves(answer.total.delays)
    lines = [
        f"{'':<{width}}  {'samples':>9}  {'p50':>8}  {'p90':>8}  {'p99':>8}  {'mean, 95% interval':^24}  {axis(span)}"
    ]
    lines += [_row(line, width, span) for line in (answer.total, *answer.legs)]
    for title, part in (("over time", answer.intervals), (f"by {answer.by}, slowest first", answer.groups)):
        if part:
            lines += [title, *(_row(line, width, span) for line in part)]
    return lines + answer.notes


def _row(line: Line, width: int, span: tuple[int, int]) -> str:
    report = line.report
    if not report.samples:
        return f"{line.key:<{width}}  {0:>9,}  {report.reason or 'no samples'}"
    values = [time_text(report.quantiles[q]) for q in ("0.5", "0.9", "0.99")]
    low_high = report.ci95.get("mean")
    interval = f"{time_text(low_high[0])} to {time_text(low_high[1])}" if low_high else "one sample"
    mean = f"{time_text(report.mean)}, {interval}"
    key = line.key if len(line.key) <= width else line.key[: width - 1] + "…"
    numbers = "  ".join(f"{value:>8}" for value in values)
    return f"{key:<{width}}  {report.samples:>9,}  {numbers}  {mean:^24}  {picture(line, span)}"


def time_text(seconds: float | None) -> str:
    """A duration as people read it, or a dash."""
    return "-" if seconds is None else format_duration(seconds * 1e9)


def octaves(delays: Distribution) -> tuple[int, int]:
    """The first and last octave of ns that hold something."""
    if not delays.samples:
        return 0, 0
    return max((delays.min_ns or 1).bit_length() - 1, 0), max((delays.max_ns or 1).bit_length() - 1, 0)


def axis(span: tuple[int, int]) -> str:
    """What the small pictures show, from left to right."""
    return f"{format_duration(2 ** span[0])} to {format_duration(2 ** (span[1] + 1))}"


def write_html(path: str, page: str) -> None:
    """Write a page, or say why that is not possible."""
    try:
        Path(path).write_bytes(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise WirelagError(f"{path}: cannot write ({error.strerror}); choose another file with --html") from None


def by_octave(delays: Distribution) -> Shape:
    """How many delays there are in each octave of ns: all that a small picture shows of them."""
    import numpy as np

    from wirelag.stats.distribution import MIDDLES_NS

    octaves = np.log2(np.maximum(MIDDLES_NS, 1)).astype(int)
    return np.asarray(np.bincount(octaves, weights=delays.weights.astype(float), minlength=64), np.float64)


def picture(line: Line, span: tuple[int, int]) -> str:
    """A block for each octave, as high as its share."""
    shape = by_octave(line.delays) if line.shape is None else line.shape
    first, last = span
    shares = shape[first : last + 1].copy()
    shares[0] += shape[:first].sum()
    shares[-1] += shape[last + 1 :].sum()
    top = shares.max() or 1.0
    return "".join(" " if share == 0 else BLOCKS[min(7, int(8 * share / top))] for share in shares)
