"""Several collectors that share a database and brokers, as separate processes, for tests and for the drill."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.collector_process import Running
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until


class Broker:
    """A NATS server with JetStream; `others`: the ports by which servers of its cluster reach each other."""

    def __init__(self, folder: Path, name: str, port: int, own: int = 0, others: tuple[int, ...] = ()) -> None:
        self.folder, self.port, self._program = folder, port, needs.find("nats-server")
        if self._program is None:
            pytest.skip(needs.program("nats-server"))
        routes = ", ".join(f'"nats://127.0.0.1:{other}"' for other in others)
        cluster = f'cluster {{ name: fleet, listen: "127.0.0.1:{own}", routes: [{routes}] }}\n' if others else ""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nats.conf").write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{port}"\n{cluster}'
            f'jetstream {{ store_dir: "{folder}/js", max_file_store: 100GB }}\nlog_file: "{folder}/log"\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        self.process = subprocess.Popen([str(self._program), "-c", str(self.folder / "nats.conf")])
        until(lambda: log.exists() and "Server is ready" in log.read_text(), "a broker")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """One broker; its URL."""
    one = Broker(folder, "one", free_port())
    one.start()
    try:
        yield one.url
    finally:
        one.kill()


@contextmanager
def collectors(folder: Path, count: int, database: str, nats: str, *words: str) -> Iterator[list[Running]]:
    """Collectors that share; ready when each has its partitions."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            here = folder / f"collector{number}"
            here.mkdir(exist_ok=True)
            more = ("--store", database, "--nats", nats, *words)
            found.append(stack.enter_context(Running(here, *more)))
        until(lambda: sum(one.counted().get("partitions held", 0) for one in found) == 24, "owners of all partitions")
        yield found
