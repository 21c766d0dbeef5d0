"""Options that several commands share, and what they make of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.errors import WirelagError
from wirelag.units import parse_duration_ns, parse_rate, parse_size, parse_speed

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter
    from wirelag.stats.sla import Sla

FILTERS = "Which packets"
ANSWER = "What to answer"
METHOD = "How"
LONGEST_NS = 100 * 365 * 86_400 * 10**9
FORMATS = ("table", "json", "jsonl", "csv", "parquet")

Captures = Annotated[
    list[str],
    typer.Argument(metavar="CAPTURE...", help="pcap or pcapng, also compressed (gzip, zstd, xz); - is standard input."),
]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="ADDRESS", help="To or from this host.", rich_help_panel=FILTERS)
]
Nets = Annotated[
    list[str] | None, typer.Option("--net", metavar="NETWORK", help="To or from this network.", rich_help_panel=FILTERS)
]
Ports = Annotated[
    list[int] | None, typer.Option("--port", metavar="PORT", help="To or from this port.", rich_help_panel=FILTERS)
]
Protocols = Annotated[
    list[str] | None,
    typer.Option("--proto", metavar="NAME", help="tcp, udp, icmp, ... or a number.", rich_help_panel=FILTERS),
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="2024-05-01T12:00:00Z, seconds, or +2s.", rich_help_panel=FILTERS),
]
End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Up to this time.", rich_help_panel=FILTERS)]
Tunnels = Annotated[
    bool, typer.Option("--tunnels", help="Look inside GRE, IP-in-IP, VXLAN, Geneve and GTP-U.", rich_help_panel=FILTERS)
]
Interval = Annotated[
    str | None,
    typer.Option("--interval", metavar="D", help="An answer for each interval, too.", rich_help_panel=ANSWER),
]
MostGroups = Annotated[
    int, typer.Option("--most-groups", metavar="N", help="Groups to keep; the rest is 'other'.", rich_help_panel=ANSWER)
]
Ipv4Prefix = Annotated[
    int, typer.Option("--ipv4-prefix", metavar="BITS", help="Of networks in --by.", rich_help_panel=ANSWER)
]
Ipv6Prefix = Annotated[
    int, typer.Option("--ipv6-prefix", metavar="BITS", help="Of networks in --by.", rich_help_panel=ANSWER)
]
Above = Annotated[
    list[str] | None,
    typer.Option("--above", metavar="D", help="The share of delays above this one.", rich_help_panel=ANSWER),
]
Questions = Annotated[
    list[str] | None,
    typer.Option(
        "--sla",
        metavar="QUESTION",
        help="p99<50ms, mean<10ms, 'above(50ms)<5%': exit code 3 unless it holds.",
        rich_help_panel=ANSWER,
    ),
]
OutputFormat = Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print it.")]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Where to.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write a page with charts, too; it needs no network.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def make_filter(
    hosts: list[str] | None,
    nets: list[str] | None,
    ports: list[int] | None,
    protocols: list[str] | None,
    start: str | None,
    end: str | None,
) -> Filter:
    """The filter that the options ask for; a word that is wrong is a usage error."""
    from wirelag.packets.filters import Filter

    try:
        return Filter.parse(
            tuple(hosts or ()), tuple(nets or ()), tuple(ports or ()), tuple(protocols or ()), start, end
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def one_of(value: str, allowed: tuple[str, ...], option: str) -> None:
    """A usage error unless the value is one of these."""
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)


def ranged(value: int | None, least: int, most: int, option: str) -> None:
    """A usage error unless the value lies between these."""
    if value is not None and not least <= value <= most:
        raise typer.BadParameter(f"{value} does not lie between {least} and {most}", param_hint=option)


def duration_ns(text: str, option: str) -> int:
    """A duration longer than nothing, or a usage error."""
    try:
        ns = parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if not 0 < ns < LONGEST_NS:
        raise typer.BadParameter("must be longer than nothing, and shorter than a century", param_hint=option)
    return ns


def offset_ns(text: str) -> int:
    """A duration of any sign, or a usage error."""
    try:
        ns = parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--offset") from None
    if abs(ns) >= LONGEST_NS:
        raise typer.BadParameter("must be shorter than a century", param_hint="--offset")
    return ns


def questions_of(texts: list[str]) -> list[Sla]:
    """The questions of --sla, or a usage error."""
    from wirelag.stats.sla import Sla

    try:
        return [Sla.parse(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sla") from None


def size_of(text: str, option: str) -> int:
    """A size in bytes, or a usage error."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def rate_of(text: str, option: str) -> int:
    """A queue's rate in bits a second as bytes a second, or a usage error."""
    from wirelag.stats.queue_drain import FASTEST, SLOWEST

    try:
        rate = parse_rate(text) // 8
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if not SLOWEST <= rate <= FASTEST:
        raise typer.BadParameter("goes from 1Mbps to 8Tbps", param_hint=option)
    return rate


def speed_of(text: str) -> float | None:
    """How many times as fast captures are read as they were taken; None: as fast as may be. Or a usage error."""
    try:
        return None if text == "max" else parse_speed(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error} (or max)", param_hint="--speed") from None


def apart(outputs: Mapping[str, str | Iterable[str] | None], inputs: Iterable[str] = ()) -> None:
    """Every output needs a file of its own that can be written and is no input; only -o can be standard output.

    Told before anything is written. Files are the same by what they are, not by how they are spelled.
    """
    read = {file for path in inputs if (file := _file_of(path, 0))}
    written: dict[str | tuple[int, int], str] = {}
    for option, given in outputs.items():
        for path in [given] if isinstance(given, str) else given or []:
            if path == "-" and option != "-o":
                raise typer.BadParameter("wants the name of a file", param_hint=option)
            file = _file_of(path, 1)
            if file in read:
                says = f"{path} is read: writing to it would destroy it; choose another file"
                raise typer.BadParameter(says, param_hint=option)
            if file in written:
                both = option if option == written[file] else f"{written[file]}, {option}"
                raise typer.BadParameter("every output needs a file of its own", param_hint=both)
            if file:
                written[file] = option
            _need_writable(path, option)


def _file_of(path: str, stream: int) -> str | tuple[int, int] | None:
    """What a path leads to: a file, or where there will be one; None for what many may share, such as /dev/null.

    `stream` is what `-` stands for: 0, standard input, or 1, standard output, which outputs do not share.
    """
    standard = path == "-"
    shared = path if standard and stream else None
    try:
        found = os.fstat(stream) if standard else os.stat(path)
    except OSError:
        return shared if standard else os.path.realpath(path)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else shared


def _need_writable(path: str, option: str) -> None:
    if path == "-":
        return
    problem = 0
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            problem = errno.EISDIR
        elif not os.access(path, os.W_OK):
            problem = errno.EACCES
    except FileNotFoundError:
        folder = os.path.dirname(os.path.realpath(path))
        if not os.access(folder, os.W_OK | os.X_OK):
            problem = errno.EACCES if os.path.isdir(folder) else errno.ENOENT
    except OSError as error:
        problem = error.errno or errno.EIO
    if problem:
        why = os.strerror(problem)
        raise WirelagError(f"{path}: cannot write ({why}); choose another file with {option}")


def clock_text(time_ns: int) -> str:
    """A time as people read it."""
    from datetime import UTC, datetime

    try:
        text = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns / 1e9:.3f}"
    return f"{text}.{time_ns % 10**9 // 10**6:03d}"
