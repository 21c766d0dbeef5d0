"""A PostgreSQL server for tests: its own folder, socket and port, an ordinary user, no data that must survive.

One server for all workers of a test session: the first that needs it starts it, the last one that ends stops it.
"""

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import needs
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

_FASTER = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB", "max_connections": "200"}
_databases = itertools.count()


def programs() -> Path | None:
    """The folder of the server's programs: Debian's is not on PATH."""
    found = [path for path in sorted(Path("/usr/lib/postgresql").glob("*/bin")) if (path / "initdb").exists()]
    on_path = needs.find("initdb")
    return found[-1] if found else None if on_path is None else Path(on_path).parent


class Server:
    """A server that listens on this host's loopback and on a socket in its folder."""

    def __init__(self, folder: Path, port: int = 0, **settings: str) -> None:
        self.folder, self.port = folder, port or free_port()
        self._settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(folder)} | settings
        self._user: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
        self.process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make its files."""
        here = programs()
        assert here is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            for each in (self.folder, *self.folder.parents):  # it must get there
                if each.stat().st_uid == 0 and each.is_relative_to(tempfile.gettempdir()) and each != Path("/tmp"):
                    each.chmod(each.stat().st_mode | 0o711)
            shutil.chown(self.folder, **self._user)
        make = [here / "initdb", "-D", self.folder / "data", "-U", "wirelag", "-A", "trust", "-E", "UTF8", "--no-sync"]
        make += ["--locale", "C", "--data-checksums"]
        subprocess.run(make, check=True, capture_output=True, cwd="/", **self._user)

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        here = programs()
        assert here is not None
        words = [f"--{name}={value}" for name, value in ({"port": str(self.port)} | self._settings).items()]
        with open(self.folder / "log", "ab") as log:
            command = [here / "postgres", "-D", self.folder / "data", *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)
        until(self._is_ready, lambda: f"a server: {(self.folder / 'log').read_text()[-2000:]}")

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        here = programs()
        assert here is not None
        asked = subprocess.run([here / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False)
        return asked.returncode == 0

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT rolls back what is under way, SIGQUIT is a crash."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
            self.process = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://wirelag@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """A new database; its URL."""
        name = f"wirelag_{os.getpid()}_{next(_databases)}"
        self.sql(f"create database {name}")
        return self.url(name)

    def sql(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as base:
            found = base.execute(query)  # type: ignore[arg-type]
            return found.fetchall() if found.description else []


@contextmanager
def shared(folder: Path) -> Iterator[Server]:
    """The server of this test session; `folder` is the same for all workers."""
    with _locked(folder) as state:
        server = Server(folder / "postgres", state.get("port", 0), **_FASTER)
        if not state.get("users"):
            if not (folder / "postgres" / "data").exists():
                server.make()
            server.start()
            assert server.process is not None
            state |= {"port": server.port, "process": server.process.pid}
        state["users"] = state.get("users", 0) + 1
    try:
        yield server
    finally:
        with _locked(folder) as state:
            state["users"] -= 1
            if server.process is not None and state["users"]:
                server.process.returncode = 0  # the last one ends it
            elif server.process is not None:
                server.stop(signal.SIGQUIT)
            elif not state["users"]:
                os.kill(state["process"], signal.SIGQUIT)  # the worker that has started it is gone


@contextmanager
def _locked(folder: Path) -> Iterator[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "postgres.json", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        state: dict[str, Any] = json.loads(text) if text else {}
        try:
            yield state
        finally:
            file.truncate(0)
            file.write(json.dumps(state))
            file.flush()
