"""`wirelag flows`: the one-way delay of every flow, from reference packets."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wirelag.cli.flow_table import Choice, Row, flow_frame, flow_rows, flow_table, group_rows, summary, write_json
from wirelag.cli.method import Direction, direction_of
from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Captures,
    End,
    Hosts,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Nets,
    Output,
    OutputFormat,
    Ports,
    Protocols,
    Quiet,
    Start,
    Tunnels,
    clock_text,
    duration_ns,
    make_filter,
    one_of,
    questions_of,
    ranged,
    size_of,
)
from wirelag.cli.output import opened
from wirelag.cli.progress import with_progress
from wirelag.errors import WirelagError
from wirelag.units import format_duration

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.alignment import Alignment
    from wirelag.cli.points import CapturePoint
    from wirelag.clocks import Clock
    from wirelag.courses import Direction as Way
    from wirelag.estimators.rli import Rli, RliMeter
    from wirelag.filters import Filter
    from wirelag.flow_records import Flows
    from wirelag.grouping import Grouping
    from wirelag.intervals import Interval as Span
    from wirelag.io.capture import Capture
    from wirelag.io.pcap import CaptureStatistics
    from wirelag.packets import PacketBatch
    from wirelag.report import Report
    from wirelag.sla import Sla

METHODS: Final = ("busy", "linear", "left")
GROUPS: Final = ("flow", "client", "server", "subnet", "port")
RATES: Final = {"": 1, "bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9, "tbps": 10**12}  # bits a second
REFERENCE_COIN: Final = 11  # the purpose of the coin that makes a packet of both captures a reference
SPARSE_NS: Final = 60 * 10**9  # captures: the longest time between two references that is interpolated
TRUSTED_NS: Final = 1 << 34  # captures: nobody forged these references, so the delay may change by so much


@dataclass
class Found:
    """What was measured, and how it was come by."""

    names: str  # of the captures
    flows: Flows
    intervals: list[tuple[Report, Row]]
    choice: Choice
    statistics: CaptureStatistics
    warnings: list[str]
    notes: list[str] = field(default_factory=list)
    clock: Clock | None = None  # of two captures


@dataclass(frozen=True)
class Mean:
    """The mean, as questions ask for it."""

    mean_ns: float | None
    min_ns: None = None
    max_ns: None = None

    def quantile_ns(self, q: float) -> None:
        """Not known."""

    def share_above(self, limit_ns: int) -> None:
        """Not known."""


def flows(
    captures: Captures,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    direction: Direction = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="|".join(METHODS),
            help="Between references: as a queue behaves, on a straight line, or as the reference before.",
            rich_help_panel=METHOD,
        ),
    ] = "busy",
    drain: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="busy: of the queue, 2Gbps say; default: learned.", rich_help_panel=METHOD),
    ] = None,
    overhead: Annotated[
        int,
        typer.Option(
            metavar="BYTES", help="What the wire adds to a captured length (Ethernet: 24).", rich_help_panel=METHOD
        ),
    ] = 0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="stamp|capture",
            help="References: STAMP packets, or packets that --upstream holds, too.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="capture: what the other side captured.", rich_help_panel=METHOD),
    ] = None,
    every: Annotated[
        int,
        typer.Option(metavar="N", help="capture: one of so many packets is a reference.", rich_help_panel=METHOD),
    ] = 20,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="For flows that are open: 128 bytes each.", rich_help_panel=METHOD)
    ] = "128MiB",
    inactive: Annotated[
        str, typer.Option(metavar="D", help="A flow ends when silent for longer.", rich_help_panel=METHOD)
    ] = "15s",
    active: Annotated[
        str, typer.Option(metavar="D", help="A record of a flow ends when open for longer.", rich_help_panel=METHOD)
    ] = "30m",
    hold: Annotated[
        float,
        typer.Option(metavar="P", help="A packet opens a flow with this probability.", rich_help_panel=METHOD),
    ] = 1.0,
    interval: Interval = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="|".join(GROUPS),
            help="What to list: flows, or groups of them; a packet's source is the client.",
            rich_help_panel=ANSWER,
        ),
    ] = "flow",
    most_flows: Annotated[
        int, typer.Option(metavar="N", help="Lines of the list; files have all.", rich_help_panel=ANSWER)
    ] = 20,
    most_groups: MostGroups = 1000,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    sla: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help="mean<10ms: exit code 3 if it does not hold.", rich_help_panel=ANSWER),
    ] = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure the one-way delay of every flow, behind a queue, from sparse reference packets.

    The references are STAMP packets that a sender injects before the queue, or packets that a second capture knows.
    """
    from wirelag.cli.points import CapturePoint
    from wirelag.io.capture import Capture
    from wirelag.packets import PacketId

    one_of(output_format, FORMATS, "--format")
    one_of(by, GROUPS, "--by")
    if output_format == "parquet" and output is None:
        raise WirelagError("Parquet is not for a terminal: name a file with -o")
    source = _reference(reference, upstream, captures)
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    questions = questions_of(sla or [])
    if any(question.name != "mean" for question in questions):
        raise typer.BadParameter("only the mean is known here: ask mean<10ms", param_hint="--sla")
    interval_ns = duration_ns(interval, "--interval") if interval else None
    for value, least, most, option in (
        (every, 1, 1 << 20, "--every"),
        (most_flows, 0, 1 << 40, "--most-flows"),
        (most_groups, 1, 1 << 20, "--most-groups"),
        (ipv4_prefix, 0, 32, "--ipv4-prefix"),
        (ipv6_prefix, 0, 128, "--ipv6-prefix"),
    ):
        ranged(value, least, most, option)
    estimator = _estimator(method, drain, overhead, memory, inactive, active, hold, source)

    way = direction_of(direction) if direction else None
    times = replace(wanted, nets=(), ports=(), protocols=())  # the rest is a choice of flows
    if source == "capture":
        points = [CapturePoint(path, times, tunnels, quiet) for path in (str(upstream), captures[0])]
        found = _against(estimator, points, way, every, interval_ns, wanted)
    else:
        capture = Capture(captures, filter=times, packet_id=PacketId(), tunnels=tunnels)
        found = _alone(estimator, capture, way, interval_ns, wanted, quiet)
    for line in found.warnings:
        print(f"warning: {line}", file=sys.stderr)
    _need_references(found, source)

    chosen, report, total = summary(found.flows, found.choice, "all", "all")
    report = replace(report, packets=found.statistics.packets, skipped=found.statistics.skipped)
    mean = Mean(None if report.mean is None else report.mean * 1e9)
    grouping = _grouping(by, ipv4_prefix, ipv6_prefix, most_groups)
    found.notes += _notes(chosen)
    with opened(output, binary=output_format == "parquet") as out:
        if output_format == "table":
            listed = list(group_rows(chosen, grouping) if grouping else flow_rows(chosen))
            lines = flow_table(total, [row for _, row in found.intervals], listed, by, most_flows)
            lines += _coverage(found, chosen, report, source)
            lines += [question.answer(mean) for question in questions]
            out.write("\n".join(lines) + "\n")
        elif output_format == "json":
            plain = _json(found, report, source, questions, mean)
            plain["groups"] = [row.to_json() for row in group_rows(chosen, grouping)] if grouping else []
            write_json(out, plain, flow_rows(chosen))
        elif output_format == "jsonl":
            for part in [report_of for report_of, _ in found.intervals] or [report]:
                out.write(json.dumps(part.to_json("flows")) + "\n")
        else:
            frame = flow_frame(
                total, found.intervals, group_rows(chosen, grouping) if grouping else (), flow_rows(chosen)
            )
            if output_format == "parquet":
                frame.write_parquet(out)
            else:
                out.write(frame.write_csv())
    if any(question.holds(mean) is False for question in questions):
        raise typer.Exit(3)


