"""Two ways to run the command in a test.

`wirelag("rtt", path)` calls `wirelag.cli.main` in this process with its own streams: no interpreter starts, so it
takes milliseconds. `as_process("rtt", path)` starts a program as a user does: for pipes, signals, memory, imports.
Both return the output and the exit code, and check the code.
"""

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from wirelag import cli
from wirelag.capture import privileges

WIRELAG = (str(Path(sys.executable).with_name("wirelag")),)  # the program, as a list of words
PATIENCE_S = 300.0  # a program that takes longer hangs


class Ran(NamedTuple):
    """The output of a command, and its exit code."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def text(self) -> str:
        """The output, or the error message."""
        return self.stdout if self.returncode in (0, 3) else self.stderr


def wirelag(
    *words: object,
    code: int | None = 0,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    together: bool = False,
) -> Ran:
    """Run it here. `code`: the expected exit code (None: any); `together`: errors go to the output."""
    with _in_memory(stdin or b"") as given, _in_memory() as out, _in_memory() as err:
        with (
            mock.patch.dict(os.environ, environment or {}),
            contextlib.chdir(cwd) if cwd else contextlib.nullcontext(),
        ):
            ended = run_main(words, given, out, out if together else err)
        ran = Ran(_content(out), _content(err), ended)
    return _checked(words, ran, code)


def run_main(words: Iterable[object], stdin: int, stdout: int, stderr: int) -> int:
    """Call `main` with these descriptors as its standard streams, which stay open; return the exit code."""
    with (
        _stream("stdin", stdin, "r"),
        _stream("stdout", stdout, "w"),
        _stream("stderr", stderr, "w"),
        mock.patch.object(sys, "argv", ["wirelag", *map(str, words)]),
        mock.patch.object(privileges, "_leave_root", _stay_root),
    ):
        often = gc.get_threshold()
        try:
            cli.main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            gc.set_threshold(*often)  # a command that ends its process looks for garbage rarely
        return 0


def as_process(
    *words: object,
    code: int | None = 0,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    before: tuple[str, ...] = (),
) -> Ran:
    """Run it as a separate program; `before`: the words of a program that starts it."""
    command = [*before, *WIRELAG, *map(str, words)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=cwd, timeout=PATIENCE_S)
    return _checked(words, Ran(done.stdout.decode(), done.stderr.decode(), done.returncode), code)


def _stay_root() -> None:
    raise AssertionError("it would take the tests' own privileges: run it as a process")


@contextlib.contextmanager
def _in_memory(content: bytes = b"") -> Iterator[int]:
    """A file in memory: it has a descriptor, and is not a terminal."""
    descriptor = os.memfd_create("stream")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _stream(name: str, descriptor: int, mode: str) -> Iterator[None]:
    """A standard stream with line buffering, so that output and errors keep their order in one place."""
    stream = open(os.dup(descriptor), mode, encoding="utf-8", buffering=1)  # noqa: SIM115 (closed below)
    try:
        with mock.patch.object(sys, name, stream):
            yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # the reader may have gone
            stream.close()


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def _checked(words: tuple[object, ...], ran: Ran, code: int | None) -> Ran:
    assert code in (None, ran.returncode), (
        f"wirelag {' '.join(map(str, words))} ended with {ran.returncode}: {ran.text}"
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran
