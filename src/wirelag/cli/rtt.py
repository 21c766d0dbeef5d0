"""`wirelag rtt`: the round-trip distribution of a link."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Above,
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
    Questions,
    Quiet,
    Start,
    Tunnels,
    apart,
    clock_text,
    duration_ns,
    make_filter,
    one_of,
    questions_of,
    size_of,
)
from wirelag.cli.output import Answer, Line, by_octave, write_answer, write_html
from wirelag.cli.progress import with_progress

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.sample_file import SampleFile
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.match import Match
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Grouping
    from wirelag.render.html import Timeline
    from wirelag.report import Report
    from wirelag.stats.sla import Sla
    from wirelag.synopses.samples import Samples, Sink

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
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Do not match exactly, but in so little memory (64KiB, say): a fridge, unbiased.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    slots: Annotated[
        list[int] | None,
        typer.Option(metavar="M", help="Fridges by hand: slots of each (a power of two).", rich_help_panel=METHOD),
    ] = None,
    entry_probability: Annotated[
        list[float] | None,
        typer.Option(metavar="P", help="Fridges by hand: probability to enter each.", rich_help_panel=METHOD),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Of the fridges' coins.", rich_help_panel=METHOD)] = 0,
    interval: Interval = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="|".join(GROUPS), help="An answer for each group, too.", rich_help_panel=ANSWER),
    ] = None,
    most_groups: MostGroups = 1000,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    above: Above = None,
    sla: Questions = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
    samples: Annotated[str | None, typer.Option(metavar="FILE.parquet", help="Write every single delay, too.")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure round-trip delay: the time from a request to its response, as both pass the point of capture.

    TCP data and its acknowledgement, DNS, NTP, ping, the QUIC spin bit; both legs (to the server, to the client) apart.
    """
    one_of(output_format, FORMATS, "--format")
    one_of(retransmitted, ("drop", "first"), "--retransmitted")
    if by is not None:
        one_of(by, GROUPS, "--by")
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    questions = questions_of(sla or [])
    limits = [duration_ns(text, "--above") for text in above or []]
    interval_ns = duration_ns(interval, "--interval") if interval else None

    apart({"-o": output, "--html": html, "--samples": samples}, captures)

    from wirelag.capture.files import Capture
    from wirelag.packets.grouping import Grouping
    from wirelag.render.html import Timeline

    name, names = "fridge" if memory or slots else "match", _matchers(match)
    estimator: Match | Fridge
    if memory or slots:
        estimator = _fridge(names, match == "auto", memory, slots or [], entry_probability or [], seed)
    else:
        estimator = _match(names, retransmitted, table_memory)
    grouping = None
    if by is not None:
        grouping = Grouping(by, ipv4_prefix, ipv6_prefix, most_groups)  # type: ignore[arg-type]
    capture = Capture(captures, filter=wanted, tunnels=tunnels)
    timeline = Timeline(interval_ns) if html else None
    sinks: list[Sink] = [timeline.add] if timeline else []
    with _sample_file(samples) as sample_file:
        sinks += [sample_file.add] if sample_file else []
        total, intervals = _measure(
            replace(estimator, sinks=tuple(sinks)), name, with_progress(capture, quiet), interval_ns, grouping
        )
    for line in capture.warnings:
        print(f"warning: {line}", file=sys.stderr)
    answer = _answer(name, capture, total, grouping)
    answer.intervals = intervals
    _add_questions(answer, limits, questions)
    if html and timeline:
        _write_page(html, answer, timeline, capture, total)
    answer.notes.append(_coverage(capture, total))
    write_answer(answer, output_format, output)
    if not all(question.holds(total.distribution()) for question in questions):
        raise typer.Exit(3)


def _measure(
    estimator: Match | Fridge,
    name: str,
    packets: Iterable[PacketBatch],
    interval_ns: int | None,
    grouping: Grouping | None,
) -> tuple[Samples, list[Line]]:
    """All samples, and what those of each interval say."""
    from wirelag.measure.loop import cut
    from wirelag.stats.distribution import Distribution
    from wirelag.synopses.samples import Samples

    total, nothing = Samples(), Distribution()
    lines = []
    for when, (part,) in cut(estimator, {"tap": packets}, interval_ns, grouping):
        total.merge(part)
        if interval_ns:
            report = part.report(name, "round_trip").during(when)
            # Of each interval only what its small picture shows is kept: there may be many.
            shape = by_octave(part.distribution())
            lines.append(Line("interval", clock_text(when.start_ns), report, nothing, shape))
    return total, lines


