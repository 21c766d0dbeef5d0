"""`wirelag rtt`: the round-trip distribution of a link."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.options import Captures, End, Hosts, Nets, Ports, Protocols, Quiet, Start, Tunnels, make_filter
from wirelag.cli.output import FORMATS, Answer, Line, write_answer
from wirelag.cli.progress import with_progress
from wirelag.units import parse_duration_ns, parse_size

if TYPE_CHECKING:
    from wirelag.estimators.match import Match
    from wirelag.grouping import Grouping
    from wirelag.intervals import Interval
    from wirelag.io.capture import Capture
    from wirelag.report import Report
    from wirelag.samples import Samples
    from wirelag.sla import Sla

ANSWER = "What to answer"
METHOD = "How"
GROUPS = ("flow", "client", "server", "subnet", "port")


def rtt(
    captures: Captures,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    match: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What to match: auto, or some of tcp, tcp-timestamps, handshake, flow-duration, dns, ntp, icmp, "
            "quic-spin, with commas between.",
            rich_help_panel=METHOD,
        ),
    ] = "auto",
    retransmitted: Annotated[
        str,
        typer.Option(
            metavar="drop|first",
            help="TCP data sent twice: do not time it (Karn's rule), or time it from its first copy, as tshark does.",
            rich_help_panel=METHOD,
        ),
    ] = "drop",
    table_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for connections and what is in flight.", rich_help_panel=METHOD)
    ] = "128MiB",
    interval: Annotated[
        str | None, typer.Option(metavar="D", help="An answer for each interval, too.", rich_help_panel=ANSWER)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="|".join(GROUPS), help="An answer for each group, too.", rich_help_panel=ANSWER),
    ] = None,
    most_groups: Annotated[
        int, typer.Option(metavar="N", help="Groups to keep; the rest is 'other'.", rich_help_panel=ANSWER)
    ] = 1000,
    ipv4_prefix: Annotated[int, typer.Option(metavar="BITS", help="--by subnet.", rich_help_panel=ANSWER)] = 24,
    ipv6_prefix: Annotated[int, typer.Option(metavar="BITS", help="--by subnet.", rich_help_panel=ANSWER)] = 48,
    above: Annotated[
        list[str] | None,
        typer.Option(metavar="D", help="The share of delays above this one.", rich_help_panel=ANSWER),
    ] = None,
    sla: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUESTION",
            help="p99<50ms, mean<10ms, 'above(50ms)<5%': exit code 3 if it does not hold.",
            rich_help_panel=ANSWER,
        ),
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print it.")
    ] = "table",
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Where to.")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure round-trip delay: the time from a request to its response, as both pass the point of capture.

    TCP data and its acknowledgement, DNS, NTP, ping, the QUIC spin bit; both legs (to the server, to the client) apart.
    """
    _one_of(output_format, FORMATS, "--format")
    _one_of(retransmitted, ("drop", "first"), "--retransmitted")
    if by is not None:
        _one_of(by, GROUPS, "--by")
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    questions = _questions(sla or [])
    limits = [_duration(text, "--above") for text in above or []]
    interval_ns = _duration(interval, "--interval") if interval else None

    from wirelag.driver import cut
    from wirelag.grouping import Grouping
    from wirelag.io.capture import Capture
    from wirelag.samples import Samples

    estimator = _estimator(match, retransmitted, table_memory)
    grouping = None
    if by is not None:
        grouping = Grouping(by, ipv4_prefix, ipv6_prefix, most_groups)  # type: ignore[arg-type]
    capture = Capture(captures, filter=wanted, tunnels=tunnels)
    total = Samples()
    parts: list[tuple[Interval, Samples]] = []
    for when, (part,) in cut(estimator, {"tap": with_progress(capture, quiet)}, interval_ns, grouping):
        total.merge(part)
        parts.append((when, part))
    for line in capture.warnings:
        print(f"warning: {line}", file=sys.stderr)
    answer = _answer(capture, total, parts if interval_ns else [], grouping, limits, questions)
    write_answer(answer, output_format, output)
    if any(question.holds(total.distribution()) is False for question in questions):
        raise typer.Exit(3)


def _one_of(value: str, allowed: tuple[str, ...], option: str) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)


