"""A collector that runs for long: neither its memory nor its store grows beyond what is stated."""

import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.effort import scaled
from wirelag.collector.check import HOUR_BYTES, MINUTE_BYTES, SINGLE_BYTES
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import HOUR_NS, MINUTE_NS, Retention
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds

SINGLE_KEPT = 3600  # intervals; minutes and hours are kept for longer


def fed(folder: Path, intervals: int, length_ns: int, each: int) -> tuple[list[int], list[int], SqliteStore]:
    """Feed two agents' synopses under an injected clock; returns pages of memory and Python's blocks, ten times."""
    agents = pair(Travelled.made(1, 100, 11, loss=0.0), Lda(16, (0,), tail=32))
    first = [agent.messages(0, 1)[0] for agent in agents]
    now_ns, keep_ns = [EPOCH_NS], SINGLE_KEPT * length_ns
    store = SqliteStore(str(folder / "store.db"), Retention(single_ns=keep_ns, messages_ns=keep_ns))
    collector = Collector(Rounds([Ends("A>B", "A", "B")]), store, lambda: now_ns[0], steady=lambda: now_ns[0])
    pages, blocks = [], []
    for start in range(0, intervals, each):
        batch = []
        for number in range(start, start + each):
            interval = Interval(EPOCH_NS + number * length_ns, EPOCH_NS + (number + 1) * length_ns)
            where = {"start_ns": interval.start_ns, "end_ns": interval.end_ns}
            batch += [
                encode(
                    replace(
                        one,
                        interval=interval,
                        terms=replace(one.terms, interval_ns=length_ns),
                        records=tuple(record | where for record in one.records),
                    )
                )
                for one in first
            ]
        now_ns[0] = EPOCH_NS + (start + each) * length_ns + 1
        assert collector._take(batch) is not None
        assert collector._pass_time() is not None
        if start % 600 < each:
            collector.upkeep.prune(collector.clock())
        if (start // each) % max(1, intervals // each // 10) == 0:
            gc.collect()
            pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
            blocks.append(sys.getallocatedblocks())
    assert collector.rounds.counted["synopses"] == 2 * intervals
    return pages, blocks, store


def keeps_its_size(folder: Path, intervals: int, length_ns: int = SECOND_NS, each: int = 20) -> None:
    pages, blocks, store = fed(folder, intervals, length_ns, each)
    minutes = store.rows("A>B", None, MINUTE_NS, (0, 2**62), 10**6)
    assert sum(row.tally.intervals for row in minutes[1:-1]) == MINUTE_NS // length_ns * (len(minutes) - 2)
    hours = (intervals * length_ns // HOUR_NS + 1) * HOUR_BYTES
    budget = 100_000 + (SINGLE_KEPT + 1200) * SINGLE_BYTES + len(minutes) * MINUTE_BYTES + hours
    print(
        f"{intervals:,} intervals: memory {[page * 4096 >> 20 for page in pages]} MiB, {blocks} blocks, "
        f"store {store.used_bytes / 1e6:.1f} MB of {budget / 1e6:.1f} MB"
    )
    assert max(pages[3:]) <= 1.1 * pages[2]
    assert max(blocks[3:]) <= blocks[2] + 5000
    assert store.used_bytes <= budget
    store.close()


@pytest.mark.acceptance
def test_memory_and_store_stay_bounded(tmp_path: Path) -> None:
    keeps_its_size(tmp_path, scaled(3600, 460))


@pytest.mark.acceptance
def test_a_week_leaves_memory_and_store_bounded(tmp_path: Path) -> None:
    """A week of intervals of 10 s: of 1 s it would take an hour, and show no more."""
    keeps_its_size(tmp_path, 60_480, 10 * SECOND_NS, 120)