def _reference(reference: str | None, upstream: str | None, captures: list[str]) -> str:
    """Where references come from: a second capture says by itself that it is wanted."""
    source = reference or ("capture" if upstream else "stamp")
    one_of(source, ("stamp", "capture"), "--reference")
    if source == "stamp" and upstream:
        raise typer.BadParameter("is for --reference capture", param_hint="--upstream")
    if source == "capture" and not upstream:
        raise typer.BadParameter("needs the capture of the other side: --upstream FILE", param_hint="--reference")
    if source == "capture" and len(captures) > 1:
        raise typer.BadParameter("--reference capture takes one capture of each side", param_hint="CAPTURE...")
    if upstream == captures[0] == "-":
        raise WirelagError("standard input is one capture: name a file for the other")
    return source


def rate_of(text: str) -> int:
    """A rate in bits a second as bytes a second, or a usage error."""
    from wirelag.drain import FASTEST, SLOWEST

    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(e\d{1,2})?\s*([a-z]*)", text.strip().lower().replace("bit/s", "bps"))
    if not found or found[3] not in RATES:
        raise typer.BadParameter(f"{text!r} is not a rate: write 2Gbps or 100Mbps", param_hint="--drain")
    rate = round(float(found[1] + (found[2] or "")) * RATES[found[3]] / 8)
    if not SLOWEST <= rate <= FASTEST:
        raise typer.BadParameter("goes from 1Mbps to 8Tbps", param_hint="--drain")
    return rate


