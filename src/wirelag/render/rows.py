"""Reports as rows of CSV and Parquet; times in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

ONE_WAY_COLUMNS: Final = ("sent", "received", "lost", "reordered", "duplicated", "negative", "used", "wire_bytes")
RESPONSE_COLUMNS: Final = (
    *("answered", "epochs", "confidence", "in_flight", "batch", "think", "network"),
    *("exchanges", "first_byte", "server", "transfer"),
)


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
        **{f"p{float(q) * 100:g}": value for q, value in report.quantiles.items()},
    }
    for name in ("mean", *report.quantiles):
        low, high = report.ci95.get(name, (None, None))
        label = "mean" if name == "mean" else f"p{float(name) * 100:g}"
        row |= {f"{label}_low": low, f"{label}_high": high}
    if report.quantity == "one_way":
        row |= {name: report.details.get(name) for name in ONE_WAY_COLUMNS}
    if report.quantity == "response":
        row |= {name: report.details.get(name) for name in RESPONSE_COLUMNS} | {"reason": report.reason}
    return row
