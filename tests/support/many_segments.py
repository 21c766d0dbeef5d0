"""A store with the results of many segments between sites, one of which is slow."""

import time
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np

from tests.support.agent_messages import SECOND_NS
from tests.support.stored_results import result
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

SITES = ("ams", "ber", "fra", "ham", "lon", "mil", "par", "prg", "vie", "zrh")
SLOW = "par-07>vie-03"


def fill(
    path: Path, segments: int = 1000, intervals: int = 1, before_s: int = 2, without: tuple[int, ...] = ()
) -> list[str]:
    """Write them; the latest interval of each ended `before_s` ago, and some are left out.

    Returns their names, the slow one in the middle.
    """
    rng = np.random.default_rng(7)
    pairs = [(f"{one}-{i:02}", f"{other}-{j:02}") for i, j in product(range(1, 20), repeat=2)
             for one, other in product(SITES, repeat=2) if one != other and i != j]  # fmt: skip
    names = [name for one, other in pairs if (name := f"{one}>{other}") != SLOW][: segments - 1]
    names.insert(len(names) // 2, SLOW)
    end_ns = time.time_ns() // SECOND_NS * SECOND_NS - before_s * SECOND_NS
    with closing(SqliteStore(str(path))) as store:
        store.begin()
        for segment in names:
            mean_ns = 60e6 if segment == SLOW else rng.uniform(2e6, 12e6)
            for back in (back for back in range(intervals, 0, -1) if back not in without):
                start_ns = end_ns - back * SECOND_NS
                made = result(mean_ns * (0.7 + rng.exponential(0.3, 500)), start_ns, lost=int(rng.integers(0, 3)))
                interval = Interval(start_ns, start_ns + SECOND_NS)
                store.put(segment, None, interval, Rank.SETTLED, Tally.of(made, None))
        store.commit()
    return names