def _duration(text: str, option: str) -> int:
    try:
        ns = parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if ns <= 0:
        raise typer.BadParameter("must be longer than nothing", param_hint=option)
    return ns


def _questions(texts: list[str]) -> list[Sla]:
    from wirelag.sla import Sla

    try:
        return [Sla.parse(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sla") from None


def _estimator(match: str, retransmitted: str, table_memory: str) -> Match:
    from wirelag.estimators.match import AUTO, MATCHERS, Match

    names = AUTO if match == "auto" else tuple(match.split(","))
    for name in names:
        _one_of(name, MATCHERS, "--match")
    try:
        memory = parse_size(table_memory)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--table-memory") from None
    return Match(names, first_copy=retransmitted == "first", memory=memory)


def _answer(
    capture: Capture,
    total: Samples,
    parts: list[tuple[Interval, Samples]],
    grouping: Grouping | None,
    limits_ns: list[int],
    questions: list[Sla],
) -> Answer:
    from dataclasses import replace

    from wirelag.samples import LEGS

    statistics = capture.statistics
    whole = replace(total.report("match", "round_trip"), packets=statistics.packets, skipped=statistics.skipped)
    answer = Answer("rtt", Line("all", "all", whole, total.distribution()))
    answer.legs = [
        Line("leg", f"to the {name}", _leg(total, leg), delays)
        for leg, name in enumerate(LEGS)
        if (delays := total.distribution(leg=leg)).samples
    ]
    for when, part in parts:
        report = part.report("match", "round_trip").during(when)
        answer.intervals.append(Line("interval", _clock(when.start_ns), report, part.distribution()))
    if grouping:
        answer.by = grouping.by
        groups = [
            Line("group", grouping.keys[tag], total.report("match", "round_trip", tag), total.distribution(tag))
            for tag in total.tags
        ]
        answer.groups = sorted(groups, key=lambda line: (line.key == "other", -(line.report.quantiles["0.5"] or 0)))
    _add_questions(answer, limits_ns, questions)
    answer.notes.append(_coverage(capture, total))
    return answer


def _leg(total: Samples, leg: int) -> Report:
    from wirelag.report import Report
    from wirelag.samples import facts

    return Report("match", "round_trip", packets=total.packets, **facts(total.distribution(leg=leg)))


def _add_questions(answer: Answer, limits_ns: list[int], questions: list[Sla]) -> None:
    from wirelag.distribution import Z95
    from wirelag.units import format_duration

    delays = answer.total.delays
    shares = []
    for limit in limits_ns:
        share = delays.share_above(limit)
        error = Z95 * delays.share_error_above(limit) if share is not None else 0.0
        bounds = None if share is None else [max(0.0, share - error), min(1.0, share + error)]
        shares.append({"limit": limit / 1e9, "share": share, "ci95": bounds})
        said = "cannot say" if bounds is None else f"{share:.2%} (95% interval {bounds[0]:.2%} to {bounds[1]:.2%})"
        answer.notes.append(f"above {format_duration(limit)}: {said}")
    answer.notes += [question.answer(delays) for question in questions]
    if shares:
        answer.extra["above"] = shares
    if questions:
        answer.extra["sla"] = [
            {"question": q.text, "holds": q.holds(delays), "value": q.value(delays)} for q in questions
        ]


def _coverage(capture: Capture, total: Samples) -> str:
    statistics = capture.statistics
    skipped, evicted = sum(statistics.skipped.values()), total.counts.get("evicted", 0)
    parts = [f"{statistics.packets:,} packets", f"{total.packets:,} looked at"]
    if skipped:
        parts.append(f"{skipped:,} skipped ({', '.join(f'{n:,} {why}' for why, n in statistics.skipped.items())})")
    if evicted:
        parts.append(f"{evicted:,} evicted for want of memory (--table-memory)")
    if total.counts.get("backwards", 0):
        parts.append(f"{total.counts['backwards']:,} responses with a time before their request's")
    return "; ".join(parts)


def _clock(time_ns: int) -> str:
    from datetime import UTC, datetime

    try:
        text = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns / 1e9:.3f}"
    return f"{text}.{time_ns % 10**9 // 10**6:03d}"
