"""How long a collector takes to answer for a chart: an hour of seconds, a week of minutes, 30 days of hours.

    python benchmarks/queries.py [--store FILE]

Fills a store with one segment's results, and asks the API's own functions for them: all rows, and 600 points, which is
what a screen shows. Seconds are of processor time; bytes as sent, compressed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.stored_results import START_NS, result
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import HOUR_NS, MINUTE_NS, SECOND_NS, Retention, rows_in
from wirelag.collector.tally import Tally
from wirelag.collector.thinning import thinned
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

POINTS = 600
CASES = (
    ("an hour of seconds", SECOND_NS, 3600, 64),
    ("a week of minutes", MINUTE_NS, 7 * 1440, 2000),
    ("30 days of hours", HOUR_NS, 720, 20_000),
)
KINDS = 50  # different results


def fill(store: SqliteStore, length_ns: int, count: int, samples: int) -> None:
    """Results of one length; those of minutes have more delays."""
    rng = np.random.default_rng(1)
    made = [Tally.of(result(5e6 + rng.exponential(2e6, samples), START_NS), None) for _ in range(KINDS)]
    store.begin()
    for i in range(count):
        start_ns = START_NS + i * length_ns
        store.put("A>B", None, Interval(start_ns, start_ns + length_ns), Rank.SETTLED, made[i % KINDS])
    store.commit()


def ask(store: SqliteStore, length_ns: int, points: int | None) -> tuple[float, int, int]:
    """Processor seconds, reports and bytes of a reply."""
    began = time.process_time()
    block = store.block("A>B", None, length_ns, (0, 1 << 62), 20_000)
    rows = rows_in(block, "A>B", None, length_ns) if points is None else thinned(block, "A>B", None, length_ns, points)
    body = gzip.compress(json.dumps([row.to_json() for row in rows], separators=(",", ":")).encode(), 3)
    return time.process_time() - began, len(rows), len(body)


def main() -> None:
    """Print a line for each question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a new file; a temporary one, if not given")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SqliteStore(options.store or f"{folder}/store.db", Retention())) as store,
    ):
        for name, length_ns, count, samples in CASES:
            fill(store, length_ns, count, samples)
            store.prune(START_NS + count * length_ns)  # what is settled is packed
            for points in (None, POINTS):
                seconds, reports, size = min(ask(store, length_ns, points) for _ in range(3))
                print(f"{name:20} {seconds * 1e3:7.0f} ms {reports:7,} reports {size / 1e3:8.0f} kB", flush=True)


if __name__ == "__main__":
    main()
