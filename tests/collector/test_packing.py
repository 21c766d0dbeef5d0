"""Results that are settled are packed into blocks: what is read stays the same, whatever comes later or breaks."""

import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.filled_store import filled
from tests.support.stored_results import ALL_TIMES, START_NS, added, result
from tests.support.stores import AnyStore, Open
from wirelag.collector.block import NAMES, ROWS, Block
from wirelag.collector.packing import packed, unpacked
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.sqlite_file import VERSION
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS, Retention
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

FIRST = range(0, ROWS, 5)  # seconds of the block that is packed,
SECONDS = [*FIRST, *range(ROWS, 2 * ROWS + 61, 60)]  # and later ones
END_NS = START_NS + (SECONDS[-1] + 1) * SECOND_NS
LATE = START_NS + 92 * SECOND_NS


def tally(seed: int, lost: int = 0) -> Tally:
    rng = np.random.default_rng(seed)
    return Tally.of(result(rng.lognormal(15, 0.7, 20).astype(np.int64) - 10**6, lost=lost), None)


def fill(store: AnyStore) -> None:
    kinds = [tally(seed, seed % 3) for seed in range(7)]
    store.begin()
    for i in SECONDS:
        start_ns = START_NS + i * SECOND_NS
        store.put("A>B", None, Interval(start_ns, start_ns + SECOND_NS), Rank.SETTLED, kinds[i % 7])
    store.commit()
    store.begin()
    while store.sum_up(START_NS + 2 * HOUR_NS):
        pass
    store.commit()


def pack(store: AnyStore) -> None:
    assert store.prune(END_NS).problem is None


def given_by(store: AnyStore) -> dict[tuple[int, int], object]:
    """All that is served of A>B."""
    return {
        (length_ns, row.start_ns): (row.rank, row.to_json())
        for length_ns in store.lengths_ns("A>B", None)
        for row in store.rows("A>B", None, length_ns, ALL_TIMES, 10**6)
    }


def rows_left(store: AnyStore) -> int:
    """How many single intervals are not packed."""
    table = f"results where length_ns = {SECOND_NS}" if isinstance(store, SqliteStore) else "singles"
    row = store._base.execute(f"select count(*) from {table}").fetchone()
    assert row is not None
    return int(row[0])


numbers = st.integers(-(2**70), 2**70) | st.integers(0, 9) | st.none() | st.floats(allow_nan=False) | st.just(-0.0)


@examples(80)
@given(st.lists(st.tuples(numbers, st.lists(st.integers(0, 4735), max_size=9, unique=True), numbers), min_size=1))
def test_a_block_survives_as_bytes(rows: list[tuple[object, list[int], object]]) -> None:
    made = Block.of((i * SECOND_NS, i % 4, tally(i)) for i in range(len(rows)))
    made.columns["sent"] = [one for one, _, _ in rows]
    made.columns["used"] = [one for _, _, one in rows]
    made.columns["reason"] = [None if i % 3 else "text \N{SNOWMAN}" for i in range(len(rows))]
    made.ends = np.cumsum([len(bins) for _, bins, _ in rows]).tolist()
    made.bins = np.array([one for _, bins, _ in rows for one in sorted(bins)], np.int64)
    made.weights = made.bins * 8 + 8
    found = unpacked(packed(made))
    for name in NAMES:
        assert list(map(repr, found.columns[name])) == list(map(repr, made.columns[name])), name
    assert (found.starts_ns, found.ranks, found.ends) == (made.starts_ns, made.ranks, made.ends)
    assert found.bins.tolist() == made.bins.tolist()
    assert found.weights.tolist() == made.weights.tolist()


def test_other_bytes_are_no_block() -> None:
    data = packed(Block.of((i * SECOND_NS, 3, tally(i)) for i in range(9)))
    for wrong in (b"", b"\x01", b"\x02" + data[1:], data[:-1], data[:40]):
        with pytest.raises(ValueError, match="no block of results"):
            unpacked(wrong)


def plain(one: Tally) -> dict[str, str]:
    """All values, with their types."""
    found = {field.name: getattr(one, field.name) for field in fields(one)}
    return {name: repr(value.tolist() if isinstance(value, np.ndarray) else value) for name, value in found.items()}


