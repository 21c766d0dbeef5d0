"""Which method times the responses of a flow, decided in one place for captures and live traffic.

The rule, server by server (address, protocol and port):

1. A server is *paired* if more of its exchanges have a single time than belong to clients that do not wait for a
   response. So is one whose exchanges have no single time, if the packets of its clients give no estimate either.
2. All flows of any other server are estimated from the packets of clients.
3. In a paired server, flows whose client does not wait, and flows with `fewest` requests or more of which no response
   was seen, are estimated. The others are paired.

So no flow changes the figures of another server. A method that was asked for applies to all.
Memory: what is known of 2^16 servers and of 2^16 flows, and 2^16 exchanges of 128 bytes that wait for a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from wirelag.estimators.later import Later
from wirelag.packets.batch import PacketBatch
from wirelag.packets.distinct import distinct, numbered, places_among
from wirelag.packets.interval import Interval
from wirelag.packets.roles import LOOK_AHEAD_NS, Roles, ahead
from wirelag.synopses.epochs import Epochs, ends_texts, telling
from wirelag.synopses.key_counts import KeyCounts
from wirelag.synopses.request_response import NOT_SINGLE, NOT_WAITING, UDP, Exchanges, KnownFlows

if TYPE_CHECKING:
    from wirelag.ebpf.pirate import KernelPirate
    from wirelag.estimators.pirate import PirateMeter
    from wirelag.measure.response_heard import ResponseSettings
    from wirelag.packets.frames import Frames
    from wirelag.packets.grouping import Grouping

Array = npt.NDArray[Any]
S = TypeVar("S", Epochs, Exchanges)

MOST_KNOWN: Final = 1 << 16  # servers, and flows, that are remembered from interval to interval
MOST_BATCHES: Final = 256  # of few packets each, that wait side by side
MOST_HELD: Final = 1 << 16  # exchanges that wait for a verdict about their flow
MOST_LISTED: Final = 1 << 20  # epochs, and exchanges, of all captures
_SERVER: Final = np.uint64(0xFFFFFFFF)  # port and protocol of the server, in the last word of the ends


@dataclass(eq=False)
class Heard:
    """The synopses of an interval, and how many packets clients and servers sent."""

    epochs: Epochs
    exchanges: Exchanges
    from_clients: int = 0
    from_servers: int = 0
    left_out: int = 0  # packets neither to nor from the named servers
    guessed: int = 0  # conversations so far of which it is a guess who the client is


class HeardInPieces:
    """What several meters heard, as one: it lists no more than one of them may."""

    def __init__(self) -> None:
        self._parts: list[tuple[Interval, Heard]] = []
        self._rows = 0

    def add(self, when: Interval, heard: Heard) -> None:
        """Add what the next meter heard."""
        self._parts.append((when, heard))
        self._rows += len(heard.epochs) + len(heard.exchanges)
        if self._rows > 4 * MOST_LISTED:
            self._parts = [self.together()]
            self._rows = len(self._parts[0][1].epochs) + len(self._parts[0][1].exchanges)

    def together(self) -> tuple[Interval, Heard]:
        """What all of them heard."""
        every = [heard for _, heard in self._parts] or [Heard(Epochs.none(), Exchanges.none())]
        spans = [when for when, _ in self._parts if when.length_ns] or [Interval(0, 0)]
        epochs, exchanges = _sum([one.epochs for one in every]), _sum([one.exchanges for one in every])
        total = Heard(epochs.at_most(MOST_LISTED), exchanges.at_most(MOST_LISTED))
        for count in ("from_clients", "from_servers", "left_out", "guessed"):
            setattr(total, count, sum(getattr(one, count) for one in every))
        return Interval(min(one.start_ns for one in spans), max(one.end_ns for one in spans)), total


class ResponseMeter:
    """Both methods over the same packets; with `at_end` open flows report what they can at each cut.

    The packets of the first second, or fewer (`roles.ahead`), wait until all of them have told who is a client.
    """

    def __init__(
        self,
        settings: ResponseSettings,
        at_end: bool,
        pirate: PirateMeter | KernelPirate | None = None,
        frames: Frames | None = None,
    ) -> None:
        from wirelag.estimators.pairs import Pairs

        self._settings, self._at_end = settings, at_end
        self._roles = Roles(settings.servers)
        self._asked: list[npt.NDArray[np.bool_]] = []  # rows of the current batch that clients sent, shared with pairs
        self._pirate = pirate or settings.pirate().meter("tap")
        self._later = Later() if at_end and settings.cores > 1 else None
        asked = self._asked  # and not this meter, which would keep itself in memory
        pairs = Pairs(settings.memory, from_client=lambda _: asked[0], frames=frames)
        self._pairs = pairs.meter("tap")
        self._ways: Array = np.empty((0, 5), np.uint64)  # directions that were a client's, in earlier intervals
        self._clients = self._servers = self._left_out = 0
        self._waiting: list[PacketBatch] | None = None if settings.servers else []
        self._begin_ns = 0

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take packets."""
        if self._waiting is None:
            self._take(packets)
            return
        if not len(packets):
            return
        if not self._waiting:
            self._begin_ns = int(packets.time_ns[0])
        few = ahead(packets, self._begin_ns, sum(map(len, self._waiting)))
        self._waiting.append(PacketBatch.without_frames([packets[:few]]))
        if len(self._waiting) == MOST_BATCHES:
            self._waiting = [PacketBatch.without_frames(self._waiting)]
        if few < len(packets):
            self._begin()
            self._take(packets[few:])

    def _begin(self) -> None:
        """Learn from the packets that wait, and take them."""
        waiting, self._waiting = self._waiting, None
        if waiting:
            packets = PacketBatch.without_frames(waiting)
            self._roles.study(packets)
            self._take(packets)

    def _take(self, packets: PacketBatch) -> None:
        if self._settings.servers:
            ours = np.flatnonzero(self._roles.of_servers(packets))
            self._left_out += len(packets) - len(ours)
            packets = packets if len(ours) == len(packets) else packets[ours]
        self._asked[:] = [self._roles.from_client(packets)]
        rows = np.flatnonzero(self._asked[0])
        self._clients += len(rows)
        self._servers += len(packets) - len(rows)
        if self._later is None:
            self._estimate(packets, rows)
        else:
            self._later.leave(self._estimate, packets, rows)
        if self._settings.may_pair:
            self._pairs.observe(packets)

    def _estimate(self, packets: PacketBatch, rows: Array) -> None:
        """Also for pairs alone: epochs show which clients do not wait for a response."""
        self._pirate.observe(packets if len(rows) == len(packets) else packets[rows])

    @property
    def waits(self) -> bool:
        """Whether packets of the first second still wait."""
        return bool(self._waiting)

    def cut(self, interval: Interval) -> Heard:
        """End an interval."""
        if self._at_end:
            return self.finish()
        if self._waiting and interval.end_ns >= self._begin_ns + LOOK_AHEAD_NS:
            self._begin()
        return self._end(self._pirate.cut(interval), self._pairs.cut(interval))

    def finish(self) -> Heard:
        """End the input: open flows report what they can."""
        self._begin()
        if self._later is not None:
            self._later.end()
        return self._end(self._pirate.finish(), self._pairs.finish())

    def _end(self, epochs: Epochs, exchanges: Exchanges) -> Heard:
        epochs = epochs.one_way(self._ways).without_paced()
        if not self._at_end:
            ways = np.concatenate([self._ways, distinct(epochs.ends).rows])
            self._ways = ways[numbered(ways)[1]][-MOST_KNOWN:]
        heard = Heard(epochs, exchanges, self._clients, self._servers, self._left_out, self._roles.guessed)
        self._clients = self._servers = self._left_out = 0
        return heard


