"""Health checks of backends: who is down, from checks that pass or fail, in a thread of its own.

Law: a backend is down after `fall` failures in a row, and up again after `rise` successes. If no backend passes, the
checks say nothing about backends, and none is down; if checks cannot be made, all stays as it is. Without
`health.check` in the file a backend is only judged after it has passed once: its own address may serve nothing.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wirelag.balance.settings import Config, HealthSettings

OTHERS: Final = 256  # file descriptors for everything else


@dataclass(slots=True)
class Votes:
    """The standing of each backend by its checks."""

    fall: int
    rise: int
    strict: bool  # also those that have never passed
    down: dict[str, str] = field(default_factory=dict)  # with the reason
    _failures: dict[str, int] = field(default_factory=dict)  # in a row
    _passes: dict[str, int] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def add(self, names: Mapping[str, object], failures: Mapping[str, str]) -> dict[str, str]:
        """Add a round of checks; return who is down, and why."""
        for name in names:
            failed = name in failures
            self._failures[name] = self._failures.get(name, 0) + 1 if failed else 0
            self._passes[name] = 0 if failed else self._passes.get(name, 0) + 1
            if not failed:
                self._known.add(name)
            if failed and self._failures[name] >= self.fall and (self.strict or name in self._known):
                self.down[name] = failures[name]
            elif self._passes[name] >= self.rise:
                self.down.pop(name, None)
        self.down = {name: why for name, why in self.down.items() if name in names}
        return {} if all(name in failures for name in names) else dict(self.down)


class Health:
    """Checks backends until it is closed."""

    def __init__(self, config: Config, tell: Callable[[str], None]) -> None:
        """`tell` gets a line when all checks fail, and when they no longer do."""
        self._config, self._tell = config, tell
        self._votes = Votes(config.health.fall, config.health.rise, config.health.strict)
        self._down: dict[str, str] = {}
        self._none_passes = self._cannot = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Check the backends of another file."""
        self._config = config
        _make_room(len(config.backends))
        if config.health.kind is not None and not self._thread.is_alive():
            self._thread.start()

    def down(self) -> dict[str, str]:
        """Backends that are down now, and why."""
        return self._down

    def close(self) -> None:
        """Stop."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(self._config.health.timeout_ns / 1e9 + 5)

    def _run(self) -> None:
        """Check at fixed times, however long checks take: a silent host must not slow down its own verdict."""
        due_s = time.monotonic()
        while not self._ends.wait(due_s - time.monotonic()):
            self._check(self._config)
            due_s = max(due_s + self._config.health.interval_ns / 1e9, time.monotonic())

    def _check(self, config: Config) -> None:
        from wirelag.transport.health_check import check_servers

        health: HealthSettings = config.health
        if health.kind is None or health.port is None:
            self._down = {}
            return
        self._votes.fall, self._votes.rise, self._votes.strict = health.fall, health.rise, health.strict
        servers = {one.name: one.address for one in config.backends}
        timeout_s = health.timeout_ns / 1e9
        try:
            failures = check_servers(servers, health.port, health.kind, health.path, config.service.address, timeout_s)
        except OSError as error:  # too many open files, for example: nothing is known about backends
            if not self._cannot:
                self._tell(f"health checks cannot be made ({error.strerror}): who is down stays so until they can")
            self._cannot = True
            return
        self._cannot = False
        self._down = self._votes.add(servers, failures)
        none = len(failures) == len(servers)
        if none != self._none_passes:
            self._none_passes = none
            why = next(iter(failures.values()), "")
            self._tell(
                f"no backend passes its health check at port {health.port} ({why}): the check is ignored until one does"
                if none
                else "health checks pass again, and count"
            )


def _make_room(connections: int) -> None:
    """Ask for as many file descriptors as a round of checks needs; 1,024 is a common limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHERS
    if resource.RLIM_INFINITY != soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
