"""What is told beside the figures of `oneway`: what a mean would hide, and what spoils it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.measure.oneway import MeasuredPair
    from wirelag.synopses.crossing import Crossing


def explanations(measured: MeasuredPair) -> list[str]:
    """Notes on what a mean would hide."""
    from wirelag.stats.modes import explain_clusters

    crossing, notes = measured.whole, []
    sample = crossing.tail
    if sample.negative and not any("negative delays" in note for note in measured.notes):
        share = sample.negative / max(1, sample.weight)
        notes.append(
            f"{sample.negative:,} delays ({share:.1%}) are negative: these packets were seen downstream first, "
            f"or the clocks differ (--offset, --clock)"
        )
    if _straddled(measured):
        notes.append(
            "intervals are short for delays that vary so much: packets that straddle an edge are left out, and these "
            "are the slow ones, so that the mean is too small; use rda or join, or a longer --interval"
        )
        for one in (measured.whole, *measured.crossings.values()):
            one.too_small = "intervals are short for delays that vary so much"
    if contradicted := crossing.details.get("contradicted"):
        notes.append(
            f"in {contradicted:,} of {measured.intervals:,} intervals the sums of {measured.estimator} contradict the "
            f"delays of single packets (copies, or packets that overtake each other): these figures are those of the "
            f"sampled packets; rda and join are exact"
        )
    spoiled = _spoiled(crossing)
    if spoiled:
        notes.append(spoiled)
    clusters = explain_clusters(sample.sent_ns, sample.delays_ns)
    if clusters:
        begin_ns = int(sample.sent_ns.min())
        told = "; ".join(cluster.describe(begin_ns) for cluster in clusters)
        notes.append(f"delays fall into {len(clusters)} separate groups, so the mean says little: {told}")
    share = crossing.details.get("share", 1.0)
    if share < 1:
        notes.append(f"{share:.1%} of packets were kept because memory was full (--memory); counts are scaled")
    if measured.undecoded:
        notes.append(f"{measured.undecoded} of {measured.intervals} intervals did not decode: use more --buckets")
    if measured.lost_delimiters:
        notes.append(
            f"{measured.lost_delimiters} delimiters were seen at one point only: the intervals around them are merged"
        )
    return notes


def _straddled(measured: MeasuredPair) -> bool:
    """Whether sums of intervals miss slow packets, which begin in one interval and end in another.

    Law: a packet with delay d straddles an edge with probability d / interval and is left out, which makes the mean too
    small by variance / interval. Where packets keep their order and edges are packets, none straddles. Told where that
    is 1% of the mean, or half of its own uncertainty.
    """
    crossing = measured.whole
    if not crossing.net_loss or not measured.interval_ns or crossing.mean_ns is None or len(crossing.tail) < 2:
        return False
    if measured.delimited and not crossing.order.overtaken and not crossing.tail.disordered:
        return False
    missing_ns = float(crossing.tail.delays_ns.std()) ** 2 / measured.interval_ns
    return missing_ns > min(0.01 * abs(crossing.mean_ns), crossing.moments.error_ns or math.inf)


def _spoiled(crossing: Crossing) -> str | None:
    """Note what sums hide but a sample of delays shows."""
    sample, std = crossing.tail.delays_ns.astype(float), crossing.std_ns
    if std is None or len(sample) < 100 or std <= 4 * sample.std() + 1000:
        return None
    single = format_duration(sample.std())
    return (
        f"the deviation is {format_duration(std)}, that of {len(sample):,} single delays {single}: "
        f"buckets of equal count hold different packets (duplicates, reordering); do not trust the mean, use rda"
    )


# ---- what was measured, as a result ----
