"""What the store keeps whatever clock, size, version or disk do: history, and what was acknowledged."""

import gzip
import os
import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_messages import SECOND_NS, pair
from tests.support.collector_process import Running, recent, send, settled
from tests.support.command import wirelag
from tests.support.effort import examples
from tests.support.places import DATA
from tests.support.stored_results import ALL_TIMES, START_NS, result
from wirelag.collector.data_time import LEAP_NS, DataTime
from wirelag.collector.pruning import fair_shares
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_file import VERSION, connected
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, Retention
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Rank

YEARS_NS = 3 * 365 * DAY_NS
LENGTHS = (SECOND_NS, MINUTE_NS, HOUR_NS)
ROW = Tally.of(result(np.full(50, 1000)), None)


def put(store: SqliteStore, length_ns: int, count: int, apart_ns: int, end_ns: int = START_NS) -> None:
    """The last `count` results of a length."""
    for i in range(count):
        start_ns = end_ns - (i + 1) * apart_ns
        store.put("A>B", None, Interval(start_ns, start_ns + length_ns), Rank.SETTLED, ROW)


def counts(store: SqliteStore) -> list[int]:
    return [len(store.rows("A>B", None, length_ns, ALL_TIMES, 10**6)) for length_ns in LENGTHS]


def waiting(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as base:
        return [key for (key,) in base.execute("select key from messages order by start_ns")]


# ---- size ----


def test_waiting_messages_go_before_history(tmp_path: Path) -> None:
    """An end that is down: what waits for it has a quarter of the size, and results stay."""
    store = SqliteStore(str(tmp_path / "store.db"), Retention(most_bytes=2 << 20))
    store.begin()
    put(store, SECOND_NS, 400, 8 * SECOND_NS)
    put(store, MINUTE_NS, 100, 40 * MINUTE_NS)
    put(store, HOUR_NS, 100, 20 * HOUR_NS)
    for i in range(150):
        store.put_message(f"k{i:03}", "C", START_NS - HOUR_NS + i, random.Random(i).randbytes(16_000), START_NS)
    store.commit()
    assert store.used_bytes > 2 << 20
    done = store.prune(START_NS)
    assert counts(store) == [400, 100, 100]
    assert (done.messages, done.results) == (150 - len(waiting(tmp_path / "store.db")), 0)
    kept = waiting(tmp_path / "store.db")
    assert kept == [f"k{i:03}" for i in range(150 - len(kept), 150)]  # the oldest went
    assert 0 < len(kept) * 16_000 <= 512 << 10
    assert store.prune(START_NS).messages == 0


def test_messages_of_one_point_push_out_nobody_else_s(tmp_path: Path) -> None:
    """The newest messages of one point are many: the older ones of others, which are few, stay."""
    store = SqliteStore(str(tmp_path / "store.db"), Retention(most_bytes=2 << 20))
    store.begin()
    put(store, SECOND_NS, 400, 8 * SECOND_NS)
    for i in range(50):
        store.put_message(f"a{i:03}", "A", START_NS - 2 * HOUR_NS + i, bytes(2000), START_NS)
        store.put_message(f"b{i:03}", "B", START_NS - 3 * HOUR_NS + i, bytes(3000), START_NS)
    for i in range(150):
        store.put_message(f"c{i:03}", "C", START_NS - HOUR_NS + i, random.Random(i).randbytes(16_000), START_NS)
    store.commit()
    done = store.prune(START_NS)
    kept = waiting(tmp_path / "store.db")
    assert [sum(key.startswith(point) for key in kept) for point in "ab"] == [50, 50]
    assert (done.messages, done.results) == (200 + 50 - len(kept), 0)
    assert 0 < len(kept) - 100 < 20
    assert kept[100:] == [f"c{i:03}" for i in range(150 - len(kept) + 100, 150)]  # of these the oldest went


def test_beyond_the_size_messages_go_then_intervals_minutes_and_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelag.collector.sqlite_packing.LEAST", 10**6)  # row by row
    store = SqliteStore(str(tmp_path / "store.db"), Retention(most_bytes=1 << 62))
    store.begin()
    for length_ns in LENGTHS:
        put(store, length_ns, 400, length_ns)
    store.put_message("k", "C", START_NS - HOUR_NS, b"body", START_NS)
    store.commit()
    found = []
    for share in (0.95, 0.85, 0.6):
        store._pruner.keep = Retention(most_bytes=int(store.used_bytes * share))
        done = store.prune(START_NS)
        found.append((done.messages, *counts(store)))
    assert found[0][0] == 1
    assert found[0][2:] == found[1][2:] == (400, 400)
    assert 0 < found[1][1] < found[0][1] < 400
    assert found[2][1] == 0
    assert found[2][2] < 400
    assert found[2][3] == 400


def test_results_of_one_point_push_out_nobody_else_s(tmp_path: Path) -> None:
    """Thousands of newer results of one point, in many segments and classes: all of another's stay."""
    store = SqliteStore(str(tmp_path / "store.db"), Retention(most_bytes=500 << 10))
    store.begin()
    for length_ns in LENGTHS:
        put(store, length_ns, 100, length_ns)
    for segment in range(20):
        for name in range(10):
            for i in range(20):
                start_ns = START_NS + i * MINUTE_NS
                when = Interval(start_ns, start_ns + MINUTE_NS)
                store.put(f"X>C{segment}", f"class {name}", when, Rank.SETTLED, ROW)
    store.commit()
    assert store.used_bytes > 600 << 10
    assert store.prune(START_NS + HOUR_NS).results > 500
    assert store.used_bytes <= 500 << 10
    assert counts(store) == [100, 100, 100]


def test_shares_are_fair() -> None:
    assert fair_shares({"a": 10, "b": 2, "c": 6}, 12) == {"b": 2, "a": 5, "c": 5}
    assert fair_shares({"a": 1, "b": 2}, 9) == {"a": 1, "b": 2}


# ---- clock ----


def test_a_clock_years_ahead_deletes_nothing(tmp_path: Path) -> None:
    """A collector whose clock is three years ahead, on a store with history: every row stays."""
    agents = pair(path := recent(6, 50, 1), Lda(64, (0,), tail=64))
    with Running(tmp_path, "--segment", "A>B") as running:
        send(running.url, agents, 6, settled(running, path, 5))
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        put(store, HOUR_NS, 50, 10 * HOUR_NS, path.start_ns)
        before = counts(store)
    ahead = f"import time\nreal = time.time_ns\ntime.time_ns = lambda: real() + {YEARS_NS}\n"
    (tmp_path / "sitecustomize.py").write_text(ahead)
    with Running(tmp_path, "--segment", "A>B", environment={"PYTHONPATH": str(tmp_path)}) as running:
        assert running.json("/api/v1/status")["now"] > path.start_ns / 1e9 + YEARS_NS / 1e9 - 60
        running.until(lambda: "messages deleted for room" in running.counted())  # it has pruned
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        assert counts(store) == before
        assert before[2] == 50


def test_results_years_ahead_delete_nothing_for_a_day(tmp_path: Path) -> None:
    """The clocks of collector and agents are both ahead: nothing goes, and it is told."""
    store = SqliteStore(str(tmp_path / "store.db"))
    put(store, HOUR_NS, 50, 10 * HOUR_NS)
    assert store.prune(START_NS).problem is None
    start_ns = START_NS + YEARS_NS
    store.put("A>B", None, Interval(start_ns, start_ns + SECOND_NS), Rank.SETTLED, ROW)
    for _ in range(3):
        assert "1095 days newer" in str(store.prune(start_ns + SECOND_NS).problem).replace(",", "")
        assert counts(store) == [1, 0, 50]
        store.close()
        store = SqliteStore(str(tmp_path / "store.db"))  # a restart changes nothing
    for hours in range(25):
        end_ns = start_ns + hours * HOUR_NS
        store.put("A>B", None, Interval(end_ns, end_ns + SECOND_NS), Rank.SETTLED, ROW)
        problem = store.prune(end_ns + SECOND_NS).problem
        assert (problem is None) == (hours == 24)  # a day of results: so it is
    assert counts(store)[2] == 0


@examples(100)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 30)), max_size=30))
def test_time_passes_at_most_a_day_at_a_time(steps: list[tuple[int, int]]) -> None:
    """Whatever times come: trust advances by a day at most, or after a day of results at the new time."""
    passed, newest_ns, now_ns = DataTime(), 0, 10**6 * DAY_NS
    for leap, hours in [(0, 0), *steps]:
        before_ns, since_ns = passed.trusted_ns, passed.since_ns
        newest_ns = max(0, newest_ns + leap * 10 * DAY_NS + hours * HOUR_NS)
        found_ns = passed.passed(now_ns, newest_ns, 0)
        assert found_ns in (None, newest_ns)
        if found_ns is not None and before_ns is not None and found_ns > before_ns + LEAP_NS:
            assert since_ns is not None
            assert found_ns >= since_ns + LEAP_NS
            assert leap <= 0  # no leap of its own
        assert DataTime(**passed.to_fields()) == passed


