"""Delays between nodes from traces of IOAM that packets carry (RFC 9197), seen at one point.

Law: the delay of a hop is the difference of two nodes' timestamps, so that it has what their clocks differ by in it;
what it adds, its mean less its shortest, has not, as long as clocks run equally fast. Time in a node, where nodes write
it, is of one clock. Memory: 2^17 traces; of more, a coin of the packet id keeps a half, then a quarter, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wirelag.packets.batch import Flag
from wirelag.packets.ioam import Node, Trace, trace
from wirelag.packets.options import IOAM, options
from wirelag.packets.stamp_session import read_time
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch

MOST: Final = 1 << 17
FORMS: Final = ("auto", "posix", "ptp", "ntp")  # of timestamps: fractions in us, ns, 2^-32 s
QUANTILES: Final = ("0.5", "0.9", "0.99")
FEWEST_FRACTIONS: Final = 3  # that tell the form of timestamps
HERE: Final = "here"  # the point of the capture, as a node
SECOND: Final = 10**9


class Traced(NamedTuple):
    """A packet with a trace."""

    packet_id: int
    time_ns: int
    flow_key: int
    trace: Trace


class Traces:
    """Traces of packets, as many as fit into memory."""

    def __init__(self, form: str = "auto") -> None:
        self._form, self._mask = form, 0
        self.packets: list[Traced] = []
        self.traced = 0  # packets with a trace, kept or not
        self.overflows = 0
        self.strange = 0  # options of IOAM that are no trace, or make no sense

    def observe(self, batch: PacketBatch) -> None:
        """Look at the packets of a batch."""
        for row in np.flatnonzero(batch.has(Flag.OPTIONS)).tolist():
            for kind, data in options(batch, row):
                if kind not in IOAM:
                    continue
                found = trace(data)
                if found is None:
                    self.strange += 1
                    continue
                self.traced += 1
                self.overflows += found.overflow
                self._keep(Traced(int(batch.packet_id[row]), int(batch.time_ns[row]), int(batch.flow_key[row]), found))
                break

    def _keep(self, packet: Traced) -> None:
        if packet.packet_id & self._mask == 0:
            self.packets.append(packet)
        while len(self.packets) > MOST and self._mask < 1 << 40:
            self._mask = self._mask << 1 | 1
            self.packets = [one for one in self.packets if one.packet_id & self._mask == 0]

    @property
    def form(self) -> str:
        """The form of timestamps: as given, or as fractions tell."""
        if self._form != "auto":
            return self._form
        fractions = [node.fraction for one in self.packets for node in one.trace.nodes if node.fraction is not None]
        largest = max(fractions, default=0)
        return "ntp" if largest >= SECOND else "ptp" if largest >= 10**6 else "posix"

    def to_dict(self) -> dict[str, Any]:
        """Delays of hops and times in nodes."""
        form = self.form
        hops: dict[tuple[int, str, str], list[tuple[int, int, int]]] = {}
        inside: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        seen: Counter[tuple[int, str]] = Counter()
        queues: dict[tuple[int, str], list[int]] = {}
        for one in self.packets:
            space = one.trace.namespace
            for node in one.trace.nodes:
                key = space, _name(node)
                seen[key] += 1
                if node.transit_ns is not None:
                    inside.setdefault(key, []).append((one.time_ns, one.flow_key, node.transit_ns))
                if node.queue is not None:
                    queues.setdefault(key, []).append(node.queue)
            for (start, from_ns), (end, to_ns) in pairwise(_timed(one, form)):
                delay = one.time_ns, one.flow_key, to_ns - from_ns
                hops.setdefault((space, start, end), []).append(delay)
        return {
            "packets": self.traced,
            "sampled": len(self.packets),
            "overflows": self.overflows,
            "strange": self.strange,
            "timestamps": form,
            "hops": [
                {"namespace": space, "from": start, "to": end, **_figures(delays)}
                for (space, start, end), delays in hops.items()
            ],
            "nodes": [
                {
                    "namespace": key[0],
                    "node": key[1],
                    "packets": count,
                    "inside": _figures(inside[key]) if key in inside else None,
                    "queue": {"mean": sum(of) / len(of), "max": max(of)} if (of := queues.get(key)) else None,
                }
                for key, count in seen.items()
            ],
        }

    def notes(self) -> list[str]:
        """What the figures rest on; nothing if no packet has a trace."""
        notes = []
        if self.traced:
            kept = f", of which {len(self.packets):,} were kept" if len(self.packets) < self.traced else ""
            notes.append(f"{many(self.traced, 'packet')} with a trace of IOAM{kept}; timestamps are {self._told()}")
            notes.append("a hop's delay includes what the clocks of its nodes differ by; what it adds does not")
        if self.overflows:
            notes.append(f"{many(self.overflows, 'trace')} had no room for every node: some hops are missing")
        if self.strange:
            notes.append(f"{many(self.strange, 'option')} of IOAM hold no trace that can be read")
        return notes

    def _told(self) -> str:
        if self._form != "auto":
            return self._form
        count = sum(node.fraction is not None for one in self.packets for node in one.trace.nodes)
        if not count:
            return "missing"
        sure = "" if count >= FEWEST_FRACTIONS else ", which so few hardly tell: give --timestamps"
        return f"{self.form}, as {many(count, 'fraction')} of a second {'tells' if count == 1 else 'tell'}{sure}"


def _name(node: Node) -> str:
    return "?" if node.number is None else str(node.number)


def _timed(one: Traced, form: str) -> Iterator[tuple[str, int]]:
    """The nodes of a trace that have a time, in order, and the point of the capture if the last has one."""
    known = False
    for node in one.trace.nodes:
        known = node.seconds is not None and node.fraction is not None
        if node.seconds is not None and node.fraction is not None:
            fraction = node.fraction * 1000 if form == "posix" else node.fraction
            stamp = node.seconds.to_bytes(4) + min(fraction, 0xFFFFFFFF).to_bytes(4)
            time_ns = read_time(stamp, form != "ntp", one.time_ns)
            if time_ns is not None:
                yield _name(node), time_ns
    if known:
        yield HERE, one.time_ns


def _figures(found: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Mean, quantiles and what is added to the shortest, with intervals from how delays vary."""
    from wirelag.stats.distribution import Distribution
    from wirelag.stats.spread import made_sure

    times_ns, delays_ns = (np.array([one[i] for one in found], np.int64) for i in (0, 2))
    keys = np.array([one[1] for one in found], np.uint64)
    floor_ns = int(delays_ns.min())  # distributions have no delays below 0
    delays = Distribution()
    delays.add(delays_ns - floor_ns)
    sure = made_sure(delays, keys, times_ns, delays_ns - floor_ns).sure
    bounds = {"mean": sure.mean_ci_ns()} | {q: sure.quantile_ci_ns(float(q)) for q in QUANTILES}
    return {
        "samples": len(found),
        "mean": (floor_ns + (delays.mean_ns or 0.0)) / 1e9,
        "adds": (delays.mean_ns or 0.0) / 1e9,
        "min": floor_ns / 1e9,
        "max": int(delays_ns.max()) / 1e9,
        "quantiles": {q: (floor_ns + (delays.quantile_ns(float(q)) or 0.0)) / 1e9 for q in QUANTILES},
        "ci95": {name: [(floor_ns + end) / 1e9 for end in ends] for name, ends in bounds.items() if ends is not None},
        **({"reason": sure.why_none} if sure.why_none else {}),
    }
