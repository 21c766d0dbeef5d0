"""Exchanges: requests with their responses, seen in both directions; the synopsis of `pairs`.

docs/reference/pairs.md defines the columns. Memory: 128 bytes per exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.distinct import distinct
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.in_order import alike_ns
from wirelag.stats.over_time import Alike
from wirelag.stats.spread import made_sure
from wirelag.synopses.epochs import PACED, Epochs, named
from wirelag.synopses.key_counts import KeyCounts
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
_LISTED: Final = 13  # purpose of the coin that decides which exchanges stay
SURE: Final = 70  # confidence from which an epoch counts
MANY: Final = 8  # exchanges from which on their share tells something
FEWEST: Final = 4  # the same, where few things look like it
BEAT_NS: Final = 1_000_000_000  # heartbeats are this far apart
EXCHANGE: Final = np.dtype(
    [
        ("key", "<u8"), ("begin_ns", "<i8"), ("request_ns", "<i8"), ("first_ns", "<i8"), ("last_ns", "<i8"),
        ("idle_ns", "<i8"), ("network_server_ns", "<i8"), ("network_client_ns", "<i8"), ("request_bytes", "<u8"),
        ("response_bytes", "<u8"), ("flags", "<u8"), ("begin_frame", "<u8"), ("last_frame", "<u8"),
        ("ends", "<u8", (5,)),
    ]
)  # fmt: skip


class Told(NamedTuple):
    """What the packets of clients tell about flows with exchanges."""

    exchanges: Array
    datagrams: Array  # requests of flows of datagrams
    epochs: Array  # with an estimate
    several: Array  # epochs that surely had several requests in flight
    pipelined: Array  # exchanges
    between: Array  # those that fill neither little nor most of the time from one request to the next
    alike: Array  # of these, with request and response of a size
    beats: Array  # exchanges as heartbeats of the server seem to be
    spans: Array  # all epochs,
    paced: Array  # and those in which datagrams had a pace of their own

    @property
    def overlaps(self) -> Array:
        """Whether the client does not wait for a response before the next request."""
        impatient = (self.datagrams > 0) & (self.exchanges >= MANY) & (8 * self.pipelined >= self.exchanges)
        in_flight = (2 * self.several > self.epochs) & (4 * self.several >= self.spans)
        return np.asarray(impatient | (4 * self.exchanges < 3 * self.datagrams) | in_flight)

    @property
    def streams(self) -> Array:
        """Whether both sides send datagrams on their own, as in a call.

        The client does not wait, and the other side does not respond at once; or the client has a pace, in which the
        other side's datagrams, of about the same size, have a place somewhere in between.
        """
        in_step = (2 * self.paced > self.spans) & (2 * self.alike > self.exchanges)
        in_turn = self.overlaps & (4 * self.between >= self.exchanges)
        return np.asarray((self.exchanges >= MANY) & (self.datagrams > 0) & (in_step | in_turn))

    @property
    def heartbeats(self) -> Array:
        """Whether it is the server that asks now and then, and the client that responds, with as many bytes."""
        return np.asarray((self.exchanges >= FEWEST) & (2 * self.beats > self.exchanges))

    @property
    def mark(self) -> Array:
        """The flag of their exchanges; 0: none."""
        return np.where(self.streams | self.heartbeats, STREAM, np.where(self.overlaps, OVERLAPPING, 0)).astype(
            np.uint64
        )


class KnownFlows(KeyCounts):
    """What is told about flows, interval after interval."""

    def __init__(self) -> None:
        super().__init__(words=5, columns=len(Told._fields))

    def told(self, places: Array) -> Told:
        """What is told about the flows at these places."""
        return Told(*self.counts[places].T)

    def add_exchanges(self, flows: Array, place: Array, rows: Array) -> None:
        """Add exchanges, each at the place of its flow; these are the flows heard last."""
        took, idle = rows["first_ns"] - rows["request_ns"], rows["idle_ns"]
        between = (idle >= 0) & (7 * took >= idle) & (7 * idle >= took)
        less, more = (size(rows["request_bytes"], rows["response_bytes"]) for size in (np.minimum, np.maximum))
        pipelined = rows["flags"] & np.uint64(PIPELINED) != 0
        beats = (idle >= 0) & (took >= BEAT_NS) & (took > 64 * idle) & (less == more)
        kinds = {"exchanges": place, "pipelined": place[pipelined], "between": place[between], "beats": place[beats]}
        self.add(flows, _columns(len(flows), kinds | {"alike": place[between & (2 * less >= more)]}))

    def add_epochs(self, epochs: Epochs) -> None:
        """Add what these epochs tell about flows that had an exchange."""
        place = self.places(epochs.ends)
        rows, place = epochs.rows[place >= 0], place[place >= 0]
        datagrams = rows["ports"] & np.uint64(0xFF) == UDP
        answered = ~datagrams & (rows["count"] > 0)
        several = answered & (rows["in_flight"] > 1) & (rows["confidence"] >= SURE)
        paced = datagrams & (rows["reason"] == PACED)
        kinds = {"epochs": place[answered], "several": place[several], "spans": place, "paced": place[paced]}
        self.counts += _columns(len(self), kinds)
        requests = np.bincount(place[datagrams], rows["requests"][datagrams], minlength=len(self))
        self.counts[:, Told._fields.index("datagrams")] += requests.astype(np.int64)

    def marks(self, flows: Array) -> Array:
        """The flag of each flow's exchanges; reports about a stream (RTCP) have the ports after the stream's own."""
        marks = self.told(self.places(flows)).mark
        before = flows.copy()
        before[:, 4] -= np.uint64((1 << 32) + (1 << 16))
        stream = self.places(before)
        known = np.flatnonzero((stream >= 0) & (flows[:, 4] & np.uint64(0xFF) == UDP))
        marks[known[self.told(stream[known]).streams]] = STREAM
        return marks


def coins(rows: Array) -> npt.NDArray[np.uint64]:
    """A coin for each exchange: which of them stay if there are too many."""
    names: Array = np.ascontiguousarray(rows["key"]) ^ rows["begin_ns"].view(np.uint64)
    return np.asarray(_kernels.coins(names, 0, _LISTED))


def half_of_those_from(least: np.uint64) -> np.uint64:
    """The coin that half of the coins from this one on have at least."""
    return (least >> np.uint64(1)) + np.uint64(1 << 63)


def _columns(flows: int, places: Mapping[str, Array]) -> Array:
    """Counts of flows, a column for each field of `Told`, from the places of the flows that are counted."""
    nothing = np.empty(0, np.intp)
    counted = [np.bincount(places.get(name, nothing), minlength=flows) for name in Told._fields]
    return np.stack(counted, axis=1).astype(np.int64)


@dataclass(slots=True, eq=False)
class Exchanges:
    """The synopsis: ended exchanges, and counters."""

    rows: Array
    packets: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Exchanges) -> Exchanges:
        counts = {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in self.counts | other.counts}
        return Exchanges(np.concatenate([self.rows, other.rows]), self.packets + other.packets, counts)

    @classmethod
    def none(cls) -> Exchanges:
        """No exchanges."""
        return cls(np.empty(0, EXCHANGE))

    def at_most(self, most: int) -> Exchanges:
        """Those that a coin chooses, in whatever order they are; the others are counted.

        Law: exchanges stay whose coin is at least the first of 0, 1/2, 3/4, 7/8, ... that leaves no more than `most`.
        """
        kept, least = self.rows, np.uint64(0)
        while len(kept) > most:
            least = half_of_those_from(least)
            kept = kept[coins(kept) >= least]
        if len(kept) == len(self):
            return self
        more = self.counts.get("unlisted", 0) + len(self) - len(kept)
        return replace(self, rows=kept, counts=self.counts | {"unlisted": more})

    def of(self, rows: Array | slice) -> Exchanges:
        """A selection of exchanges."""
        return Exchanges(self.rows[rows], self.packets, self.counts)

    def told_by(self, epochs: Epochs, known: KnownFlows | None = None) -> Exchanges:
        """Mark the flows whose client packets alone show that they do not wait for a response before the next request.

        Such a client sends a request upon each response: the two alternate, though they do not belong together. So do,
        for a while, datagrams of streams in both directions, such as a call's.
        `known` is what earlier intervals told of flows with exchanges; this one is added to it.
        """
        known = KnownFlows() if known is None else known
        flows, _, place = distinct(self.rows["ends"])
        known.add_exchanges(flows, place, self.rows)
        known.add_epochs(epochs)
        marks = known.marks(flows)
        if not marks.any():
            return self
        rows = self.rows.copy()
        rows["flags"] |= marks[place]
        return replace(self, rows=rows)

    @property
    def single(self) -> Exchanges:
        """Exchanges with a single response time."""
        single = (self.rows["flags"] & NOT_SINGLE) == 0
        return self if single.all() else self.of(single)

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
        return made_sure(times, single.rows["key"], single.times_ns, single.response_ns)

    @property
    def samples(self) -> int:
        """How many exchanges have a single response time."""
        return int(np.count_nonzero((self.rows["flags"] & NOT_SINGLE) == 0))

    @property
    def mean(self) -> float | None:
        """The mean response time in seconds."""
        single = (self.rows["flags"] & NOT_SINGLE) == 0
        times_ns = np.maximum(self.response_ns[single], 0)
        return int(times_ns.sum()) / len(times_ns) / 1e9 if len(times_ns) else None

    def alike_over_time(self) -> Alike:
        """How response times are alike."""
        single = (self.rows["flags"] & NOT_SINGLE) == 0
        return alike_ns(self.times_ns[single], self.response_ns[single], np.ones(int(single.sum())))

    def groups(self, by: str) -> Iterator[tuple[str, Exchanges]]:
        """Exchanges of each flow, client or server, most exchanges first."""
        for name, rows in named(self.rows["ends"], by, np.ones(len(self.rows))):
            yield name, self.of(rows)

    def report(self, delays: Distribution | None = None) -> Report:
        """The report over all exchanges, whose delays are these."""
        single, times = self.single, self.delays if delays is None else delays
        rows = single.rows
        first_ns = rows["first_ns"] - rows["request_ns"]
        to_server, to_client = rows["network_server_ns"], rows["network_client_ns"]
        thought = (rows["idle_ns"] >= 0) & (to_client >= 0)
        flags = self.rows["flags"]
        batches = self.rows[(flags & (np.uint64(PIPELINED | CUT | UNSEEN) | NOT_WAITING)) == PIPELINED]
        return Report(
            "pairs",
            "response",
            packets=self.packets,
            reason=None if len(rows) else "no request was seen together with its whole response",
            details={
                "method": ["pairs"],
                "exchanges": len(self.rows),
                **{name: int(np.count_nonzero(flags & np.uint64(flag))) for name, flag in FLAGS.items()},
                "first_byte": _mean(first_ns),
                "network": _mean(np.minimum(to_server, first_ns)[to_server >= 0]),
                "network_client": _mean(to_client[to_client >= 0]),
                "server": _mean(np.maximum(first_ns - to_server, 0)[to_server >= 0]),
                "network_samples": int(np.count_nonzero(to_server >= 0)),  # that both are of, and their mean
                "network_mean": _mean(single.response_ns[to_server >= 0]),
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


def _mean(values_ns: Array) -> float | None:
    """In seconds; the sum without the checks of `mean`, which take longer than few values do."""
    return float(np.add.reduce(values_ns, dtype=np.float64)) / len(values_ns) / 1e9 if len(values_ns) else None
