"""What results of seconds take in the store: as rows, when they come, and in blocks, once they are settled.

    python benchmarks/store.py [--store postgresql://...]

Results are of real synopses of 500 packets/s, 1% of them lost, of ten segments, stored second by second. Bytes are of
the whole store, with its indexes and the room that is not used on its pages.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agent_messages import Path as Travelled
from tests.support.agent_messages import pair, usual
from tests.support.settled_rounds import both, talk
from tests.support.stored_results import START_NS
from wirelag.collector.block import ROWS
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import SECOND_NS, is_postgres
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

SEGMENTS = 10
SECONDS = 2 * ROWS
DAY_S = 86_400


def tallies(name: str) -> list[Tally]:
    """A result for each second."""
    path = Travelled.made(SECONDS + 2, 500, 7, 0.01)
    found = talk(agents := pair(path, usual(name))).take(both(agents, SECONDS + 1)).best
    return [Tally.of(one, None) for _, one in sorted(found.items())][:SECONDS]


def measure(name: str, store: str) -> str:
    """One line of the table."""
    made = tallies(name)
    if is_postgres(store):
        from wirelag.collector.postgres import PostgresStore

        base: PostgresStore | SqliteStore = PostgresStore(store)
    else:
        base = SqliteStore(store)
    with closing(base):
        empty = base.used_bytes
        for i in [*range(SECONDS), 3 * ROWS]:  # the last one is so late that all others are settled
            start_ns = START_NS + i * SECOND_NS
            base.begin()
            for segment in range(SEGMENTS):
                one = made[(i + 97 * segment) % SECONDS]
                base.put(f"{name}>{segment}", None, Interval(start_ns, start_ns + SECOND_NS), Rank.SETTLED, one)
            base.commit()
        count, rows = SEGMENTS * SECONDS, base.used_bytes - empty
        began = time.process_time()
        base.prune(START_NS + 4 * ROWS * SECOND_NS)
        took_s = time.process_time() - began
        if is_postgres(store):  # what was deleted is free for others; days end as a whole
            base._base.execute("vacuum full")
        packed = base.used_bytes - empty
        read = time.process_time()
        assert len(base.rows(f"{name}>3", None, SECOND_NS, (0, 1 << 62), 10**6)) == SECONDS + 1
        read_s = time.process_time() - read
    day = DAY_S / count / 1e6
    return (
        f"{name:4} {rows / count:9.0f} {packed / count:9.0f} {rows / packed:7.1f} {rows * day:9.1f} {packed * day:9.1f}"
        f" {1e6 * took_s / count:9.0f} {1e6 * read_s / SECONDS:9.0f}"
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="an empty database; a file, if not given")
    options = parser.parse_args()
    print("         bytes per second        MB per segment and day   us per second")
    print("       as rows  in blocks   ratio  as rows  in blocks  to pack   to read")
    for name in ("rda", "lda"):
        with tempfile.TemporaryDirectory() as folder:
            print(measure(name, options.store or f"{folder}/store.db"), flush=True)


if __name__ == "__main__":
    main()
