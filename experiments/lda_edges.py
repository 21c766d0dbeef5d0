"""LDA: where intervals end: cut by the clock against cut at delimiters that both points see.

1M packets/s, 50 us of delay, intervals of 1 s, no packet overtakes another. By the clock, 50 packets are in different
intervals at the two points; if one that left a bucket is replaced by one that entered it, the counts agree and the sum
is off by a second. Our LDA leaves such buckets out, if it has a sample to compare with ("bare" has none, as in the
paper). If a delimiter is lost, its two intervals are joined, and more until both points cut at the same packet again:
the last table, with intervals of 1,000 packets and a marker in 8.
"""

import numpy as np
from crossing_traces import MEAN_NS, Packets, Times, arriving, percent, weibull_ns
from traces import arguments, show

from wirelag.estimators.lda import Lda
from wirelag.packets.intervals import Delimiters
from wirelag.stats.moments import bound_ns
from wirelag.twopoint.spans import Span, cuts, spans_between

DELAY_NS = 50_000
SECOND_NS = 10**9
LOSSES = (0.0, 0.001, 0.01, 0.05)


def edges(delays_ns: Times, per_second: int, name: str) -> None:
    """Each interval, cut in both ways."""
    packets = Packets.at_rate(delays_ns, SECOND_NS // per_second)
    rows = []
    kinds = (("bare", Lda(tail=1), None), ("clock", Lda(), None), ("delimiters", Lda(), Delimiters(SECOND_NS)))
    for cut, estimator, delimiters in kinds:
        spans = spans_between(estimator, packets.sources(), SECOND_NS, delimiters)
        rows += [(f"{cut} {number + 1}", *cells(span, packets)) for number, span in enumerate(spans)]
    header = (
        "interval",
        "sent",
        "received less sent",
        "said to be lost",
        "not used",
        "error, %",
        "bound, %",
        "true bound, %",
    )
    show(f"{name}: {packets.delays_ns.mean() / 1000:.2f} us, {per_second} packets/s, no loss", header, rows)


def cells(span: Span, packets: Packets) -> tuple[object, ...]:
    """The estimates of an interval, beside the truth."""
    said = span.whole
    places = np.searchsorted(packets.sent_ns, (span.interval.start_ns, span.interval.end_ns))
    delays_ns = packets.delays_ns[slice(*places)]
    counts = said.sent, said.received - said.sent, said.lost, said.sent - said.used
    if said.mean_ns is None or not len(delays_ns):
        return (*counts, "-", "-", "-")
    true_ns = float(delays_ns.mean())
    bounds = [bound_ns(std_ns, said.used, 0.02) for std_ns in (said.std_ns or 0.0, float(delays_ns.std()))]
    return (*counts, *(percent(ns / true_ns) for ns in (abs(said.mean_ns - true_ns), *bounds)))


def lost_delimiters(intervals: int) -> None:
    """How long intervals become when delimiters are lost like other packets."""
    length_ns, delimiters, tiny = 1_000_000, Delimiters(1_000_000, bits=3), Lda(1, (0,), tail=1)
    packets = Packets.at_rate(np.full(intervals * 1000, DELAY_NS, np.int64), 1000)
    rows = []
    for loss in LOSSES:
        sources = packets.sources(arriving(len(packets.ids), loss))
        cut = sum(1 for _ in cuts(tiny, "upstream", sources["upstream"], None, delimiters))
        spans = list(spans_between(tiny, sources, None, delimiters))
        longest = max(span.interval.length_ns for span in spans) / length_ns
        rows.append((f"{100 * loss:g}%", cut, len(spans), len(spans) / cut, f"{longest:.1f}"))
    header = ("loss", "cut upstream", "by both", "share", "longest, in lengths")
    show("lost delimiters", header, rows)


def main() -> None:
    chosen = arguments(__doc__)
    seconds, per_second = (4, 250_000) if chosen.quick else (8, 1_000_000)
    count = seconds * per_second
    edges(np.full(count, DELAY_NS, np.int64), per_second, "constant")
    late_ns = 10 * weibull_ns(np.random.default_rng(1), count)
    edges(DELAY_NS - 10 * round(MEAN_NS) + late_ns, per_second, "jitter")
    lost_delimiters(1000 if chosen.quick else 5000)


if __name__ == "__main__":
    main()
