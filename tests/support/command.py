"""The command in a test, in one of two ways.

`wirelag("rtt", path)` calls `wirelag.cli.main` in this process, with streams of its own: no interpreter starts, so it
takes milliseconds. `as_process("rtt", path)` starts a program as a user does: for pipes, signals, memory, imports.
Both give what was printed and the exit code, and check that code.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import typer

from wirelag import cli

WIRELAG = (sys.executable, "-m", "wirelag.cli")
PATIENCE_S = 300.0  # a program that takes longer hangs


class Ran(NamedTuple):
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def text(self) -> str:
        """The output, or what was said of an error."""
        return self.stdout if self.returncode in (0, 3) else self.stderr


def wirelag(
    *words: object,
    code: int | None = 0,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    together: bool = False,
) -> Ran:
    """Run it here. `code`: how it must end (None: in any way); `together`: errors go where the output goes."""
    with (
        _stream("stdin", stdin or b"", reading=True),
        _stream("stdout") as out,
        contextlib.nullcontext(out) if together else _stream("stderr") as err,
        mock.patch.object(sys, "argv", ["wirelag", *map(str, words)]),
        mock.patch.dict(os.environ, environment or {}),
        contextlib.chdir(cwd) if cwd else contextlib.nullcontext(),
        contextlib.redirect_stderr(sys.stdout if together else sys.stderr),
    ):
        ended = _main()
        sys.stdout.flush()
        sys.stderr.flush()
        ran = Ran(_content(out), "" if together else _content(err), ended)
    return _checked(words, ran, code)


def as_process(
    *words: object,
    code: int | None = 0,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    before: tuple[str, ...] = (),
) -> Ran:
    """Run it as a program of its own; `before`: another program that starts it, with its words."""
    command = [*before, *WIRELAG, *map(str, words)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=cwd, timeout=PATIENCE_S)
    return _checked(words, Ran(done.stdout.decode(), done.stderr.decode(), done.returncode), code)


@cache
def _commands() -> Callable[[], None]:
    """The commands with all their options, built once: that takes longer than most of what tests ask of them."""
    return typer.main.get_command(cli.app)


def _main() -> int:
    try:
        with mock.patch.object(cli, "app", _commands()):
            cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@contextlib.contextmanager
def _stream(name: str, content: bytes = b"", reading: bool = False) -> Iterator[int]:
    """A file in memory in place of a standard stream: it has a descriptor, and no terminal behind it."""
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    with (
        open(descriptor, "r" if reading else "w", encoding="utf-8", buffering=1) as stream,
        mock.patch.object(sys, name, stream),
    ):
        yield descriptor


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def _checked(words: tuple[object, ...], ran: Ran, code: int | None) -> Ran:
    assert code in (None, ran.returncode), (
        f"wirelag {' '.join(map(str, words))} ended with {ran.returncode}: {ran.text}"
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran
