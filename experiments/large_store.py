"""Store: how long pruning and the check of a collector's 10 GiB take, and how long its writer waits meanwhile.

    python experiments/large_store.py --folder /var/tmp --gib 10

It builds a store of 128 segments with intervals of 1 s and messages that wait, in a file of its own, and deletes it.
A writer commits ten results every 20 ms, alone and beside each kind of work; `waits` is from the moment it wants to
write until its results are on disk. With --cold nothing of the file is in memory when a kind of work begins.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.stored_results import START_NS, result
from wirelag.collector.sqlite import _PUT, SqliteStore
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.sqlite_file import UNCHECKED
from wirelag.collector.store import DAY_NS, SECOND_NS, Retention
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

SEGMENTS = 128
ROW_BYTES = 500  # of a result with 500 delays, with its part of pages that are not full
EVERY_S = 0.02
WRITTEN = 10  # results of a commit
MESSAGE = 100_000  # bytes
EVER = Retention(10**5 * DAY_NS, 10**5 * DAY_NS, 10**5 * DAY_NS, 10**5 * DAY_NS, 1 << 50)


def build(store: SqliteStore, size: int) -> int:
    """Fill a store with that many bytes, a tenth of it messages; returns how many intervals each segment has."""
    base, tally = store._base, Tally.of(result(np.random.default_rng(1).exponential(1e6, 500)), None)
    base.execute("pragma synchronous = off")
    count = int(size * 0.9 / ROW_BYTES / SEGMENTS)
    for number in range(SEGMENTS):
        segment = f"A{number}>B{number}"
        when = Interval(START_NS - count * SECOND_NS, START_NS - (count - 1) * SECOND_NS)
        store.put(segment, None, when, Rank.SETTLED, tally)
        query = "select * from results where series = ? and start_ns = ?"
        series, length_ns, _, rank, *values, _ = base.execute(
            query, (store._series_of(segment, None), when.start_ns)
        ).fetchone()
        rows = (
            (series, length_ns, at, rank, *values, checksum((segment, "", length_ns, at, rank, *values)))
            for at in range(when.start_ns, START_NS, SECOND_NS)
        )
        base.execute("begin")
        base.executemany(_PUT, rows)
        base.execute("commit")
    base.execute("begin")
    for i in range(int(size * 0.1) // MESSAGE):
        store.put_message(f"synopsis-{i}", f"A{i % SEGMENTS}", START_NS - i * SECOND_NS, bytes(MESSAGE), START_NS)
    base.execute("commit")
    base.execute("delete from stale")
    base.execute("pragma wal_checkpoint(truncate)")
    base.execute("pragma synchronous = full")
    return count


def leave_memory(path: str) -> None:
    """Let the kernel forget what it has in memory of the file and its journal."""
    for name in (path, f"{path}-wal"):
        with open(name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def strip(store: SqliteStore) -> None:
    """Take all checksums away, as if a version before 3 had written the file."""
    for (series,) in store._base.execute("select id from series").fetchall():
        store._base.execute(f"update results set crc = {UNCHECKED} where series = ?", (series,))
    store._base.execute(f"update messages set crc = {UNCHECKED}")


class Writer:
    """Commits results all the time, and notes how long each took."""

    def __init__(self, store: SqliteStore) -> None:
        self._store, self._at_ns = store, START_NS
        self._tally = Tally.of(result(np.random.default_rng(2).exponential(1e6, 500)), None)

    def beside(self, work: Callable[[], object]) -> tuple[float, list[float]]:
        """How long the work took, and how long each commit beside it."""
        waits: list[float] = []
        began_s, thread = time.perf_counter(), threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            waits.append(self._write())
            time.sleep(EVERY_S)
        thread.join()
        return time.perf_counter() - began_s, waits

    def _write(self) -> float:
        began_s = time.perf_counter()
        self._store.begin()
        for number in range(WRITTEN):
            when = Interval(self._at_ns, self._at_ns + SECOND_NS)
            self._store.put(f"A{number}>B{number}", None, when, Rank.SETTLED, self._tally)
        self._store.commit()
        self._at_ns += SECOND_NS
        return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--cold", action="store_true", help="drop the file from memory before each kind of work")
    arguments = parser.parse_args()
    size = int(arguments.gib * 2**30)
    if shutil.disk_usage(arguments.folder).free < 2 * size:
        sys.exit(f"large_store: {arguments.folder} needs {2 * arguments.gib:g} GiB of free disk")
    with (
        tempfile.TemporaryDirectory(prefix="wirelag-store-", dir=arguments.folder) as folder,
        closing(SqliteStore(f"{folder}/store.db", EVER)) as store,
    ):
        began_s = time.perf_counter()
        count = build(store, size)
        took_s = time.perf_counter() - began_s
        print(f"{store.used_bytes / 2**30:.2f} GiB, {SEGMENTS * count:,} results, built in {took_s:.0f} s", flush=True)
        writer, half_ns = Writer(store), count // 2 * SECOND_NS

        def age() -> None:
            store.retain(replace(EVER, single_ns=half_ns))
            store.prune(START_NS)

        def shrink() -> None:
            store.retain(replace(EVER, most_bytes=int(0.9 * store.used_bytes)))
            store.prune(START_NS)

        kinds: dict[str, Callable[[], object]] = {
            "nothing": lambda: time.sleep(10),
            "pruning, nothing due": lambda: store.prune(START_NS),
            "pruning to 90% of its size": shrink,
            "pruning half of it by age": age,
            "the check of the rest": store.check,
            "the same, giving checksums": store.check,
        }
        print(
            f"{'beside':<28}{'takes s':>9}{'writes':>8}{'waits ms: median':>18}{'p99':>8}{'worst':>8}{'GiB then':>10}"
        )
        for name, work in kinds.items():
            if "checksums" in name:
                strip(store)
            if arguments.cold:
                leave_memory(store.path)
            took_s, waits = writer.beside(work)
            median, p99, worst = np.quantile(waits, (0.5, 0.99, 1.0)) * 1e3
            used = store.used_bytes / 2**30
            print(f"{name:<28}{took_s:9.1f}{len(waits):8}{median:19.1f}{p99:7.1f}{worst:8.1f}{used:10.2f}", flush=True)


if __name__ == "__main__":
    main()
