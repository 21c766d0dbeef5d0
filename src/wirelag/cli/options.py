"""Options that several commands share, and their checks."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from wirelag.cli.parser import Argument, Declared, Option, UsageError, declared_by, kind_of
from wirelag.errors import WirelagError, need_polars
from wirelag.measure.groups import FIGURES
from wirelag.render.output import BINARY, OF_DELAYS, OF_FLOWS, WRITERS, form_of
from wirelag.units import parse_share, parse_speed

FILTERS = "Packets"
ANSWER = "Report"
METHOD = "Method"
MANY = "Many captures"
FORMATS = tuple(name for name in WRITERS if name not in OF_DELAYS)
DELAY_FORMATS = tuple(name for name in WRITERS if name not in OF_FLOWS)
FLOW_FORMATS = tuple(WRITERS)

Captures = Annotated[
    list[str],
    Argument(metavar="CAPTURE...", help="pcap or pcapng, also compressed (gzip, zstd, xz); - is standard input."),
]
Force = Annotated[bool, Option("--force", help="Read captures that hold the same packets as one.", panel=FILTERS)]
Tunnels = Annotated[
    bool, Option("--tunnels", help="Measure inside GRE, IP-in-IP, VXLAN, Geneve, GTP-U.", panel=FILTERS)
]
Expression = Annotated[
    str | None,
    Option(
        "--filter", metavar="EXPRESSION", help="Filter in tcpdump's syntax: 'tcp port 443 and host x'.", panel=FILTERS
    ),
]
Interval = Annotated[str | None, Option("--interval", metavar="D", help="Report each interval, too.", panel=ANSWER)]
GroupMemory = Annotated[
    str, Option("--group-memory", metavar="SIZE", help="Memory for groups; the rest is 'other'.", panel=ANSWER)
]
MostGroups = Annotated[
    int, Option("--most-groups", metavar="N", help="Classes to keep; the rest is 'other'.", panel=ANSWER)
]
Sort = Annotated[
    str | None, Option("--sort", metavar="|".join(FIGURES), help="Order groups by this figure.", panel=ANSWER)
]
Top = Annotated[
    int | None, Option("--top", metavar="N", help="Groups in the table (20), and slowest samples (5).", panel=ANSWER)
]
Samples = Annotated[
    str | None, Option("--samples", metavar="FILE.parquet|FILE.csv", help="Write every delay to this file.")
]
Ipv4Prefix = Annotated[
    int, Option("--ipv4-prefix", metavar="BITS", help="Prefix length of IPv4 networks.", panel=ANSWER)
]
Ipv6Prefix = Annotated[
    int, Option("--ipv6-prefix", metavar="BITS", help="Prefix length of IPv6 networks.", panel=ANSWER)
]
Above = Annotated[
    list[str] | None, Option("--above", metavar="D", help="Report the share of delays above this.", panel=ANSWER)
]


def _questions(holds: str) -> Any:
    examples = "p99<50ms, mean<10ms, 'above(50ms)<5%'"
    return Option("--sla", metavar="QUESTION", help=f"Exit with 3 unless {holds}: {examples}.", panel=ANSWER)


Questions = Annotated[list[str] | None, _questions("this holds (with --by, for each group)")]
QuestionsOfAll = Annotated[list[str] | None, _questions("this holds")]
_FORMAT_HELP: Final = "Output format; default: by the extension of -o, or table."
OutputFormat = Annotated[str | None, Option("--format", metavar="|".join(FORMATS), help=_FORMAT_HELP)]
DelayFormat = Annotated[str | None, Option("--format", metavar="|".join(DELAY_FORMATS), help=_FORMAT_HELP)]
FlowFormat = Annotated[str | None, Option("--format", metavar="|".join(FLOW_FORMATS), help=_FORMAT_HELP)]
Export = Annotated[
    str | None, Option("--export", metavar="ipfix+udp|tcp|tls://HOST:PORT", help="Send flows to a collector, too.")
]
Output = Annotated[str | None, Option("-o", "--output", metavar="FILE", help="File to write.")]
Html = Annotated[str | None, Option("--html", metavar="FILE", help="Write a page with charts, too; it works offline.")]
Cores = Annotated[
    int | None,
    Option("--cores", metavar="N", help="Cores that work on it; no result depends on it. Default: all."),
]
Quiet = Annotated[bool, Option("--quiet", help="Do not show a progress bar.")]


def _filter_option(flag: str, kind: Any, metavar: str, text: str) -> Declared:
    annotation = Annotated[kind | None, Option(flag, metavar=metavar, help=text, panel=FILTERS)]
    name = {"--proto": "protocols", "--from": "start", "--to": "end"}.get(flag, flag[2:] + "s")
    return Declared(name, annotation, None)


_WHO: Final = (
    _filter_option("--host", list[str], "ADDRESS", "Packets to or from this host."),
    _filter_option("--net", list[str], "NETWORK", "Packets to or from this network."),
    _filter_option("--port", list[str], "PORTS", "To or from these: 443, 80,443, 1-1024, https."),
    _filter_option("--proto", list[str], "NAME", "Protocol: tcp, udp, icmp, ... or a number."),
)
_WHEN: Final = (
    _filter_option("--from", str, "TIME", "Start time: 2024-05-01T12:00:00Z, seconds, or +2s."),
    _filter_option("--to", str, "TIME", "End time, written likewise."),
    Declared("expression", Expression, None),
)


def with_filter(command: Callable[..., None] | None = None, *, times: bool = True) -> Callable[..., Any]:
    """Add the options that select packets to a command, which gets them as one argument, the `Filter` `wanted`."""
    options = (*_WHO, *_WHEN) if times else _WHO
    if command is None:
        return functools.partial(with_filter, times=times)

    @functools.wraps(command)
    def filtered(**given: Any) -> None:
        parts = {option.name: given.pop(option.name) for option in options}
        lists = {name: tuple(part) for name, part in parts.items() if isinstance(part, list)}
        from wirelag.packets.filters import Filter

        rest = {name: parts.get(name) for name in ("start", "end", "expression")}
        wanted = Filter.parse(**lists, **rest)  # type: ignore[arg-type]
        command(**given, wanted=wanted)

    return replace_parameter(filtered, command, "wanted", options)


def replace_parameter(
    wrapper: Callable[..., None], command: Callable[..., None], replaced: str, by: Sequence[Declared]
) -> Callable[..., None]:
    """Give the wrapper the command's parameters, with one of them replaced by several."""
    parameters: list[Declared] = []
    for parameter in declared_by(command):
        if parameter.name == replaced:
            parameters += by
            continue
        kind = parameter.kind
        with suppress(NameError):  # another decorator replaces it: its type is not imported
            kind = kind_of(parameter, command)
        parameters.append(Declared(parameter.name, kind, parameter.default))
    wrapper.__declared__ = parameters  # type: ignore[attr-defined]
    return wrapper


