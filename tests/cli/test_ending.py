"""The end of the program."""

import subprocess
import sys

import pytest

ENDING = """
import atexit, sys, threading, time
from wirelag import cli
def late():
    time.sleep(0.2)
    print("thread")
def stub():
    atexit.register(print, "exit")
    threading.Thread(target=late).start()
    sys.exit({code})
cli.main = stub
cli.program()
"""


@pytest.mark.parametrize("code", [0, 3, None])
def test_a_program_ends_with_all_that_was_to_be_done(code: int | None) -> None:
    """Threads, what was registered for the end, output in a buffer, the exit code."""
    ran = subprocess.run([sys.executable, "-c", ENDING.format(code=code)], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("thread\nexit\n", "", code or 0)


INTERRUPTED = """
import os, signal, threading, time
from wirelag import cli
def late():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
cli.main = lambda: threading.Thread(target=late).start()
cli.program()
"""


def test_an_interrupt_while_threads_end_is_no_traceback() -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 130)