def test_a_sum_of_a_block_is_the_sum_of_its_rows() -> None:
    tallies = [tally(seed, seed % 4) for seed in range(12)]
    tallies[3].intervals, tallies[3].missed = 0, 1
    made = Block.of((i, 3, one) for i, one in enumerate(tallies))
    for first, end in ((0, 12), (3, 4), (5, 5)):
        assert plain(made.sum(first, end)) == plain(added(tallies[first:end]))


@pytest.mark.parametrize("most", [1, 4, 99])
def test_a_part_of_a_block_has_the_rows_of_its_time(most: int) -> None:
    rows = [(3 * i, i % 4, tally(i)) for i in range(8)]
    made = Block.of(rows)
    for begin, end in ((0, 24), (0, 22), (-5, 1), (1, 3), (4, 16), (21, 99), (22, 99), (9, 9), (15, 6)):
        found = made.within((begin, end), most)
        wanted = [row for row in rows if begin <= row[0] < end][-most:]
        assert [(*row[:2], plain(row[2])) for row in found.rows()] == [(*row[:2], plain(row[2])) for row in wanted]
        assert plain(found.sum(0, len(found))) == plain(added([row[2] for row in wanted]))


def test_packing_changes_nothing_that_is_read(store: AnyStore) -> None:
    fill(store)
    before = given_by(store)
    pack(store)
    assert given_by(store) == before
    assert rows_left(store) == len(SECONDS) - len(FIRST)  # the last ones are not settled
    some = store.rows("A>B", None, SECOND_NS, (START_NS + 400 * SECOND_NS, START_NS + 700 * SECOND_NS), 30)
    assert [row.start_ns for row in some] == [START_NS + i * SECOND_NS for i in [*range(460, 600, 5), 600, 660]]
    (last,) = store.rows("A>B", None, SECOND_NS, (0, START_NS + 500 * SECOND_NS), 1)
    assert last.start_ns == START_NS + 495 * SECOND_NS


def test_the_latest_of_all_segments_are_those_of_each(store: AnyStore) -> None:
    """In one question; also of intervals that are longer than a minute, and few of many."""
    fill(store)
    store.begin()
    for length_s in (2, 300):
        longer = Interval(START_NS, START_NS + length_s * SECOND_NS)
        store.put("A>C", None, longer, Rank.FIRST, tally(length_s))
        store.put("A>C", "class", longer, Rank.FIRST, tally(1))
    store.commit()
    pack(store)
    lengths = {"A>B": [SECOND_NS, MINUTE_NS], "A>C": [2 * SECOND_NS, 300 * SECOND_NS]}
    wanted = {
        (segment, length_ns): store.rows(segment, None, length_ns, ALL_TIMES, 10**6)
        for segment in lengths
        for length_ns in lengths[segment]
    }
    found = {(row.segment, row.length_ns): row for row in store.latest(0)}
    assert {place: (row.start_ns, row.rank, row.to_json()) for place, row in found.items()} == {
        place: (rows[-1].start_ns, rows[-1].rank, rows[-1].to_json()) for place, rows in wanted.items()
    }
    assert {row.segment for row in store.latest(END_NS - SECOND_NS)} == {"A>B"}
    rows = [row.start_ns for row in wanted["A>B", SECOND_NS]]
    for most in (1, 20, 30, len(rows)):  # from rows alone, and from blocks
        assert [row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, most)] == rows[-most:]


def test_a_late_result_counts_though_its_block_is_packed(store: AnyStore) -> None:
    fill(store)
    pack(store)
    before = given_by(store)
    known = Interval(LATE - 2 * SECOND_NS, LATE - SECOND_NS)
    assert store.put("A>B", None, known, Rank.ALONE, tally(9)) == (Rank.SETTLED, False)
    when = Interval(LATE, LATE + SECOND_NS)
    assert store.rank_of("A>B", when) is None
    assert store.put("A>B", None, when, Rank.ALONE, tally(1, 5)) == (None, True)
    for _ in range(2):
        assert store.rank_of("A>B", when) == Rank.ALONE
        store.begin()
        store.sum_up(START_NS + 2 * HOUR_NS)
        store.commit()
        after = given_by(store)
        assert {key for key in after if after[key] != before.get(key)} == {
            (SECOND_NS, LATE), (MINUTE_NS, START_NS + MINUTE_NS), (HOUR_NS, START_NS),
        }  # fmt: skip
        (minute,) = store.rows("A>B", None, MINUTE_NS, (START_NS + MINUTE_NS, START_NS + 2 * MINUTE_NS), 2)
        assert minute.tally.intervals == 13
        pack(store)
        assert rows_left(store) == len(SECONDS) - len(FIRST)
    assert store.put("A>B", None, when, Rank.SETTLED, tally(2)) == (Rank.ALONE, True)
    assert store.rank_of("A>B", when) == Rank.SETTLED


