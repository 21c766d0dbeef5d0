"""Commands from functions: a parameter annotated with an `Option` or an `Argument` is one.

Law: a value has the type of its annotation. A list is an option that may be repeated, a bool one without a value. Only
the command that runs is imported and built: `wirelag --help` starts as quickly as Python does.
"""

from __future__ import annotations

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


_REQUIRED: Final = object()


class Declared:
    """A parameter of a function: its name, its annotation, and its default value if it has one.

    Not `inspect.Parameter`: to import `inspect` takes as long as a third of all that a command imports of wirelag.
    """

    def __init__(self, name: str, kind: Any, default: Any = _REQUIRED) -> None:
        self.name, self.kind, self.default = name, kind, default


def declared_by(function: Callable[..., None]) -> list[Declared]:
    """The parameters of a function, or those that a decorator says it has."""
    while not hasattr(function, "__declared__") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if hasattr(function, "__declared__"):
        return list(function.__declared__)
    code, kinds = function.__code__, function.__annotations__
    names, defaults = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], function.__defaults__ or ()
    by_place = zip(names[code.co_argcount - len(defaults) :], defaults, strict=False)
    given = dict(by_place) | (function.__kwdefaults__ or {})
    return [Declared(name, kinds[name], given.get(name, _REQUIRED)) for name in names]


def kind_of(declared: Declared, function: Callable[..., None]) -> Any:
    """An annotation, which may be text; a NameError if it names a type that is not imported."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return eval(declared.kind, function.__globals__) if isinstance(declared.kind, str) else declared.kind


class Given(frozenset[str]):
    """The names of the parameters that were given, even with their default values: for a command that asks for them."""


class Parameter:
    """One option or argument of a command."""

    def __init__(self, parameter: Declared, kind: Any) -> None:
        annotated, (declared, *_) = kind.__origin__, kind.__metadata__
        self.name, self.declared = parameter.name, declared
        self.required = parameter.default is _REQUIRED
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
        self._doc = function.__doc__ or ""
        self.parameters: list[Parameter] = []
        self._asks: str | None = None  # the parameter that gets the names of those given
        for parameter in declared_by(function):
            kind = kind_of(parameter, function)
            if kind is Given:
                self._asks = parameter.name
            else:
                self.parameters.append(Parameter(parameter, kind))

    @property
    def help(self) -> str:
        """What it does."""
        from textwrap import dedent

        first, _, rest = self._doc.partition("\n")
        return f"{first}\n{dedent(rest)}".strip()

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
        given, rest = self._options(words)
        given |= dict(self._arguments(rest))
        values = {one.name: given.get(one.name, one.default) for one in self.parameters}
        if missing := next((one for one in self.parameters if one.required and one.name not in given), None):
            raise UsageError("is missing", missing.flags[0] if missing.is_option else missing.declared.metavar)
        return values if self._asks is None else values | {self._asks: Given(given)}

    def _options(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The values of the options that were given, and all other words, on whichever side of an option."""
        by_flag = {flag: one for one in self.options for flag in one.flags}
        given: dict[str, Any] = {}
        rest: list[str] = []
        left = list(reversed(words))
        while left:
            word = left.pop()
            if word == "--":
                return given, rest + left[::-1]
            if not _is_option(word):
                rest.append(word)
                continue
            if word in HELP:
                from wirelag.cli.help import help_of

                print(help_of(self), end="")
                raise SystemExit(0)
            flag, equals, text = word.partition("=")
            if flag not in by_flag and word[:2] in by_flag:  # -oFILE
                flag, equals, text = word[:2], "=", word[2:]
            if flag not in by_flag:
                raise UsageError(unknown(word, [*by_flag, *HELP], "option"))
            one = by_flag[flag]
            if not one.takes_value and equals:
                raise UsageError("takes no value", "/".join(one.flags))
            if one.takes_value and not equals:
                if not left or (_is_option(left[-1]) and " " not in left[-1]):  # a filter may begin with -
                    raise UsageError("needs a value", "/".join(one.flags))
                text = left.pop()
            value = one.value(text) if one.takes_value else True
            given[one.name] = [*given.get(one.name, ()), value] if one.many else value
        return given, rest

    def _arguments(self, words: list[str]) -> Iterator[tuple[str, Any]]:
        for one in self.arguments:
            taken = words[:] if one.many else words[:1]
            del words[: len(taken)]
            if taken:
                yield one.name, [one.value(word) for word in taken] if one.many else one.value(taken[0])
        if words:
            raise UsageError(f"unexpected argument {words[0]!r}")


HELP: Final = ("-h", "--help")
_NUMBER: Final = re.compile(r"^-\.?\d")


def _is_option(word: str) -> bool:
    """Whether a word is an option; - is standard input or output, and -3s a value."""
    return word[:1] == "-" and word != "-" and not _NUMBER.match(word)


def _place(panel: str) -> int:
    return LAST.index(panel) + 2 if panel in LAST else int(panel not in FIRST)


def unknown(word: str, known: Sequence[str], what: str) -> str:
    """What is wrong with a word that is none of these."""
    from difflib import get_close_matches

    name = word.split("=")[0]
    near = get_close_matches(name, known, n=1)
    return f"unknown {what} {name}" + (f" (did you mean {near[0]}?)" if near else "")
