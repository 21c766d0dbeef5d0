"""What the store deletes: what is past its retention, and what no longer fits.

Laws. Retention goes by the time of the results (data_time.py). Messages that wait for their other half have a quarter
of the size at most, and beyond it the oldest of the point that has most of them go: no point pushes out those of
another that has less. Where the whole is too large, messages go first, then results of the points that have most: of
each its single intervals, minutes and hours, the oldest first. It runs on a connection of its own, in steps of a few
milliseconds; after each the file is left to the writer for as long as the step took, and so is the disk. Every step
finds its rows by the primary key.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from wirelag.collector.block import period_ns
from wirelag.collector.data_time import DataTime
from wirelag.collector.sqlite_packing import Packer
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, Pruned, Retention
from wirelag.network.segments import parse_segment

STEP: Final = 1000  # rows of a step
STEP_BLOCKS: Final = 16  # blocks of a step
STEP_MESSAGES: Final = 16  # messages of a step,
STEP_BYTES: Final = 1 << 20  # and their bytes, if there are several
MOST_PAUSE_S: Final = 1.0
STEP_PAGES: Final = 256  # that are returned to the file system in a step
MOST_PAGES: Final = 4096  # that are returned in one run
FACT: Final = "data_time"
_TABLES: Final = ("results", "blocks")
_KINDS: Final = ((0, MINUTE_NS), (MINUTE_NS, HOUR_NS), (HOUR_NS, DAY_NS))  # of lengths
# Each pair of series and length, by leaps over the primary key, with its first and last start.
_PAIRS: Final = """
with recursive pairs (series, length_ns) as (
    select id, (select min(length_ns) from {table} r where r.series = s.id) from series s
    union all
    select p.series, (select min(length_ns) from {table} r where r.series = p.series and r.length_ns > p.length_ns)
    from pairs p where p.length_ns is not null
)
select series, length_ns,
    (select min(start_ns) from {table} r where r.series = p.series and r.length_ns = p.length_ns),
    (select max(start_ns) from {table} r where r.series = p.series and r.length_ns = p.length_ns)
