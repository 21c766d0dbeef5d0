"""A bit that the disk has flipped: no figure is wrong, other rows stay, and it is told."""

import gzip
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.collector_process import Running, recent
from tests.support.command import wirelag
from tests.support.effort import FULL
from tests.support.filled_store import COUNT, Rows, filled, found
from tests.support.places import DATA
from tests.support.stored_results import ALL_TIMES, START_NS, result
from tests.support.waiting import until
from wirelag.collector.health import Health
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import MINUTE_NS, SECOND_NS
from wirelag.collector.tally import Tally
from wirelag.collector.upkeep import Upkeep
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank


def problem(store: SqliteStore) -> Exception | None:
    try:
        store.check()
    except sqlite3.Error as error:
        return error
    return None


def flipped(path: Path, data: bytes, at: int, bit: int) -> tuple[Rows, list[str]]:
    """What a store gives after a flip, and what it told."""
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    path.write_bytes(changed)
    told: list[str] = []
    try:
        with closing(SqliteStore(str(path))) as store:
            store.damaged = told.append
            if (error := problem(store)) is not None:
                told.append(str(error))
                assert store.rescue(error) is not None
            return found(store), told
    except WirelagError as unusable:  # the schema
        return {}, [str(unusable)]


def test_no_flipped_bit_changes_a_figure(tmp_path: Path) -> None:
    """Any bit of any page: what is served is as it was written, and whatever is missing is told."""
    path = tmp_path / "store.db"
    filled(path)
    data = path.read_bytes()
    with closing(SqliteStore(str(path))) as store:
        right = found(store)
    assert len(right) == 3 * COUNT
    rng, lost, silent = random.Random(8), 0, 0
    flips = 1000 if FULL else 16
    for _ in range(flips):
        for other in tmp_path.iterdir():
            other.unlink()
        at, bit = rng.randrange(4096, len(data)), rng.randrange(8)
        rows, told = flipped(path, data, at, bit)
        assert rows.items() <= right.items(), (at, bit)
        assert told or rows == right, (at, bit)
        lost += rows != right
        silent += not told
    assert lost > flips // 4  # many bits are of values
    assert silent > flips // 20  # and nothing is told of those that are not used


@pytest.mark.acceptance
def test_what_is_stored_after_a_flip_in_a_name_stays(tmp_path: Path) -> None:
    """Damaged names of segments, or their index: results that come then outlive the check and the rescue."""
    path, rng = tmp_path / "store.db", random.Random(3)
    filled(path)
    data = path.read_bytes()
    with closing(sqlite3.connect(path)) as base:
        (size,) = base.execute("pragma page_size").fetchone()
        query = "select rootpage from sqlite_master where tbl_name = 'series'"
        used = [at for (page,) in base.execute(query) for at in range((page - 1) * size, page * size) if data[at]]
    when = Interval(START_NS + COUNT * SECOND_NS, START_NS + (COUNT + 1) * SECOND_NS)
    told = 0
    for _ in range(200 if FULL else 8):
        for other in tmp_path.iterdir():
            other.unlink()
        changed = bytearray(data)
        changed[rng.choice(used)] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with closing(SqliteStore(str(path))) as store:
            told += store.rescued is not None
            store.put("A>B", None, when, Rank.SETTLED, Tally.of(result(np.full(50, 1000), when.start_ns), None))
            if (error := problem(store)) is not None:
                store.rescue(error)
            assert when.start_ns in {row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)}
    assert told > 2


def readable(path: Path) -> set[tuple[str, int]]:
    """What SQLite itself reads whole, each row asked for by its key; named as in `found`."""
    result = (
        "select results.* from results join series on id = series where segment = ? and length_ns = ? and start_ns = ?"
    )
    keys = set()
    with closing(sqlite3.connect(path)) as base:
        for i in range(COUNT):
            start_ns = START_NS + i * SECOND_NS
            asked = {("message", i): ("select * from messages where key = ?", (f"key{i}",))}
            asked |= {(name, start_ns): (result, (name, SECOND_NS, start_ns)) for name in ("A>B", "A>C")}
            for key, (query, values) in asked.items():
                with suppress(sqlite3.DatabaseError):
                    if base.execute(query, values).fetchone() is not None:
                        keys.add(key)
    return keys


