"""A store with results and messages, and all that it gives."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from tests.support.agent_messages import Path as Travelled
from tests.support.agent_messages import pair
from tests.support.stored_results import ALL_TIMES, START_NS, result
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import SECOND_NS
from wirelag.collector.tally import Tally
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Rank

COUNT = 40
Rows = dict[tuple[str, int], object]


def filled(path: Path, start_ns: int = START_NS) -> None:
    """A store with results of two segments, and messages that wait."""
    rng = np.random.default_rng(5)
    messages = pair(Travelled.made(COUNT, 20, 5, start_ns=start_ns), Lda(16, (0,)))[0].messages(0, COUNT)
    with closing(SqliteStore(str(path))) as store:
        store.begin()
        for i in range(COUNT):
            when = Interval(start_ns + i * SECOND_NS, start_ns + (i + 1) * SECOND_NS)
            for segment in ("A>B", "A>C"):
                tally = Tally.of(result(rng.exponential(1e6, 50), when.start_ns), None)
                store.put(segment, None, when, Rank.SETTLED, tally)
            store.put_message(f"key{i}", "AB"[i % 2], when.start_ns, encode(messages[i]), start_ns)
        store.commit()
    with closing(sqlite3.connect(path)) as base:
        base.execute("pragma wal_checkpoint(truncate)")


def found(store: SqliteStore) -> Rows:
    """All that it gives: results as they are served, and messages by what leads to them."""
    rows: Rows = {
        (segment, row.start_ns): row.to_json()
        for segment in ("A>B", "A>C")
        for row in store.rows(segment, None, SECOND_NS, ALL_TIMES, 10**6)
    }
    for i in range(COUNT):
        for data in store.messages_about(START_NS + i * SECOND_NS, ["A", "B"]):
            rows["message", i] = data
    return rows
