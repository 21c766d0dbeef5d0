"""The one loop: packets go into a meter, and each interval's end gives a synopsis.

The source of events decides where intervals end: the times of packets (`packets.intervals.events`), or the clock of a
live source (`capture.live.by_clock`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from wirelag.estimators.protocol import Meter
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Event, events

if TYPE_CHECKING:
    from wirelag.packets.grouping import Grouping

S = TypeVar("S")


def drive(
    meter: Meter[S], happening: Iterable[Event], grouping: Grouping | None = None
) -> Iterator[tuple[Interval, S]]:
    """The synopsis of each interval, once it has ended."""
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
    """The same, with intervals by the packets' times; without a length, one over all packets.

    The last cut ends the input: a meter that waits for more packets need not wait any longer (`cut_last`).
    """
    ended: Interval | None = None
    for interval, packets in events(batches, interval_ns):
        if ended is not None:
            yield ended, meter.cut(ended)
        ended = interval if packets is None else None
        if packets is not None:
            meter.observe(packets, grouping)
    if ended is not None:
        yield ended, getattr(meter, "cut_last", meter.cut)(ended)
