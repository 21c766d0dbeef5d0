"""Reports as rows of CSV and Parquet; times in seconds.

Law: each command has one schema, whatever it measured. Files of several captures can be read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wirelag.report import QUANTILES

if TYPE_CHECKING:
    from wirelag.capture.table import Table
    from wirelag.measure.result import Entry
    from wirelag.report import Report

ONE_WAY_COLUMNS: Final = (
    *("sent", "received", "lost", "lost_low", "lost_high", "reordered", "duplicated", "negative", "used", "wire_bytes"),
)
RESPONSE_COLUMNS: Final = (
    *("answered", "epochs", "confidence", "in_flight", "batch", "think", "network"),
    *("exchanges", "first_byte", "server", "transfer"),
)
TEXTS: Final = {
    *("scope", "key", "leg", "method", "reason"),
    *("router",),  # plan
    *("from", "to", "segment", "kind", "above", "basis", "alike"),  # path
    *("name", "verdict"),  # compare
    *("file", "format"),  # info
    *("slowest", "broken"),  # report
}
COUNTS: Final = {
    *("packets", "samples", "answered", "epochs", "exchanges", *ONE_WAY_COLUMNS),
    *("upgraded", "paths", "probe_hops", "shortest", "longest"),
    *("bytes", "conversations"),
    *("colour",),  # marking
    *("namespace", "marked"),  # telemetry
    *("server_samples", "client_samples", "response_samples"),
}
TRUTHS: Final = {"given", "blamed"}
COLUMNS: Final = {  # of commands whose results may have no row
    "path": (
        *("from", "to", "segment", "kind", "share", "samples", "mean", "std", "floor", "sent", "lost", "loss", "adds"),
        *("above", "basis", "p_value", "blamed", "alike", "mean_low", "mean_high", "adds_low", "adds_high"),
    ),
    "compare": (
        *("key", "name", "before", "after", "difference", "ratio", "p_value", "verdict", "reason"),
        *("difference_low", "difference_high", "ratio_low", "ratio_high"),
    ),
    "info": ("file", "format", "packets", "bytes", "first", "last", "conversations"),
    "marking": ("start", "end", "colour", "sent", "received", "lost", "mean", "mean_low", "mean_high"),
    "telemetry": (
        *("scope", "key", "namespace", "samples", "mean", "adds", "min", "max", "p50", "p90", "p99", "mean_low"),
        *("mean_high", "packets", "lost", "marked", "upstream", "downstream", "end_to_end", "upstream_low"),
        *("upstream_high", "downstream_low", "downstream_high", "end_to_end_low", "end_to_end_high"),
    ),
    "stamp": (
        *("key", "sent", "received", "lost", "mean", "min", "max", "p50", "p90", "p99", "mean_low", "mean_high"),
        *("offset_low", "offset_high", "forward_low", "forward_high", "backward_low", "backward_high"),
    ),
    "plan": ("upgraded", "router", "given", "paths", "probe_hops", "shortest", "longest", "granularity"),
}


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


def rows_by_leg(entry: Entry) -> list[dict[str, Any]]:
    """A row for each leg of an entry of `rtt`."""
    when = entry.report.interval
    each = {leg: replace(one, report=one.report.during(when)) for leg, one in entry.by_leg().items()}
    rows = {leg: row_of(one) for leg, one in each.items()}
    return [{"scope": row["scope"], "key": row["key"], "leg": leg, **row} for leg, row in rows.items()]


def method_of(report: Report) -> str:
    """The methods behind the figures of a response, as one word."""
    return "+".join(report.details.get("method", ())) or "-"


def timed(report: Report) -> str:
    """How many responses the figures are of, and of how many exchanges if some have no time of their own."""
    exchanges = report.details.get("exchanges", report.samples)
    return f"{report.samples:,}" + (f" of {exchanges:,}" if exchanges > report.samples else "")


def method_cells(entries: Sequence[Entry]) -> tuple[str, Callable[[Report], str]]:
    """The column that names methods: its head, and the cell of a report."""
    width = max([len("method"), *(len(method_of(entry.report)) for entry in entries)])
    return f"{'method':<{width}}  ", lambda report: f"{method_of(report):<{width}}  "


def _label(name: str) -> str:
    return name if name == "mean" else f"p{float(name) * 100:g}"


def table_of(rows: Sequence[dict[str, Any]], command: str = "") -> Table:
    """Rows as a table: text, truths, whole numbers and floats, also where a column has no value or no row."""
    from wirelag.capture.table import Table

    kinds = ((TEXTS, "String"), (COUNTS, "Int64"), (TRUTHS, "Boolean"))
    names = COLUMNS[command] if command in COLUMNS else tuple(rows[0])
    schema = {name: next((kind for some, kind in kinds if name in some), "Float64") for name in names}
    return Table(schema, {name: [row[name] for row in rows] for name in names})
