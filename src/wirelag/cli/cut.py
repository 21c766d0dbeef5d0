"""`wirelag cut`: a few kilobytes of each interval, to be compared with those of another point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.method import Direction, with_method
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Captures,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Quiet,
    Tunnels,
    check_outputs,
    with_filter,
)
from wirelag.cli.progress import progress
from wirelag.measure.methods import GROUPS

if TYPE_CHECKING:
    from wirelag.measure.methods import Method
    from wirelag.packets.filters import Filter


@with_filter
@with_method(without=("rateless",), estimator="lda")
def cut(
    captures: Captures,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to, A.syn say.")],
    wanted: Filter,
    method: Method,
    tunnels: Tunnels = False,
    direction: Direction = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="How far this point's clock is ahead, where that is known.", rich_help_panel=METHOD
        ),
    ] = None,
    interval: Interval = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(GROUPS), help="A synopsis for each class of traffic, too.", rich_help_panel=ANSWER
        ),
    ] = None,
    most_groups: MostGroups = 100,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Answer the questions of `wirelag oneway --ask` instead; its terms are used.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Keep a few kilobytes of each interval, to be compared with those of another point by `wirelag oneway`.

    Use the same options at both points.
    """
    if output == "-":
        raise typer.BadParameter("needs the name of a file", param_hint="-o")
    check_outputs("table", {"-o": output}, [*captures, *([answer] if answer else [])])
    from wirelag.measure.cut import cut_captures, reply, terms_of
    from wirelag.measure.groups import Groups
    from wirelag.measure.points import ReadOptions
    from wirelag.units import duration_ns, offset_ns

    reading, ahead_ns = ReadOptions(wanted, tunnels, progress(quiet)), offset_ns(offset, "offset") if offset else 0
    if answer is not None:
        written = reply(captures, output, answer, reading, ahead_ns)
        said = f"{written.records} answers to {written.questions} questions"
    else:
        interval_ns = duration_ns(interval, "interval") if interval else None
        groups = Groups(by, GROUPS, most_groups, ipv4_prefix, ipv6_prefix)
        terms = terms_of(method, interval_ns, groups, direction, reading)
        written = cut_captures(captures, output, terms, reading, ahead_ns)
        said = f"{written.records} synopses of {written.packets:,} packets"
    for line in written.warnings:
        print(f"warning: {line}", file=sys.stderr)
    print(f"{output}: {said}, {written.bytes:,} bytes")