def _estimator(
    method: str,
    drain: str | None,
    overhead: int,
    memory: str,
    inactive: str,
    active: str,
    hold: float,
    source: str,
) -> Rli:
    from wirelag.estimators.rli import Rli

    one_of(method, METHODS, "--method")
    ranged(overhead, 0, 1000, "--overhead")
    size = size_of(memory, "--memory")
    ranged(size, 1 << 10, 1 << 37, "--memory")
    if not 0 < hold <= 1:
        raise typer.BadParameter("lies above 0 and is 1 at most", param_hint="--hold")
    made = Rli(
        method,  # type: ignore[arg-type]
        size,
        rate_of(drain) if drain else None,
        overhead=overhead,
        inactive_ns=duration_ns(inactive, "--inactive"),
        active_ns=duration_ns(active, "--active"),
        hold=hold,
    )
    if source == "stamp":
        return made
    return replace(made, bracket_ns=SPARSE_NS, early_ns=TRUSTED_NS, late_ns=TRUSTED_NS)


def _alone(
    estimator: Rli, capture: Capture, way: Way | None, interval_ns: int | None, wanted: Filter, quiet: bool
) -> Found:
    """Measure with STAMP packets as references."""
    choice = Choice(wanted)
    packets: Iterable[PacketBatch] = with_progress(capture, quiet)
    if way:
        packets = (_travelling(batch, way) for batch in packets)
    together, lines = _add_up(_observed(packets, interval_ns, estimator.meter("downstream"), None), interval_ns, choice)
    names = ", ".join(file.name for file in capture.files)
    found = Found(names, together, lines, choice, capture.statistics, capture.warnings)
    found.notes += _both_ways(together) if way is None else []
    return found


def _travelling(batch: PacketBatch, way: Way) -> PacketBatch:
    """Packets of this direction, and references."""
    import numpy as np

    from wirelag.packets import Kind

    rows = way.rows(batch) | batch.of_kind(Kind.STAMP)
    return batch if rows.all() else batch[np.flatnonzero(rows)]


def _both_ways(flows: Flows) -> list[str]:
    """Half of what a tap in both directions sees did not pass the queue."""
    import numpy as np

    keys = flows.column("key")
    back = int(np.isin(keys ^ np.uint64(1), keys).sum())
    if 10 * back < len(keys) or not back:
        return []
    return [
        f"{back:,} of {len(keys):,} flows are seen in both directions: those against the references did not pass "
        f"the queue, and their delays mean nothing; choose with --direction 'SRC>DST'"
    ]


def _against(
    estimator: Rli,
    points: list[CapturePoint],
    way: Way | None,
    every: int,
    interval_ns: int | None,
    wanted: Filter,
) -> Found:
    """Measure with some of the packets that both sides captured as references; each capture is read twice."""
    from wirelag.cli.points import Segment
    from wirelag.packets import PacketId

    up, down = points
    segment = Segment(up, down, PacketId(), 0)
    alignment, _ = segment.align(way, "auto")
    sent = Sent((alignment.select("upstream", batch) for batch in up.batches(segment.packet_id)), every)
    choice = Choice(wanted, alignment.courses["downstream"], way)
    packets = (_not_backward(batch, alignment) for batch in down.batches(segment.packet_id))
    together, lines = _add_up(_observed(packets, interval_ns, estimator.meter("downstream"), sent), interval_ns, choice)
    assert down.read
    warnings = [line for point in points if point.read for line in point.read.warnings]
    notes = [*segment.notes, *alignment.notes]
    return Found(down.name, together, lines, choice, down.read.statistics, warnings, notes, alignment.clock)