# ---- in steps ----


def test_the_writer_has_its_turn_while_old_results_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirelag.collector.pruning.STEP", 20)
    store = SqliteStore(str(tmp_path / "store.db"), Retention(single_ns=HOUR_NS))
    store.begin()
    put(store, SECOND_NS, 2_000, SECOND_NS, START_NS - 2 * HOUR_NS)
    put(store, SECOND_NS, 1, SECOND_NS)
    store.commit()
    left, turns = [], 0
    thread = threading.Thread(target=store.prune, args=(START_NS,))
    thread.start()
    while thread.is_alive():
        store.begin()
        left.append(store._base.execute("select count(*) from results where length_ns = 1000000000").fetchone()[0])
        store.put_message(f"k{turns}", "A", START_NS, b"body", START_NS)
        store.commit()
        turns += 1
    thread.join()
    assert counts(store)[0] == 1
    assert len({count for count in left if 1 < count < 2_001}) >= 3  # it wrote between the steps
    assert len(waiting(tmp_path / "store.db")) == turns


@pytest.mark.parametrize("retention", [Retention(most_bytes=4 << 20), Retention(messages_ns=HOUR_NS)])
def test_large_messages_go_in_small_steps_that_do_not_wait_for_the_disk(tmp_path: Path, retention: Retention) -> None:
    """A step holds up the writer: it deletes few messages, which were read before it began."""
    store = SqliteStore(str(tmp_path / "store.db"), retention)
    store.begin()
    for i in range(40):
        store.put_message(f"k{i:03}", "C", START_NS - 3 * HOUR_NS + i, random.Random(i).randbytes(300_000), START_NS)
    put(store, SECOND_NS, 1, SECOND_NS)
    store.commit()
    queries: list[str] = []
    store._pruner.base.set_trace_callback(queries.append)
    store.prune(START_NS)
    steps = [at for at, query in enumerate(queries) if query.startswith("delete from messages where key in")]
    assert len(waiting(tmp_path / "store.db")) <= 3
    assert len(steps) >= 3
    for at in steps:
        assert queries[at - 1] == "begin immediate"
        assert queries[at - 2] == queries[at].replace("delete", "select body").replace(" returning bytes", "")
    named = [queries[at].count("'k") for at in steps]
    assert max(named) <= 4  # those of a point by their keys: 1 MiB


