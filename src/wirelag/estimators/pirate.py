"""Response latency when only the packets of clients are seen: direct server return, asymmetric routes, hidden headers.

Guarantee: an answer is a mean over an epoch of one flow (half a second, at least four responses); where the packets do
not tell it, an epoch has the reason instead. How near answers are, and which traffic misleads each method all the same,
is measured in experiments/README.md and stated in docs/concepts/pirate.md. Memory: `memory` bytes of flow tables, 256 a
flow and its name for `auto`, the flow silent for longest leaves first and is counted; a synopsis has at most
`most_epochs` epochs of 168 bytes.

`gap` and `modes` are Algorithms 1 and 2 of B. V. Shobhana, Y. Chien, M. Doughten, J. Diamant, B. Nath, S. L. Feibish
and S. Narayana, *Measuring Response Latencies Under Asymmetric Routing*, 2026, `modes` with what makes them robust;
`ack`, `window`, `auto` and `blind` are ours. The laws: docs/reference/pirate.md, pirate-modes.md, pirate-blind.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.epochs import EPOCH, METHODS, Epochs
from wirelag.grouping import Grouping
from wirelag.intervals import Interval
from wirelag.packets import Array, Flag, Kind, PacketBatch, TcpFlag
from wirelag.report import Report

Words = npt.NDArray[np.uint64]
Method = Literal["gap", "modes", "ack", "window", "syn", "auto", "blind"]

NAME: Final = "pirate"
BLIND: Final = METHODS.index("blind")
HAS_TCP, HAS_TIMESTAMPS, HAS_IP_ID = 1, 2, 4
HIDDEN: Final = (Kind.UDP, Kind.QUIC, Kind.ESP, Kind.WIREGUARD)  # flows without TCP headers
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_PARTS: Final = 12  # the purpose of a coin that only hashes


@dataclass(frozen=True, slots=True)
class Pirate:
    """The estimator of response latency from client packets alone.

    `auto` is `blind` for flows without TCP headers. `gap_ns` is the threshold of `gap`. With `literal` `modes` is the
    paper's Algorithm 2 to the letter, which one outlier misleads.
    """

    method: Method = "auto"
    memory: int = 64 << 20
    epoch_ns: int = 500_000_000
    fewest: int = 4
    gap_ns: int = 1_000_000
    literal: bool = False
    most_epochs: int = 1 << 20
    seed: int = 0

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("tap",)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"the method is one of {', '.join(METHODS)}")
        if self.most_epochs < 1:
            raise ValueError("most_epochs is at least 1")

    def kernel(self, method: int, memory: int) -> _kernels.Pirate:
        """An empty table of flows."""
        return _kernels.Pirate(method, memory, self.epoch_ns, self.fewest, self.gap_ns, self.literal, self.seed)

    def meter(self, point: str) -> PirateMeter:
        """A fresh meter; it is given packets from clients to servers (`Roles` says which these are)."""
        return PirateMeter(self)

    def estimate(self, *synopses: Epochs) -> Report:
        """What all flows of one interval say together; `Epochs.groups` says it of each."""
        (epochs,) = synopses
        return epochs.report()


class PirateMeter:
    """Client packets into epochs. It keeps no batch."""

    def __init__(self, estimator: Pirate) -> None:
        self._estimator = estimator
        method = METHODS.index(estimator.method)
        both = estimator.method == "auto"
        memory = estimator.memory // 2 if both else estimator.memory
        self._tcp = estimator.kernel(method, memory)
        self._hidden = estimator.kernel(BLIND, memory) if both else self._tcp
        self._epochs: tuple[list[Array], list[Array]] = ([], [])  # of flows with and without TCP headers
        self._most = max(1, estimator.most_epochs // (2 if both else 1))
        self._listed = [0, 0]
        self._packets = self._unlisted = self._other = 0
        self._last_ns = 0
        self._counted: dict[str, int] = {}

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take in packets of clients."""
        self._packets += len(packets)
        if not len(packets):
            return
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        whole = ~packets.has(Flag.LATER | Flag.SHORT)
        tcp = whole & packets.of_kind(Kind.TCP)
        hidden = whole & np.isin(packets.kind, HIDDEN)
        self._other += int(np.count_nonzero(~(tcp | hidden)))
        if self._hidden is self._tcp:
            self._take(self._tcp, packets, np.flatnonzero(tcp | hidden))
        else:
            self._take(self._tcp, packets, np.flatnonzero(tcp))
            self._take(self._hidden, packets, np.flatnonzero(hidden))

    def cut(self, interval: Interval) -> Epochs:
        """The epochs that ended in the interval; those that are open go on."""
        self._collect()
        counts = self._counts()
        since = {name: n - self._counted.get(name, 0) for name, n in counts.items()}
        rows = np.concatenate([np.empty(0, EPOCH), *self._epochs[0], *self._epochs[1]])
        found = Epochs(rows, self._packets, since | {"unlisted": self._unlisted, "other": self._other})
        found = found if self._estimator.method == "syn" else found.possible()
        self._counted, self._epochs, self._listed = counts, ([], []), [0, 0]
        self._packets = self._unlisted = self._other = 0
        return found

    def finish(self) -> Epochs:
        """The epochs of all flows, also of those that are still open: nothing more will come."""
        for kernel in {id(kernel): kernel for kernel in (self._tcp, self._hidden)}.values():
            kernel.cut(self._last_ns)
        return self.cut(Interval(0, 0))

    @property
    def memory(self) -> int:
        """Bytes of tables."""
        return self._tcp.memory + (self._hidden.memory if self._hidden is not self._tcp else 0)

    def _take(self, kernel: _kernels.Pirate, packets: PacketBatch, rows: npt.NDArray[np.intp]) -> None:
        if not len(rows):
            return
        part = packets if len(rows) == len(packets) else packets[rows]
        tcp = part.of_kind(Kind.TCP)
        opening = tcp & ((part.message & np.uint8(TcpFlag.SYN)) != 0)
        numbered = ~part.has(Flag.IPV6) & ~part.has(Flag.FRAGMENT) & (part.ip_id != 0)
        has = tcp * np.uint8(HAS_TCP) | part.has(Flag.TIMESTAMPS) * np.uint8(HAS_TIMESTAMPS)
        has |= numbered * np.uint8(HAS_IP_ID)
        mss = np.where(opening, part.transaction, 0).astype(np.uint16)
        endpoints = np.empty((len(part), 5), np.uint64)
        _kernels.fill_endpoints(part.src, part.dst, part.src_port, part.dst_port, part.protocol, endpoints)
        kernel.observe(
            part.time_ns, _keys(part), part.seq, part.ack, part.tsval, part.tsecr, part.wire_length,
            part.payload_length, part.ip_id, mss, part.message, has, endpoints,
        )  # fmt: skip
        self._collect()

    def _collect(self) -> None:
        """Keep epochs that ended, as many as there is room for."""
        for place, kernel in enumerate((self._tcp, self._hidden)):
            if not kernel.epochs:
                continue
            room = np.zeros(kernel.epochs, EPOCH)
            kernel.take(room.view("<u8").reshape(len(room), -1))
            listed = room[: max(0, self._most - self._listed[place])]
            self._unlisted += len(room) - len(listed)
            self._listed[place] += len(listed)
            self._epochs[place].append(listed)

    def _counts(self) -> dict[str, int]:
        counts = dict(self._tcp.counts())
        if self._hidden is not self._tcp:
            for name, n in self._hidden.counts().items():
                counts[name] += n
        return counts


def _keys(packets: PacketBatch) -> Words:
    """Flow keys that tell directions apart, and flows of a pair of addresses that have no ports."""
    keys = packets.flow_key ^ packets.has(Flag.REVERSE).astype(np.uint64)
    inner = np.zeros(len(packets), np.uint64)
    esp, wireguard = packets.of_kind(Kind.ESP), packets.of_kind(Kind.WIREGUARD)
    inner[esp] = packets.transaction[esp]
    inner[wireguard] = packets.transaction[wireguard] & np.uint64(0xFFFFFFFF)  # the receiver's index
    if not inner.any():
        return np.asarray(keys)
    return np.where(inner > 0, _kernels.coins(keys + inner * _SPREAD, 0, _PARTS), keys)
