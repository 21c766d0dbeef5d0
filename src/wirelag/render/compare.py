"""What `wirelag compare` prints: its table and its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.measure.compare import CompareResult
    from wirelag.measure.comparison import Bounds, ComparedPart, Comparison, FigureChange

MOST_GROUPS: Final = 20
MOST_KEYS: Final = 10


def table(result: Comparison, everything: bool = False) -> list[str]:
    """The verdict, the total, its legs, and the groups that changed most."""
    shown = result.groups if everything else result.groups[:MOST_GROUPS]
    legs = [(f"to the {leg.key}", leg) for leg in result.legs if leg.key != result.leg]
    parts = [(_total_text(result), result.total), *legs]
    rows = [_row("" if i else key, change) for key, part in parts for i, change in _known(part)]
    groups = [_group_row(part) for part in shown]
    head = ["", "", "before", "after", "change", "95% interval", "more than chance?"]
    widths = [max(len(row[i]) for row in (head, *rows, *groups)) for i in range(len(head))]
    other = [f"{key}: {verdict_text(leg)}" for key, leg in legs if leg.main.is_called]
    verdict = f"{parts[0][0]}: {verdict_text(result.total)}" if other else verdict_text(result.total)
    lines = [verdict, *other, *(f"note: {note}" for note in result.notes)]
    lines += [_line(row, widths) for row in (head, *rows)]
    if result.groups:
        lines += [_title(result, len(shown)), *(_line(row, widths) for row in groups)]
    for name, keys in (("before", result.only_before), ("after", result.only_after)):
        if keys:
            lines.append(f"only in the report {name}: {_keys(keys, everything)}")
    return lines


def _total_text(result: Comparison) -> str:
    return f"to the {result.leg}" if result.leg in ("server", "client") else "all"


def _known(part: ComparedPart) -> list[tuple[int, FigureChange]]:
    """The figures that either report gives, numbered; a part without any shows its mean."""
    known = [change for change in part.changes if change.before is not None or change.after is not None]
    return list(enumerate(known or part.changes[:1]))


def _line(row: list[str], widths: list[int]) -> str:
    cells = [
        f"{cell:<{width}}" if i in (0, 1, len(row) - 1) else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _row(key: str, change: FigureChange) -> list[str]:
    verdict = f"{change.verdict}: {change.reason}" if change.reason else change.verdict
    values = [value_text(change, change.before), value_text(change, change.after)]
    return [key, name_of(change), *values, *by_how_much(change), verdict]


def _group_row(part: ComparedPart) -> list[str]:
    row = _row(part.key, part.main)
    called = [change for change in part.changes if change.is_called]
    if len(called) > 1:
        others = [
            f"{name_of(change)}{'' if change.verdict == part.main.verdict else ' ' + change.verdict}"
            for change in called[1:]
        ]
        row[-1] += f" (also {', '.join(others)})"
    return row


def verdict_text(part: ComparedPart) -> str:
    """The verdict on a part, with its main figure."""
    change = part.main
    if change.p_value is None:
        return f"cannot say: {change.reason}"
    amount, interval = by_how_much(change)
    moved = f"{name_of(change)} {value_text(change, change.before)} -> {value_text(change, change.after)}"
    return f"{part.verdict}: {moved}, {amount} (95% interval {interval})"


def _title(result: Comparison, shown: int) -> str:
    called = sum(part.main.is_called for part in result.groups)
    count = len(result.groups)
    parts = [f"{count:,} group{'' if count == 1 else 's'} in both, {called:,} changed by more than chance"]
    if called:
        parts[0] += " (at most 5% of these by chance)"
    if shown < count:
        parts.append(f"the {shown} that changed most (--all shows all)")
    return "; ".join(parts)


def _keys(keys: tuple[str, ...], everything: bool) -> str:
    listed = keys if everything else keys[:MOST_KEYS]
    more = f", and {len(keys) - len(listed):,} more (--all)" if len(listed) < len(keys) else ""
    return f"{len(keys):,} group{'' if len(keys) == 1 else 's'}: {', '.join(listed)}{more}"


def name_of(change: FigureChange) -> str:
    """A figure's name: mean, p99, loss."""
    return change.name if change.name == "mean" or change.is_rate else f"p{float(change.name) * 100:g}"


def value_text(change: FigureChange, value: float | None) -> str:
    """A value of a figure: a time, or a share."""
    if value is None:
        return "-"
    return f"{value:.3%}" if change.is_rate else format_duration(value * 1e9)


def by_how_much(change: FigureChange) -> tuple[str, str]:
    """The change and its interval: relative for delays, in points for rates, else in time."""
    if change.difference is None:
        return "-", "-"
    if change.is_rate:
        return _percent(change.difference, 3), _range(change.difference_ci95, lambda x: _percent(x, 3))
    if change.ratio is not None and (change.ratio_ci95 is not None or change.p_value is None):
        return _percent(change.ratio - 1, 1), _range(change.ratio_ci95, lambda x: _percent(x - 1, 1))
    return _signed(change.difference), _range(change.difference_ci95, _signed)


def _percent(share: float, digits: int) -> str:
    """A share with its sign; nothing has none.

    >>> _percent(0.123, 1), _percent(-0.00001, 1)
    ('+12.3%', '0.0%')
    """
    text = f"{share:+.{digits}%}"
    return text if text.strip("+-0.%") else text.lstrip("+-")


def _range(bounds: Bounds | None, text: Any) -> str:
    return "-" if bounds is None else f"{text(bounds[0])} to {text(bounds[1])}"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else ''}{format_duration(seconds * 1e9)}"


def page(result: CompareResult) -> str:
    """The page with a chart of the groups that changed most."""
    from wirelag.render.html.compare import ComparePage, render_compare

    return render_compare(
        ComparePage(
            title="What changed",
            subject=result.subject,
            command_line=result.command_line,
            comparison=result.comparison,
            notes=result.notes,
            warnings=result.warnings,
        )
    )
