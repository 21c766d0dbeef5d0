"""Flows as other programs know them: two ends, a protocol, times, counts, and delays of either direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wirelag.packets.flow_ends import Ends, ends_of
from wirelag.synopses.samples import LEGS, Samples

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.packets.interval import Interval
    from wirelag.report import Report
    from wirelag.synopses.flows import Flows


class Delays(NamedTuple):
    """Delays of a flow in one direction, in seconds; None: not known."""

    samples: int
    mean: float | None
    min: float | None = None
    max: float | None = None
    low: float | None = None  # 95% interval of the mean
    high: float | None = None


class FlowRecord(NamedTuple):
    """One flow. Of round trips, `forward` is the path to the server and back, `reverse` that to the client and back.

    Times are those of the flow's own packets where they are kept, else those of all that was measured, as an
    aggregated flow has them (RFC 7015, section 5.1).
    """

    ends: Ends
    start_ns: int | None
    end_ns: int | None
    packets: int | None  # None: not counted by flow
    bytes: int | None
    forward: Delays | None
    reverse: Delays | None = None


def of_round_trips(groups: Iterable[Entry], span_ns: tuple[int, int] | None) -> Iterator[FlowRecord]:
    """The flows of `rtt --by flow`; those that did not fit into memory have no ends, and no record."""
    start_ns, end_ns = span_ns or (None, None)
    for entry in groups:
        if entry.words:
            legs = {name: _delays(leg.report) for name, leg in entry.legs.items()}
            ends = ends_of(entry.words)
            yield FlowRecord(ends, start_ns, end_ns, None, None, legs.get("server"), legs.get("client"))


def of_samples(groups: Iterable[tuple[Sequence[int], Samples]], interval: Interval) -> Iterator[FlowRecord]:
    """The flows of an interval of `watch rtt --by flow`: words of each, and its round trips."""
    for words, samples in groups:
        if words:
            server, client = (
                _delays(samples.report("", "round_trip", leg)) if samples.distribution(i).samples else None
                for i, leg in enumerate(LEGS)
            )
            yield FlowRecord(ends_of(words), interval.start_ns, interval.end_ns, None, None, server, client)


def _delays(report: Report) -> Delays:
    return Delays(report.samples, report.mean, report.min, report.max, *report.ci95.get("mean", (None, None)))


def of_flows(flows: Flows) -> Iterator[FlowRecord]:
    """The flows of `flows`, slowest first; `flows` has one record for each."""
    from ipaddress import ip_address

    columns, first, last = flows.table(), flows.column("first_ns"), flows.column("last_ns")
    for row in flows.slowest_first(columns["mean"]).tolist():
        source, source_port, destination, port, protocol = flows.ends(row)
        ends = Ends(int(columns["key"][row]), ip_address(source), source_port, ip_address(destination), port, protocol)
        mean, low, high = (_known(columns[name][row]) for name in ("mean", "low", "high"))
        delays = Delays(int(columns["timed"][row]), mean, low=low, high=high)
        counts = int(columns["packets"][row]), int(columns["bytes"][row])
        yield FlowRecord(ends, int(first[row]), int(last[row]), *counts, delays)


def _known(value: float) -> float | None:
    return None if value != value else float(value)
