"""`wirelag flows`: the one-way delay of every flow, from reference packets."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wirelag.cli.flow_source import Found, against, alone, refused
from wirelag.cli.flow_table import flow_frame, flow_rows, flow_table, group_rows, summary, write_json
from wirelag.cli.method import Direction, direction_of
from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Captures,
    End,
    Hosts,
    Html,
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
    apart,
    duration_ns,
    make_filter,
    one_of,
    questions_of,
    ranged,
    rate_of,
    size_of,
)
from wirelag.cli.output import opened
from wirelag.errors import WirelagError
from wirelag.units import format_duration, format_rate

if TYPE_CHECKING:
    from wirelag.estimators.rli import Rli
    from wirelag.packets.grouping import Grouping
    from wirelag.report import Report
    from wirelag.stats.sla import Mean, Sla
    from wirelag.synopses.flows import Flows

SOURCES: Final = ("stamp", "marked", "capture")
METHODS: Final = ("busy", "linear", "left")
GROUPS: Final = ("flow", "client", "server", "subnet", "port")
SPARSE_NS: Final = 60 * 10**9  # captures: the longest time between two references that is interpolated
TRUSTED_NS: Final = 1 << 34  # captures: nobody forged these references, so the delay may change by so much


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
            metavar="BYTES",
            help="Added to captured lengths (an Ethernet's wire: 24).",
            rich_help_panel=METHOD,
        ),
    ] = 0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SOURCES),
            help="References: STAMP packets by port or by --mark, or packets that --upstream holds, too.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    mark: Annotated[
        int | None,
        typer.Option(metavar="DSCP", help="marked: STAMP packets on any port have this mark.", rich_help_panel=METHOD),
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
        typer.Option(metavar="QUESTION", help="mean<10ms: exit code 3 unless it holds.", rich_help_panel=ANSWER),
    ] = None,
    html: Html = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure the one-way delay of every flow, behind a queue, from sparse reference packets.

    The references are STAMP packets that a sender injects before the queue, or packets that a second capture knows.
    """
    from wirelag.capture.files import Capture
    from wirelag.cli.points import CapturePoint
    from wirelag.packets.batch import PacketId

    one_of(output_format, FORMATS, "--format")
    one_of(by, GROUPS, "--by")
    apart({"-o": output, "--html": html}, [*captures, *([upstream] if upstream else [])])
    if output_format == "parquet" and output is None:
        raise WirelagError("Parquet is not for a terminal: name a file with -o")
    source = _reference(reference, upstream, mark, captures)
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
    estimator = _estimator(method, drain, overhead, memory, inactive, active, hold, mark, source)

    way = direction_of(direction) if direction else None
    times = replace(wanted, nets=(), ports=(), protocols=())  # the rest is a choice of flows
    if source == "capture":
        points = [CapturePoint(path, times, tunnels, quiet) for path in (str(upstream), captures[0])]
        found = against(estimator, points, way, every, interval_ns, wanted)
    else:
        capture = Capture(captures, filter=times, packet_id=PacketId(), tunnels=tunnels)
        found = alone(estimator, capture, way, interval_ns, wanted, quiet)
    for line in found.warnings:
        print(f"warning: {line}", file=sys.stderr)
    _need_references(found, source)

    chosen, report, total = summary(found.flows, found.choice, "all", "all")
    report = replace(report, packets=found.statistics.packets, skipped=found.statistics.skipped)
    from wirelag.stats.sla import Mean

    mean = Mean(None if report.mean is None else report.mean * 1e9)
    grouping = _grouping(by, ipv4_prefix, ipv6_prefix, most_groups)
    found.notes += _notes(chosen)
    groups = list(group_rows(chosen, grouping)) if grouping else []
    if html:
        from wirelag.cli.flow_page import write_page

        write_page(html, found, chosen, report, groups, by)
    with opened(output, binary=output_format == "parquet") as out:
        if output_format == "table":
            shown = groups[:most_flows] if grouping else list(flow_rows(chosen, most_flows))
            count = len(groups) if grouping else len(chosen)
            lines = flow_table(total, [row for _, row in found.intervals], shown, count, by)
            lines += _coverage(found, chosen, report, source)
            lines += [question.answer(mean) for question in questions]
            out.write("\n".join(lines) + "\n")
        elif output_format == "json":
            plain = _json(found, report, source, questions, mean)
            plain["groups"] = [row.to_json() for row in groups]
            write_json(out, plain, flow_rows(chosen))
        elif output_format == "jsonl":
            for part in [report_of for report_of, _ in found.intervals] or [report]:
                out.write(json.dumps(part.to_json("flows")) + "\n")
        else:
            frame = flow_frame(total, found.intervals, groups, flow_rows(chosen))
            if output_format == "parquet":
                frame.write_parquet(out)
            else:
                out.write(frame.write_csv())
    if not all(question.holds(mean) for question in questions):
        raise typer.Exit(3)


