"""What `wirelag telemetry` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from wirelag.render.tables import duration, with_bounds

if TYPE_CHECKING:
    from wirelag.measure.telemetry import TelemetryResult

MOST: Final = 20  # rows of each table
HOPS: Final = ("hop", "packets", "mean", "adds", "shortest", "p50", "p99")
NODES: Final = ("inside node", "packets", "mean", "adds", "shortest", "p50", "p99")
LOSSES: Final = ("loss of QUIC", "packets", "before here", "behind here", "whole path")


def table(result: TelemetryResult) -> list[str]:
    """Hops, nodes, and loss of QUIC, as far as packets tell; the notes under them."""
    spaces = {one["namespace"] for one in result.ioam["hops"]}

    def name(one: dict[str, Any], text: str) -> str:
        return text if len(spaces) < 2 else f"{text} (namespace {one['namespace']})"

    hops = [(name(one, f"{one['from']} > {one['to']}"), *_delays(one)) for one in result.ioam["hops"]]
    nodes = [(name(one, one["node"]), *_delays(one["inside"])) for one in result.ioam["nodes"] if one["inside"]]
    losses = [(one["key"], *_losses(one)) for one in result.quic["flows"]]
    if len(losses) > 1:
        losses.insert(0, ("all", *_losses(result.quic["all"])))
    lines: list[str] = []
    for head, rows in ((HOPS, hops), (NODES, nodes), (LOSSES, losses)):
        if rows:
            lines += [*_laid_out([head, *rows[:MOST]]), *_more(len(rows)), ""]
    return lines + result.notes


def _more(rows: int) -> list[str]:
    return [f"and {rows - MOST:,} more (--format csv)"] if rows > MOST else []


def _delays(one: dict[str, Any]) -> tuple[str, ...]:
    bounds = one["ci95"].get("mean")
    mean = with_bounds(one["mean"], None if bounds is None else (bounds[0], bounds[1]))
    figures = one["adds"], one["min"], one["quantiles"]["0.5"], one["quantiles"]["0.99"]
    return f"{one['samples']:,}", mean, *map(duration, figures)


def _losses(one: dict[str, Any]) -> tuple[str, ...]:
    shares = []
    for place in ("upstream", "downstream", "end_to_end"):
        bounds = one["ci95"].get(place)
        shares.append(f"{one[place]:.2%}" + (f" ({bounds[0]:.2%} to {bounds[1]:.2%})" if bounds else ""))
    return f"{one['packets']:,}", *shares


def _laid_out(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