def test_blocks_past_their_age_go(reopen: Open) -> None:
    store = reopen(Retention(single_ns=HOUR_NS, minutes_ns=DAY_NS))
    fill(store)
    pack(store)
    start_ns = END_NS + HOUR_NS
    store.put("A>B", None, Interval(start_ns, start_ns + SECOND_NS), Rank.SETTLED, tally(1))
    store.prune(start_ns + SECOND_NS)
    kept = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)
    assert len(kept) == 1
    assert len(store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 100)) == len({i // 60 for i in SECONDS})


def test_a_store_of_blocks_stays_within_its_size(tmp_path: Path) -> None:
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        fill(store)
        pack(store)
        most = int(0.95 * store.used_bytes)
        store.retain(Retention(most_bytes=most))
        done = store.prune(END_NS)
        assert store.used_bytes <= most
        left = [row.start_ns for row in store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)]
        assert left[0] > START_NS  # the oldest went
        assert left[-1] == END_NS - SECOND_NS
        assert done.results >= len(SECONDS) - len(left) > 0


def test_a_damaged_block_is_left_out_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        store.damaged = told.append
        fill(store)
        pack(store)
        store._base.execute(
            "update blocks set body = substr(body, 1, 99) || x'55' || substr(body, 101) where start_ns = ?", (START_NS,)
        )
        found = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)
        assert [row.start_ns for row in found] == [START_NS + i * SECOND_NS for i in SECONDS[len(FIRST) :]]
        assert len(told) == 1
        assert told[0].startswith("a block of results of A>B from ")
        store.check()
        when = Interval(LATE, LATE + SECOND_NS)
        assert store.put("A>B", None, when, Rank.ALONE, tally(3)) == (None, True)
        pack(store)
        assert store.rank_of("A>B", when) == Rank.ALONE  # it stays a row
        assert len(told) == 1
        error = sqlite3.DatabaseError("of a page")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        assert "blocks" in str(store.rescue(error))
        assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)) == len(SECONDS) - len(FIRST) + 1


def test_blocks_to_which_no_page_leads_are_rescued(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(SqliteStore(str(path))) as store:
        fill(store)
        pack(store)
        count, body = store._base.execute("select count, body from blocks").fetchone()
        for i in range(1, 21):  # enough that one page leads to several others
            values = (SECOND_NS, START_NS - i * ROWS * SECOND_NS, count, body)
            crc = checksum(("A>B", "", *values))
            store._base.execute("insert into blocks values (1, ?, ?, ?, ?, ?)", (*values, crc))
        (page,) = store._base.execute("select rootpage from sqlite_master where name = 'blocks'").fetchone()
        store._base.execute("pragma wal_checkpoint(truncate)")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        assert file.read(1) == b"\x02"  # it has no rows but those between the others
        file.seek((page - 1) * 4096)
        file.write(b"\xff")
    with closing(SqliteStore(str(path))) as store:
        with pytest.raises(sqlite3.DatabaseError) as damage:
            store.check()
        assert store.rescue(damage.value) is not None
        kept = store._base.execute("select count(*) from blocks").fetchone()[0]
        assert kept > 21 * 0.8
        assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)) >= len(SECONDS)


def test_a_store_of_the_version_before_blocks_is_copied_and_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path)
    with closing(sqlite3.connect(path)) as base:
        base.execute("drop table blocks")
        base.execute("pragma user_version = 3")
        base.commit()
        before = list(base.iterdump())
    with closing(SqliteStore(str(path))) as store:
        assert store._base.execute("pragma user_version").fetchone() == (VERSION,)
        assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)) == 40
        fill(store)
        pack(store)
        assert rows_left(store) < len(SECONDS)
    with closing(sqlite3.connect(tmp_path / "store.db.version3")) as base:
        assert list(base.iterdump()) == before