def _not_backward(batch: PacketBatch, alignment: Alignment) -> PacketBatch:
    """Whatever may have been in the queue, on upstream's clock: what upstream never saw took time on the link, too."""
    import numpy as np

    from wirelag.courses import BACKWARD

    if not len(batch):
        return batch
    courses = alignment.courses["downstream"].of(batch, alignment.direction)
    kept = batch[np.flatnonzero(courses != BACKWARD)]
    return kept.at_times(alignment.clock.correct(kept.time_ns)) if alignment.clock.corrects else kept


class Sent:
    """When packets that a coin chose were sent; of packets with copies nobody knows. Memory: 17 bytes each."""

    def __init__(self, packets: Iterable[PacketBatch], every: int) -> None:
        import numpy as np

        self._below = (1 << 64) // every - 1
        ids, times = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for batch in packets:
            rows = self._drawn(batch)
            ids.append(batch.packet_id[rows])
            times.append(batch.time_ns[rows])
        every_time = np.concatenate(times)
        self._ids, first, copies = np.unique(np.concatenate(ids), return_index=True, return_counts=True)
        self._sent_ns, self._used = every_time[first], copies > 1

    def _drawn(self, batch: PacketBatch) -> npt.NDArray[np.intp]:
        import numpy as np

        from wirelag import _kernels

        coins = _kernels.coins(np.ascontiguousarray(batch.packet_id), 0, REFERENCE_COIN)
        return np.flatnonzero(coins <= np.uint64(self._below))

    def find(self, batch: PacketBatch) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """The rows that are references, and when they were sent. Each packet is one once."""
        import numpy as np

        rows = self._drawn(batch)
        ids, first = np.unique(batch.packet_id[rows], return_index=True)
        at = np.searchsorted(self._ids, ids)
        known = np.flatnonzero(at < len(self._ids))
        known = known[self._ids[at[known]] == ids[known]]
        known = known[~self._used[at[known]]]
        self._used[at[known]] = True
        order = np.argsort(first[known])
        return rows[first[known][order]], self._sent_ns[at[known][order]]


def _observed(
    packets: Iterable[PacketBatch], interval_ns: int | None, meter: RliMeter, sent: Sent | None
) -> Iterator[tuple[Span, Flows]]:
    """The flows of each interval; of everything, where there is no length."""
    from wirelag.intervals import Interval as Span
    from wirelag.intervals import split

    now: Span | None = None
    for span, batch in split(packets, interval_ns):
        if interval_ns is not None and now is not None and span != now:
            yield now, meter.cut(now)
            now = None
        now = Span(min(now.start_ns, span.start_ns), max(now.end_ns, span.end_ns)) if now else span
        if sent:
            meter.observe_with(batch, *sent.find(batch))
        else:
            meter.observe(batch)
    now = now or Span(0, 0)
    yield now, meter.cut(now)


def _add_up(
    parts: Iterable[tuple[Span, Flows]], interval_ns: int | None, choice: Choice
) -> tuple[Flows, list[tuple[Report, Row]]]:
    """All intervals as one, and what each of them says."""
    lines = []
    total: Flows | None = None
    for when, part in parts:
        total = part.merged() if total is None else _together(total, part)
        if interval_ns is not None:
            key = clock_text(when.start_ns)
            _, report, row = summary(part, choice, "interval", key)
            lines.append((report.during(when), row))
    assert total is not None
    return total, lines


def _together(one: Flows, other: Flows) -> Flows:
    """What two intervals say, with a record for each flow; what is known of the queue is that of the later one."""
    import numpy as np

    from wirelag.flow_records import Flows

    counts = {name: one.counts.get(name, 0) + n for name, n in other.counts.items()}
    return Flows(
        other.method,
        other.drain,
        other.trusted,
        other.base_ns,
        np.concatenate([one.records, other.records]),
        one.packets + other.packets,
        one.bytes + other.bytes,
        one.timed + other.timed,
        one.sum_ns + other.sum_ns,
        one.squares + other.squares,
        tuple((n + m, a + b) for (n, a), (m, b) in zip(one.errors, other.errors, strict=True)),
        counts,
    ).merged()