@pytest.mark.acceptance
def test_a_damaged_page_costs_no_row_of_another(tmp_path: Path) -> None:
    """Neither the row before it nor, if it is the first of a table, all others."""
    path = tmp_path / "store.db"
    filled(path)
    data = path.read_bytes()
    pages = [at for at in range(2 * 4096, len(data), 4096) if data[at] == 10]  # the leaves of indexes
    lost = 0
    for at in pages:
        for other in tmp_path.iterdir():
            other.unlink()
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        whole = readable(path)
        with closing(SqliteStore(str(path))) as store:
            if (error := problem(store)) is not None:
                store.rescue(error)
            assert found(store).keys() >= whole, at
        lost += len(whole) < 3 * COUNT
    assert lost > 5


def test_damaged_agents_do_not_keep_it_from_starting(tmp_path: Path) -> None:
    """Their table is read before anything else is done."""
    path = tmp_path / "store.db"
    filled(path)
    data = path.read_bytes()
    with closing(sqlite3.connect(path)) as base:
        (page,) = base.execute("select rootpage from sqlite_master where name = 'agents'").fetchone()
    path.write_bytes(data[: (page - 1) * 4096] + b"\xff" + data[(page - 1) * 4096 + 1 :])
    with closing(SqliteStore(str(path))) as store:
        assert store.agents() == {}
        assert len(found(store)) == 3 * COUNT


def test_damage_is_not_forgotten_when_a_write_fails(tmp_path: Path) -> None:
    """The check finds damage, and before the worker turns to it the disk is full."""
    path = tmp_path / "store.db"
    filled(path)
    damage, full = sqlite3.DatabaseError("of a page"), sqlite3.OperationalError("disk is full")
    damage.sqlite_errorcode, full.sqlite_errorcode = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL
    with closing(SqliteStore(str(path))) as store:
        upkeep = Upkeep(store, Health(), Counter())
        assert not upkeep.failed(full)
        upkeep.doubt(damage)
        assert upkeep.failed(full)
        assert len(list(tmp_path.glob("*.damaged-*"))) == 1
        assert not upkeep.failed(full)