def _sample_file(path: str | None) -> AbstractContextManager[SampleFile | None]:
    if path is None:
        return nullcontext()
    from wirelag.capture.sample_file import SampleFile

    return SampleFile(path)


def _write_page(path: str, answer: Answer, timeline: Timeline, capture: Capture, total: Samples) -> None:
    from wirelag import __version__
    from wirelag.render.html import Entry, Page, render

    statistics = capture.statistics
    names = {"evicted": "evicted for want of memory", "backwards": "responses with a time before their request's"}
    counts = {"packets": statistics.packets, "looked at": total.packets}
    counts |= {f"skipped: {why}": n for why, n in statistics.skipped.items()}
    counts |= {names.get(name, name): n for name, n in total.counts.items()}
    page = Page(
        title="Round-trip delay",
        subject=", ".join(file.name for file in capture.files),
        total=Entry("all", answer.total.report, answer.total.delays),
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        legs=[Entry(line.key, line.report, line.delays) for line in answer.legs],
        timeline=timeline.parts(),
        groups=[Entry(line.key, line.report, line.delays) for line in answer.groups],
        by=answer.by,
        answers=answer.notes,
        warnings=capture.warnings,
        counts=counts,
    )
    write_html(path, render(page))


def _matchers(match: str) -> tuple[str, ...]:
    from wirelag.estimators.match import AUTO
    from wirelag.estimators.matchers import MATCHERS

    names = AUTO if match == "auto" else tuple(match.split(","))
    for name in names:
        one_of(name, MATCHERS, "--match")
    return names


def _match(names: tuple[str, ...], retransmitted: str, table_memory: str) -> Match:
    from wirelag.estimators.match import Match

    return Match(names, first_copy=retransmitted == "first", memory=size_of(table_memory, "--table-memory"))


def _fridge(
    names: tuple[str, ...], auto: bool, memory: str | None, slots: list[int], probabilities: list[float], seed: int
) -> Fridge:
    from wirelag.estimators.fridge import AUTO, Fridge

    if "quic-spin" in names and not auto:
        raise typer.BadParameter("a fridge keeps nothing of a connection, so no spin bit", param_hint="--match")
    if probabilities and len(probabilities) != len(slots):
        raise typer.BadParameter("is wanted once for each --slots", param_hint="--entry-probability")
    if any(not 0 < p <= 1 for p in probabilities) or sum(probabilities) > 1:
        raise typer.BadParameter("must lie above 0 and sum to 1 at most", param_hint="--entry-probability")
    if any(m < 1 or m & (m - 1) for m in slots) or len(slots) > 8:
        raise typer.BadParameter("must be powers of two, for 8 fridges at most", param_hint="--slots")
    size = size_of(memory, "--memory") if memory else 64 << 10
    if size < 1024:
        raise typer.BadParameter("must be at least 1KiB", param_hint="--memory")
    return Fridge(AUTO if auto else names, size, tuple(slots), tuple(probabilities), seed)


def _answer(name: str, capture: Capture, total: Samples, grouping: Grouping | None) -> Answer:
    from wirelag.synopses.samples import LEGS

    statistics = capture.statistics
    whole = replace(total.report(name, "round_trip"), packets=statistics.packets, skipped=statistics.skipped)
    if not statistics.packets:
        whole = replace(whole, reason="there are no packets")
    answer = Answer("rtt", Line("all", "all", whole, total.distribution()))
    answer.legs = [
        Line("leg", f"to the {side}", _leg(name, total, leg), delays)
        for leg, side in enumerate(LEGS)
        if (delays := total.distribution(leg=leg)).samples
    ]
    if grouping:
        answer.by = grouping.by
        groups = [
            Line("group", grouping.keys[tag], total.report(name, "round_trip", tag), total.distribution(tag))
            for tag in total.tags
        ]
        answer.groups = sorted(groups, key=lambda line: (line.key == "other", -(line.report.quantiles["0.5"] or 0)))
    return answer


def _leg(name: str, total: Samples, leg: int) -> Report:
    from wirelag.report import Report
    from wirelag.synopses.samples import facts

    return Report(
        name, "round_trip", packets=total.packets, **facts(total.distribution(leg=leg), total.crowds.of_leg(leg))
    )


def _add_questions(answer: Answer, limits_ns: list[int], questions: list[Sla]) -> None:
    from wirelag.stats.distribution import Z95
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
    delays = total.distribution()
    if delays.weight != delays.samples:
        parts.append(f"{delays.samples:,} samples stand for {delays.weight:,} delays")
    if total.counts.get("backwards", 0):
        parts.append(f"{total.counts['backwards']:,} responses with a time before their request's")
    return "; ".join(parts)
