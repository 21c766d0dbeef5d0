"""The command line. Each command is a function in a module of its name; what it computes is in `measure`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

from wirelag import __version__
from wirelag.errors import WirelagError

try:
    import typer

    from wirelag.cli.agent import agent
    from wirelag.cli.balance import balance
    from wirelag.cli.collect import collect
    from wirelag.cli.compare import compare
    from wirelag.cli.cut import cut
    from wirelag.cli.flows import flows
    from wirelag.cli.info import info
    from wirelag.cli.oneway import oneway
    from wirelag.cli.path import path
    from wirelag.cli.plan import plan
    from wirelag.cli.response import response
    from wirelag.cli.rtt import rtt
    from wirelag.cli.run import with_usage
    from wirelag.cli.score import score
    from wirelag.cli.simulate import simulate
    from wirelag.cli.watch import watch
except KeyboardInterrupt:  # before `main` can catch it
    sys.exit(130)

app = typer.Typer(
    name="wirelag",
    help="How late is the network? Measured from packets you already have.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "info": info,
    "rtt": rtt,
    "response": response,
    "oneway": oneway,
    "cut": cut,
    "flows": flows,
    "path": path,
    "plan": plan,
    "watch": watch,
    "agent": agent,
    "collect": collect,
    "balance": balance,
    "compare": compare,
    "simulate": simulate,
    "score": score,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(with_usage(_command))


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
    _stand_in()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        # Typer has an exit code of its own for a reader who has gone.
        sys.exit(141 if isinstance(end.__context__, BrokenPipeError) else end.code)
    except WirelagError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        _write_no_more()
        sys.exit(141)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except MemoryError:
        _fail("out of memory; select fewer packets with --host, --port, --from or --to", 2)
    except Exception as error:
        # Code that opens or reads a file names it in its error. An error without a name is standard output's.
        if isinstance(error, OSError) and error.filename is None and error.strerror:
            _write_no_more()
            _fail(f"standard output: cannot write ({error.strerror}); redirect it elsewhere", 2)
        if os.environ.get("WIRELAG_DEBUG"):
            raise
        where = "set WIRELAG_DEBUG=1 to see where, and please report this bug"
        _fail(f"internal error: {type(error).__name__}: {error}; {where}", 70)


def _stand_in() -> None:
    """Replace closed streams. Writing to standard output then fails as on a full disk."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _write_no_more() -> None:
    """Discard what is left for standard output, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str, code: int) -> None:
    for part in line.splitlines():
        print(f"wirelag: {part}", file=sys.stderr)
    sys.exit(code)
