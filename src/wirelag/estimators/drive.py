"""The one loop: packets into a meter, a synopsis out of it at the end of each interval.

Where intervals end is decided by whoever makes the events: the times of the packets (`packets.intervals.events`), or
the clock of a live source (`capture.live.by_clock`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from wirelag.estimators.protocol import Meter
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Event, Interval, events

S = TypeVar("S")


def drive(
    meter: Meter[S], happening: Iterable[Event], grouping: Grouping | None = None
) -> Iterator[tuple[Interval, S]]:
    """The synopsis of each interval, when it has ended."""
    for interval, packets in happening:
        if packets is None:
            yield interval, meter.cut(interval)
        else:
            meter.observe(packets, grouping)


def cut_by_time(
    meter: Meter[S],
    batches: Iterable[PacketBatch],
    interval_ns: int | None = None,
    grouping: Grouping | None = None,
) -> Iterator[tuple[Interval, S]]:
    """The same, with intervals by the packets' own times; without a length, one over everything."""
    return drive(meter, events(batches, interval_ns), grouping)
