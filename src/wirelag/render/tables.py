"""Tables for a terminal: the common layout, and cells that several tables share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from wirelag.units import format_duration, format_time

if TYPE_CHECKING:
    from wirelag.measure.result import DelayResult, Entry
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution

WIDEST_KEY: Final = 44
UNKNOWN: Final = "-"
BLOCKS: Final = "▁▂▃▄▅▆▇█"


class Keyed(Protocol):
    """Whatever a line of a table is about."""

    @property
    def key(self) -> str:
        """Its name."""


K = TypeVar("K", bound=Keyed)


def layout(
    parts: Sequence[tuple[str, Sequence[K]]], head: str, cells: Callable[[K], str], widest: int = WIDEST_KEY
) -> list[str]:
    """One line per entry, key and cells, under the title of its part; parts without entries are left out.

    A key that is too wide is cut.
    """
    width = min(widest, max(len(entry.key) for _, entries in parts for entry in entries))
    lines = [f"{'':<{width}}  {head}"]
    for title, entries in parts:
        lines += [title] if title and entries else []
        lines += [f"{cut(entry.key, width):<{width}}  {cells(entry)}" for entry in entries]
    return lines


def shown_groups(result: DelayResult) -> Sequence[Entry]:
    """The groups of the table: as many as it may have."""
    return result.groups[: result.top]


def more_groups(result: DelayResult) -> list[str]:
    """How many groups the table leaves out."""
    more = len(result.groups) - result.top
    return [f"and {more:,} more groups (--top {len(result.groups)}, --format csv)"] if more > 0 else []


def slowest_lines(result: DelayResult) -> list[str]:
    """The slowest samples: how long, when, and the display filter that shows their packets in Wireshark."""
    if not result.slowest:
        return []
    lines = ["slowest, with a display filter for Wireshark"]
    several = len({capture for one in result.slowest for capture in one.filters}) > 1
    for one in result.slowest:
        filters = [f"{capture}: {text}" if several else text for capture, text in one.filters.items()]
        lines.append(f"{format_duration(one.delay_ns):>9}  {format_time(one.time_ns)}  {'; '.join(filters)}")
    return lines


def order_text(result: DelayResult, where: str = "") -> str:
    """What groups are in order of."""
    return f"{'most samples' if result.sort == 'samples' else f'largest {result.sort}'}{where} first"


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits."""
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(seconds: float | None) -> str:
    """A duration as people read it, or a dash."""
    return UNKNOWN if seconds is None else format_duration(seconds * 1e9)


def mean_with_bounds(report: Report, otherwise: str = "") -> str:
    """The mean and its 95% interval, or the text for a missing interval."""
    bounds = report.ci95.get("mean")
    between = f"{duration(bounds[0])} to {duration(bounds[1])}" if bounds else otherwise
    return ", ".join(part for part in (duration(report.mean), between) if part)


def quantiles(report: Report, names: Sequence[str]) -> str:
    """Quantiles side by side."""
    return "  ".join(f"{duration(report.quantiles[name]):>8}" for name in names)


class Pictures:
    """Small pictures of distributions, all on one axis: a block for each octave of ns, as high as its share."""

    def __init__(self, whole: Distribution) -> None:
        self._first = self._last = 0
        if whole.samples:
            self._first = max((whole.min_ns or 1).bit_length() - 1, 0)
            self._last = max((whole.max_ns or 1).bit_length() - 1, 0)

    @property
    def axis(self) -> str:
        """The range of the axis."""
        return f"{format_duration(2**self._first)} to {format_duration(2 ** (self._last + 1))}"

    def of(self, entry: Entry) -> str:
        """The picture of one entry; values beyond the axis are in its first or last block."""
        shape = entry.delays.by_octave() if entry.shape is None else entry.shape
        shares = shape[self._first : self._last + 1].copy()
        shares[0] += shape[: self._first].sum()
        shares[-1] += shape[self._last + 1 :].sum()
        top = shares.max() or 1.0
        return "".join(" " if share == 0 else BLOCKS[min(7, int(8 * share / top))] for share in shares)
