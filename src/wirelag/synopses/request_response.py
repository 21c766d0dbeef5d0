"""Exchanges: requests with their responses, seen in both directions; the synopsis of `pairs`.

docs/reference/pairs.md defines the columns. Memory: 128 bytes per exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.over_time import NOT_ALIKE, Alike, alike_ns
from wirelag.stats.spread import spread_of
from wirelag.synopses.epochs import PACED, Epochs, named
from wirelag.synopses.samples import facts

Array = npt.NDArray[Any]

PIPELINED, RETRANSMITTED, JOINED, CUT, UNSEEN, OVERLAPPING, STREAM = 1, 2, 4, 8, 16, 32, 64
FLAGS: Final = {
    "pipelined": PIPELINED,
    "retransmitted": RETRANSMITTED,
    "joined": JOINED,
    "cut": CUT,
    "unseen": UNSEEN,
    "overlapping": OVERLAPPING,
    "stream": STREAM,
}
NOT_WAITING: Final = np.uint64(OVERLAPPING | STREAM)
NOT_SINGLE: Final = np.uint64(PIPELINED | JOINED | CUT | UNSEEN) | NOT_WAITING  # no single response time
UDP: Final = 17
SURE: Final = 70  # confidence from which an epoch counts
MANY: Final = 8  # exchanges from which on their share tells something
EXCHANGE: Final = np.dtype(
    [
        ("key", "<u8"), ("begin_ns", "<i8"), ("request_ns", "<i8"), ("first_ns", "<i8"), ("last_ns", "<i8"),
        ("idle_ns", "<i8"), ("network_server_ns", "<i8"), ("network_client_ns", "<i8"), ("request_bytes", "<u8"),
        ("response_bytes", "<u8"), ("flags", "<u8"), ("begin_frame", "<u8"), ("last_frame", "<u8"),
        ("ends", "<u8", (5,)),
    ]
)  # fmt: skip


class Told(NamedTuple):
    """What the packets of a client tell about a flow with exchanges; counts of epochs are of those with an estimate."""

    exchanges: int = 0
    datagrams: int = 0  # requests of a flow of datagrams
    epochs: int = 0
    several: int = 0  # epochs that surely had several requests in flight
    pipelined: int = 0  # exchanges
    between: int = 0  # those that fill neither little nor most of the time from one request to the next
    alike: int = 0  # of these, with request and response of a size
    spans: int = 0  # epochs of datagrams,
    paced: int = 0  # and those in which they had a pace of their own

    def adding(self, more: Told) -> Told:
        """With these, too."""
        return Told(*map(add, self, more))

    def told(self, epochs: Array) -> Told:
        """With what these epochs tell, too."""
        if int(epochs[0]["ports"]) & 0xFF == UDP:
            paced = int(np.count_nonzero(epochs["reason"] == PACED))
            return self.adding(Told(datagrams=int(epochs["requests"].sum()), spans=len(epochs), paced=paced))
        answered = epochs[epochs["count"] > 0]
        several = (answered["in_flight"] > 1) & (answered["confidence"] >= SURE)
        return self.adding(Told(epochs=len(answered), several=int(np.count_nonzero(several))))

    @property
    def overlaps(self) -> bool:
        """Whether the client does not wait for a response before the next request."""
        impatient = self.datagrams > 0 and self.exchanges >= MANY and 8 * self.pipelined >= self.exchanges
        return impatient or 4 * self.exchanges < 3 * self.datagrams or 2 * self.several > self.epochs

    @property
    def streams(self) -> bool:
        """Whether both sides send datagrams on their own, as in a call.

        The client does not wait, and the other side does not respond at once; or the client has a pace, in which the
        other side's datagrams, of about the same size, have a place somewhere in between.
        """
        if self.exchanges < MANY or not self.datagrams:
            return False
        in_step = 2 * self.paced > self.spans and 2 * self.alike > self.exchanges
        return in_step or (self.overlaps and 4 * self.between >= self.exchanges)

    @property
    def mark(self) -> int:
        """The flag of its exchanges; 0: none."""
        return STREAM if self.streams else OVERLAPPING if self.overlaps else 0


@dataclass(slots=True)
class Exchanges:
    """The synopsis: ended exchanges, and counters."""

    rows: Array
    packets: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    alike: Alike = NOT_ALIKE  # of a part of a whole: how response times are alike there

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Exchanges) -> Exchanges:
        counts = {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in self.counts | other.counts}
        return Exchanges(np.concatenate([self.rows, other.rows]), self.packets + other.packets, counts)

    def of(self, rows: Array) -> Exchanges:
        """A selection of exchanges."""
        return replace(self, rows=self.rows[rows])

    def told_by(self, epochs: Epochs, known: dict[tuple[int, ...], Told] | None = None) -> Exchanges:
        """Mark the flows whose client packets alone show that they do not wait for a response before the next request.

        Such a client sends a request upon each response: the two alternate, though they do not belong together. So do,
        for a while, datagrams of streams in both directions, such as a call's.
        `known` is what earlier intervals told of flows with exchanges; this one is added to it.
        """
        flows, place = np.unique(self.rows["ends"], axis=0, return_inverse=True)
        known = {} if known is None else known
        place = place.reshape(-1)
        for flow, told in zip(map(tuple, flows.tolist()), _counted(self.rows, place, len(flows)), strict=True):
            known[flow] = known.pop(flow, Told()).adding(told)  # now the one heard last
        for ends, rows in epochs.by_ends():
            if (flow := tuple(ends)) in known:
                known[flow] = known[flow].told(rows)
        marks = np.array([_mark(tuple(flow), known) for flow in flows.tolist()], np.uint64)
        if not marks.any():
            return self
        rows = self.rows.copy()
        rows["flags"] |= marks[place]
        return replace(self, rows=rows)

    @property
    def single(self) -> Exchanges:
        """Exchanges with a single response time."""
        return self.of((self.rows["flags"] & NOT_SINGLE) == 0)

    @property
    def overlapping(self) -> int:
        """Number of exchanges of flows that do not wait."""
        return int(np.count_nonzero(self.rows["flags"] & NOT_WAITING))

    @property
    def response_ns(self) -> npt.NDArray[np.int64]:
        """From the request to the last byte of the response, at this point."""
        return np.asarray(self.rows["last_ns"] - self.rows["request_ns"])

    @property
    def times_ns(self) -> npt.NDArray[np.int64]:
        """The time of the last byte of each response."""
        return np.asarray(self.rows["last_ns"])

    @property
    def delays(self) -> Distribution:
        """Response times."""
        single, times = self.single, Distribution()
        times.add(single.response_ns)
        return spread_of(single.rows["key"], single.times_ns, single.response_ns).sure(times, self.alike)

    def parted(self, groups: Array | None = None) -> Exchanges:
        """Itself, and its parts will know how response times are alike in all, or within each of these groups.

        Groups see less of the level of the whole at the same time; rows over time have a level of their own.
        """
        single = (self.rows["flags"] & NOT_SINGLE) == 0
        of_group = None if groups is None else groups[single]
        found = alike_ns(self.times_ns[single], self.response_ns[single], np.ones(int(single.sum())), of_group)
        return replace(self, alike=found if groups is not None else Alike(found.lasts))

    def groups(self, by: str) -> Iterator[tuple[str, Exchanges]]:
        """Exchanges of each flow, client or server, most exchanges first."""
        members = list(named(self.rows["ends"], by, np.ones(len(self.rows))))
        group = np.empty(len(self.rows), np.int64)
        for number, (_, rows) in enumerate(members):
            group[rows] = number
        whole = self.parted(group)
        for name, rows in members:
            yield name, whole.of(rows)

    def report(self) -> Report:
        """The report over all exchanges."""
        single = self.single
        rows, times = single.rows, self.delays
        first_ns = rows["first_ns"] - rows["request_ns"]
        to_server, to_client = rows["network_server_ns"], rows["network_client_ns"]
        thought = (rows["idle_ns"] >= 0) & (to_client >= 0)
        batches = self.rows[(self.rows["flags"] & (np.uint64(PIPELINED | CUT | UNSEEN) | NOT_WAITING)) == PIPELINED]
        return Report(
            "pairs",
            "response",
            packets=self.packets,
            reason=None if len(rows) else "no request was seen together with its whole response",
            details={
                "method": ["pairs"],
                "exchanges": len(self.rows),
                **{name: int(np.count_nonzero(self.rows["flags"] & np.uint64(flag))) for name, flag in FLAGS.items()},
                "first_byte": _mean(first_ns),
                "network": _mean(to_server[to_server >= 0]),
                "network_client": _mean(to_client[to_client >= 0]),
                "server": _mean(np.maximum(first_ns - to_server, 0)[to_server >= 0]),
                "transfer": _mean(rows["last_ns"] - rows["first_ns"]),
                "felt": _mean((single.response_ns + to_client)[to_client >= 0]),
                "think": _mean(np.maximum(rows["idle_ns"] - to_client, 0)[thought]),
                "think_samples": int(np.count_nonzero(thought)),
                "batch": _mean(batches["last_ns"] - batches["begin_ns"]),
                "batches": len(batches),
                "counts": dict(sorted(self.counts.items())),
                "no_interval": times.sure.why_none if times.samples else None,
            },
            **facts(times),
        )


def _mark(flow: tuple[int, ...], known: dict[tuple[int, ...], Told]) -> int:
    """The flag of its exchanges; reports about a stream (RTCP) have the ports after the stream's own."""
    *hosts, ports = flow
    stream = known.get((*hosts, ports - (1 << 32) - (1 << 16))) if ports & 0xFF == UDP else None
    return STREAM if stream is not None and stream.streams else known[flow].mark


def _counted(rows: Array, place: Array, flows: int) -> Iterator[Told]:
    """What the exchanges of each flow tell, by its place."""
    took, idle = rows["first_ns"] - rows["request_ns"], rows["idle_ns"]
    between = (idle >= 0) & (7 * took >= idle) & (7 * idle >= took)
    less, more = (size(rows["request_bytes"], rows["response_bytes"]) for size in (np.minimum, np.maximum))
    pipelined = rows["flags"] & np.uint64(PIPELINED) != 0
    kinds = (place, place[pipelined], place[between], place[between & (2 * less >= more)])
    counts = [np.bincount(kind, minlength=flows).tolist() for kind in kinds]
    for exchanges, *others in zip(*counts, strict=True):
        yield Told(exchanges, 0, 0, 0, *others)


def _mean(values_ns: Array) -> float | None:
    return float(values_ns.mean()) / 1e9 if len(values_ns) else None
