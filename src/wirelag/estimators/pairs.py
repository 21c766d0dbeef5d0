"""The true response time of every exchange, if both directions of a connection pass the capture point.

Guarantee: times are differences of two capture times; none is guessed. If requests and responses overlap, bytes are
missing, or the beginning or end was not captured, an exchange is flagged and gives no single time.
Each time is split into network, server and transfer time. docs/reference/pairs.md is the law and lists the limits.

Memory: `memory` bytes of flow table, 248 per flow; when it is full, the least recently used flow is dropped and counted
as `evicted`. The synopsis has at most `most` exchanges of 128 bytes; beyond that a coin decides which ones stay, and
`unlisted` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.batch import Array, Kind, PacketBatch, TcpFlag
from wirelag.packets.distinct import rows_of_all
from wirelag.packets.frames import Frames, endpoints
from wirelag.packets.interval import Interval
from wirelag.packets.roles import by_client
from wirelag.report import Report
from wirelag.synopses.request_response import EXCHANGE, Exchanges, coins, half_of_those_from

if TYPE_CHECKING:
    from wirelag.packets.grouping import Grouping

FromClient: TypeAlias = Callable[[PacketBatch], npt.NDArray[np.bool_]]
"""A function that returns the rows sent by a client; the first packet of a connection decides."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The estimator of response time at a point that sees both directions.

    A response ends when the server has been silent for `silence_ns`, unless something else ends it before.
    """

    memory: int = 64 << 20
    silence_ns: int = 5 * 10**9
    most: int = 1 << 20
    from_client: FromClient | None = field(default=None, compare=False, repr=False)
    frames: Frames | None = field(default=None, compare=False, repr=False)  # to know where packets are

    name: ClassVar[str] = "pairs"
    points: ClassVar[tuple[str, ...]] = ("tap",)
    can: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError("a synopsis must hold at least one exchange")

    def meter(self, point: str) -> PairsMeter:
        """A fresh meter."""
        return PairsMeter(self)

    def estimate(self, *synopses: Exchanges) -> Report:
        """The report of one interval's exchanges."""
        (exchanges,) = synopses
        return exchanges.report()


class PairsMeter:
    """Connections at one point, and exchanges since the last cut."""

    def __init__(self, estimator: Pairs) -> None:
        self._kernel = _kernels.Pairs(estimator.memory, estimator.silence_ns)
        self._from_client = estimator.from_client or sent_by_client
        self._frames = estimator.frames
        self._most = estimator.most
        self._counted: dict[str, int] = {}
        self._start_anew()

    def _start_anew(self) -> None:
        self._parts: list[Array] = []
        self._listed = self._unlisted = self._packets = 0
        self._share = np.uint64(0)  # exchanges stay if their coin is at least this

    @property
    def memory(self) -> int:
        """Bytes of the flow table."""
        return self._kernel.memory

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add packets of both directions."""
        places = None if self._frames is None else self._frames.of(packets)
        self._kernel.observe(packets, self._from_client(packets).astype(np.uint8), endpoints(packets), places)
        self._packets += len(packets)
        self._take()

    def cut(self, interval: Interval) -> Exchanges:
        """The exchanges whose end became known in this interval; open ones stay."""
        self._kernel.cut(interval.end_ns)
        return self._ended()

    def cut_last(self, interval: Interval) -> Exchanges:
        """The same at the end of the input."""
        return self.finish()

    def finish(self) -> Exchanges:
        """The exchanges since the last cut, and open ones: the input has ended."""
        self._kernel.finish()
        return self._ended()

    def _ended(self) -> Exchanges:
        self._take()
        now = self._kernel.counts()
        counts = {name: n - self._counted.get(name, 0) for name, n in now.items()} | {"unlisted": self._unlisted}
        exchanges = Exchanges(rows_of_all(self._parts, EXCHANGE), self._packets, counts)
        self._counted = now
        self._start_anew()
        return exchanges

    def _take(self) -> None:
        room = np.empty((self._kernel.records, _kernels.EXCHANGE_WORDS), np.uint64)
        self._kernel.take(room)
        self._keep([room.view(EXCHANGE).reshape(-1)] if len(room) else [])
        while self._listed > self._most:
            self._share = half_of_those_from(self._share)
            parts, self._parts, self._listed = self._parts, [], 0
            self._keep(parts)

    def _keep(self, parts: list[Array]) -> None:
        for rows in parts:
            kept = rows[coins(rows) >= self._share]
            self._parts.append(kept)
            self._listed += len(kept)
            self._unlisted += len(rows) - len(kept)


def sent_by_client(packets: PacketBatch) -> npt.NDArray[np.bool_]:
    """Rows sent by a client: according to the SYN, else to ports."""
    flags = np.where(packets.kind == np.uint8(Kind.TCP), packets.message, 0)
    by_ports = by_client(packets.src_port, packets.dst_port)
    return np.asarray(np.where((flags & TcpFlag.SYN) != 0, (flags & TcpFlag.ACK) == 0, by_ports))