@dataclass(eq=False)
class Chosen:
    """What each method is to report. None: it applies to nothing."""

    paired: Exchanges | None
    estimated: Epochs | None
    unheard: list[str] = field(default_factory=list)  # servers that are in neither: no response, few requests

    @classmethod
    def together(cls, parts: Sequence[Chosen]) -> Chosen:
        """What consecutive parts of the packets report as one."""
        paired = [part.paired for part in parts if part.paired is not None]
        estimated = [part.estimated for part in parts if part.estimated is not None]
        unheard = sorted({name for part in parts for name in part.unheard})
        return cls(_sum(paired) if paired else None, _sum(estimated) if estimated else None, unheard)

    @property
    def main(self) -> Exchanges | Epochs:
        """What the figures that come first are of: exchanges, if any were paired."""
        found = self.estimated if self.paired is None else self.paired
        assert found is not None
        return found

    @property
    def beside(self) -> Epochs | None:
        """The estimates, if exchanges come first, and there are any."""
        return None if self.paired is None or not self.estimated else self.estimated


class Chooser:
    """The rule, applied to each interval in turn with what the intervals before it showed."""

    def __init__(self, method: str | None, fewest: int) -> None:
        self._method, self._fewest = method, fewest
        self._servers = KeyCounts(words=3, columns=3)  # exchanges: single, of clients that do not wait, all
        self._flows = KnownFlows()
        self._held: Array | None = None
        self._pairs = method == "pairs"

    @property
    def pairs(self) -> bool:
        """Whether anything has been paired so far."""
        return self._pairs

    def choose(self, heard: Heard, last: bool = True) -> Chosen:
        """Split an interval by method; with `last` nothing waits for what later intervals show."""
        exchanges, epochs = heard.exchanges, heard.epochs
        if self._method not in (None, "pairs"):
            return Chosen(None, epochs)
        exchanges = self._settled(exchanges, epochs, last).told_by(epochs, self._flows)
        if self._method == "pairs":
            asked, answering = (_servers_named(ends) for ends in (epochs.ends, exchanges.rows["ends"]))
            chosen = Chosen(exchanges, None, [name for name in asked if name not in answering])
        else:
            chosen = self._split(exchanges, epochs)
        for known in (self._servers, self._flows):
            known.forget(MOST_KNOWN)
        return chosen

    def _split(self, exchanges: Exchanges, epochs: Epochs) -> Chosen:
        both = np.concatenate([exchanges.rows["ends"].reshape(-1, 5), epochs.ends])
        flows, _, place = distinct(both)
        of_exchange, of_epoch = np.split(place, [len(exchanges)])
        flags = exchanges.rows["flags"]

        def count(places: Array, weights: Array | None = None) -> Array:
            return np.bincount(places, weights, minlength=len(flows)).astype(np.int64)

        single = count(of_exchange[(flags & NOT_SINGLE) == 0])
        overlapping = count(of_exchange[(flags & NOT_WAITING) != 0])
        known = count(of_exchange)
        requests, estimates = (count(of_epoch, epochs.rows[name]) for name in ("requests", "count"))
        at = self._flows.places(flows)
        answers = at >= 0
        overlap = np.zeros(len(flows), np.bool_)
        overlap[answers] = self._flows.told(at[answers]).mark != 0
        names = flows[:, 2:].copy()
        names[:, 2] &= _SERVER
        servers, _, server = distinct(names)

        def by_server(values: Array) -> Array:
            return np.bincount(server, values, minlength=len(servers)).astype(np.int64)

        new = np.stack([by_server(values) for values in (single, overlapping, known)], axis=1)
        so_far = self._servers.add(servers, new)
        waits = so_far[:, 0] > so_far[:, 1]
        hopeless = (so_far[:, 0] == 0) & (so_far[:, 1] == 0) & (so_far[:, 2] > 0) & (by_server(estimates) == 0)
        paired = (waits | hopeless)[server] & ~overlap & (answers | (requests < self._fewest))
        self._pairs |= bool((paired & (known > 0)).any())
        busiest = np.zeros(len(servers), np.int64)
        np.maximum.at(busiest, server, requests)
        faint = (so_far[:, 2] == 0) & (busiest < self._fewest) & self._pairs
        rest = epochs.of(~paired[of_epoch] & ~faint[server[of_epoch]])
        # One name may stand for two servers, one of each protocol: what has a row is listed.
        listed = _servers_named(np.concatenate([exchanges.rows["ends"].reshape(-1, 5)[paired[of_exchange]], rest.ends]))
        unheard = sorted(name for name in _servers_named(flows[faint[server]]) if name not in listed)
        return Chosen(
            exchanges.of(paired[of_exchange]) if self._pairs else None,
            rest if len(rest) or not self._pairs else None,
            unheard,
        )

    def _settled(self, exchanges: Exchanges, epochs: Epochs, last: bool) -> Exchanges:
        """Exchanges that can be judged.

        Those of busy flows of datagrams wait for the end of their epoch, which shows how many requests there were: in a
        stream in both directions some datagrams look like request and response.
        """
        rows = exchanges.rows if self._held is None else np.concatenate([self._held, exchanges.rows])
        self._held = None
        exchanges = replace(exchanges, rows=rows)
        if last or not len(rows):
            return exchanges
        flows, _, place = distinct(rows["ends"])
        counts = np.bincount(place)
        until_ns = np.full(len(flows), -1, np.int64)
        of_epoch = places_among(flows, epochs.ends)
        np.maximum.at(until_ns, of_epoch[of_epoch >= 0], epochs.rows["end_ns"][of_epoch >= 0])
        busy = (flows[:, 4] & np.uint64(0xFF) == UDP) & (counts >= self._fewest)
        held = busy[place] & (rows["begin_ns"] > until_ns[place])
        if not held.any() or np.count_nonzero(held) > MOST_HELD:
            return exchanges
        self._held = rows[held]
        return exchanges.of(~held)


def _sum(parts: list[S]) -> S:
    """The sum, by twos: rows are copied few times."""
    while len(parts) > 1:
        parts = [sum(pair[1:], pair[0]) for pair in (parts[i : i + 2] for i in range(0, len(parts), 2))]
    return parts[0]


def _servers_named(ends: Array) -> dict[str, None]:
    """Names of the servers of these flows, in the order of flows."""
    words = telling(distinct(ends.reshape(-1, 5)).rows, "server")
    return dict.fromkeys(ends_texts(words[numbered(words)[1]], "server"))
