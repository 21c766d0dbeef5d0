"""First results wait in memory: they are read like others, and written if nothing replaces them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.agent_messages import SECOND_NS
from tests.support.stored_results import ALL_TIMES, START_NS, result
from wirelag.collector import sqlite_firsts
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_firsts import TURNS
from wirelag.collector.store import MINUTE_NS
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

FEW, MORE = (Tally.of(result(np.full(9, delay_ns)), None) for delay_ns in (1000, 2000))
FEW.loss_sent = 0


def interval(number: int) -> Interval:
    return Interval(START_NS + number * SECOND_NS, START_NS + (number + 1) * SECOND_NS)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as made:
        yield made


def put(store: SqliteStore, number: int, rank: Rank, key: str | None = None) -> None:
    store.begin()
    store.put("A>B", key, interval(number), rank, FEW if rank == Rank.FIRST else MORE)
    store.commit()


def in_file(path: str) -> list[tuple[int, int]]:
    """Start and rank of each row."""
    with closing(sqlite3.connect(path)) as base:
        return base.execute("select start_ns, rank from results order by start_ns").fetchall()


def shown(store: SqliteStore, key: str | None = None) -> list[tuple[int, Rank]]:
    return [(row.start_ns, row.rank) for row in store.rows("A>B", key, SECOND_NS, ALL_TIMES, 9)]


def test_a_first_result_is_read_before_it_is_written(store: SqliteStore, path: str) -> None:
    put(store, 1, Rank.SETTLED)
    put(store, 2, Rank.FIRST)
    put(store, 2, Rank.FIRST, "class")
    assert in_file(path) == [(interval(1).start_ns, Rank.SETTLED)]
    assert shown(store) == [(interval(1).start_ns, Rank.SETTLED), (interval(2).start_ns, Rank.FIRST)]
    assert shown(store, "class") == [(interval(2).start_ns, Rank.FIRST)]
    assert [row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 1)] == [interval(2).start_ns]
    assert store.lengths_ns("A>B", "class") == [SECOND_NS]
    assert store.rank_of("A>B", interval(2)) == Rank.FIRST
    assert [(row.start_ns, row.rank) for row in store.latest(0)] == [(interval(2).start_ns, Rank.FIRST)]
    assert [row.start_ns for row in store.latest(interval(3).start_ns)] == []


def test_a_better_result_takes_its_place(store: SqliteStore, path: str) -> None:
    put(store, 1, Rank.FIRST)
    store.begin()
    assert store.put("A>B", None, interval(1), Rank.UNSEEN, MORE) == (Rank.FIRST, False)
    assert store.put("A>B", None, interval(1), Rank.FIRST, FEW) == (Rank.FIRST, True)
    assert store.put("A>B", None, interval(1), Rank.SETTLED, MORE) == (Rank.FIRST, True)
    assert store.put("A>B", None, interval(1), Rank.FIRST, FEW) == (Rank.SETTLED, False)
    store.commit()
    assert in_file(path) == [(interval(1).start_ns, Rank.SETTLED)]
    for _ in range(TURNS + 1):
        store.sum_up(START_NS)
    assert shown(store) == [(interval(1).start_ns, Rank.SETTLED)]


def test_it_is_written_if_none_comes(store: SqliteStore, path: str) -> None:
    put(store, 1, Rank.FIRST)
    for turn in range(TURNS):
        assert (turn, in_file(path)) == (turn, [])
        store.begin()
        store.sum_up(START_NS)
        store.commit()
    assert in_file(path) == [(interval(1).start_ns, Rank.FIRST)]
    assert shown(store) == [(interval(1).start_ns, Rank.FIRST)]
    put(store, 1, Rank.SETTLED)
    assert in_file(path) == [(interval(1).start_ns, Rank.SETTLED)]


def test_it_is_written_when_the_store_is_closed(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        put(store, 1, Rank.FIRST)
    assert in_file(path) == [(interval(1).start_ns, Rank.FIRST)]


def test_a_transaction_that_is_undone_changes_nothing(store: SqliteStore, path: str) -> None:
    put(store, 1, Rank.FIRST)
    store.begin()
    store.put("A>B", None, interval(1), Rank.SETTLED, MORE)
    store.put("A>B", None, interval(2), Rank.FIRST, FEW)
    store.rollback()
    assert shown(store) == [(interval(1).start_ns, Rank.FIRST)]
    store.begin()
    assert store.put("A>B", None, interval(2), Rank.FIRST, FEW) == (None, True)
    assert store.put("A>B", None, interval(1), Rank.SETTLED, MORE) == (Rank.FIRST, True)
    store.commit()
    assert in_file(path) == [(interval(1).start_ns, Rank.SETTLED)]


def summed(store: SqliteStore, number: int) -> None:
    """Do what is done this many minutes later."""
    store.begin()
    store.sum_up(START_NS + number * MINUTE_NS)
    store.commit()


def minutes(store: SqliteStore) -> list[tuple[Rank, int]]:
    """Rank and number of intervals of each."""
    return [(row.rank, row.tally.intervals) for row in store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 9)]


def test_a_sum_has_those_that_wait(store: SqliteStore) -> None:
    """One that comes late, when its minute is about to be summed, and is never replaced."""
    put(store, 1, Rank.SETTLED)
    put(store, 2, Rank.FIRST)
    for number in range(2, 2 + TURNS):
        summed(store, number)
    assert minutes(store) == [(Rank.SETTLED, 2)]


def test_none_takes_the_place_of_a_sum(store: SqliteStore) -> None:
    """Of an agent whose intervals were seconds, and are minutes now."""
    put(store, 1, Rank.SETTLED)
    put(store, 2, Rank.SETTLED)
    store.begin()
    store.put("A>B", None, Interval(START_NS, START_NS + MINUTE_NS), Rank.FIRST, FEW)
    store.commit()
    for number in range(2, 3 + TURNS):
        summed(store, number)
    assert minutes(store) == [(Rank.SETTLED, 2)]


def test_beyond_the_limit_it_is_written_at_once(store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_firsts, "MOST", 1)
    put(store, 1, Rank.FIRST)
    put(store, 2, Rank.FIRST)
    assert in_file(path) == [(interval(2).start_ns, Rank.FIRST)]
    assert [start_ns for start_ns, _ in shown(store)] == [interval(1).start_ns, interval(2).start_ns]