def _grouping(by: str, ipv4_prefix: int, ipv6_prefix: int, most: int) -> Grouping | None:
    from wirelag.grouping import Grouping

    return None if by == "flow" else Grouping(by, ipv4_prefix, ipv6_prefix, most)  # type: ignore[arg-type]


def _need_references(found: Found, source: str) -> None:
    """No references: say why, and what to do."""
    counts = found.flows.counts
    if counts.get("accepted", 0):
        return
    refused = _refused(found.flows)
    if source == "capture":
        raise WirelagError(
            f"{found.names}: no packet of both captures was drawn as a reference{refused and f' ({refused})'}; "
            f"draw more of them: --every 5"
        )
    what = f"no reference packet could be used ({refused})" if refused else "there are no reference packets"
    raise WirelagError(
        f"{found.names}: {what}; let a STAMP sender (RFC 8762, UDP port 862) before the queue send some along, "
        f"or name what was captured there: --reference capture --upstream FILE"
    )


def _refused(flows: Flows) -> str:
    rejected = {name.removeprefix("rejected_"): n for name, n in flows.counts.items() if name.startswith("rejected_")}
    return ", ".join(f"{n:,} {_REASONS.get(name, name)}" for name, n in rejected.items() if n)


_REASONS: Final = {
    "foreign": "of another stream",
    "size": "of another size",
    "malformed": "without a time",
    "time": "with a time far off",
    "repeated": "repeated",
    "sequence": "out of sequence",
}


def _notes(flows: Flows) -> list[str]:
    """What a number alone would hide."""
    notes, counts = [], flows.counts
    if flows.fallback:
        notes.append(f"busy works as linear does: {flows.fallback}" + ("" if flows.drain.bytes_per_s else " (--drain)"))
    elif flows.method == "busy" and counts.get("untrusted", 0):
        notes.append(f"{counts['untrusted']:,} packets were timed as linear does: the queue was not known yet")
    if counts.get("rejected_time", 0) > counts.get("accepted", 0):
        notes.append("most references have times far off: is the sender's clock set again and again?")
    evicted = int((flows.column("reason") == 2).sum())
    if evicted:
        notes.append(f"{evicted:,} flows had to leave for want of memory, and may have come back (--memory)")
    if counts.get("unlisted", 0):
        notes.append(f"{counts['unlisted']:,} records of flows are not listed: there were too many")
    if counts.get("unheld", 0):
        notes.append(f"{counts['unheld']:,} packets are in no flow (--hold)")
    return notes


def _coverage(found: Found, flows: Flows, report: Report, source: str) -> list[str]:
    """The lines under the table."""
    share, regular = report.details["coverage"], flows.counts.get("regular", 0)
    lines = [f"{found.statistics.packets:,} packets; {flows.timed:,} of {regular:,} timed"]
    lines[0] += "" if share is None else f" ({share:.2%})"
    skipped = sum(found.statistics.skipped.values())
    lines[0] += f"; {skipped:,} skipped" if skipped else ""
    refused = _refused(flows)
    used = f"{flows.counts.get('accepted', 0):,} references used"
    lines.append(used + (f", not used: {refused}" if refused else ""))
    parts = [f"method {flows.method}"]
    if flows.drain.bytes_per_s:
        parts.append(f"the queue is drained at {_rate_text(8 * flows.drain.bytes_per_s)}")
    if flows.base_ns is not None:
        parts.append(f"the fixed part of the delay is {format_duration(flows.base_ns)}")
    lines.append("; ".join(parts))
    if source == "stamp":
        lines.append(
            "delays are between two clocks, the sender's and the capture's: what they differ by is in all of them"
        )
    return lines + found.notes


def _rate_text(bits: float) -> str:
    steps = (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6))
    unit, factor = next((step for step in steps if bits >= 0.9995 * step[1]), steps[-1])
    return f"{bits / factor:.3g} {unit}"


def _json(found: Found, report: Report, source: str, questions: list[Sla], mean: Mean) -> dict[str, Any]:
    plain = report.to_json("flows") | {"reference": source, "notes": found.notes}
    if found.clock is not None:
        plain["clock"] = found.clock.to_json()
    if questions:
        plain["sla"] = [{"question": q.text, "holds": q.holds(mean), "value": q.value(mean)} for q in questions]
    plain["intervals"] = [part.to_json() for part, _ in found.intervals]
    return plain
