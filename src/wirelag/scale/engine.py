"""Where tasks run: on the workers of a Dask cluster, or on all cores of this machine.

A task is a function with its arguments, a name and a number of bytes that it reads. It returns bytes. Dask moves a task
to another worker if its own dies, and gives up after the fourth (`distributed.scheduler.allowed-failures`); a result
arrives once, however often the task was begun.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import MissingExtraError, SettingError, WirelagError
from wirelag.scale.signals import without_interrupt

if TYPE_CHECKING:
    from distributed import Client

LOCAL: Final = "local"
SCHEME: Final = "dask://"
PATIENCE: Final = "5s"  # for a scheduler to answer
AHEAD: Final = 4096  # tasks that the scheduler knows at a time: it holds a few kB of each
WORKERS: Final = {  # of this machine
    # Dask has workers give memory back as soon as it is free; a block of a capture then costs 512 page faults, again
    # and again.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 32 << 20,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 4 << 20,
    "distributed.worker.profile.enabled": False,  # its result is not used
}
FIRST: Final = 16  # tasks whose results are asked for in one message, at most


@dataclass(frozen=True)
class Task:
    """One piece of work: `function(*arguments)` returns bytes."""

    name: str  # as the dashboard shows it
    function: Callable[..., bytes]
    arguments: tuple[Any, ...]
    size: int = 0  # bytes that it reads


@dataclass(frozen=True)
class Failure:
    """Why a task has no result."""

    why: str


class GoneError(WirelagError):
    """The scheduler went away."""


class Engine:
    """A cluster that is reached."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def name(self) -> str:
        """Where its scheduler is."""
        return str(self._client.scheduler.address if self._client.scheduler else "the scheduler")

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        return len(self._client.scheduler_info(n_workers=-1).get("workers", {}))

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, bytes | Failure]]:
        """The results of tasks as they come, each with the place of its task."""
        from distributed import CancelledError, as_completed
        from distributed.comm.core import CommClosedError

        if not tasks:
            return
        waiting = iter(range(len(tasks)))
        places: dict[Any, int] = {}

        def begin(most: int) -> list[Any]:
            futures = []
            for place, _ in zip(waiting, range(most), strict=False):
                task = tasks[place]
                key = f"{task.name}-{place}-{os.getpid():x}-{id(tasks):x}"
                futures.append(self._client.submit(task.function, *task.arguments, key=key, pure=False))
                places[futures[-1]] = place
            return futures

        try:
            running = as_completed(begin(AHEAD), loop=self._client.loop)  # not the default client
            for future in running:
                place = places.pop(future)
                if future.status == "cancelled":
                    raise GoneError(self._gone())
                if future.status == "error":
                    yield place, Failure(_why(future.exception(timeout=PATIENCE)))
                else:
                    yield place, future.result(timeout=PATIENCE)
                future.release()
                running.update(begin(1))
        except (CancelledError, CommClosedError, OSError, TimeoutError, asyncio.CancelledError):
            raise GoneError(self._gone()) from None

    def _gone(self) -> str:
        return f"the scheduler at {self.name} went away"


def _why(error: BaseException) -> str:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return "each of four workers died with it: it may need more memory than a worker has"
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def engine(on: Any, workers: int | None = None, patience: str = PATIENCE) -> Iterator[Engine]:
    """The engine that `on` names: "local", "dask://host:port", or a client of Dask."""
    if isinstance(on, Engine):
        yield on
        return
    try:
        import distributed
    except ImportError:
        raise MissingExtraError("--on", "the extra scale", "scale") from None
    if isinstance(on, distributed.Client):
        yield Engine(on)
        return
    if not isinstance(on, str) or not (on == LOCAL or on.startswith(SCHEME)):
        raise SettingError("on", f"{on!r} is not local, dask://HOST:PORT or a client of Dask")
    with _quiet(), ExitStack() as stack:
        yield Engine(stack.enter_context(local(workers) if on == LOCAL else _reached(on, patience)))


@contextmanager
def local(workers: int | None = None) -> Iterator[Client]:
    """One worker process for each core of this machine."""
    import dask.config
    from distributed import Client, LocalCluster

    cores = workers or len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        with without_interrupt(), dask.config.set(WORKERS):
            cluster = LocalCluster(n_workers=cores, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
            stack.enter_context(cluster)
        yield stack.enter_context(Client(cluster))


@contextmanager
def _reached(on: str, patience: str) -> Iterator[Client]:
    """The client of a scheduler elsewhere; an error if it does not answer, or has another version of wirelag."""
    from distributed import Client

    address = "tcp://" + on.removeprefix(SCHEME)
    try:
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        why = " ".join(str(error).split()[:12]) or "no answer"
        raise WirelagError(f"{on}: no scheduler answers there ({why}); start one with: dask scheduler") from None
    try:
        _same_version(client, on)
        yield client
    finally:
        client.close(timeout=1)


def _same_version(client: Client, on: str) -> None:
    """Parts of one answer come from one version."""
    try:
        found = client.run(version_here)
    except Exception as error:
        raise WirelagError(f"{on}: a worker cannot import wirelag ({_why(error)}); install it there, too") from None
    if not found:
        raise WirelagError(f"{on}: the scheduler has no workers; start some with: dask worker {on[len(SCHEME) :]}")
    for worker, version in found.items():
        if version != version_here():
            raise WirelagError(
                f"{on}: worker {worker} has wirelag {version}, and this is {version_here()}; install one version"
            )


def version_here() -> str:
    """The version of wirelag on the machine that runs this."""
    from importlib.metadata import version

    return version("wirelag")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Dask's own lines about connections that end: the one line that matters is said here."""
    import logging

    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "tornado.application")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
