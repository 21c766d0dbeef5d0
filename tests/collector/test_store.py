"""The collector's store: results are stored once and whole, within a limit; sums equal their parts."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_messages import SECOND_NS
from tests.support.effort import examples, scaled
from tests.support.places import ROOT
from tests.support.stored_results import ALL_TIMES, SEEN, START_NS, result
from tests.support.stores import AnyStore, Open
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, Retention
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import ClockReading
from wirelag.protocol.results import Rank


def tally(delays_ns: np.ndarray, lost: int = 0) -> Tally:
    return Tally.of(result(delays_ns, lost=lost), None)


def fill(store: AnyStore, seconds: range, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    everything = []
    store.begin()
    for second in seconds:
        delays_ns = rng.lognormal(15, 0.7, 200).astype(np.int64)
        everything.append(delays_ns)
        one = result(delays_ns, START_NS + second * SECOND_NS, lost=second % 3)
        store.put(one.segment, None, one.interval, one.rank, Tally.of(one, None))
    store.commit()
    return np.concatenate(everything)


def pass_time(store: AnyStore, now_ns: int) -> None:
    """Results come until then, and what is past its retention goes."""
    interval = Interval(now_ns, now_ns + SECOND_NS)
    store.put("A>B", None, interval, Rank.FIRST, tally(np.full(9, 1000)))
    store.prune(now_ns + SECOND_NS)


# ---- tallies ----


def test_a_tally_equals_its_delays() -> None:
    delays_ns = np.random.default_rng(2).lognormal(15, 1, 5000).astype(np.int64)
    said = tally(delays_ns, lost=50).to_json(START_NS, SECOND_NS, True)
    assert said["mean"] == pytest.approx(delays_ns.mean() / 1e9, rel=1e-12)
    assert said["std"] == pytest.approx(delays_ns.std() / 1e9, rel=1e-9)
    for q, value in said["quantiles"].items():
        ranked = np.sort(delays_ns)[int(float(q) * len(delays_ns))]
        assert value == pytest.approx(ranked / 1e9, rel=0.005)
    assert (said["lost"], said["loss"]) == (50, 50 / 5050)
    low, high = said["ci95"]["mean"]
    assert low < said["mean"] - 50e-6
    assert high > said["mean"] + 50e-6  # includes the clocks' bound


def test_without_synchronised_clocks_delays_have_no_interval() -> None:
    one = replace(result(np.full(100, 10**6)), clock=ClockReading(False, 0, "none"))
    said = Tally.of(one, None).to_json(START_NS, SECOND_NS, True)
    assert said["mean"] == 1e-3
    assert "mean" not in said["ci95"]
    assert said["clock"] == {"error": 0.0, "synchronised": False}


def test_clocks_are_unknown_where_one_end_is_missing() -> None:
    one = replace(result(np.full(100, 10**6)), seen=(SEEN, None))
    said = Tally.of(one, None).to_json(START_NS, SECOND_NS, True)
    assert (said["intervals"], said["missed"], said["clock"]) == (0, 1, None)


def test_negative_delays_are_counted_and_not_shown() -> None:
    delays_ns = np.concatenate([np.full(300, -1000), np.full(700, 5000)])
    made = tally(delays_ns)
    assert made.negative == 300
    assert made.quantile_ns(0.2) is None
    assert made.quantile_ns(0.9) == pytest.approx(5000, rel=0.005)
    assert made.moments.mean_ns == delays_ns.mean()


delays = st.lists(st.integers(-(10**6), 10**10), max_size=60).map(lambda values: np.array(values, np.int64))


@examples(60)
@given(st.lists(delays, min_size=1, max_size=5))
def test_a_sum_equals_the_tally_of_all(parts: list[np.ndarray]) -> None:
    whole = Tally()
    for part in parts:
        whole.add(tally(part, lost=len(part) % 4))
    direct = tally(np.concatenate(parts))
    assert (whole.moments.sum_ns, whole.moments.used) == (direct.moments.sum_ns, direct.moments.used)
    assert whole.bins.tolist() == direct.bins.tolist()
    assert whole.weights.tolist() == direct.weights.tolist()
    assert (whole.min_ns, whole.max_ns, whole.negative) == (direct.min_ns, direct.max_ns, direct.negative)
    assert whole.lost == sum(len(part) % 4 for part in parts)
    assert whole.intervals == len(parts)


@given(delays, st.integers(1, 2**40))
def test_bins_survive_packing(delays_ns: np.ndarray, weight: int) -> None:
    made = tally(delays_ns)
    made.weights = made.weights * weight
    other = Tally()
    other.unpack_bins(made.packed_bins())
    assert other.bins.tolist() == made.bins.tolist()
    assert other.weights.tolist() == made.weights.tolist()


# ---- results ----


def test_a_less_complete_result_never_replaces_a_more_complete_one(store: AnyStore) -> None:
    orders = [list(Rank), list(reversed(Rank)), [Rank.FIRST, Rank.SETTLED, Rank.UNSEEN, Rank.SETTLED]]
    for number, order in enumerate(orders):
        interval = Interval(START_NS + number * SECOND_NS, START_NS + (number + 1) * SECOND_NS)
        store.begin()
        for rank in order:
            store.put("A>B", None, interval, rank, tally(np.full(10 + rank, 1000)))
        store.commit()
    rows = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10)
    assert [(row.rank, row.tally.moments.used) for row in rows] == [(Rank.SETTLED, 13)] * 3


def test_a_repeated_result_counts_once(store: AnyStore) -> None:
    for _ in range(3):
        fill(store, range(120))
        store.begin()
        store.sum_up(START_NS + 2 * HOUR_NS)
        store.commit()
    minutes = store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 10)
    assert [row.tally.intervals for row in minutes] == [60, 60]
    (hour,) = store.rows("A>B", None, HOUR_NS, ALL_TIMES, 10)
    assert hour.tally.intervals == 120


def test_minutes_and_hours_have_the_right_quantiles(store: AnyStore) -> None:
    delays_ns = fill(store, range(0, 3600, 7))
    store.begin()
    while store.sum_up(START_NS + 3 * HOUR_NS):
        pass
    store.commit()
    (hour,) = store.rows("A>B", None, HOUR_NS, ALL_TIMES, 10)
    said = hour.to_json()
    assert said["mean"] == pytest.approx(delays_ns.mean() / 1e9, rel=1e-12)
    assert hour.tally.moments.sum_ns == delays_ns.sum()
    for q, value in said["quantiles"].items():
        assert value == pytest.approx(np.quantile(delays_ns, float(q)) / 1e9, rel=0.01)
    assert said["covered"] == pytest.approx(515 / 3600)
    assert said["lost"] == sum(second % 3 for second in range(0, 3600, 7))


def test_a_late_second_changes_its_minute_and_hour(store: AnyStore) -> None:
    fill(store, range(59))
    store.begin()
    store.sum_up(START_NS + 2 * HOUR_NS)
    store.commit()
    fill(store, range(59, 60))
    store.begin()
    assert store.sum_up(START_NS + 2 * HOUR_NS) == 2
    assert store.sum_up(START_NS + 2 * HOUR_NS) == 0
    store.commit()
    assert [row.tally.intervals for row in store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 10)] == [60]
    assert [row.tally.intervals for row in store.rows("A>B", None, HOUR_NS, ALL_TIMES, 10)] == [60]


def test_classes_and_lengths_are_kept_apart(store: AnyStore) -> None:
    store.begin()
    for key in (None, "10.0.0.0/24"):
        for length_ns in (SECOND_NS, 10 * SECOND_NS):
            store.put("A>B", key, Interval(START_NS, START_NS + length_ns), Rank.SETTLED, tally(np.full(9, 1000)))
    store.commit()
    assert store.series() == [("A>B", None), ("A>B", "10.0.0.0/24")]
    assert store.lengths_ns("A>B", None) == [SECOND_NS, 10 * SECOND_NS]
    assert store.lengths_ns("A>B", "nothing") == []


def test_sums_larger_than_a_column_survive(store: AnyStore) -> None:
    made = tally(np.full(10, 1000))
    made.moments.sum_ns = -(10**30)
    store.begin()
    store.put("A>B", None, Interval(START_NS, START_NS + SECOND_NS), Rank.SETTLED, made)
    store.commit()
    assert store.rows("A>B", None, SECOND_NS, ALL_TIMES, 1)[0].tally.moments.sum_ns == -(10**30)


# ---- retention ----


def test_old_results_go_and_their_sums_stay(reopen: Open) -> None:
    store = reopen(Retention(single_ns=HOUR_NS, minutes_ns=DAY_NS, hours_ns=10 * DAY_NS))
    fill(store, range(300))
    store.sum_up(START_NS + 2 * HOUR_NS)
    pass_time(store, START_NS + 2 * HOUR_NS)
    assert len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10)) == 1
    assert len(store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 10)) == 5
    pass_time(store, START_NS + DAY_NS)
    pass_time(store, START_NS + 2 * DAY_NS)
    assert store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 10) == []
    assert len(store.rows("A>B", None, HOUR_NS, ALL_TIMES, 10)) == 1


def test_the_store_stays_within_its_limit(reopen: Open) -> None:
    """Where only whole days go, these are days."""
    store, day_s = reopen(Retention(single_ns=60 * DAY_NS)), 86_400
    for day in range(6):
        fill(store, range(day_s * day, day_s * day + 120))
        if day == 2:
            most = store.used_bytes
            store.retain(Retention(single_ns=60 * DAY_NS, most_bytes=most))
        store.prune(START_NS + day * DAY_NS + HOUR_NS)
    assert store.used_bytes <= most
    rows = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10_000)
    assert rows[-1].start_ns == START_NS + (day_s * 5 + 119) * SECOND_NS
    assert 120 <= len(rows) < 6 * 120


def test_a_year_fits_into_the_documented_size(tmp_path: Path) -> None:
    """Results of each length, once packed, are no larger than the budget assumes."""
    from wirelag.collector.check import HOUR_BYTES, MINUTE_BYTES, SINGLE_BYTES

    rng = np.random.default_rng(3)
    usual = tally(rng.lognormal(15, 0.7, 200_000).astype(np.int64), 3)
    lengths = (SECOND_NS, 500, SINGLE_BYTES), (MINUTE_NS, 30_000, MINUTE_BYTES), (HOUR_NS, 1_800_000, HOUR_BYTES)
    for length_ns, samples, most in lengths:
        store = SqliteStore(str(tmp_path / f"{length_ns}.db"))
        empty = store.used_bytes
        store.begin()
        for i in [*range(600), 1300]:  # the last one is so late that all others are settled
            weights = rng.poisson(usual.weights * (samples / 200_000))
            used = weights > 0
            moments = replace(usual.moments, sum_ns=usual.moments.sum_ns + int(rng.integers(10**9)))
            made = replace(usual, bins=usual.bins[used], weights=weights[used], moments=moments)
            start_ns = START_NS // (600 * length_ns) * 600 * length_ns + i * length_ns
            store.put("A>B", None, Interval(start_ns, start_ns + length_ns), Rank.SETTLED, made)
        store.commit()
        store.prune(start_ns + length_ns)
        assert (store.used_bytes - empty) / 601 <= most
        store.close()


# ---- messages ----


def test_messages_are_kept_until_they_are_done(store: AnyStore) -> None:
    store.begin()
    for i in range(5):
        store.put_message(f"key{i}", "AB"[i % 2], START_NS + i // 2, b"body%d" % i, 100 + i)
    store.put_message("key0", "A", START_NS, b"again", 300)
    store.commit()
    assert list(store.messages_about(START_NS, ["A", "B"])) == [b"body0", b"body1"]
    store.begin()
    store.drop_messages(["key1", "key7"])
    store.commit()
    assert list(store.messages_since(START_NS)) == [b"body0", b"body2", b"body3", b"body4"]
    pass_time(store, START_NS + 2 * DAY_NS)
    assert list(store.messages_since(0)) == []


def test_what_a_transaction_has_written_it_reads(store: AnyStore) -> None:
    """Statements may wait for others, but not for those that read."""
    store.begin()
    for i in range(75):
        store.put_message(f"key{i}", "A", START_NS + i, b"body%d" % i, i)
    store.drop_messages(["key3", "key5"])
    store.put_message("key5", "B", START_NS + 5, b"again", 200)
    assert list(store.messages_about(START_NS + 3, ["A", "B"])) == []
    assert list(store.messages_about(START_NS + 4, ["A"])) == [b"body4"]
    assert list(store.messages_about(START_NS + 5, ["A", "B"])) == [b"again"]
    store.put_message("key4", "A", START_NS + 4, b"later", 300)
    store.drop_messages(["key6"])
    interval = Interval(START_NS, START_NS + SECOND_NS)
    assert store.put("A>B", None, interval, Rank.FIRST, tally(np.full(9, 1000))) == (None, True)
    assert store.rank_of("A>B", interval) == Rank.FIRST
    assert store.put("A>B", None, interval, Rank.SETTLED, tally(np.full(9, 2000))) == (Rank.FIRST, True)
    assert store.put("A>B", None, interval, Rank.ALONE, tally(np.full(9, 3000))) == (Rank.SETTLED, False)
    store.commit()
    assert len(list(store.messages_since(START_NS))) == 73
    assert list(store.messages_about(START_NS + 4, ["A"])) == [b"body4"]
    assert [row.rank for row in store.rows("A>B", None, SECOND_NS, (0, 1 << 62), 9)] == [Rank.SETTLED]


def test_a_transaction_that_is_undone_leaves_nothing(store: AnyStore) -> None:
    store.begin()
    store.put_message("key", "A", START_NS, b"body", 1)
    store.commit()
    store.begin()
    store.drop_messages(["key"])
    store.put_message("other", "A", START_NS, b"other", 1)
    interval = Interval(START_NS, START_NS + SECOND_NS)
    store.put("A>B", None, interval, Rank.SETTLED, tally(np.full(9, 1000)))
    store.rollback()
    store.begin()
    assert store.put("A>B", None, interval, Rank.FIRST, tally(np.full(9, 2000))) == (None, True)
    store.commit()
    assert list(store.messages_since(START_NS)) == [b"body"]


# ---- kill -9 ----

WRITER = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from tests.support.agent_messages import SECOND_NS
from tests.support.stored_results import ALL_TIMES, START_NS, result
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.tally import Tally
store = (PostgresStore if "://" in sys.argv[1] else SqliteStore)(sys.argv[1])
first = len(store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6))
for number in range(first, first + 10**6):
    one = result(np.full(50, 1000 + number), START_NS + number * SECOND_NS)
    store.begin()
    store.put(one.segment, None, one.interval, one.rank, Tally.of(one, None))
    store.put_message(f"key{{number}}", "A", one.interval.start_ns, bytes(2000), 1)
    store.drop_messages([f"key{{number - 3}}"])
    store.sum_up(one.interval.start_ns)
    store.commit()
    print(number, flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.acceptance)])
def test_kill_9_loses_nothing_that_was_committed(kind: str, place: str, reopen: Open) -> None:
    rng = random.Random(4)
    script = WRITER.format(root=str(ROOT))
    promised = -1
    for _ in range(scaled(5, 3)):
        writer = subprocess.Popen([sys.executable, "-c", script, place], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(rng.randrange(20, 80)):
            promised = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        promised = max([promised, *(int(line) for line in writer.stdout.read().splitlines() if line.strip())])
        writer.stdout.close()
        writer.wait()
        if kind == "sqlite":
            with closing(sqlite3.connect(place)) as base:
                assert base.execute("pragma integrity_check").fetchone() == ("ok",)
        store = reopen()
        rows = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 10**6)
        numbers = [(row.start_ns - START_NS) // SECOND_NS for row in rows]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= promised + 1
        assert 2 <= len(list(store.messages_since(0))) <= 3
        store.close()


def test_a_backup_of_the_file_is_restored_whole(tool: Callable[[str], str], tmp_path: Path) -> None:
    """As docs/reference/operations.md says: a copy while it runs, which replaces a file that is no good any more."""
    path, copy = tmp_path / "results.db", tmp_path / "copy.db"
    with closing(SqliteStore(str(path))) as store:
        fill(store, range(630))
        store.begin()
        store.sum_up(START_NS + DAY_NS)
        store.commit()
        store.prune(START_NS + DAY_NS)  # packs
        fill(store, range(630, 640))
        subprocess.run([tool("sqlite3"), path, f".backup {copy}"], check=True)
        lengths_ns = store.lengths_ns("A>B", None)
        there = [[row.to_json() for row in store.rows("A>B", None, one, ALL_TIMES, 9999)] for one in lengths_ns]
        fill(store, range(640, 650))  # after the backup
    path.write_bytes(b"no good any more" * 999)
    copy.replace(path)
    with closing(SqliteStore(str(path))) as restored:
        assert there == [
            [row.to_json() for row in restored.rows("A>B", None, one, ALL_TIMES, 9999)] for one in lengths_ns
        ]
        assert [len(rows) for rows in there] == [640, 11, 1]
        fill(restored, range(640, 650))  # it goes on
        assert len(restored.rows("A>B", None, SECOND_NS, ALL_TIMES, 9999)) == 650


# ---- invalid files ----


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be read as one " * 40)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as base:
        base.execute("create table mine (a)")
    base.close()
    for path in (text, other, tmp_path / "no" / "folder.db", tmp_path):
        with pytest.raises(WirelagError, match=str(path)) as caught:
            SqliteStore(str(path))
        assert "\n" not in str(caught.value)


def test_other_users_cannot_read_it(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    assert Path(store.path).stat().st_mode & 0o077 == 0


# ---- limits ----


def test_numbers_beyond_63_bits_come_back_as_numbers(store: AnyStore) -> None:
    made = tally(np.full(9, 1000))
    made.sent, made.clock_error_ns, made.references_lost, made.moments.sum_ns = 2**63, 2**64, 2**70, -(2**65)
    store.put("A>B", None, Interval(START_NS, START_NS + SECOND_NS), Rank.SETTLED, made)
    store.sum_up(START_NS + 2 * HOUR_NS)
    for length_ns in (SECOND_NS, MINUTE_NS, HOUR_NS):
        (row,) = store.rows("A>B", None, length_ns, ALL_TIMES, 9)
        found = row.tally
        numbers = (found.sent, found.clock_error_ns, found.references_lost, found.moments.sum_ns)
        assert numbers == (2**63, 2**64, 2**70, -(2**65))
        assert row.to_json()["sent"] == 2**63


def test_a_late_interval_does_not_undo_a_minute_without_parts(reopen: Open) -> None:
    store = reopen(Retention(single_ns=HOUR_NS))
    fill(store, range(59))
    store.sum_up(START_NS + 2 * HOUR_NS)
    pass_time(store, START_NS + 2 * HOUR_NS)
    fill(store, range(59, 60))
    store.sum_up(START_NS + 2 * HOUR_NS)
    (minute,) = store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 9)
    assert minute.tally.intervals == 59
    (hour,) = store.rows("A>B", None, HOUR_NS, ALL_TIMES, 9)
    assert hour.tally.intervals == 59


def test_known_loss_stays_known(store: AnyStore) -> None:
    interval = Interval(START_NS, START_NS + SECOND_NS)
    known, unknown = tally(np.full(9, 1000), lost=4), tally(np.full(9, 1000), lost=4)
    unknown.loss_sent, unknown.lost, unknown.reason = 0, 0.0, "a point no longer has the times"
    assert store.put("A>B", None, interval, Rank.SETTLED, unknown).taken
    assert store.put("A>B", None, interval, Rank.SETTLED, known).taken
    assert not store.put("A>B", None, interval, Rank.SETTLED, unknown).taken
    (row,) = store.rows("A>B", None, SECOND_NS, ALL_TIMES, 9)
    assert row.to_json()["lost"] == 4


def test_answers_follow_their_synopses_whatever_the_clock_showed(store: AnyStore) -> None:
    for second in (1, 0):
        for kind, arrived_ns in (("times", 5), ("synopsis", 7), ("synopsis", 6)):
            name = f"{kind}-{second}-{arrived_ns}"
            store.put_message(name, "A", second, name.encode(), arrived_ns)
    found = [body.decode() for body in store.messages_since(0)]
    expected = ["synopsis-{}-6", "synopsis-{}-7", "times-{}-5"]
    assert found == [one.format(second) for second in (0, 1) for one in expected]


def test_classes_are_bounded_and_old_ones_make_room(reopen: Open, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"wirelag.collector.{kind}.MOST_OF_ONE", 5)
    monkeypatch.setattr(f"wirelag.collector.{kind}.MOST_CLASSES", 8)
    store, made = reopen(Retention(single_ns=HOUR_NS)), tally(np.full(9, 1000))

    def put(segment: str, second: int) -> int:
        interval = Interval(START_NS + second * SECOND_NS, START_NS + (second + 1) * SECOND_NS)
        names = [None, *(f"{second}-{number}" for number in range(7))]
        return sum(store.put(segment, key, interval, Rank.SETTLED, made).taken for key in names)

    assert [put(segment, 0) for segment in ("A>B", "C>D", "E>F")] == [6, 4, 1]
    assert put("A>B", 1) == 1
    assert store.beyond == 2 + 4 + 7 + 7
    store.close()
    store = reopen(Retention(single_ns=HOUR_NS))
    assert put("A>B", 1) == 1
    while store.sum_up(START_NS + 3 * HOUR_NS):
        pass
    pass_time(store, START_NS + 3 * HOUR_NS)
    assert {key for _, key in store.series()} == {None}
    assert put("A>B", 3 * 3600) == 6


def test_a_store_of_minutes_alone_stays_within_its_limit(reopen: Open) -> None:
    store, made = reopen(), tally(np.arange(900) * 1000)
    for number in range(200):
        start_ns = START_NS + number * 3 * HOUR_NS
        store.put("A>B", None, Interval(start_ns, start_ns + MINUTE_NS), Rank.SETTLED, made)
        if number == 100:
            most = store.used_bytes
    assert store.used_bytes > most
    store.retain(Retention(most_bytes=most))
    store.prune(START_NS + 601 * HOUR_NS)
    assert store.used_bytes <= most
    rows = store.rows("A>B", None, MINUTE_NS, ALL_TIMES, 999)
    assert rows[-1].start_ns == START_NS + 199 * 3 * HOUR_NS
