"""The store in PostgreSQL: fences, days, versions, faults of the server, backup and restore."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg
import pytest

from tests.support import postgres
from tests.support.agent_messages import SECOND_NS
from tests.support.command import wirelag
from tests.support.stored_results import ALL_TIMES, START_NS, result
from tests.support.waiting import until
from wirelag.collector import postgres_tables as tables
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.store import DAY_NS, Fenced, StoreUnavailable
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.protocol.results import Rank
from wirelag.protocol.sharing import part_of

PART = part_of("A>B")


def put(store: PostgresStore, second: int, delay_ns: int = 1000) -> bool:
    one = result(np.full(9, delay_ns), START_NS + second * SECOND_NS)
    return store.put(one.segment, None, one.interval, one.rank, Tally.of(one, None)).taken


def seconds(store: PostgresStore) -> list[int]:
    rows = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10_000)
    return [(row.start_ns - START_NS) // SECOND_NS for row in rows]


@pytest.fixture
def pair(server: postgres.Server) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """The stores of two collectors that share a database."""
    url = server.database()
    both = PostgresStore(url, name="one", session="wirelag-one"), PostgresStore(url, name="two", session="wirelag-two")
    yield both
    for store in both:
        store.close()


def test_who_was_fenced_off_stores_nothing(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """Not what it has begun before, nor what it begins later; what another partition has is not concerned."""
    old, new = pair
    other = next(f"C{i}>D{i}" for i in range(100) if part_of(f"C{i}>D{i}") != PART)
    old.hold([PART, part_of(other)])
    old.begin()
    put(old, 0)
    old.put_message("key", "A", START_NS, b"body", 1, "A>B")
    assert new.hold([PART]) == {PART: 2}
    with pytest.raises(Fenced) as caught:
        old.commit()
    old.rollback()
    assert caught.value.parts == {PART}
    assert seconds(new) == []
    assert list(new.messages_since(0)) == []
    new.begin()
    put(new, 1)
    new.commit()
    old.begin()
    one = result(np.full(9, 1000))
    old.put(other, None, one.interval, one.rank, Tally.of(one, None))
    old.commit()
    old.begin()
    put(old, 2)
    with pytest.raises(Fenced):
        old.commit()
    old.rollback()
    assert seconds(new) == [1]
    assert len(new.rows(other, None, SECOND_NS, ALL_TIMES, 10)) == 1


def test_a_paused_owner_holds_up_nobody(
    pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has stored a row and stopped before it could commit: the new owner ends its session, and stores the row."""
    monkeypatch.setattr("wirelag.collector.postgres.PAUSED_S", 0.0)
    old, new = pair
    old.hold([PART])
    old.begin()
    put(old, 0)
    new.hold([PART])
    new.begin()
    assert put(new, 0, 2000)
    new.commit()
    with pytest.raises(psycopg.Error):
        old.commit()
    (row,) = new.rows("A>B", None, SECOND_NS, ALL_TIMES, 10)
    assert row.tally.moments.mean_ns == 2000


def test_a_new_owner_finds_what_the_former_one_had(pair: tuple[PostgresStore, PostgresStore]) -> None:
    """Messages without their other half; a message about all segments of its point is kept for each owner."""
    old, new = pair
    old.hold([0, 1, 2])
    old.begin()
    old.put_message("shared", "A", START_NS, b"all", 1)
    old.commit()
    new.hold([1])
    old.let_go([1])
    assert list(new.messages_since(0)) == [b"all"]
    new.begin()
    new.drop_messages(["shared"])
    new.commit()
    assert list(new.messages_since(0)) == []
    assert list(old.messages_since(0)) == [b"all"]