def _reference(reference: str | None, upstream: str | None, mark: int | None, captures: list[str]) -> str:
    """Where references come from: a second capture says by itself that it is wanted."""
    source = reference or ("capture" if upstream else "stamp" if mark is None else "marked")
    one_of(source, SOURCES, "--reference")
    if source != "capture" and upstream:
        raise typer.BadParameter("is for --reference capture", param_hint="--upstream")
    if (source == "marked") != (mark is not None):
        why = "needs the mark: --mark DSCP" if mark is None else "takes no --mark"
        raise typer.BadParameter(f"{source} {why}", param_hint="--reference")
    if source == "capture" and not upstream:
        raise typer.BadParameter("needs the capture of the other side: --upstream FILE", param_hint="--reference")
    if source == "capture" and len(captures) > 1:
        raise typer.BadParameter("--reference capture takes one capture of each side", param_hint="CAPTURE...")
    if upstream == captures[0] == "-":
        raise WirelagError("standard input is one capture: name a file for the other")
    return source


def _estimator(
    method: str,
    drain: str | None,
    overhead: int,
    memory: str,
    inactive: str,
    active: str,
    hold: float,
    mark: int | None,
    source: str,
) -> Rli:
    from wirelag.estimators.rli import Rli

    one_of(method, METHODS, "--method")
    ranged(overhead, -100, 1000, "--overhead")
    size = size_of(memory, "--memory")
    ranged(size, 1 << 10, 1 << 37, "--memory")
    if mark is not None:
        ranged(mark, 0, 63, "--mark")
    if not 0 < hold <= 1:
        raise typer.BadParameter("lies above 0 and is 1 at most", param_hint="--hold")
    made = Rli(
        method,  # type: ignore[arg-type]
        size,
        rate_of(drain, "--drain") if drain else None,
        overhead=overhead,
        inactive_ns=duration_ns(inactive, "--inactive"),
        active_ns=duration_ns(active, "--active"),
        hold=hold,
        mark=mark,
    )
    if source != "capture":
        return made
    return replace(made, bracket_ns=SPARSE_NS, early_ns=TRUSTED_NS, late_ns=TRUSTED_NS)


def _grouping(by: str, ipv4_prefix: int, ipv6_prefix: int, most: int) -> Grouping | None:
    from wirelag.packets.grouping import Grouping

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
    which = "UDP port 862" if source == "stamp" else "any UDP port, with the mark"
    what = f"no reference packet could be used ({refused})" if refused else "there are no reference packets"
    raise WirelagError(
        f"{found.names}: {what}; let a STAMP sender (RFC 8762, {which}) before the queue send some along, "
        f"or name what was captured there: --reference capture --upstream FILE"
    )


def _refused(flows: Flows) -> str:
    return ", ".join(f"{n:,} {why}" for why, n in refused(flows).items())


def _notes(flows: Flows) -> list[str]:
    """What a number alone would hide."""
    notes, counts = [], flows.counts
    if flows.fallback:
        notes.append(f"busy works as linear does: {flows.fallback}" + ("" if flows.drain.bytes_per_s else " (--drain)"))
    elif flows.method == "busy" and counts.get("untrusted", 0):
        notes.append(f"{counts['untrusted']:,} packets were timed as linear does: the queue was not known yet")
    if counts.get("rejected_time", 0) > counts.get("accepted", 0):
        notes.append("most references have times far off: is the sender's clock set again and again?")
    evicted = counts.get("evicted", 0)
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
        parts.append(f"the queue is drained at {format_rate(8 * flows.drain.bytes_per_s)}")
    if flows.base_ns is not None:
        parts.append(f"the fixed part of the delay is {format_duration(flows.base_ns)}")
    lines.append("; ".join(parts))
    if source != "capture":
        lines.append(
            "delays are between two clocks, the sender's and the capture's: what they differ by is in all of them"
        )
    return lines + found.notes


def _json(found: Found, report: Report, source: str, questions: list[Sla], mean: Mean) -> dict[str, Any]:
    plain = report.to_json("flows") | {"reference": source, "notes": found.notes}
    if found.clock is not None:
        plain["clock"] = found.clock.to_json()
    if questions:
        plain["sla"] = [{"question": q.text, "holds": q.holds(mean), "value": q.value(mean)} for q in questions]
    plain["intervals"] = [part.to_json() for part, _ in found.intervals]
    return plain
