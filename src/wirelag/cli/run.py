"""What every command does around its measurement: options into settings, a result into output and an exit code."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from wirelag.errors import SettingError

if TYPE_CHECKING:
    from wirelag.measure.result import Result


def option_of(setting: str) -> str:
    """The option of a setting."""
    return "--" + setting.replace("_", "-")


def with_usage(command: Callable[..., None]) -> Callable[..., None]:
    """Make a wrong setting a usage error that names its option."""

    @functools.wraps(command)
    def checked(**given: Any) -> None:
        try:
            command(**given)
        except SettingError as error:
            raise typer.BadParameter(error.problem, param_hint=option_of(error.name)) from None

    return checked


def conclude(result: Result, output_format: str, output: str | None, html: str | None = None) -> None:
    """Write a result, and exit with 3 if an agreement does not hold."""
    from wirelag.render.output import write_result

    for line in result.warnings:
        print(f"warning: {line}", file=sys.stderr)
    result.command_line = shlex.join(["wirelag", *sys.argv[1:]])
    if html:
        result.to_html(html)
    write_result(result, output_format, output)
    if not result.holds:
        raise typer.Exit(3)
