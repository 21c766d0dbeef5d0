"""Tables for a terminal: the common layout, and cells that several tables share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from wirelag.units import format_duration, format_interval, format_time, many

if TYPE_CHECKING:
    from wirelag.measure.result import DelayResult, Entry
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution

WIDEST_KEY: Final = 44
UNKNOWN: Final = "-"
BLOCKS: Final = "▁▂▃▄▅▆▇█"
MOST_TOP: Final = 1000  # groups that a table may well show
_SHORT_KEY: Final = 15  # an IPv4 address


class Keyed(Protocol):
    """Whatever a line of a table is about."""

    @property
    def key(self) -> str:
        """Its name."""


K = TypeVar("K", bound=Keyed)


class Row(str):
    """A line of a table in full width, which knows its cells: `fit` lays them out again for a narrower terminal."""

    key: str
    cells: Sequence[str]
    table: tuple[Sequence[str], Sequence[int]]  # the head's cells, and the columns in the order they are dropped

    def __new__(cls, key: str, width: int, cells: Sequence[str], table: tuple[Sequence[str], Sequence[int]]) -> Row:
        row = super().__new__(cls, f"{cut(key, width):<{width}}  {'  '.join(cells)}".rstrip())
        row.key, row.cells, row.table = key, cells, table
        return row


def layout(
    parts: Sequence[tuple[str, Sequence[K]]],
    head: Sequence[str],
    cells: Callable[[K], Sequence[str]],
    widest: int = WIDEST_KEY,
    drop: Sequence[int] = (),
) -> list[str]:
    """One line per entry, key and cells, under the title of its part; parts without entries are left out.

    A key that is too wide is cut. `drop` are columns that a narrow terminal can do without, the first to go first; an
    entry with fewer cells than the head has text in the last.
    """
    width = min(widest, max(len(entry.key) for _, entries in parts for entry in entries))
    table = head, drop
    lines: list[str] = [Row("", width, head, table)]
    for title, entries in parts:
        lines += [title] if title and entries else []
        lines += [Row(entry.key, width, cells(entry), table) for entry in entries]
    return lines


def fit(lines: Sequence[str], width: int, told: bool = True) -> list[str]:
    """The lines, none wider than this: columns are dropped, long keys get a line of their own, text is wrapped.

    The last line names the columns that were dropped, if that is to be `told`.
    """
    tables: dict[int, _Narrow] = {}
    for line in lines:
        if isinstance(line, Row):
            tables.setdefault(id(line.table[0]), _Narrow(line.table, width)).see(line)
    fitted: list[str] = []
    for line in lines:
        fitted += tables[id(line.table[0])].lines(line) if isinstance(line, Row) else _wrapped(line, width)
    dropped = list(dict.fromkeys(name for table in tables.values() for name in table.dropped()))
    if dropped and told:
        names = ", ".join(dropped)
        fitted += _wrapped(f"left out, to fit {width} columns: {names}; to see all, pipe to `less -S`", width)
    return fitted


def _wrapped(line: str, width: int) -> list[str]:
    """Text in lines; they go on below its last column, if that leaves three fifths of the width."""
    import re
    import textwrap

    columns = [found.end() for found in re.finditer(r"\S {2,}(?=\S)", line) if found.end() <= width * 2 // 5]
    start = columns[-1] if columns else len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(line, width, subsequent_indent=" " * start, break_on_hyphens=False) or [""]


def _bare(cell: str) -> str:
    """A cell without its padding. A picture keeps the blanks before it: they are its place on the axis."""
    return cell.rstrip() if set(cell) <= {*BLOCKS, " "} else cell.strip()


class _Narrow:
    """A table as wide as a terminal."""

    def __init__(self, table: tuple[Sequence[str], Sequence[int]], width: int) -> None:
        self._head, self._drop = table
        self._width, self._key = width, 0
        self._sizes = [0] * len(self._head)

    def see(self, row: Row) -> None:
        """Learn how wide its cells are."""
        self._key = max(self._key, len(row.key))
        if len(row.cells) == len(self._sizes):
            self._sizes = [max(size, len(_bare(cell))) for size, cell in zip(self._sizes, row.cells, strict=True)]

    def _columns(self) -> tuple[list[int], int]:
        """The columns that stay, and the width of keys."""
        kept = list(range(len(self._sizes)))
        for column in (*self._drop, None):
            room = self._width - sum(self._sizes[i] + 2 for i in kept)
            if room >= min(self._key, _SHORT_KEY) or column is None:
                break
            kept.remove(column)
        return kept, max(2, min(self._key, room))

    def dropped(self) -> list[str]:
        """Names of the columns that are left out; the last one may have the axis of pictures as its head."""
        kept, _ = self._columns()
        names = [name.strip() for name in self._head]
        return [
            "pictures" if " to " in names[i] and i == len(names) - 1 else names[i]
            for i in range(len(names))
            if i not in kept and names[i]
        ]

    def lines(self, row: Row) -> list[str]:
        """One line, or two if the key does not fit beside the cells."""
        kept, key_width = self._columns()
        if len(row.cells) == len(self._sizes):
            cells = [self._cell(_bare(row.cells[i]), i) for i in kept]
        else:
            cells = [row.cells[0].strip(), *(cell.strip() for cell in row.cells[1:])]
        own_line = [cut(row.key, self._width)] if len(row.key) > key_width else []
        text = f"{'' if own_line else row.key:<{key_width}}  {'  '.join(cells)}".rstrip()
        return own_line + (_wrapped(text, self._width) if len(text) > self._width else [text])

    def _cell(self, text: str, column: int) -> str:
        left = not self._head[column].strip() or column == len(self._head) - 1
        return f"{text:<{self._sizes[column]}}" if left else f"{text:>{self._sizes[column]}}"


def shown_groups(result: DelayResult) -> Sequence[Entry]:
    """The groups of the table: as many as it may have."""
    return result.groups[: result.top]


def more_groups(result: DelayResult) -> list[str]:
    """How many groups the table leaves out."""
    more = len(result.groups) - result.top
    top = f"--top {len(result.groups)}, " if more <= MOST_TOP else ""
    return [f"and {many(more, 'more group')} ({top}--format csv)"] if more > 0 else []


def slowest_lines(result: DelayResult) -> list[str]:
    """The slowest samples: how long, when, and the display filter that shows their packets in Wireshark."""
    if not result.slowest:
        return []
    leg = result.ranked or result.report.details.get("leg", "")
    where = f" to the {leg}" if leg in ("server", "client") else " single delays of either leg" * bool(leg)
    lines = [f"slowest{where} (UTC), with a display filter for Wireshark"]
    several = len({capture for one in result.slowest for capture in one.filters}) > 1
    for one in result.slowest:
        filters = [f"{capture}: {text}" if several else text for capture, text in one.filters.items()]
        to = f"  to the {one.leg}" if leg in ("both", "mixed") else ""
        lines.append(f"{format_duration(one.delay_ns):>9}{to}  {format_time(one.time_ns)}  {'; '.join(filters)}")
    return lines


def order_text(result: DelayResult, where: str = "", groups: Sequence[Entry] | None = None) -> str:
    """What these groups, or those shown, are in order of, as far as they are."""
    shown = shown_groups(result) if groups is None else groups
    reports = [entry.legs.get(result.ranked, entry).report for entry in shown]
    if reports and result.sort != "samples" and all(report.figure(result.sort) is None for report in reports):
        return f"none has a {result.sort}{where}"
    kept = "" if result.all_kept else ", of the groups kept"
    few = ", those with few samples last" if all(result.few) else ""
    return f"{'most samples' if result.sort == 'samples' else f'largest {result.sort}'}{where} first{few}{kept}"


def sorted_by(result: DelayResult, shown: Sequence[str]) -> list[str]:
    """The figure that groups are in order of, if the columns shown are without it: it gets a column, too."""
    return [result.sort] if len(result.groups) and result.sort not in (*shown, "samples") else []


def figures(report: Report, names: Sequence[str]) -> list[str]:
    """A cell for each figure."""
    return [f"{duration(report.figure(name)):>8}" for name in names]


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits."""
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(seconds: float | None, bounds: tuple[float, float] | None = None) -> str:
    """A duration as people read it, or a dash; with as many digits as its interval needs."""
    width = math.inf if bounds is None else bounds[1] - bounds[0]
    return UNKNOWN if seconds is None else format_duration(seconds * 1e9, width * 1e9)


