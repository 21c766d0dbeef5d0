"""Options that several commands share, and what they make of them."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wirelag.errors import WirelagError
from wirelag.render.output import BINARY, WRITERS
from wirelag.units import parse_speed

if TYPE_CHECKING:
    pass

FILTERS = "Which packets"
ANSWER = "What to answer"
METHOD = "How"
FORMATS = tuple(WRITERS)

Captures = Annotated[
    list[str],
    typer.Argument(metavar="CAPTURE...", help="pcap or pcapng, also compressed (gzip, zstd, xz); - is standard input."),
]
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


def _filter_option(flag: str, kind: Any, metavar: str, text: str) -> inspect.Parameter:
    annotation = Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, rich_help_panel=FILTERS)]
    name = {"--proto": "protocols", "--from": "start", "--to": "end"}.get(flag, flag[2:] + "s")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_WHO: Final = (
    _filter_option("--host", list[str], "ADDRESS", "To or from this host."),
    _filter_option("--net", list[str], "NETWORK", "To or from this network."),
    _filter_option("--port", list[int], "PORT", "To or from this port."),
    _filter_option("--proto", list[str], "NAME", "tcp, udp, icmp, ... or a number."),
)
_WHEN: Final = (
    _filter_option("--from", str, "TIME", "2024-05-01T12:00:00Z, seconds, or +2s."),
    _filter_option("--to", str, "TIME", "Up to this time."),
)


def with_filter(command: Callable[..., None] | None = None, *, times: bool = True) -> Callable[..., Any]:
    """The command with the options that choose packets, which it gets as one `Filter`, its argument `wanted`."""
    options = (*_WHO, *_WHEN) if times else _WHO
    if command is None:
        return functools.partial(with_filter, times=times)

    @functools.wraps(command)
    def filtered(**given: Any) -> None:
        parts = {option.name: given.pop(option.name) for option in options}
        lists = {name: tuple(part) for name, part in parts.items() if isinstance(part, list)}
        from wirelag.packets.filters import Filter

        try:
            wanted = Filter.parse(**lists, start=parts.get("start"), end=parts.get("end"))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        command(**given, wanted=wanted)

    return replace_parameter(filtered, command, "wanted", options)


def replace_parameter(
    wrapper: Callable[..., None], command: Callable[..., None], replaced: str, by: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """The wrapper with the command's parameters, one of them replaced by several."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name == replaced:
            parameters += by
            continue
        kind = parameter.annotation
        with suppress(NameError):  # what another decorator replaces has a type that is not imported
            kind = eval(kind, command.__globals__) if isinstance(kind, str) else kind
        parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
    signature = inspect.Signature(parameters, return_annotation=None)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return wrapper


def one_of(value: str, allowed: Sequence[str], option: str) -> None:
    """A usage error unless the value is one of these."""
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)


def speed_of(text: str) -> float | None:
    """How many times as fast captures are read as they were taken; None: as fast as may be. Or a usage error."""
    try:
        return None if text == "max" else parse_speed(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error} (or max)", param_hint="--speed") from None


def check_outputs(
    form: str,
    outputs: Mapping[str, str | Iterable[str] | None],
    inputs: Iterable[str] = (),
    forms: Sequence[str] = FORMATS,
) -> None:
    """A usage error unless the format is known and outputs can be written.

    Every output needs a file of its own that can be written and is no input; only -o can be standard output.
    This is checked before anything is written. Files are the same by what they are, not by how they are spelled.
    """
    one_of(form, forms, "--format")
    if form in BINARY and outputs.get("-o") is None:
        raise WirelagError("Parquet is not for a terminal: name a file with -o")
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


def check_address(text: str) -> None:
    """A usage error unless --prometheus has an address."""
    from wirelag.render.prometheus import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--prometheus") from None
