"""Intervals that end where the colour of marked packets changes (docs/reference/marking.md, "The rule")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from wirelag.packets.batch import PacketBatch
from wirelag.packets.intervals import Delimiters, Edge

LONG_AGO_NS: Final = -(1 << 62)  # differences of times do not overflow


class Coloured(NamedTuple):
    """A part of a batch: packets of the open interval, those of the one before that came late, and the edge after."""

    packets: PacketBatch
    late: PacketBatch
    edge: Edge | None


def split_at_colours(batches: Iterable[PacketBatch], delimiters: Delimiters) -> Iterator[Coloured]:
    """Parts of batches of marked packets; the name of an edge is the colour of the packets after it.

    A packet of the other colour is late if it comes within half a period of the last edge, and of the latest packet
    before it that has its colour; else it is the next edge. So edges are half a period apart, whatever comes.
    """
    half_ns = delimiters.length_ns // 2
    newest, opened_ns = -1, 0
    last_ns = [LONG_AGO_NS, LONG_AGO_NS]  # the latest packet of the newest interval of each colour
    for batch in batches:
        colours = batch.dscp >> np.uint8(delimiters.colour or 0) & np.uint8(1)
        start = 0
        if newest < 0 and len(batch):
            newest, opened_ns = int(colours[0]), int(batch.time_ns[0])
        while start < len(batch):
            others = start + np.flatnonzero(colours[start:] != newest)
            times_ns = batch.time_ns[others]
            before_ns = np.maximum.accumulate(np.concatenate(([last_ns[1 - newest]], times_ns)))
            ends = (np.abs(times_ns - opened_ns) > half_ns) | (times_ns - before_ns[:-1] > half_ns)
            late = others[: int(ends.argmax())] if ends.any() else others
            end = int(others[len(late)]) if len(late) < len(others) else len(batch)
            last_ns[1 - newest] = int(before_ns[len(late)])
            own = start + np.flatnonzero(colours[start:end] == newest)
            if len(own):
                last_ns[newest] = max(last_ns[newest], int(batch.time_ns[own].max()))
            packets = batch[start:end] if not len(late) else batch[own]
            start = end
            if end == len(batch):
                yield Coloured(packets, batch[late], None)
                break
            newest, opened_ns = 1 - newest, int(batch.time_ns[end])
            last_ns[newest] = LONG_AGO_NS
            yield Coloured(packets, batch[late], Edge(newest, opened_ns, False))
        else:
            yield Coloured(batch[:0], batch[:0], None)
