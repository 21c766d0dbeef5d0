"""What `wirelag stamp send` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag.render.tables import duration, with_bounds

if TYPE_CHECKING:
    from wirelag.measure.stamp import StampResult


def table(result: StampResult) -> list[str]:
    """Packets, round trips, one-way delays within their bounds; the notes under them."""
    plain = result.to_dict()
    lost = f"{result.lost:,} lost"
    if result.lost_forward is not None and result.lost:
        lost += f" ({result.lost_forward:,} there, {result.lost - result.lost_forward:,} back)"
    lines = [f"{result.target}: {result.sent:,} sent, {len(result.trips):,} replies, {lost}"]
    if result.trips:
        bounds = plain["ci95"].get("mean")
        mean = with_bounds(plain["mean"], None if bounds is None else (bounds[0], bounds[1]))
        figures = [f"p{float(q) * 100:g} {duration(value)}" for q, value in plain["quantiles"].items()]
        lines.append(
            f"round trip: mean {mean}; {', '.join(figures)}; {duration(plain['min'])} to {duration(plain['max'])}"
        )
        for name, way in (("forward", "there"), ("backward", "back")):
            low, high = plain[name]["low"], plain[name]["high"]
            lines.append(f"{way}: mean {duration(low)} to {duration(high)}, whatever the clocks differ by")
    return lines + result.notes
