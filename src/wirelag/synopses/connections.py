"""Round trips of whole connections: the mean delay to the server plus the mean delay to the client, for each of them.

Law: a connection counts once, and only if delays of both legs were seen. Sums are kept for each connection, group and
stretch of time: they also tell how sure the figures of a group are, from its own delays alone, as if it had been
filtered. Memory: at most 2^18 rows of 56 bytes, and 4 MB to find them, 19 MB. Stretches last 1 us; beyond 2^15 rows
they become longer, until there are 512. Beyond 2^18 rows connections whose flow key begins with a zero bit more are
kept, again and again. A flow key is a hash, so that they are an even sample.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wirelag import _kernels
from wirelag.packets.grouping import OTHER
from wirelag.stats.certainty import LEFT_OUT, Certainty, Effect, Sources
from wirelag.stats.distribution import Distribution
from wirelag.stats.over_time import FEWEST_DELAYS, over_time
from wirelag.stats.random_groups import CROWDS, between
from wirelag.stats.time_slots import SLOTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.stats.distributions import Distributions
    from wirelag.synopses.samples import SampleBatch

    Rows: TypeAlias = npt.NDArray[Any]

MOST: Final = 1 << 18
_KEYS: Final = 3  # flow key, tag of its group, number of the stretch of time; then sum and weight of each leg


class Connections:
    """Sums of delays by connection, group and leg, as a sink of samples."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self.kernel = most, _kernels.ConnectionSums(most)
        self._grouped: tuple[Rows, Rows, Rows] | None = None  # rows by tag

    def __getstate__(self) -> tuple[Any, ...]:
        import numpy as np

        kernel, rows = self.kernel, np.empty(len(self.kernel) * _kernels.CONNECTION_ROW_WORDS, np.uint64)
        kernel.rows(rows)
        return self._most, rows, kernel.bits, kernel.level, kernel.first, kernel.last

    def __setstate__(self, saved: tuple[Any, ...]) -> None:
        most, *rows = saved
        self.__init__(most)  # type: ignore[misc]
        self.kernel.merge_rows(*rows)

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Add the samples of a packet batch."""
        import numpy as np

        self.taking().add(
            np.ascontiguousarray(packets.flow_key),
            np.ascontiguousarray(packets.time_ns),
            np.ascontiguousarray(samples.rows, np.uint32),
            np.ascontiguousarray(samples.legs),
            np.ascontiguousarray(samples.delays_ns),
            np.empty(0, np.int64) if samples.weights is None else np.ascontiguousarray(samples.weights),
            np.empty(0, np.uint64) if samples.tags is None else samples.tags,
        )

    def taking(self) -> _kernels.ConnectionSums:
        """The kernel, which is about to take more."""
        self._grouped = None
        return self.kernel

    def merge(self, other: Connections) -> None:
        """Add the connections of another."""
        self.taking().merge(other.kernel)

    def keep(self, tags: Rows) -> None:
        """Count connections of all groups but these to "other"."""
        import numpy as np

        self.taking().keep(np.sort(tags), OTHER)

    def rows(self) -> Rows:
        """Flow key, tag, stretch, then sum and weight of each leg, in this order."""
        import numpy as np

        rows = np.empty((len(self.kernel), _kernels.CONNECTION_ROW_WORDS), np.uint64)
        self.kernel.rows(rows.reshape(-1))
        return rows

    def distribution(self, tag: int | None = None) -> Distribution:
        """The round trips of connections, of all or of one group's."""
        rows = self.rows() if tag is None else _in_order(self._of(tag), 0)
        found, (delays, _, begun) = Distribution(), _round_trips(rows)
        if len(delays):
            found.add(delays)
        found.certainty = Certainty(found, lambda: self._both_sources(delays, begun, found))
        return found

    def _both_sources(self, delays_ns: Rows, stretches: Rows, found: Distribution) -> Sources:
        """How much round trips of connections, in these stretches, vary over time."""
        import numpy as np

        if len(delays_ns) < FEWEST_DELAYS:
            return Sources(None, Effect.of_time(None))
        over = over_time(*_summed(stretches, delays_ns, np.ones(len(delays_ns))), len(delays_ns))
        return Sources(None, Effect.of_time(over))

    def distributions(self) -> tuple[Rows, Distributions]:
        """The tags of groups, in order, and the round trips of the connections of each."""
        import numpy as np

        from wirelag.stats.distributions import Distributions

        rows = _in_order(self.rows(), 1)
        tags = _runs(rows[:, 1])[0]
        delays, first, _ = _round_trips(rows, columns=2)
        return tags, Distributions.of_delays(np.searchsorted(tags, rows[first, 1]), delays, len(tags))

    def _of(self, tag: int) -> Rows:
        """The rows of a group."""
        import numpy as np

        rows, tags, edges = self._in_groups()
        place = int(np.searchsorted(tags, np.uint64(tag)))
        return rows[edges[place] : edges[place + 1]] if place < len(tags) and tags[place] == tag else rows[:0]

    def _in_groups(self) -> tuple[Rows, Rows, Rows]:
        """The rows in order of their tags, the tags, and where the rows of each begin and end."""
        import numpy as np

        if self._grouped is None:
            rows = np.empty((len(self.kernel), _kernels.CONNECTION_ROW_WORDS), np.uint64)
            self.kernel.rows_by_tag(rows.reshape(-1))
            self._grouped = rows, *_runs(rows[:, 1])
        return self._grouped

    def sources(self, tag: int, leg: int | None, delays: Distribution) -> Sources:
        """How much the delays of a group's leg, or of both as one, vary between connections and over time."""
        import numpy as np

        if delays.samples < FEWEST_DELAYS:  # then there is no interval, and of a million groups most are small
            return Sources(None, Effect.of_time(None))
        wanted = 3 if leg is None else 1 << leg
        connections, stretches = (np.zeros(CROWDS), np.zeros(CROWDS)), (np.zeros(SLOTS), np.zeros(SLOTS))
        self.kernel.by_crowd_and_time(self._of(tag).reshape(-1), wanted, *connections, *stretches)
        crowds = connections[1] > 0
        size = float(connections[1].sum())
        if not size:
            return Sources(None, Effect(None, unknown=LEFT_OUT))
        # Not all connections are here if they are sampled, and more delays than the group's if it was kept late.
        scale = math.sqrt(size / float(delays.weight)) if delays.weight else 0.0
        alone = (delays.mean_error_ns() or 0.0) / max(scale, 1e-9)
        levels = between(connections[0][crowds], connections[1][crowds], alone)
        over = over_time(*stretches, delays.samples)
        of_connections = None if levels is None else (levels[0] * scale, levels[1])
        return Sources(Effect(of_connections), Effect.of_time(over, scale))


