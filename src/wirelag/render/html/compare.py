"""The page of a comparison: what changed, by how much, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from wirelag.render.compare import by_how_much, name_of, value_text, verdict_text
from wirelag.render.html.charts import Figure, all_rounded, between, rounded, rows_axis
from wirelag.render.html.frame import Frame, chart, coverage, document, listed, table

if TYPE_CHECKING:
    from wirelag.measure.comparison import ComparedPart, Comparison, FigureChange

MOST_BARS: Final = 30  # groups in the chart
MOST_GROUPS: Final = 500  # groups in the table
COLOURS: Final = {"slower": "bad", "higher": "bad", "faster": "c2", "lower": "c2", "cannot say": "c1"}
CLASSES: Final = {"worse": "bad", "better": "c2", "no more than chance": "soft", "cannot say": "c1"}
HEADS: Final = ("figure", "before", "after", "change", "95% interval", "more than chance?")


@dataclass(frozen=True, kw_only=True)
class ComparePage(Frame):
    """The content of a page about a comparison."""

    comparison: Comparison


def render_compare(page: ComparePage) -> str:
    """The page."""
    found = page.comparison
    parts = [("all" if not found.leg else f"to the {found.leg}", found.total)]
    parts += [(f"to the {leg.key}", leg) for leg in found.legs if leg.key != found.leg]
    texts = [(f"{name.capitalize()}: " if len(parts) > 1 else "") + verdict_text(part) for name, part in parts]
    leads = "".join(f'<p class="lead">{escape(text)}.</p>' for text in texts)
    rows = [[escape(name), *_cells(change)] for name, part in parts for change in part.changes if _is_known(change)]
    figures: dict[str, Figure] = {}
    sections = [f"<section>{leads}{listed(page.notes)}{table('All figures', ('', *HEADS), rows)}</section>"]
    drawn = [part for part in found.groups if _ratio(part.main) is not None][:MOST_BARS]
    if drawn:
        figures["groups"] = changes(drawn)
        sections.append(chart("groups", "What changed most", _text(found, len(drawn)), 110 + 26 * len(drawn)))
    if found.groups:
        sections.append(_groups(found))
    sections += [
        f"<section><h2>Only in the report {name}</h2><p>{escape(', '.join(keys[:MOST_GROUPS]))}</p></section>"
        for name, keys in (("before", found.only_before), ("after", found.only_after))
        if keys
    ]
    return document(page, "\n".join([*sections, coverage(page)]), figures)


def changes(parts: Sequence[ComparedPart]) -> Figure:
    """A point for each group: how many times as long as before, with its 95% interval; 1 is no change."""
    series: list[Figure] = []
    for verdict, colour in CLASSES.items():
        mine = [(row, part.main) for row, part in enumerate(parts) if COLOURS.get(part.main.verdict, "soft") == colour]
        if mine:
            ratios = [_ratio(change) or 1.0 for _, change in mine]
            series.append(
                {"draw": "points", "along": "x", "name": verdict, "x": all_rounded(ratios),
                 "y": [row for row, _ in mine], "colour": colour,
                 "mark": "square" if colour == "bad" else "circle", "size": 4.5,
                 "tips": [f"{name_of(change)} {value_text(change, change.before)} to {value_text(change, change.after)}"
                          for _, change in mine],
                 **between([change.ratio_ci95 for _, change in mine])}
            )  # fmt: skip
    ends = [x for one in series for x in (*one["x"], *one.get("low", ()), *one.get("high", ())) if x and x > 0] + [1.0]
    axis: Figure = {"kind": "count", "scale": "log", "title": "times as long as before"}
    axis |= {"range": [rounded(min(ends) / 1.1), rounded(max(ends) * 1.1)]}
    panel = {"y": rows_axis(part.key for part in parts), "series": series, "across": [{"x": 1, "colour": "all"}]}
    return {"x": axis, "panels": [panel]}


def _ratio(change: FigureChange) -> float | None:
    return change.ratio if change.ratio else None


def _is_known(change: FigureChange) -> bool:
    return change.before is not None or change.after is not None


def _cells(change: FigureChange) -> list[str]:
    amount, within = by_how_much(change)
    verdict = escape(f"{change.verdict}: {change.reason}" if change.reason else change.verdict)
    bad = COLOURS.get(change.verdict) == "bad"
    values = [escape(value_text(change, value)) for value in (change.before, change.after)]
    return [
        name_of(change),
        *values,
        escape(amount),
        escape(within),
        f'<span class="bad">{verdict}</span>' if bad else verdict,
    ]


def _text(found: Comparison, shown: int) -> str:
    of = f"The {shown} of {len(found.groups):,} groups that changed most" if shown < len(found.groups) else "All groups"
    return f"{of}; lines are 95% intervals, and the dashed line is no change. The axis is logarithmic."


def _groups(found: Comparison) -> str:
    rows = [[escape(part.key), *_cells(part.main)] for part in found.groups[:MOST_GROUPS]]
    more = len(found.groups) - len(rows)
    note = f"<p>and {more:,} more: --format json lists all.</p>" if more > 0 else ""
    called = sum(part.main.is_called for part in found.groups)
    by_chance = "; at most 5% of these by chance" if called else ""
    text = f"{called:,} of {len(found.groups):,} changed by more than chance{by_chance}."
    shown = table("Groups, the largest change first", ("group", *HEADS), rows)
    return f"<section><h2>Every group</h2><p>{text}</p>{shown}{note}</section>"