def test_pruning_finds_its_rows_by_the_primary_key(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), Retention(single_ns=HOUR_NS))
    queries: list[str] = []
    put(store, SECOND_NS, 10, SECOND_NS, START_NS - 2 * HOUR_NS)
    put(store, SECOND_NS, 1, SECOND_NS)
    store._pruner.base.set_trace_callback(queries.append)
    store.prune(START_NS)
    plans = [
        step
        for query in {one for one in queries if one.lstrip().startswith(("delete from results", "with", "select"))}
        for (*_, step) in store._pruner.base.execute(f"explain query plan {query}")
        if "results" in step or " r " in step
    ]
    assert [step for step in plans if "PRIMARY KEY (series=? AND length_ns=? AND start_ns" in step]
    assert not [step for step in plans if "PRIMARY KEY (series=?" not in step], plans


# ---- versions ----


def as_version(number: int, folder: Path) -> Path:
    """A store as that version wrote it: four intervals of A>B, and messages that wait."""
    path = folder / "store.db"
    path.write_bytes(gzip.decompress((DATA / f"store-version{number}.db.gz").read_bytes()))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return as_version(1, tmp_path)


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as base:
        return int(base.execute("pragma user_version").fetchone()[0])


def sealed(path: Path) -> list[tuple[int, int]]:
    """How many single intervals and messages have a checksum, and how many there are."""
    with closing(sqlite3.connect(path)) as base:
        count = "select sum(crc >= 0), count(*) from"
        return [base.execute(f"{count} {of}").fetchone() for of in ("results where length_ns < 6e10", "messages")]


