"""`wirelag balance --apply`: weights for another load balancer, set by a command when they change.

Law: a command that fails or hangs is counted and reported, and never delays the measurement. The next interval offers
its weights again. It always gets the newest.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from subprocess import PIPE
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wirelag.balance.settings import BackendSettings
    from wirelag.ebpf.service import Service

SCALE: Final = 1000  # sum of the integer weights for other balancers
TIMEOUT_S: Final = 10.0
FIELDS: Final = ("{name}", "{address}", "{weight}", "{share}")


class Applier:
    """Runs the command in its own thread."""

    def __init__(self, command: str, service: Service, tell: Callable[[str], None], name: str = "service") -> None:
        """`command`: with {name}, {address}, {weight} or {share} once for each backend that changed, else once."""
        self._words = shlex.split(command)
        if not self._words:
            raise ValueError("is empty: give a command")
        self._each = any(word in command for word in FIELDS)
        port = str(service.ports[0]) if service.ports else ""
        self._environment = os.environ | {
            "WIRELAG_SERVICE": service.address,
            "WIRELAG_PORT": port,
            "WIRELAG_PROTOCOL": service.protocol,
            "WIRELAG_NAME": name,
        }
        self._tell = tell
        self.runs = self.failures = 0
        self._told: str | None = None
        self._wanted: dict[str, tuple[str, float]] | None = None
        self._done: dict[str, tuple[str, float]] = {}
        self._ending = False
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def offer(self, backends: tuple[BackendSettings, ...], weights: Mapping[str, float]) -> None:
        """Offer new weights; backends without one drain."""
        with self._ready:
            self._wanted = {one.name: (one.address, weights.get(one.name, 0.0)) for one in backends}
            self._ready.notify()

    def close(self) -> None:
        """Apply the last offer, and stop."""
        with self._ready:
            self._ending = True
            self._ready.notify()
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._ending or self._wanted not in (None, self._done))
                wanted, ending = self._wanted, self._ending
                self._wanted = None
            if wanted is not None and wanted != self._done:
                self._apply(wanted)
            if ending:
                return

    def _apply(self, wanted: dict[str, tuple[str, float]]) -> None:
        if not self._each:
            if self._call(self._words, _message(wanted)):
                self._done = wanted
            return
        for name, (address, share) in wanted.items():
            if self._done.get(name) == (address, share):
                continue
            values = {"{name}": name, "{address}": address, "{weight}": str(whole(share)), "{share}": f"{share:.9f}"}
            words = [_filled(word, values) for word in self._words]
            if self._call(words, _message({name: (address, share)})):
                self._done = self._done | {name: (address, share)}

    def _call(self, words: list[str], message: str) -> bool:
        self.runs += 1
        problem = None
        try:
            with subprocess.Popen(
                words, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=self._environment, start_new_session=True
            ) as process:
                try:
                    said, complained = process.communicate(message, timeout=TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)  # with its children
                    problem = f"took longer than {TIMEOUT_S:g} s and was killed"
            if problem is None and process.returncode:
                last = (complained.strip() or said.strip()).splitlines()[-1:]
                problem = f"exit code {process.returncode}" + (f": {last[0]}" if last else "")
        except OSError as error:
            problem = f"cannot run it ({error.strerror})"
        if problem is None:
            self._told = None
            return True
        self.failures += 1
        if problem != self._told:  # a repeated problem is only counted
            self._told = problem
            self._tell(f"--apply: {words[0]}: {problem}; the next interval runs it again")
        return False


def whole(share: float) -> int:
    """A weight for other balancers, out of 1000; 0 only for draining backends."""
    return max(1, round(share * SCALE)) if share > 0 else 0


def _filled(word: str, values: Mapping[str, str]) -> str:
    for field, value in values.items():
        word = word.replace(field, value)
    return word


def _message(wanted: Mapping[str, tuple[str, float]]) -> str:
    backends = [
        {"name": name, "address": address, "share": round(share, 9), "weight": whole(share)}
        for name, (address, share) in wanted.items()
    ]
    return json.dumps({"backends": backends}) + "\n"