def one_of(value: str, allowed: Sequence[str], option: str) -> None:
    """Raise a usage error unless the value is one of these."""
    if value not in allowed:
        raise UsageError(f"{value!r} is not one of {', '.join(allowed)}", option=option)


def share_of(text: str | float) -> float:
    """A share, as 5% or 0.05; a parser of options."""
    try:
        return parse_share(str(text))
    except ValueError as error:
        raise UsageError(str(error)) from None


def speed_of(text: str) -> float | None:
    """Replay speed, as a factor; None: as fast as possible. Raises a usage error."""
    try:
        return None if text == "max" else parse_speed(text)
    except ValueError as error:
        raise UsageError(f"{error} (or max)", option="--speed") from None


def check_outputs(
    form: str | None,
    outputs: Mapping[str, str | Iterable[str] | None],
    inputs: Iterable[str] = (),
    forms: Sequence[str] = FORMATS,
) -> str:
    """Return the format, asked for or as the extension of -o says; raise a usage error unless outputs can be written.

    Every output needs its own writable file that is not an input; only -o can be standard output. Nothing is written
    before this check. Two paths to one file are the same file, however they are spelled.
    """
    target = outputs.get("-o")
    read = {file for path in inputs if (file := _file_of(path, 0))}
    written: dict[str | tuple[int, int], str] = {}
    for option, given in outputs.items():
        for path in [given] if isinstance(given, str) else given or []:
            if path == "-" and option != "-o":
                raise UsageError("needs the name of a file", option=option)
            file = _file_of(path, 1)
            if file in read:
                says = f"{path} is also an input, which would be overwritten; choose another file"
                raise UsageError(says, option=option)
            if file in written:
                both = option if option == written[file] else f"{written[file]}, {option}"
                raise UsageError("every output needs its own file", option=both)
            if file:
                written[file] = option
            _need_writable(path, option)
    try:
        form = form or form_of(target if isinstance(target, str) else "", forms)
    except ValueError as error:
        raise UsageError(str(error), option="-o") from None
    one_of(form, forms, "--format")
    if form in BINARY and outputs.get("-o") is None:
        raise WirelagError(f"cannot print {BINARY[form]} on a terminal: name a file with -o")
    if form == "parquet":
        need_polars("Parquet")
    return form


def _file_of(path: str, stream: int) -> str | tuple[int, int] | None:
    """The identity of the file at a path, or of one to be created; None for shared devices, such as /dev/null.

    `stream` is what `-` means: 0, standard input, or 1, standard output, which only one output can use.
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


def check_flows(form: str, export: str | None, listed: bool) -> None:
    """Raise a usage error if a format or a collector of flows is asked for, and no flows are listed."""
    if not listed and (form in OF_FLOWS or export is not None):
        raise UsageError("lists flows only with --by flow", option="--export" if export else "--format")
    if export is not None:
        from wirelag.transport.exports import Target

        try:
            Target.parse(export)
        except ValueError as error:
            raise UsageError(str(error), option="--export") from None


def check_address(text: str) -> None:
    """Raise a usage error unless --prometheus has an address."""
    from wirelag.render.prometheus import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise UsageError(str(error), option="--prometheus") from None


def _fleet_option(name: str, flag: str, metavar: str, text: str) -> Declared:
    annotation = Annotated[str | None, Option(flag, metavar=metavar, help=text, panel=MANY)]
    return Declared(name, annotation, None)


_FLEET: Final = (
    _fleet_option("on", "--on", "local|dask://HOST:PORT", "All cores, or a Dask cluster; captures may be URLs."),
    _fleet_option("resume", "--resume", "FILE", "Keep what is finished here; what it holds is not done again."),
    _fleet_option("task_size", "--task-size", "SIZE", "Bytes of captures that a task reads. Default: by their sum."),
)


def with_fleet(command: Callable[..., None]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as one argument, `fleet`: a `Fleet`, or None."""

    @functools.wraps(command)
    def on_fleet(**given: Any) -> None:
        on, resume, size = (given.pop(option.name) for option in _FLEET)
        if on is not None:
            from wirelag.cli.progress import bytes_bar
            from wirelag.measure.fleet import Fleet
            from wirelag.scale.signals import terminated_in_order

            with terminated_in_order():
                command(**given, fleet=Fleet(on, resume, size, bytes_bar(given["quiet"]), given.get("cores")))
            return
        if resume is not None or size is not None:
            raise UsageError("needs --on", option="--resume" if resume is not None else "--task-size")
        command(**given, fleet=None)

    return replace_parameter(on_fleet, command, "fleet", _FLEET)
