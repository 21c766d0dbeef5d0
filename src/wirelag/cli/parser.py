"""Commands from functions: a parameter annotated with an `Option` or an `Argument` is one. argparse does the rest.

Law: a value has the type of its annotation. A list is an option that may be repeated, a bool one without a value. Only
the command that runs is imported and built: `wirelag --help` starts as quickly as Python does.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, get_args, get_origin

from wirelag.errors import WirelagError

OPTIONS: Final = "Options"
FIRST: Final = ("Report",)  # panels of help: what most people want first, ...
LAST: Final = (OPTIONS, "Many captures", "Packet ids", "Method")  # ... and what experts want last


class UsageError(WirelagError):
    """An option or an argument is wrong."""

    def __init__(self, problem: str, option: str | None = None) -> None:
        super().__init__(f"{option}: {problem}" if option else problem)


class Argument:
    """A word that is not an option: its name in help, and what it means."""

    def __init__(self, *, metavar: str, help: str) -> None:
        self.metavar, self.help = metavar, help


class Option:
    """An option: how it is written (default: as its parameter), and how help explains it."""

    def __init__(
        self,
        *flags: str,
        help: str = "",
        metavar: str | None = None,
        panel: str | None = None,
        parser: Callable[[str], Any] | None = None,
        hidden: bool = False,
    ) -> None:
        self.flags, self.metavar, self.help, self.panel = flags, metavar, help, panel or OPTIONS
        self.parser, self.hidden = parser, hidden


class Given(frozenset[str]):
    """The names of the parameters that were given, even with their default values: for a command that asks for them."""


class Parameter:
    """One option or argument of a command."""

    def __init__(self, parameter: inspect.Parameter, kind: Any) -> None:
        annotated, (declared, *_) = kind.__origin__, kind.__metadata__
        self.name, self.declared = parameter.name, declared
        self.required = parameter.default is inspect.Parameter.empty
        self.default = None if self.required else parameter.default
        single = next(one for one in get_args(annotated) or (annotated,) if one is not type(None))
        if get_origin(annotated) not in (list, None):  # X | None
            annotated = single
        self.many = get_origin(annotated) is list
        self.type: type = get_args(annotated)[0] if self.many else annotated
        self.is_option = isinstance(declared, Option)
        self.flags: tuple[str, ...] = getattr(declared, "flags", ()) or ("--" + self.name.replace("_", "-"),)
        self.takes_value = self.type is not bool

    @property
    def text(self) -> str:
        """What help says of it."""
        more = ["required"] if self.required and self.is_option else []
        if self.takes_value and self.default is not None:
            more.append(f"default: {self.default}")
        more += ["may be repeated"] if self.many and self.is_option else []
        return str(self.declared.help) + (f" [{'; '.join(more)}]" if more else "")

    def value(self, text: str) -> Any:
        """The value of a word; raises a usage error."""
        parse: Callable[[str], Any] = getattr(self.declared, "parser", None) or self.type
        try:
            return parse(text)
        except ValueError as error:
            kinds = {int: f"{text!r} is not a whole number", float: f"{text!r} is not a number"}
            raise UsageError(kinds.get(parse, str(error)), self.flags[0]) from None  # type: ignore[call-overload]


class Command:
    """A function with its options and arguments."""

    def __init__(self, name: str, function: Callable[..., None]) -> None:
        self.name, self.function = name, function
        self.help = inspect.cleandoc(function.__doc__ or "")
        self.parameters: list[Parameter] = []
        self._asks: str | None = None  # the parameter that gets the names of those given
        for parameter in inspect.signature(function).parameters.values():
            kind = parameter.annotation
            kind = eval(kind, inspect.unwrap(function).__globals__) if isinstance(kind, str) else kind
            if kind is Given:
                self._asks = parameter.name
            else:
                self.parameters.append(Parameter(parameter, kind))

    @property
    def options(self) -> list[Parameter]:
        """The options, in the order in which they are declared."""
        return [one for one in self.parameters if one.is_option]

    @property
    def arguments(self) -> list[Parameter]:
        """The arguments, in order."""
        return [one for one in self.parameters if not one.is_option]

    @property
    def usage(self) -> str:
        """The line that says how to write it."""
        return " ".join(["wirelag", self.name, "[OPTIONS]", *(one.declared.metavar for one in self.arguments)])

    def panels(self) -> list[tuple[str, list[Parameter]]]:
        """The options that help shows, by panel: what is required first, then what most people want, then experts."""
        shown = [one for one in self.options if not one.declared.hidden]
        names = dict.fromkeys([one.declared.panel for one in shown] + [OPTIONS])
        panels = [(name, [one for one in shown if one.declared.panel == name]) for name in sorted(names, key=_place)]
        return sorted(panels, key=lambda panel: not any(one.required for one in panel[1]))

    def run(self, words: Sequence[str]) -> None:
        """Call the function with what these words say."""
        try:
            self.function(**self.values(words))
        except UsageError as error:
            raise UsageError(f"{error}; see: wirelag {self.name} --help") from None

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """The value of every parameter, as these words say; raises a usage error."""
        parser = self._parser()
        cut = words.index("--") if "--" in words else len(words)
        try:
            found, rest = parser.parse_known_args(words[:cut])
        except argparse.ArgumentError as error:
            message = "needs a value" if error.message.startswith("expected") else error.message
            raise UsageError(message, error.argument_name) from None
        if wrong := [word for word in rest if word[:1] == "-" and word != "-" and not _NUMBER.match(word)]:
            raise UsageError(unknown(wrong[0], [flag for one in self.options for flag in one.flags], "option"))
        given = vars(found) | dict(self._arguments([*rest, *words[cut + 1 :]]))
        values = {one.name: given.get(one.name, one.default) for one in self.parameters}
        if missing := next((one for one in self.parameters if one.required and one.name not in given), None):
            raise UsageError("is missing", missing.flags[0] if missing.is_option else missing.declared.metavar)
        return values if self._asks is None else values | {self._asks: Given(given)}

    def _arguments(self, words: list[str]) -> Iterator[tuple[str, Any]]:
        for one in self.arguments:
            taken = words[:] if one.many else words[:1]
            del words[: len(taken)]
            if taken:
                yield one.name, [one.value(word) for word in taken] if one.many else one.value(taken[0])
        if words:
            raise UsageError(f"unexpected argument {words[0]!r}")

    def _parser(self) -> argparse.ArgumentParser:
        """The options alone: argparse would not take arguments on both sides of an option."""
        parser = _Parser(
            self,
            prog=f"wirelag {self.name}",
            usage=self.usage,
            formatter_class=_Help,
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
            argument_default=argparse.SUPPRESS,
        )
        parser._negative_number_matcher = _NUMBER  # -3s is a value, too
        about = parser.add_argument_group("Arguments") if self.arguments else None
        for one in self.arguments:
            about.add_argument(_flag_of(one), metavar=one.declared.metavar, help=_escaped(one), action=_Shown)  # type: ignore[union-attr]
        groups = {panel: parser.add_argument_group(panel) for panel, _ in self.panels()}
        for one in self.options:
            shown = argparse.SUPPRESS if one.declared.hidden else _escaped(one)
            how: dict[str, Any] = {"dest": one.name, "help": shown}
            if one.takes_value:
                how |= {"type": one.value, "metavar": one.declared.metavar, "action": "append" if one.many else "store"}
            else:
                how |= {"action": "store_true"}
            groups[one.declared.panel].add_argument(*one.flags, **how)
        groups[OPTIONS].add_argument("-h", "--help", action="help", help="Show this text.")
        return parser


_COLUMNS: Final = 80
_NUMBER: Final = re.compile(r"^-\.?\d")


def _place(panel: str) -> int:
    return LAST.index(panel) + 2 if panel in LAST else int(panel not in FIRST)


class _Parser(argparse.ArgumentParser):
    """Its help opens with examples and ends with exit codes, which are loaded when help is asked for."""

    def __init__(self, command: Command, **given: Any) -> None:
        super().__init__(**given)
        self._command = command

    def format_help(self) -> str:
        from wirelag.cli.examples import examples_of, exits_of

        summary, *more = self._command.help.split("\n\n")
        self.description = "\n\n".join([summary, _block("Examples:", examples_of(self._command.name)), *more])
        self.epilog = _block("Exit codes:", exits_of(one.name for one in self._command.parameters))
        return super().format_help()


def _block(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Rows of two columns; where the first is long, the second comes below it."""
    width = max(len(left) for left, _ in rows)
    room = width + 6 + max(len(right) for _, right in rows) <= _COLUMNS
    lines = (f"  {left:<{width}}    {right}" if room else f"  {left}\n      {right}" for left, right in rows)
    return "\n".join([title, *lines])


class _Shown(argparse.Action):
    """An argument in help alone: its words are what the options leave."""

    def __call__(self, *_: Any) -> None:
        raise AssertionError("never parsed")


class _Help(argparse.HelpFormatter):
    """Help with paragraphs, and arguments by their names alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")

    def _format_text(self, text: str) -> str:
        blocks = text.split("\n\n")
        parts = [one if "\n  " in one else str(super(_Help, self)._format_text(one)).rstrip() for one in blocks]
        return "\n\n".join(parts) + "\n\n"

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        return textwrap.wrap(text, width, break_on_hyphens=False)  # values have hyphens

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Shown):
            return str(action.metavar)
        value = f" {action.metavar}" if action.nargs != 0 else ""
        return ", ".join(action.option_strings) + value


def _flag_of(one: Parameter) -> str:
    return f"--an argument, {one.name}"


def _escaped(one: Parameter) -> str:
    return one.text.replace("%", "%%")


def unknown(word: str, known: Sequence[str], what: str) -> str:
    """What is wrong with a word that is none of these."""
    from difflib import get_close_matches

    name = word.split("=")[0]
    near = get_close_matches(name, known, n=1)
    return f"unknown {what} {name}" + (f" (did you mean {near[0]}?)" if near else "")
