"""A shell whose `wirelag` runs in the tests' own process.

`shell(text)` runs the text in bash. There, `wirelag` is a function that asks this process to call `wirelag.cli.main`
on the function's own streams: pipes, redirections, loops and exit codes are those of bash, and no interpreter starts.
Other programs (`python`, `head`) are real, and so is a `wirelag` that another program starts (`timeout 9 wirelag`).
One `wirelag` runs at a time: `wirelag a | wirelag b` would block itself.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from io import BufferedReader, FileIO
from pathlib import Path
from unittest import mock

from tests.support.command import run_main
from tests.support.time_limit import time_limit

PATIENCE_S = 300  # a text that takes longer hangs
# Asks in a subshell: a redirection here would change the streams of the output.
FUNCTION = r"""
wirelag() {
    local process=$BASHPID code
    ( printf '%s\0' "$process" "$PWD" "$#" "$@" >&"$ASKS" )
    read -r -u "$TOLD" code
    return "$code"
}
"""


def shell(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the text in the current directory; return output and errors in their order, as on a screen."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (
        mock.patch.dict(os.environ, {"PATH": path, "PYTHONUNBUFFERED": "1"} | dict(environment or {})),
        tempfile.TemporaryDirectory() as folder,
        Path(folder, "screen").open("a+b") as screen,  # append mode: several processes write to it
    ):
        (asked, asks), (told, tells) = os.pipe(), os.pipe()
        with open(asked, "rb") as questions, open(tells, "wb", buffering=0) as answers:
            process = subprocess.Popen(
                ["bash", "-c", FUNCTION + text],
                env=os.environ | {"ASKS": str(asks), "TOLD": str(told)},
                pass_fds=(asks, told),
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
            )
            os.close(asks)
            os.close(told)
            try:
                with time_limit(PATIENCE_S):
                    _answer(questions, answers)
                    process.wait()
            finally:
                process.kill()
                process.wait()
        screen.seek(0)
        return screen.read().decode()


def _answer(questions: BufferedReader, answers: FileIO) -> None:
    """Run requested commands, one after the other, until no process is left that could ask."""
    words = _words(questions)
    for process in words:
        folder, count = next(words), int(next(words))
        command = [next(words) for _ in range(count)]
        streams = Path("/proc", process, "fd")
        with (
            contextlib.chdir(folder),
            (streams / "0").open("rb", buffering=0) as stdin,
            (streams / "1").open("ab", buffering=0) as stdout,
            (streams / "2").open("ab", buffering=0) as stderr,
        ):
            code = run_main(command, stdin.fileno(), stdout.fileno(), stderr.fileno())
        answers.write(f"{code}\n".encode())


def _words(stream: BufferedReader) -> Iterator[str]:
    """The words in it, each ended by a zero byte."""
    rest = b""
    while part := stream.read1():
        *whole, rest = (rest + part).split(b"\0")
        yield from map(bytes.decode, whole)