def test_a_rescue_is_tried_again_when_the_file_could_not_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As without file descriptors: then all is closed, and the next attempt must not fail for that."""
    path = tmp_path / "store.db"
    filled(path)
    damage = sqlite3.DatabaseError("of a page")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with closing(SqliteStore(str(path))) as store:
        right = found(store)
        upkeep = Upkeep(store, Health(), Counter())
        upkeep.doubt(damage)
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        assert not upkeep.rescue()
        path.rmdir()
        (tmp_path / "elsewhere").rename(path)
        until(upkeep.rescue, "the next attempt", 0.05)  # soon: it took no time
        assert found(store) == right
    assert capsys.readouterr().err.count("cannot be rescued now") == 1


def test_nothing_is_deleted_where_damage_may_hide_it(tmp_path: Path) -> None:
    """A series whose results cannot be found looks empty: it stays until the store was rescued."""
    path = tmp_path / "store.db"
    filled(path)
    with closing(SqliteStore(str(path))) as store:
        upkeep = Upkeep(store, Health(), Counter())
        store._base.execute("update results set series = 9 where series = 1")
        upkeep.doubt(sqlite3.DatabaseError("of a page"))
        upkeep.prune(START_NS + COUNT * SECOND_NS)
        assert [segment for segment, _ in store.series()] == ["A>B", "A>C"]
        assert not upkeep.rescue()  # it was no damage
        upkeep.prune(START_NS + COUNT * SECOND_NS)
        assert [segment for segment, _ in store.series()] == ["A>C"]


def test_a_row_that_lost_its_checksum_is_damaged(tmp_path: Path) -> None:
    """As with a flipped bit in its header, after which the last columns are empty."""
    filled(tmp_path / "store.db")
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        store._base.execute("update results set crc = null where start_ns = ?", (START_NS,))
        store._base.execute("update messages set crc = null where key = 'key3'")
        store._base.execute(
            "update results set lost = x'' where start_ns = ?", (START_NS + SECOND_NS,)
        )  # 0, one bit off
        assert len(found(store)) == 3 * COUNT - 5


def test_a_changed_number_is_told_everywhere(tmp_path: Path) -> None:
    """A number of a result, and the time of a message, which SQLite cannot see: log, /metrics and --check name them."""
    path, start_ns = tmp_path / "store.db", recent(6, 50, 2).start_ns
    filled(path, start_ns)
    words = ("collect", "--check", "--store", str(path), "--listen", "127.0.0.1:0")
    assert "left out" not in wirelag(*words).stdout
    with closing(sqlite3.connect(path)) as base:
        changed = base.execute(
            "update results set sent = sent + 64 where series = 1 and start_ns = ?", (start_ns + 5 * SECOND_NS,)
        )
        assert changed.rowcount == 1
        base.execute("update messages set start_ns = start_ns + 1024 where key = 'key7'")
        base.commit()
        base.execute("pragma wal_checkpoint(truncate)")
    said = wirelag(*words).stdout
    assert "which has 2 rows that the disk has changed, which are left out: a result of A>B at " in said
    with Running(tmp_path, "--segment", "A>B") as running:
        assert {"store failed", "store rescued", "store check failed"} <= running.counted().keys()  # 0 is served
        running.until(lambda: running.counted()["damaged in the store"] == 2)
        shown = {round(one["start"] * 1e9) for one in running.reports(limit=5000)}
        assert shown == {start_ns + i * SECOND_NS for i in range(COUNT) if i != 5}
        assert running.counted()["damaged in the store"] == 2  # once each, however often they are read
        assert "damaged: " not in wirelag(*words).stderr
    assert running.log.count("a result of A>B at ") == 1
    assert "the message key7 is damaged: left out; check the disk" in running.log
    assert "rescued" not in running.log


def test_a_damaged_row_makes_room_for_a_right_one(tmp_path: Path) -> None:
    """Its rank means nothing; a sum is made of what is right, and an old sum that knows more stays."""
    tally = Tally.of(result(np.full(50, 1000)), None)
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        for i in range(60):
            when = Interval(START_NS + i * SECOND_NS, START_NS + (i + 1) * SECOND_NS)
            store.put("A>B", None, when, Rank.SETTLED, tally)
        store._base.execute("update results set rank = 4, used = 7 where start_ns = ?", (START_NS,))
        store.sum_up(START_NS + 2 * MINUTE_NS)
        (minute,) = store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 9)
        assert (minute.tally.intervals, minute.tally.sent) == (59, 59 * 50)
        first = Interval(START_NS, START_NS + SECOND_NS)
        assert store.rank_of("A>B", first) is None
        assert store.put("A>B", None, first, Rank.ALONE, tally) == (None, True)
        store.sum_up(START_NS + 2 * MINUTE_NS)
        store._base.execute("update results set sent = 9 where start_ns = ? and length_ns < ?", (START_NS, MINUTE_NS))
        store._mark(MINUTE_NS, START_NS, 1)
        store.sum_up(START_NS + 2 * MINUTE_NS)
        (minute,) = store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 9)
        assert (minute.tally.intervals, minute.tally.sent) == (60, 60 * 50)


def test_a_damaged_message_is_replaced_when_it_comes_again(tmp_path: Path) -> None:
    told: list[str] = []
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        store.damaged = told.append
        store.put_message("k", "A", START_NS, b"body", START_NS)
        store.put_message("k", "A", START_NS, b"other", START_NS)
        assert list(store.messages_since(0)) == [b"body"]  # the first was acknowledged
        store._base.execute("update messages set body = x'626f6479ff'")
        assert not list(store.messages_since(0))
        store.put_message("k", "A", START_NS, b"body", START_NS)
        assert list(store.messages_since(0)) == [b"body"]
    assert told == ["the message k"]


def test_a_damaged_store_of_the_version_before_is_rescued(tmp_path: Path) -> None:
    """Its tables have fewer columns: its rows are read all the same."""
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((DATA / "store-version2.db.gz").read_bytes()))
    with closing(sqlite3.connect(path)) as base:
        (page,) = base.execute("select rootpage from sqlite_master where name = 'stale'").fetchone()
        (size,) = base.execute("pragma page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)
    with closing(SqliteStore(str(path))) as store:
        error = problem(store)
        assert error is not None
        assert store.rescue(error) is not None
        assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)) == 4
        assert len(list(store.messages_since(0))) == 7
