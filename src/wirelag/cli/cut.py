"""`wirelag cut`: writes a synopsis of each interval, to compare with another point's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from wirelag.cli.method import Direction, SmallEstimatorName, with_method
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Captures,
    Force,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Quiet,
    Tunnels,
    check_outputs,
    with_filter,
)
from wirelag.cli.parser import Option, UsageError
from wirelag.cli.progress import progress
from wirelag.measure.methods import GROUPS

if TYPE_CHECKING:
    from wirelag.measure.methods import Method
    from wirelag.packets.filters import Filter


@with_filter
@with_method(without=("rateless",), estimator=(SmallEstimatorName, "lda"))
def cut(
    captures: Captures,
    output: Annotated[str, Option("-o", "--output", metavar="FILE", help="File to write, such as A.syn.")],
    wanted: Filter,
    method: Method,
    tunnels: Tunnels = False,
    force: Force = False,
    direction: Direction = None,
    offset: Annotated[
        str | None, Option(metavar="D", help="How far this point's clock is ahead, if known.", panel=METHOD)
    ] = None,
    interval: Interval = None,
    by: Annotated[
        str | None, Option(metavar="|".join(GROUPS), help="Cut a synopsis of each traffic class, too.", panel=ANSWER)
    ] = None,
    most_groups: MostGroups = 100,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    answer: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Reply to the questions of `wirelag oneway --ask` instead, with their terms.",
            panel=METHOD,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write synopses of a capture.

    `wirelag oneway` compares them with those of another point: a few kilobytes per interval instead of the capture. Use
    the same options at both points.
    """
    if output == "-":
        raise UsageError("must be a file", option="-o")
    check_outputs("table", {"-o": output}, [*captures, *([answer] if answer else [])])
    from wirelag.measure.cut import cut_captures, reply, terms_of
    from wirelag.measure.groups import Groups
    from wirelag.measure.points import ReadOptions
    from wirelag.units import duration_ns, many, offset_ns

    reading, ahead_ns = ReadOptions(wanted, tunnels, progress(quiet)), offset_ns(offset, "offset") if offset else 0
    if answer is not None:
        written = reply(captures, output, answer, reading, ahead_ns)
        replies = "1 reply" if written.records == 1 else f"{written.records:,} replies"
        said = f"{replies} to {many(written.questions, 'question')}"
    else:
        interval_ns = duration_ns(interval, "interval") if interval else None
        groups = Groups(by, GROUPS, ipv4_prefix=ipv4_prefix, ipv6_prefix=ipv6_prefix, most=most_groups)
        terms = terms_of(method, interval_ns, groups, direction, reading)
        written = cut_captures(captures, output, terms, reading, ahead_ns, force)
        synopses = "1 synopsis" if written.records == 1 else f"{written.records:,} synopses"
        said = f"{synopses} of {many(written.packets, 'packet')}"
    for line in written.warnings:
        print(f"warning: {line}", file=sys.stderr)
    print(f"{output}: {said}, {written.bytes:,} bytes")
