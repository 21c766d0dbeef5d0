"""What every command does around its measurement: options into settings, a result into output and an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

from wirelag.cli.options import GroupMemory, replace_parameter
from wirelag.cli.parser import Declared, Option, UsageError, declared_by
from wirelag.errors import SettingError, WirelagError, visible

if TYPE_CHECKING:
    from wirelag.measure.result import Result


def option_of(setting: str) -> str:
    """The option of a setting."""
    return "--" + setting.replace("_", "-")


def with_usage(command: Callable[..., None]) -> Callable[..., None]:
    """Make a wrong setting a usage error that names its option; the same for an option of earlier versions.

    What ^C, or SIGTERM with --on, left without an answer is no error.
    """
    from wirelag.cli.progress import STOP

    @functools.wraps(command)
    def checked(**given: Any) -> None:
        STOP.stopped = False
        if "group_memory" in given and given.pop("most_groups") is not None:
            what = "was replaced: say how much memory groups may take, such as --group-memory 1GiB"
            raise UsageError(what, option="--most-groups")
        try:
            try:
                command(**given)
            except WirelagError as error:
                if STOP.stopped:
                    raise KeyboardInterrupt from None
                if not isinstance(error, SettingError):
                    raise
                raise UsageError(error.problem, option=option_of(error.name)) from None
        except KeyboardInterrupt as stop:  # with --on, it says what is finished
            print(f"wirelag: {str(stop) or 'stopped before there was a result'}", file=sys.stderr)
            raise SystemExit(getattr(stop, "code", 130)) from None

    for one in declared_by(command):
        if one.name == "group_memory":
            group_memory = Declared(one.name, GroupMemory, one.default)
            return replace_parameter(checked, command, one.name, (group_memory, _MOST_GROUPS))
    return checked


_MOST_GROUPS: Final = Declared("most_groups", Annotated[str | None, Option("--most-groups", hidden=True)], None)


def conclude(
    result: Result, output_format: str, output: str | None, html: str | None = None, export: str | None = None
) -> None:
    """Write a result; exit with 3 if an agreement does not hold, 2 if a capture was not read, 130 if ^C ended it.

    `export` is a collector of flows that gets it, too.
    """
    from wirelag.cli.progress import STOP
    from wirelag.render.output import write_result

    if STOP.stopped:
        result.end_early()
    for line in result.aside(output_format):
        print(f"warning: {visible(line)}", file=sys.stderr)
    if html:
        import shlex

        result.command_line = shlex.join(["wirelag", *sys.argv[1:]])
        result.to_html(html)
    write_result(result, output_format, output)
    if export:
        from wirelag.render.ipfix import Exporter
        from wirelag.transport.exports import Target

        target = Target.parse(export)
        target.send(lambda most: Exporter(target.domain, most, target.refresh).messages(result))
    if STOP.stopped:
        raise SystemExit(130)
    if errors := getattr(result, "errors", []):
        raise WirelagError("\n".join(errors))
    if not result.holds:
        raise SystemExit(3)
