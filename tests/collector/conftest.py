"""The stores that every test of the store runs on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs, postgres
from tests.support.stores import AnyStore, Open
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import Retention


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[postgres.Server]:
    """The PostgreSQL server of this test session."""
    if postgres.programs() is None:
        pytest.skip(needs.needs("PostgreSQL", "apt-get install postgresql"))
    own = tmp_path_factory.getbasetemp()
    with postgres.shared(own if worker_id == "master" else own.parent) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new store of each kind, as `--store` names it."""
    return str(request.getfixturevalue("server").database() if kind == "postgres" else tmp_path / "store.db")


@pytest.fixture
def reopen(kind: str, place: str) -> Iterator[Open]:
    """Opens it, again and again."""
    opened: list[AnyStore] = []

    def again(retention: Retention | None = None) -> AnyStore:
        opened.append((PostgresStore if kind == "postgres" else SqliteStore)(place, retention))
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Open) -> AnyStore:
    return reopen()
