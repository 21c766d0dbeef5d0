"""The help of a command: argparse lays it out."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from wirelag.cli.parser import HELP, OPTIONS, Command, Parameter

_COLUMNS: Final = 80


def help_of(command: Command) -> str:
    """It opens with examples and ends with exit codes."""
    from wirelag.cli.examples import examples_of, exits_of

    summary, *more = command.help.split("\n\n")
    parser = argparse.ArgumentParser(
        prog=f"wirelag {command.name}",
        usage=command.usage,
        description="\n\n".join([summary, _block("Examples:", examples_of(command.name)), *more]),
        epilog=_block("Exit codes:", exits_of(one.name for one in command.parameters)),
        formatter_class=_Help,
        add_help=False,
    )
    if command.arguments:
        about = parser.add_argument_group("Arguments")
        for one in command.arguments:
            about.add_argument(
                f"--an argument, {one.name}", metavar=one.declared.metavar, help=_text(one), action=_Shown
            )
    for panel, options in command.panels():
        group = parser.add_argument_group(panel)
        for one in options:
            how: dict[str, Any] = {"metavar": one.declared.metavar} if one.takes_value else {"action": "store_true"}
            group.add_argument(*one.flags, dest=one.name, help=_text(one), **how)
        if panel == OPTIONS:
            group.add_argument(*HELP, action="help", help="Show this text.")
    return parser.format_help()


def _block(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Rows of two columns; where the first is long, the second comes below it."""
    width = max(len(left) for left, _ in rows)
    room = width + 6 + max(len(right) for _, right in rows) <= _COLUMNS
    lines = (f"  {left:<{width}}    {right}" if room else f"  {left}\n      {right}" for left, right in rows)
    return "\n".join([title, *lines])


class _Shown(argparse.Action):
    """An argument, by its name alone."""

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
        return textwrap.wrap(text, width, break_on_hyphens=False)  # values have hyphens

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Shown):
            return str(action.metavar)
        value = f" {action.metavar}" if action.nargs != 0 else ""
        return ", ".join(action.option_strings) + value


def _text(one: Parameter) -> str:
    return one.text.replace("%", "%%")
