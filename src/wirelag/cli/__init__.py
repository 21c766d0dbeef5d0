"""The command line. Each command is a function in a module of its name; what it computes lives elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from wirelag import __version__
from wirelag.cli.compare import compare
from wirelag.cli.cut import cut
from wirelag.cli.flows import flows
from wirelag.cli.info import info
from wirelag.cli.oneway import oneway
from wirelag.cli.rtt import rtt
from wirelag.cli.score import score
from wirelag.cli.simulate import simulate
from wirelag.errors import WirelagError

app = typer.Typer(
    name="wirelag",
    help="How late is the network? Measured from packets that are already there.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "info": info,
    "rtt": rtt,
    "oneway": oneway,
    "cut": cut,
    "flows": flows,
    "compare": compare,
    "simulate": simulate,
    "score": score,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"wirelag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: an error is one line and exit code 2, never a traceback."""
    try:
        app()
    except WirelagError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        # Whoever read our output has gone. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except MemoryError:
        _fail("out of memory; a filter (--host, --port, --from, --to) makes the work smaller", 2)
    except Exception as error:
        if os.environ.get("WIRELAG_DEBUG"):
            raise
        where = "set WIRELAG_DEBUG=1 to see where, and please report it"
        _fail(f"internal error: {type(error).__name__}: {error}; {where}", 70)


def _fail(line: str, code: int) -> None:
    for part in line.splitlines():
        print(f"wirelag: {part}", file=sys.stderr)
    sys.exit(code)