def interval(bounds: tuple[float, float]) -> str:
    """An interval in seconds as people read it."""
    return format_interval(bounds[0] * 1e9, bounds[1] * 1e9)


def with_bounds(seconds: float | None, bounds: tuple[float, float] | None) -> str:
    """A figure and its 95% interval, if it has one."""
    return duration(seconds, bounds) + (f", {interval(bounds)}" if bounds else "")


def mean_text(report: Report) -> str:
    """The mean and its 95% interval, if it has one; where that is open, its lower end, if there is one."""
    if report.is_open():
        low = f", at least {duration(report.ci95['mean'][0])}"
        return duration(report.mean) + ("" if report.is_bare() else low)
    return with_bounds(report.mean, report.ci95.get("mean"))


def mean_cells(
    entries: Iterable[Entry], text: Callable[[Report], str] = mean_text
) -> tuple[str, Callable[[Report], str]]:
    """The column of means with their 95% intervals: its head, and the cell of a report."""
    title = "mean, 95% interval"
    width = max([len(title), *(len(text(entry.report)) for entry in entries)])
    return f"{title:^{width}}", lambda report: f"{text(report):^{width}}"


class Pictures:
    """Small pictures of distributions, all on one axis: a block for each octave of ns, as high as its share."""

    def __init__(self, whole: Distribution) -> None:
        self._first = self._last = 0
        self._empty = not whole.samples
        if whole.samples:
            self._first = max((whole.min_ns or 1).bit_length() - 1, 0)
            self._last = max((whole.max_ns or 1).bit_length() - 1, 0)

    @property
    def axis(self) -> str:
        """The range of the axis; empty without delays."""
        return "" if self._empty else f"{format_duration(2**self._first)} to {format_duration(2 ** (self._last + 1))}"

    def of(self, entry: Entry) -> str:
        """The picture of one entry; values beyond the axis are in its first or last block."""
        shape = entry.delays.by_octave() if entry.shape is None else entry.shape
        shares = list(shape[self._first : self._last + 1])
        shares[0] += sum(shape[: self._first])
        shares[-1] += sum(shape[self._last + 1 :])
        top = max(shares) or 1.0
        return "".join(" " if share == 0 else BLOCKS[min(7, int(8 * share / top))] for share in shares)
