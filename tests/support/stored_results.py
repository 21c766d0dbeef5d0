"""Results as the collector's store keeps them."""

from collections.abc import Iterable

import numpy as np

from tests.support.agent_messages import EPOCH_NS, SECOND_NS
from wirelag.collector.store import HOUR_NS
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import ClockReading, Seen
from wirelag.protocol.results import Rank, Result
from wirelag.synopses.crossing import Crossing

SEEN = Seen(100, 0, SECOND_NS)
START_NS = EPOCH_NS // HOUR_NS * HOUR_NS
ALL_TIMES = (0, 2**62)


def result(delays_ns: np.ndarray, start_ns: int = START_NS, lost: int = 0, rank: Rank = Rank.SETTLED) -> Result:
    crossing = Crossing(len(delays_ns) + lost, len(delays_ns), only_upstream=lost, reordered=1, duplicated=0)
    crossing.add_delays(np.arange(len(delays_ns)) + start_ns, delays_ns.astype(np.int64))
    interval = Interval(start_ns, start_ns + SECOND_NS)
    clock = ClockReading(True, 50_000, "ptp")
    return Result(
        "A>B", interval, rank, "rda", {None: crossing}, {None: Loss(lost, lost, lost)}, (SEEN, SEEN), clock, True
    )


def added(parts: Iterable[Tally]) -> Tally:
    """All of them added up, in order."""
    whole = Tally()
    for part in parts:
        whole.add(part)
    return whole
