"""The command line. Each command is a function in a module of its name; what it computes is in `measure`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from _thread import allocate_lock
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wirelag import __version__
from wirelag.errors import WirelagError, visible

if TYPE_CHECKING:
    from wirelag.cli.parser import Command

GARBAGE = 50_000  # new objects until Python looks for garbage: loading a command makes fewer, and hardly any garbage
COMMANDS = {
    "What is in a capture, and how slow is it?": {
        "info": "Show what is in a capture.",
        "rtt": "Measure round-trip delay.",
        "response": "Measure response latency.",
        "telemetry": "Read delay and loss that packets carry.",
        "report": "Write one page over many captures.",
    },
    "Where do packets wait: between two points, or in a network?": {
        "oneway": "Measure one-way delay, loss and reordering.",
        "cut": "Write synopses of a capture.",
        "flows": "Measure one-way delay of every flow.",
        "marking": "Measure loss and delay of marked packets.",
        "path": "Find the segment that adds the delay.",
        "plan": "Plan where to measure.",
    },
    "How slow is it now?": {
        "watch": "Measure live at an interface.",
        "stamp": "Measure to a STAMP reflector, or be one.",
        "agent": "Measure one point for a collector.",
        "collect": "Collect what agents measure, and serve it.",
        "balance": "Balance connections by response latency.",
    },
    "Did it get slower? Are the figures right? What works here?": {
        "compare": "Compare two reports for what got slower.",
        "simulate": "Simulate captures with known delays.",
        "score": "Compare a report with the truth.",
        "doctor": "Show what works, and how to mend what does not.",
    },
}
READ_AT_ONCE = ("info", "rtt")  # what these read is decompressed while Python still imports what they do
NAMES = tuple(name for group in COMMANDS.values() for name in group)
_HELP = """\
Usage: wirelag COMMAND ...   How late is the network? From packets you have.

{commands}
wirelag COMMAND --help shows examples, --manual COMMAND prints a manual page,
--completion bash|zsh|fish a script that completes words, --version the version.
"""


def command(name: str) -> Command:
    """A command with its options, found by its name before its module is loaded."""
    from wirelag.cli.parser import Command
    from wirelag.cli.run import with_usage

    return Command(name, with_usage(getattr(import_module(f"wirelag.cli.{name}"), name)))


def app(words: Sequence[str]) -> None:
    """Do what these words say."""
    first, *rest = words or ("--help",)
    if first in READ_AT_ONCE:
        from wirelag.capture.unzstd import beginning

        with beginning(rest):
            command(first).run(rest)
    elif first in NAMES:
        command(first).run(rest)
    elif first in ("-h", "--help"):
        groups = (f"{title}\n{_rows(group)}" for title, group in COMMANDS.items())
        sys.stdout.write(_HELP.format(commands="".join(groups)))
        sys.exit(0 if words else 2)
    elif first == "--version":
        print(f"wirelag {__version__}")
    elif first in ("--completion", "--complete"):
        from wirelag.cli.completion import complete, script

        sys.stdout.write(script(rest) if first == "--completion" else complete(rest))
    elif first == "--manual":
        from wirelag.cli.manual import manual

        sys.stdout.write(manual(rest))
    else:
        from wirelag.cli.parser import UsageError, unknown

        raise UsageError(f"{unknown(first, NAMES, 'option' if first[0] == '-' else 'command')}; see: wirelag --help")


def _rows(group: dict[str, str]) -> str:
    return "".join(f"  {name:<11}{text}\n" for name, text in group.items())


def program() -> None:
    """Do what `main` does, and end the process: the system takes memory back sooner than Python would tidy it up."""
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # waits for threads, as Python does at its end
    except KeyboardInterrupt:
        code = 130
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # `main` has told what standard output did not take
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Run the command line: an error is one line and exit code 2, never a traceback."""
    # numpy's threads multiply matrices, which nothing here does; they cost time, and keep capabilities of their own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # at its end Python would look for garbage in all that was ever loaded
    _import_when_used("inspect")
    _stand_in()
    try:
        try:
            app(sys.argv[1:])
        finally:
            sys.stdout.flush()
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


def _import_when_used(name: str) -> None:
    """Let a module be imported when something of it is first used, and not by who only names it.

    `dataclasses` uses `inspect` for classes without a docstring; with all it imports, a tenth of a short command.
    """
    if name in sys.modules:
        return
    unread, lock = ModuleType(name), allocate_lock()

    def read(wanted: str) -> Any:
        with lock:
            if sys.modules.get(name) is unread:
                del sys.modules[name]
        return getattr(import_module(name), wanted)

    unread.__getattr__ = read  # type: ignore[method-assign]
    sys.modules[name] = unread


def _stand_in() -> None:
    """Replace closed streams. Writing to standard output then fails as on a full disk."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if (sys.stdout.encoding or "utf-8").lower() != "utf-8":
        from wirelag.render.output import write_what_fits

        write_what_fits(sys.stdout)


def _write_no_more() -> None:
    """Discard what is left for standard output, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str, code: int) -> None:
    for part in line.splitlines():
        print(f"wirelag: {visible(part)}", file=sys.stderr)
    sys.exit(code)