def hasty(path: str, mode: str = "rw") -> sqlite3.Connection:
    base = connected(path, mode)
    base.execute("pragma busy_timeout = 0")
    return base


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as base:
        return list(base.iterdump())


@pytest.mark.parametrize("lacking", [(), ("checked", "overtaken"), ("references_received", "references_lost")])
def test_an_older_store_is_copied_and_then_brought_up_to_date(old: Path, lacking: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(old)) as base:
        for name in lacking:
            base.execute(f"alter table results drop column {name}")
        if lacking:
            base.execute("drop table changes")
    before, kept = dump(old), waiting(old)
    with closing(SqliteStore(str(old))) as store:
        rows = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)
        assert [(row.tally.sent, row.tally.checked) for row in rows][:3] == [(49, 0), (50, 0), (53, 0)]
        assert len(list(store.messages_since(0))) == len(kept) == 7
        assert store._base.execute("select sum(bytes), sum(length(body)) from messages").fetchone()[0] > 1000
        put(store, SECOND_NS, 3, SECOND_NS)
    assert version(old) == VERSION
    copy = old.with_name("store.db.version1")
    assert dump(copy) == before
    assert version(copy) == 1
    assert copy.stat().st_mode & 0o077 == 0
    with closing(SqliteStore(str(old))) as store:  # once
        assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)) == 7


def test_a_store_of_the_version_before_gets_checksums(tmp_path: Path) -> None:
    """What it has is read as it is, and is sealed by the first check; what is written from now on has a checksum."""
    old = as_version(2, tmp_path)
    before, kept = dump(old), waiting(old)
    with closing(SqliteStore(str(old))) as store:
        assert [row.tally.sent for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)][:3] == [49, 50, 53]
        assert len(list(store.messages_since(0))) == len(kept) == 7
        put(store, SECOND_NS, 3, SECOND_NS)
        store.put_message("k", "A", START_NS, b"body", START_NS)
        assert sealed(old) == [(3, 7), (1, 8)]
        rows = repr(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9))
        store.check()
        assert sealed(old) == [(7, 7), (8, 8)]
        assert repr(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)) == rows
        assert len(list(store.messages_since(0))) == 8
    assert (version(old), version(tmp_path / "store.db.version2")) == (VERSION, 2)
    assert dump(tmp_path / "store.db.version2") == before


def test_after_the_first_check_a_changed_bit_of_an_older_row_is_seen(tmp_path: Path) -> None:
    old, told = as_version(2, tmp_path), list[str]()
    with closing(SqliteStore(str(old))) as store:
        store.damaged = told.append
        starts_ns = [row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)]
        change = "update results set {} where length_ns < 6e10 and start_ns = ?"
        store._base.execute(change.format("rank = 99"), (starts_ns[0],))
        store.check()  # what was impossible before is told, and gets none
        assert len(told) == 1
        assert sealed(old) == [(3, 4), (7, 7)]
        store._base.execute(change.format("received = received + 1"), (starts_ns[3],))
        store.check()
        assert len(told) == 2
        assert [row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)] == starts_ns[1:3]


def test_a_check_that_cannot_write_seals_later(tmp_path: Path) -> None:
    old = as_version(2, tmp_path)
    with closing(SqliteStore(str(old))) as store, closing(sqlite3.connect(old, isolation_level=None)) as other:
        other.execute("begin immediate")  # another writer, for longer than the store waits
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wirelag.collector.sqlite.connected", hasty)
            store.check()
        assert sealed(old) == [(0, 4), (0, 7)]
        other.execute("rollback")
        store.check()
        assert sealed(old) == [(4, 4), (7, 7)]


def test_check_reads_only(old: Path) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in old.parent.iterdir()}
    done = wirelag("collect", "--check", "--store", str(old), "--listen", "127.0.0.1:0")
    assert "has version 1: the start copies it to" in done.stdout
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in old.parent.iterdir()} == before