def test_one_collector_alone_locks_the_database(server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirelag.collector.postgres._LOCK_MS", 1)
    url = server.database()
    store = PostgresStore(url)
    for session in ("", "wirelag-one"):
        with pytest.raises(StoreUnavailable, match="another collector writes to it; stop it, or let both share"):
            PostgresStore(url, session=session)
    store.close()


def test_days_are_dropped_whole_and_what_comes_late_is_found(server: postgres.Server) -> None:
    """Results of one transaction are of many days: they go to the rest, and to their days when it has ended."""
    store = PostgresStore(server.database())
    store.begin()
    for day in range(5):
        put(store, day * 86_400)
    store.commit()
    names = [name for name, _ in tables.days_of(store._base, "singles")]
    assert len(names) == 5
    assert store._base.execute("select count(*) from singles_rest").fetchone() == (0,)
    store.prune(START_NS + 4 * DAY_NS + SECOND_NS)  # two days are kept
    left = [name for name, _ in tables.days_of(store._base, "singles")]
    assert left == names[2:]
    assert seconds(store) == [2 * 86_400, 3 * 86_400, 4 * 86_400]
    put(store, 3 * 86_400 + 1)
    assert seconds(store)[2] == 3 * 86_400 + 1
    store.close()


@pytest.mark.acceptance
def test_a_server_that_restarts_is_used_again(tmp_path: Path) -> None:
    """While it is gone every call fails with an error of the store; what was committed is there."""
    own = postgres.Server(tmp_path / "own", fsync="off")
    own.make()
    own.start()
    try:
        store = PostgresStore(own.url())
        put(store, 0)
        own.stop()
        for call in (store.begin, store.series, lambda: store.prune(START_NS)):
            with pytest.raises(store.errors):
                call()
        own.start()
        until(lambda: _works(store), "the store")
        put(store, 1)
        store.commit()
        assert seconds(store) == [0, 1]
        store.close()
    finally:
        own.stop()


def _works(store: PostgresStore) -> bool:
    try:
        store.begin()
        return bool(store.series())
    except store.errors:
        return False


# ---- versions ----


def test_several_collectors_bring_a_database_up_to_date_once(
    server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step runs once, and what is stored stays; who knows only the older version stops writing, and cannot start."""
    url = server.database()
    old = PostgresStore(url, name="old", session="wirelag-old")
    old.hold([PART])
    put(old, 0)
    old.begin()
    put(old, 1)
    known = list(tables.STEPS)
    monkeypatch.setattr(tables, "STEPS", [*known, "alter table changes add column by_whom text"])
    opened: list[PostgresStore] = []
    starting = [
        threading.Thread(target=lambda name=name: opened.append(PostgresStore(url, session=f"wirelag-{name}")))
        for name in "abc"
    ]
    old.rollback()
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    assert tables.version_of(url) == len(known) + 1
    assert seconds(opened[0]) == [0]
    monkeypatch.setattr(tables, "STEPS", known)
    old.begin()
    put(old, 2)
    with pytest.raises(psycopg.Error, match=f"the store has version {len(known) + 1}"):
        old.commit()
    old.rollback()
    with pytest.raises(
        WirelagError,
        match=rf"has store version {len(known) + 1}, this wirelag writes {len(known)}; use a newer wirelag",
    ):
        PostgresStore(url, session="wirelag-late")
    for store in (old, *opened):
        store.close()


# ---- what an operator sees ----


def test_its_size_is_known_from_the_start(server: postgres.Server) -> None:
    """The status and the metrics never say 0 bytes of a database that has results."""
    url = server.database()
    for _ in range(2):
        with closing(PostgresStore(url)) as store:
            assert store.file_bytes == store.used_bytes > 10_000
            put(store, 0)


def test_a_database_that_is_not_there_is_one_line(server: postgres.Server, tmp_path: Path) -> None:
    nobody = server.url("nobody").replace("wirelag@", "wirelag:s3cret@")
    for _ in range(2):
        said = wirelag("collect", "--check", "--store", nobody, "--listen", "127.0.0.1:0", code=2)
        assert "s3cret" not in said.stderr
        assert 'database "nobody" does not exist' in said.stderr
    said = wirelag("collect", "--check", "--store", server.database(), "--listen", "127.0.0.1:0")
    assert "keeps results in postgresql://wirelag@127.0.0.1:" in said.stdout


@pytest.mark.acceptance
def test_a_backup_is_restored_whole(server: postgres.Server, tmp_path: Path) -> None:
    """As docs/guides/many-agents.md says: pg_dump while it runs, pg_restore into an empty database."""
    here = postgres.programs()
    assert here is not None
    url, copy, file = server.database(), server.database(), tmp_path / "wirelag.dump"
    store = PostgresStore(url)
    for second in range(0, 3 * 86_400, 21_600):
        put(store, second, 1000 + second)
    store.begin()
    store.sum_up(START_NS + 9 * DAY_NS)
    store.commit()
    subprocess.run([here / "pg_dump", "-Fc", "-n", "wirelag", "-f", file, url], check=True)
    subprocess.run([here / "pg_restore", "-d", copy, file], check=True)
    restored = PostgresStore(copy)
    for length_ns in store.lengths_ns("A>B", None):
        assert [row.to_json() for row in restored.rows("A>B", None, length_ns, ALL_TIMES, 99)] == [
            row.to_json() for row in store.rows("A>B", None, length_ns, ALL_TIMES, 99)
        ]
    assert put(restored, 5)  # it goes on
    assert restored.rank_of("A>B", result(np.full(9, 1)).interval) == Rank.SETTLED
    for one in (store, restored):
        one.close()
