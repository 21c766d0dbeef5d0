"""What `wirelag response` prints: its table, and the rows of its epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import need_polars
from wirelag.render.rows import method_cells, timed
from wirelag.render.tables import (
    duration,
    figures,
    layout,
    mean_cells,
    mean_text,
    more_groups,
    order_text,
    shown_groups,
    slowest_lines,
    sorted_by,
)

if TYPE_CHECKING:
    import polars as pl

    from wirelag.measure.response import ResponseResult
    from wirelag.measure.result import Entry
    from wirelag.report import Report
    from wirelag.synopses.epochs import Epochs

PARTS: Final = ("server", "network", "transfer", "think")  # parts of an exchange
WIDEST_KEY: Final = 48


def table(result: ResponseResult) -> list[str]:
    """A line for the total, each interval and each group: those of paired exchanges, then those of estimates."""
    parts = [
        ("", [result.total]),
        ("over time (UTC)", result.intervals),
        (f"by {result.by}", shown_groups(result)),
    ]
    lines: list[str] = []
    names = [*SHOWN, *sorted_by(result, (*SHOWN, "mean"))]
    pairs_head = [*(f"{name:>8}" for name in names), "", *(f"{name:>8}" for name in PARTS)]
    parts_at = 2 + len(names) + 1
    places = sorted((3, 2, 4)[: len(names)], key=lambda at: names[at - 2] == result.sort)  # that column goes last
    pairs_drop = (*range(parts_at + 3, parts_at - 1, -1), *places)
    for estimator, cells, head, drop in (
        ("pairs", partial(_pairs_cells, names), pairs_head, pairs_drop),
        ("pirate", _epoch_cells, ["", *_EPOCHS_HEAD], (5, 4, 3, 6, 7)),
    ):
        own = [(title, [one for entry in entries for one in _of(entry, estimator)]) for title, entries in parts]
        own[-1] = f"{own[-1][0]}, {order_text(result, groups=own[-1][1])}", own[-1][1]
        shown = [entry for _, entries in own for entry in entries]
        title, method = method_cells(shown)
        if shown:
            width = max(9, *(len(timed(entry.report)) for entry in shown))
            first = [f"{'responses':>{width}}", title.removesuffix("  ")]
            named, mean = mean_cells(shown, _mean_text)
            heads = [*first, *(text or named for text in head)]
            lines += layout(own, heads, partial(_line, width, method, mean, cells), WIDEST_KEY, drop)
    return lines + more_groups(result) + slowest_lines(result) + result.notes


def _of(entry: Entry, estimator: str) -> list[Entry]:
    return [one for one in entry.by_method() if one.report.estimator == estimator]


def _line(
    width: int,
    method: Callable[[Report], str],
    mean: Callable[[Report], str],
    cells: Callable[[Report, str], list[str]],
    entry: Entry,
) -> list[str]:
    report = entry.report
    return [f"{timed(report):>{width}}", method(report).removesuffix("  "), *cells(report, mean(report))]


SHOWN: Final = ("p50", "p99")  # figures that every table of exchanges has
_EPOCHS_HEAD: Final = (f"{'think':>8}", f"{'network':>8}", f"{'in flight':>9}", f"{'answered':>14}", "confidence")


def _mean_text(report: Report) -> str:
    """The mean with its interval; without an estimate, the reason."""
    if report.mean is not None or report.estimator == "pairs":
        return mean_text(report)
    abstained = report.details["abstained"]
    return f"cannot say: {max(abstained, key=abstained.get) if abstained else 'no requests'}"


def _pairs_cells(names: Sequence[str], report: Report, mean: str) -> list[str]:
    """The cells of exchanges seen both ways."""
    if report.mean is None:
        return [report.reason or ""]
    parts = [f"{duration(report.details[name]):>8}" for name in PARTS]
    return [*figures(report, names), mean, *parts]


def _epoch_cells(report: Report, mean: str) -> list[str]:
    """The cells of estimates from packets of clients."""
    said = report.details
    epochs = f"{said['answered']:,} of {said['epochs']:,}"
    if report.mean is None:
        return [mean, f"{'-':>8}", f"{'-':>8}", f"{'-':>9}", f"{epochs:>14}", "-"]
    return [
        mean,
        f"{duration(said['think']):>8}",
        f"{duration(said['network']):>8}",
        f"{said['in_flight']:>9.1f}",
        f"{epochs:>14}",
        f"{said['confidence']:.0%}",
    ]


def epoch_rows(epochs: Epochs) -> pl.DataFrame:
    """A row for each epoch; times since 1970 in ns, latencies in seconds, null where it abstained."""
    need_polars("Parquet")
    import polars as pl

    from wirelag.synopses.epochs import METHODS, REASONS, ends_text

    rows = epochs.rows
    plain: dict[str, Any] = {
        "flow": [ends_text(words, "flow") for words in epochs.ends.tolist()],
        "flow_key": rows["key"],
        "start_ns": rows["start_ns"],
        "end_ns": rows["end_ns"],
        "responses": rows["count"],
        "mean": _means(rows["sum_ns"], rows["count"]),
        "batch": _means(rows["batch_sum_ns"], rows["batch_count"]),
        "think": _means(rows["think_sum_ns"], rows["think_count"]),
        "network": [None if n < 0 else n / 1e9 for n in rows["network_ns"].tolist()],
        "in_flight": rows["in_flight"],
        "requests": rows["requests"],
        "lost": rows["lost"],
        "method": [METHODS[i] for i in rows["method"]],
        "reason": [REASONS[i] or None for i in rows["reason"]],
        "confidence": rows["confidence"] / 100,
    }
    words, numbers = ("flow", "method", "reason"), ("mean", "batch", "think", "network")
    kinds = dict.fromkeys(words, pl.String) | dict.fromkeys(numbers, pl.Float64)
    return pl.DataFrame(plain, schema_overrides=kinds)


def _means(sums_ns: Any, counts: Any) -> list[float | None]:
    return [s / n / 1e9 if n else None for s, n in zip(sums_ns.tolist(), counts.tolist(), strict=True)]
