"""Reports as rows of CSV and Parquet; times in seconds.

Law: each command has one schema, whatever it measured. Files of several captures can be read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from wirelag.report import QUANTILES

if TYPE_CHECKING:
    import polars as pl

    from wirelag.measure.result import Entry
    from wirelag.report import Report

ONE_WAY_COLUMNS: Final = ("sent", "received", "lost", "reordered", "duplicated", "negative", "used", "wire_bytes")
RESPONSE_COLUMNS: Final = (
    *("answered", "epochs", "confidence", "in_flight", "batch", "think", "network"),
    *("exchanges", "first_byte", "server", "transfer"),
)
TEXTS: Final = {"scope", "key", "leg", "method", "reason"}
COUNTS: Final = {"packets", "samples", "answered", "epochs", "exchanges", *ONE_WAY_COLUMNS}


def row_of(entry: Entry) -> dict[str, Any]:
    """One report, without the columns that its quantity does not have."""
    report, interval = entry.report, entry.report.interval
    row: dict[str, Any] = {
        "scope": entry.scope,
        "key": entry.key,
        "start": interval.start_ns / 1e9 if interval else None,
        "end": interval.end_ns / 1e9 if interval else None,
        "packets": report.packets,
        "samples": report.samples,
        **{name: getattr(report, name) for name in ("mean", "std", "min", "max")},
        **{_label(q): report.quantiles.get(q) for q in QUANTILES},
    }
    for name in ("mean", *QUANTILES):
        low, high = report.ci95.get(name, (None, None))
        row |= {f"{_label(name)}_low": low, f"{_label(name)}_high": high}
    if report.quantity == "one_way":
        row |= {name: report.details.get(name) for name in ONE_WAY_COLUMNS}
    if report.quantity == "response":
        row |= {"method": method_of(report)} | {name: report.details.get(name) for name in RESPONSE_COLUMNS}
        row["reason"] = report.reason
    return row


def method_of(report: Report) -> str:
    """The methods behind the figures of a response, as one word."""
    return "+".join(report.details.get("method", ())) or report.estimator


def method_cells(entries: Sequence[Entry]) -> tuple[str, Callable[[Report], str]]:
    """The column that names methods: its head, and the cell of a report."""
    width = max([len("method"), *(len(method_of(entry.report)) for entry in entries)])
    return f"{'method':<{width}}  ", lambda report: f"{method_of(report):<{width}}  "


def _label(name: str) -> str:
    return name if name == "mean" else f"p{float(name) * 100:g}"


def frame_of(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as a data frame: text, whole numbers and floats, also where a column has no value."""
    import polars as pl

    schema = {name: pl.String if name in TEXTS else pl.Int64 if name in COUNTS else pl.Float64 for name in rows[0]}
    return pl.DataFrame([list(row.values()) for row in rows], schema=schema, orient="row", strict=False)