def _in_order(rows: Rows, column: int) -> Rows:
    """Rows in order of a column, else as they are."""
    import numpy as np

    return rows[np.argsort(rows[:, column], kind="stable")]


def _runs(values: Rows) -> tuple[Rows, Rows]:
    """Each of these values, which are in order, and where those that equal it begin and end."""
    import numpy as np

    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.empty(0, np.int64)
    return values[starts], np.append(starts, len(values))


def _summed(keys: Rows, sums: Rows, sizes: Rows) -> tuple[Rows, Rows]:
    """Sums and sizes of all rows with the same key, in order of the keys."""
    import numpy as np

    from wirelag.packets.distinct import distinct

    place = distinct(keys).place
    return np.bincount(place, sums), np.bincount(place, sizes)


def _round_trips(rows: Rows, columns: int = 1) -> tuple[Rows, Rows, Rows]:
    """The round trip of each connection that has delays of both legs, the first of its rows, and its first stretch.

    Rows of one connection are neighbours; the first columns tell connections apart: flow key, and tag.
    """
    import numpy as np

    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    first = np.flatnonzero(np.append(True, (rows[1:, :columns] != rows[:-1, :columns]).any(axis=1)))
    there, heard, back, told = np.add.reduceat(rows[:, _KEYS:], first, axis=0).T
    whole = (heard > 0) & (told > 0)
    delays = (there[whole] // heard[whole] + back[whole] // told[whole]).astype(np.int64)
    return delays, first[whole], np.minimum.reduceat(rows[:, 2], first)[whole].astype(np.int64)