def test_a_newer_store_is_refused_and_not_changed(old: Path) -> None:
    """An older program does not write to a newer store, nor look at it in a way that changes it."""
    with closing(sqlite3.connect(old)) as base:
        base.execute(f"pragma user_version = {VERSION + 1}")
    before = old.read_bytes()
    for words in (["--check"], []):
        done = wirelag("collect", *words, "--store", str(old), "--listen", "127.0.0.1:0", code=2)
        assert f"has store version {VERSION + 1}, this wirelag writes {VERSION}; use a newer wirelag" in done.stderr
    assert old.read_bytes() == before
    with pytest.raises(WirelagError):
        SqliteStore(str(old))


def test_an_update_that_fails_leaves_the_file_as_it_was(old: Path) -> None:
    with closing(sqlite3.connect(old)) as base:
        base.execute("create table facts (mine)")  # in the way of the update
    before = dump(old)
    with pytest.raises(WirelagError, match="cannot open it as the collector's store"):
        SqliteStore(str(old))
    assert dump(old) == before
    assert version(old) == 1


# ---- damage ----


def overwrite(path: Path, table: str) -> None:
    """Overwrite a page in the middle of a table."""
    with closing(sqlite3.connect(path)) as base:
        size, pages = (base.execute(f"pragma {name}").fetchone()[0] for name in ("page_size", "page_count"))
        (root,) = base.execute("select rootpage from sqlite_master where name = ?", (table,)).fetchone()
    assert pages > root
    leaf = 0
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        page = file.read(size)
        while page[0] == 2:  # an inner page of an index: go on with the child in the middle
            cells = int.from_bytes(page[3:5])
            middle = int.from_bytes(page[12 + 2 * (cells // 2) :][:2])
            leaf = int.from_bytes(page[middle : middle + 4])
            file.seek((leaf - 1) * size)
            page = file.read(size)
        file.seek((leaf - 1) * size)
        file.write(b"\xff" * 600)


def test_a_damaged_store_goes_on_with_what_can_be_read(tmp_path: Path) -> None:
    """A page of results is overwritten: the rows before and behind it stay, and agents lose nothing."""
    agents = pair(path := recent(6, 50, 2), Lda(64, (0,), tail=64))
    store_path = tmp_path / "store.db"
    with closing(SqliteStore(str(store_path))) as store:
        store.begin()
        put(store, SECOND_NS, 2000, SECOND_NS, path.start_ns)
        store.put_message("k", "A", path.start_ns, encode(agents[0].messages(0, 1)[0]), path.start_ns)
        store.commit()
    overwrite(store_path, "results")
    with Running(tmp_path, "--segment", "A>B") as running:
        status, _ = running.get("/api/v1/reports", segment="A>B", limit=5000, **{"from": 1})
        assert status in (200, 503)
        send(running.url, agents, 6, settled(running, path, 5))
        running.until(lambda: running.counted().get("store rescued") == 1)
        running.until(lambda: running.get("/-/ready")[0] == 200)
        assert 1900 < len(running.reports(limit=5000)) < 2000 + 6
    assert "was damaged" in running.log
    (aside,) = tmp_path.glob("store.db.damaged-*")
    assert str(aside) in running.log
    with closing(sqlite3.connect(store_path)) as base:
        assert base.execute("pragma integrity_check").fetchone() == ("ok",)


def test_damage_where_nobody_reads_is_found_at_the_start(tmp_path: Path) -> None:
    """A page of old results, which no request and no write touches: the check of all pages finds it."""
    store_path, start_ns = tmp_path / "store.db", recent(6, 50, 2).start_ns
    with closing(SqliteStore(str(store_path))) as store:
        store.begin()
        put(store, SECOND_NS, 2000, SECOND_NS, start_ns)
        store.commit()
        store.check()
    overwrite(store_path, "results")
    with Running(tmp_path, "--segment", "A>B") as running:
        running.until(lambda: running.counted().get("store rescued") == 1)
        running.until(lambda: running.get("/-/ready")[0] == 200)
        assert 1900 < len(running.reports(limit=5000)) < 2000
    assert "the check of all pages failed" in running.log
    assert len(list(tmp_path.glob("store.db.damaged-*"))) == 1
    with closing(SqliteStore(str(store_path))) as store:
        store.check()


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(os.urandom(20_000))
    before = text.read_bytes()
    with pytest.raises(WirelagError):
        SqliteStore(str(text))
    assert text.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
