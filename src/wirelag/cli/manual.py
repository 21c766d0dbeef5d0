r"""Manual pages, written from the commands themselves: `wirelag --manual rtt | man -l -`.

Without a command it is the page of the whole program. The form is man(7): a line that begins with a dot is a request,
so what a command says of itself is escaped.

>>> print(_plain(".a-b\\c"))
\&.a\-b\ec
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wirelag import __version__
from wirelag.cli import COMMANDS, NAMES, command
from wirelag.cli.examples import examples_of, exits_of
from wirelag.cli.parser import Command, Parameter, UsageError, unknown


def manual(words: Sequence[str]) -> str:
    """The page of a command, or of the program."""
    if len(words) > 1:
        raise UsageError("takes one command", "--manual")
    if words and words[0] not in NAMES:
        raise UsageError(unknown(words[0], NAMES, "command"), "--manual")
    return "\n".join(_command(command(words[0])) if words else _program()) + "\n"


def _program() -> Iterator[str]:
    yield from _head("wirelag", "how late is the network? Measured from packets you already have")
    yield from (".SH SYNOPSIS", ".B wirelag", _plain("COMMAND [OPTIONS] ..."), ".SH COMMANDS")
    for title, group in COMMANDS.items():
        yield f".SS {_plain(title)}"
        for name, text in group.items():
            yield from (".TP", f".BR wirelag\\-{name} (1)", _plain(text))
    yield from (".SH OPTIONS", ".TP", r".B \-\-version", "Print the version.")
    yield from (".TP", r".BI \-\-completion\  SHELL", "Print a script that completes words in bash, zsh or fish.")
    yield from (".TP", r".BI \-\-manual\  COMMAND", "Print the manual page of a command.")
    yield from _exits(["sla"])


def _command(one: Command) -> Iterator[str]:
    summary, *paragraphs = one.help.split("\n\n")
    yield from _head(f"wirelag-{one.name}", summary.rstrip("."))
    yield from (".SH SYNOPSIS", f".B wirelag {one.name}", _plain(one.usage.split(" ", 2)[2]), ".SH EXAMPLES")
    for line, purpose in examples_of(one.name):
        yield from (".TP", f".B {_plain(line)}", _plain(purpose[0].upper() + purpose[1:] + "."))
    yield ".SH DESCRIPTION"
    for paragraph in paragraphs or [summary]:
        yield from (".PP", _plain(" ".join(paragraph.split())))
    if one.arguments:
        yield ".SH ARGUMENTS"
        for argument in one.arguments:
            yield from (".TP", f".I {_plain(argument.declared.metavar)}", _plain(argument.declared.help))
    yield ".SH OPTIONS"
    for panel, options in one.panels():
        yield f".SS {_plain(panel)}"
        for option in options:
            yield from _option(option)
    yield from _exits([parameter.name for parameter in one.parameters])
    yield from (".SH SEE ALSO", ".BR wirelag (1)")


def _option(option: Parameter) -> Iterator[str]:
    flags = r"\fR, \fB".join(_plain(flag) for flag in option.flags)
    value = rf" \fI{_plain(option.declared.metavar)}\fR" if option.takes_value else ""
    yield from (".TP", rf"\fB{flags}\fR{value}", _plain(option.text))


def _exits(parameters: Sequence[str]) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in exits_of(parameters):
        yield from (".TP", f".B {code}", _plain(meaning[0].upper() + meaning[1:] + "."))


def _head(name: str, summary: str) -> Iterator[str]:
    yield from (f'.TH {name.upper()} 1 "" "wirelag {__version__}" "wirelag"', ".SH NAME", _plain(f"{name} - {summary}"))


def _plain(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text[:1] in (".", "'") else text
