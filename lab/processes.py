"""Programs that the lab starts: waiting until they are ready, stopping them in order, and naming their owner."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PATIENCE_S = 180.0  # generous: even the busiest machine is faster
LISTENING, BOUND = "0A", "07"  # in /proc/net/tcp and /proc/net/udp


def program(name: str) -> str:
    """The path of one of the lab's own programs."""
    _build()
    return str(ROOT / "build" / name)


@cache
def _build() -> None:
    done = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"make -C lab: {done.stderr.strip()}")


class Process:
    """A program whose standard output and errors go to a file."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        """Start it."""
        self.output = output
        self.name = Path(command[2] if command[0] == "nsenter" else command[0]).name
        with output.open("wb") as file:
            self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.pid = self._popen.pid  # nsenter becomes the program, so it is the program's, too

    def wait_for_line(self, pattern: str) -> None:
        """Wait until it has printed a line that contains `pattern`."""
        self._wait(lambda: re.search(pattern, self.said()) is not None, f"did not say {pattern!r}")

    def wait_for_port(self, port: int, udp: bool = False) -> None:
        """Wait until its namespace listens at this port."""
        tables = [Path(f"/proc/{self.pid}/net/{'udp' if udp else 'tcp'}{version}") for version in ("", "6")]
        listening = BOUND if udp else LISTENING
        line = re.compile(rf"\s*\d+: [0-9A-F]+:{port:04X} \S+ {listening} ")
        home = os.readlink("/proc/self/ns/net")

        def listens() -> bool:
            entered = os.readlink(f"/proc/{self.pid}/ns/net") != home
            return entered and any(
                line.match(one) for table in tables if table.exists() for one in table.read_text().splitlines()
            )

        self._wait(listens, f"does not listen at port {port}")

    def wait_for_file(self, path: Path) -> None:
        """Wait until it has created this file or socket."""
        self._wait(path.exists, f"did not make {path.name}")

    def wait_until_idle(self) -> None:
        """Wait until it sleeps: a single-threaded program has then processed everything."""
        state = Path(f"/proc/{self.pid}/stat")
        self._wait(lambda: state.read_text().rpartition(")")[2].split()[0] == "S", "is busy for ever")

    def said(self) -> str:
        """Its output so far."""
        return self.output.read_text(errors="replace")

    def finish(self, seconds: float = PATIENCE_S) -> str:
        """Wait until it ends successfully; return its output."""
        try:
            code = self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise TimeoutError(f"{self.name} did not end within {seconds:g} s: {self.said()}") from None
        if code:
            raise OSError(f"{self.name} failed: {self.said().strip()}")
        return self.said()

    def stop(self, number: int = signal.SIGTERM, seconds: float = PATIENCE_S) -> str:
        """Stop it, by force after `seconds`; return its output."""
        if self._popen.poll() is None:
            self._popen.send_signal(number)
            try:
                self._popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        return self.said()

    def _wait(self, ready: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        ended = os.pidfd_open(self.pid)
        try:
            while not ready():
                if select.select([ended], [], [], 0.005)[0] or time.monotonic() > deadline:
                    raise OSError(f"{self.name} {otherwise}: {self.said().strip()}")
        except FileNotFoundError:
            raise OSError(f"{self.name} {otherwise}: {self.said().strip()}") from None
        finally:
            os.close(ended)


def owner_name() -> str:
    """A name for the running process. Process ids are reused, so it includes the start time."""
    return f"{os.getpid()}s{_start(os.getpid())}"


def owner_lives(name: str) -> bool:
    """Whether the process of this name still runs."""
    pid, _, start = name.partition("s")
    return pid.isdigit() and _start(int(pid)) == start


def _start(pid: int) -> str:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if after_name[0] in "ZX" else after_name[19]