from pairs p where p.length_ns is not null
"""


class _Pair(NamedTuple):
    """The results of one length of a series."""

    series: int
    length_ns: int
    first_ns: int
    last_ns: int

    @property
    def rows(self) -> int:
        """How many there are, if none is missing: they are not counted one by one."""
        return (self.last_ns - self.first_ns) // max(1, self.length_ns) + 1


def fair_shares(sizes: Mapping[str, float], room: float) -> dict[str, float]:
    """What each may keep, so that all fit: no more than the others, and whoever has less keeps all."""
    shares: dict[str, float] = {}
    for i, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        shares[name] = min(sizes[name], room / (len(sizes) - i))
        room -= shares[name]
    return shares


def _points(segment: str) -> set[str]:
    try:
        found = parse_segment(segment)
    except ValueError:  # a damaged name
        return {segment}
    return {found.at, found.after}


def _due(segments: Mapping[str, int]) -> dict[str, float]:
    """How many results each segment loses, given how many it has; together they lose a hundredth.

    A segment counts for the one of its points that has more in all. Points share alike, and the segments of a point.
    """
    points = {name: _points(name) for name in segments}
    held: Counter[str] = Counter()
    for name, ends in points.items():
        held.update(dict.fromkeys(ends, segments[name]))
    owned: dict[str, dict[str, int]] = {}
    for name, ends in points.items():
        owned.setdefault(max(sorted(ends), key=held.__getitem__), {})[name] = segments[name]
    sizes = {owner: sum(mine.values()) for owner, mine in owned.items()}
    kept = {
        name: share
        for owner, room in fair_shares(sizes, 0.99 * sum(sizes.values())).items()
        for name, share in fair_shares(owned[owner], room).items()
    }
    return {name: segments[name] - share for name, share in kept.items() if segments[name] > share}


@dataclass(slots=True)
class Pruner:
    """Deletes, in a thread of its own; `turn`: the lock of those who write, `forget`: called when series are gone."""

    base: sqlite3.Connection
    turn: threading.Lock
    keep: Retention
    forget: Callable[[], None]
    told: Callable[[str], None]  # of what the disk has changed
    ended: bool = False
    steady_ns: int | None = None

    def prune(self, now_ns: int, classes: Iterable[str]) -> Pruned:
        """Delete what is due; `classes`: segments of which old classes must make room."""
        done = Pruned()
        pairs = self._pairs()
        newest_ns = max([*(one.last_ns for one in pairs), *self._newest_message()], default=None)
        if newest_ns is None:
            return done
        passed = self._time(now_ns, newest_ns)
        done.problem = passed.problem
        if passed.since_ns is None and passed.trusted_ns is not None:
            self._by_age(pairs, passed.trusted_ns)
            self._classes(classes, passed.trusted_ns)
        self._pack()
        done.messages = self._messages()
        done.results = self._by_size()
        with self._step(self.forget):
            nowhere = " and ".join(f"not exists (select 1 from {one} where series = series.id)" for one in _TABLES)
            self.base.execute(f"delete from series where {nowhere}")
            self.base.execute("delete from stale where series not in (select id from series)")
        for _ in range(MOST_PAGES // STEP_PAGES):
            with self._turn():
                self.base.execute(f"pragma incremental_vacuum({STEP_PAGES})").fetchall()
            if self.ended or not self.base.execute("pragma freelist_count").fetchone()[0]:
                break
        return done

    # ---- what is due ----

    def _time(self, now_ns: int, newest_ns: int) -> DataTime:
        """How far time has come; stored before anything is deleted."""
        found = self.base.execute("select value from facts where name = ?", (FACT,)).fetchone()
        passed = DataTime.of(None if found is None else found[0])
        steady_ns = time.monotonic_ns()
        passed.passed(now_ns, newest_ns, 0 if self.steady_ns is None else steady_ns - self.steady_ns)
        self.steady_ns = steady_ns
        with self._step():
            self.base.execute("insert or replace into facts values (?, ?)", (FACT, json.dumps(passed.to_fields())))
        return passed

    def _by_age(self, pairs: list[_Pair], time_ns: int) -> None:
        keep = self.keep
        ages_ns = (keep.single_ns, keep.minutes_ns, keep.hours_ns)
        for (lower, upper), age_ns in zip(_KINDS, ages_ns, strict=True):
            self._delete((one for one in pairs if lower <= one.length_ns < upper), time_ns - age_ns)
        these = "from messages where key in (select key from messages where start_ns < ? limit ?)"
        values, more = (time_ns - keep.messages_ns, STEP_MESSAGES), True
        while more and not self.ended:
            more = self._drop(these, values) != []
        with self._step():
            self.base.execute("delete from changes where at_ns < ?", (time_ns - keep.hours_ns,))

    def _pack(self) -> None:
        packer = Packer(self.base, self._step, lambda: self.ended, self.told)
        names = {series: (segment, key) for series, segment, key in self.base.execute("select * from series")}
        for one in self._pairs():
            packer.pack(names[one.series], one.series, one.length_ns, one.last_ns)

    def _classes(self, segments: Iterable[str], time_ns: int) -> None:
        """Delete classes without new results."""
        last_ns: dict[int, int] = {}
        for one in self._pairs():
            last_ns[one.series] = max(last_ns.get(one.series, 0), one.last_ns)
        old = {series for series, at_ns in last_ns.items() if at_ns < time_ns - self.keep.single_ns}
        for segment in segments:
            query = "select id from series where segment = ? and class != ''"
            ids = {series for (series,) in self.base.execute(query, (segment,)).fetchall()} & old
            self._delete((one for one in self._pairs() if one.series in ids), 1 << 62)

    def _messages(self) -> int:
        """Delete messages beyond their share, or if the whole is too large; returns how many.

        The oldest of the point whose messages take most go first.
        """
        held = Counter(dict(self.base.execute("select point, total(bytes) from messages group by point").fetchall()))
        oldest: dict[str, list[tuple[str, int]]] = {}  # keys of each point, with their bytes, the oldest last
        done = 0
        while not self.ended and held and (excess := self._excess(held.total())) > 0:
            point = max(held, key=held.__getitem__)
            if not oldest.get(point):
                query = "select key, bytes from messages where point = ? order by start_ns limit ?"
                oldest[point] = self.base.execute(query, (point, STEP)).fetchall()[::-1]
            keys: list[str] = []
            room = STEP_BYTES
            while oldest[point] and len(keys) < STEP_MESSAGES and excess > 0 and room > 0:
                key, size = oldest[point].pop()
                keys, excess, room = [*keys, key], excess - size, room - size
            if not keys:
                del held[point]
                continue
            gone = self._drop(f"from messages where key in ({', '.join('?' * len(keys))})", keys)
            done += len(gone)
            held[point] -= sum(size for (size,) in gone)
        return done

    def _excess(self, waiting: float) -> float:
        """Bytes that messages have to give up."""
        return max(waiting - self.keep.waiting_bytes, used_bytes(self.base) - self.keep.most_bytes)

    def _by_size(self) -> int:
        """Delete a hundredth of all results, again and again, until the rest fits."""
        deleted = 0
        while self._too_large and not self.ended:
            names = dict(self.base.execute("select id, segment from series").fetchall())
            segments: dict[str, list[_Pair]] = {}
            for one in self._pairs():
                segments.setdefault(names[one.series], []).append(one)
            due = _due({name: sum(one.rows for one in pairs) for name, pairs in segments.items()})
            gone = sum(self._oldest(segments[name], rows) for name, rows in due.items())
            if not gone:
                break
            deleted += gone
        return deleted

    def _oldest(self, pairs: list[_Pair], rows: float) -> int:
        """Delete about `rows` results of a segment: single intervals first, and the oldest of each kind."""
        done = 0
        for lower, upper in _KINDS:
            some = [one for one in pairs if lower <= one.length_ns < upper]
            if some and rows > 0:
                here = sum(one.rows for one in some)
                oldest_ns, newest_ns = min(one.first_ns for one in some), max(one.last_ns for one in some)
                done += self._delete(some, oldest_ns + int((newest_ns - oldest_ns) * min(1.0, rows / here)) + 1, True)
                rows -= here
        return done

    # ---- steps ----

    @contextmanager
    def _step(self, then: Callable[[], None] = lambda: None) -> Iterator[None]:
        """A transaction; afterwards those who wait have their turn."""
        with self._turn():
            self.base.execute("begin immediate")
            try:
                yield
                self.base.execute("commit")
                then()
            except BaseException:
                if self.base.in_transaction:
                    self.base.execute("rollback")
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Use the file, and then leave it to the writer for as long: a lock alone lets its last owner have it again."""
        with self.turn:
            began_s = time.monotonic()
            yield
            took_s = time.monotonic() - began_s
        if not self.ended:
            time.sleep(min(took_s, MOST_PAUSE_S))

    def _drop(self, these: str, values: Sequence[str | int]) -> list[tuple[int]]:
        """Delete messages, and return their sizes."""
        for _ in self.base.execute(f"select body {these}", values):
            pass  # a slow disk: they are read before the writer has to wait
        with self._step():
            return self.base.execute(f"delete {these} returning bytes", values).fetchall()

    def _delete(self, pairs: Iterable[_Pair], before_ns: int, begun: bool = False) -> int:
        """Delete the results of these pairs that begin before a time, STEP rows at a time.

        Of blocks those that end before it, or with `begun` also the one that it is in.
        """
        due = [one for one in pairs if one.first_ns < before_ns]
        done = 0 if self.ended else sum(self._delete_blocks(one, before_ns, begun) for one in due)
        while due and not self.ended:
            left = STEP
            with self._step():
                while due and left > 0:
                    series, length_ns, *_ = due[-1]
                    query = (
                        "delete from results where series = ? and length_ns = ? and start_ns in (select start_ns "
                        "from results where series = ? and length_ns = ? and start_ns < ? order by start_ns limit ?)"
                    )
                    gone = self.base.execute(query, (series, length_ns, series, length_ns, before_ns, left)).rowcount
                    if gone < left:
                        due.pop()
                    left, done = left - gone, done + gone
        return done

    def _delete_blocks(self, pair: _Pair, before_ns: int, begun: bool) -> int:
        query = (
            "delete from blocks where series = ?1 and length_ns = ?2 and start_ns in (select start_ns from blocks "
            "where series = ?1 and length_ns = ?2 and start_ns < ?3 order by start_ns limit ?4) returning count"
        )
        done, more, limit_ns = 0, True, before_ns if begun else before_ns - period_ns(pair.length_ns) + 1
        while more and not self.ended:
            with self._step():
                gone = self.base.execute(query, (pair.series, pair.length_ns, limit_ns, STEP_BLOCKS)).fetchall()
            done += sum(count for (count,) in gone)
            more = len(gone) == STEP_BLOCKS
        return done

    def _pairs(self) -> list[_Pair]:
        """Of rows and blocks."""
        found = {(one.series, one.length_ns): one for one in map(_Pair._make, self._leaps("results"))}
        for series, length_ns, first_ns, last_ns in self._leaps("blocks"):
            pair = _Pair(series, length_ns, first_ns, last_ns + period_ns(length_ns) - length_ns)
            rows = found.get((series, length_ns), pair)
            found[series, length_ns] = _Pair(
                series, length_ns, min(first_ns, rows.first_ns), max(rows.last_ns, pair.last_ns)
            )
        return list(found.values())

    def _leaps(self, table: str) -> list[tuple[int, int, int, int]]:
        return self.base.execute(_PAIRS.format(table=table)).fetchall()

    def _newest_message(self) -> list[int]:
        (found,) = self.base.execute("select max(start_ns) from messages").fetchone()
        return [] if found is None else [found]

    @property
    def _too_large(self) -> bool:
        return used_bytes(self.base) > self.keep.most_bytes


def used_bytes(base: sqlite3.Connection) -> int:
    """Bytes of the file in use."""
    pages, free, size = (
        base.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
