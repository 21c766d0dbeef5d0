"""What is told beside the figures of `oneway`: what a mean would hide, and what spoils it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wirelag.measure.questions import named
from wirelag.units import format_duration, many

if TYPE_CHECKING:
    from wirelag.measure.oneway import MeasuredPair
    from wirelag.measure.result import Entry
    from wirelag.synopses.crossing import Crossing

EDGES: Final = "an edge parts copies, which the total cannot tell apart, or a late packet from its row"


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
    if contradicted := _contradicted(measured):
        notes.append(
            f"in {contradicted} the sums of {measured.estimator} contradict the delays of single packets (copies, or "
            f"packets that overtake each other): these figures are those of the sampled packets; rda and join are exact"
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
            f"{many(measured.lost_delimiters, 'delimiter')} seen at one point only: the intervals around are merged"
        )
    return notes


def used_notes(measured: MeasuredPair, groups: Sequence[Entry]) -> list[str]:
    """How many packets each figure rests on, where it is not all that arrived.

    Law: a method with sums drops those that a lost packet was in. The total, rows over time and groups have sums of
    their own, so they may use different packets.
    """
    crossing, received = measured.whole, measured.whole.received
    share, sample = crossing.details.get("share", 1.0), len(crossing.tail)
    if not crossing.used or share < 1:
        return []
    said = []
    if crossing.net_loss and crossing.used < received:
        why = "" if "contradicted" in crossing.details else f", since {measured.estimator} drops sums with lost packets"
        portion = f"{crossing.used:,} of {received:,} packets received ({crossing.used / received:.1%})"
        said.append(f"mean and deviation are of {portion}{why}")
    if sample < crossing.used:
        said.append(f"quantiles are of a sample of {many(sample, 'packet')}")
    rows = {"rows over time": measured.entries, "groups": groups}
    used = {name: sum(entry.report.samples for entry in each) for name, each in rows.items() if each}
    for name, n in used.items():
        if n != crossing.used and crossing.net_loss:
            said.append(f"{name} have sums of their own, and together use {many(n, 'packet')}")
        elif n != crossing.used and name == "rows over time":
            said.append(f"{name} together time {n:,} packets, the total {crossing.used:,}: {EDGES}")
    return ["; ".join(said)] if said else []


def scaled_groups(groups: Sequence[Entry]) -> list[str]:
    """Groups of which only a share of packets was kept."""
    scaled = [entry.key for entry in groups if entry.report.details.get("share", 1.0) < 1]
    if not scaled:
        return []
    return [
        f"counts of {many(len(scaled), 'group')} ({named(scaled)}) are scaled: memory was full, and only a share of "
        "the packets was kept (--memory; share in JSON)"
    ]


def _contradicted(measured: MeasuredPair) -> str:
    """Where sums contradict the sample; "" if nowhere."""
    found = ["the total"] if "contradicted" in measured.whole.details else []
    if rows := sum("contradicted" in entry.report.details for entry in measured.entries):
        found.append(f"{rows:,} of {len(measured.entries):,} intervals")
    return " and ".join(found)


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
