"""Collectors that share a database and a broker, as separate processes."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.collector_process import Running
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A NATS server with JetStream; its URL."""
    found, port, log = needs.find("nats-server"), free_port(), folder / "log"
    if found is None:
        pytest.skip(needs.program("nats-server"))
    folder.mkdir(parents=True)
    command = [found, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "js"), "-l", str(log)]
    process = subprocess.Popen(command)
    try:
        until(lambda: log.exists() and "Server is ready" in log.read_text(), "a broker")
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@contextmanager
def collectors(
    folder: Path, count: int, database: str, nats: str, *words: str, token: str | None = None
) -> Iterator[list[Running]]:
    """Collectors that share a database and a broker."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            here = folder / f"collector{number}"
            here.mkdir()
            more = (*words, "--store", database, "--nats", nats)
            found.append(stack.enter_context(Running(here, *more, token=token)))
        yield found
