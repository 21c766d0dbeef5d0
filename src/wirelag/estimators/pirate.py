"""Response latency from the packets of clients only: direct server return, asymmetric routes, hidden headers.

Guarantee: an estimate is a mean over an epoch of one flow (half a second, at least four responses); if the packets do
not reveal it, the epoch has a reason instead. experiments/README.md measures the accuracy, and docs/concepts/pirate.md
states it, with the traffic that misleads each method. Memory: `memory` bytes of flow tables, 272 per flow (for `auto`
plus its name); the flow that was silent longest is dropped first and counted; a synopsis has at most `most_epochs`
epochs of 232 bytes.

`gap` and `modes` are Algorithms 1 and 2 of B. V. Shobhana, Y. Chien, M. Doughten, J. Diamant, B. Nath, S. L. Feibish
and S. Narayana, *Measuring Response Latencies Under Asymmetric Routing*, 2026, with `modes` made robust; `ack`,
`window`, `auto` and `blind` are ours. The laws: docs/reference/pirate.md, pirate-modes.md, pirate-blind.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np

from wirelag import _kernels
from wirelag.estimators.pirate_confidence import judged
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.batch import Array, PacketBatch
from wirelag.packets.distinct import rows_of_all
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.synopses.epochs import EPOCH, METHODS, Epochs

if TYPE_CHECKING:
    from wirelag.packets.grouping import Grouping

Method = Literal["gap", "modes", "ack", "window", "syn", "auto", "blind"]

NAME: Final = "pirate"
BLIND: Final = METHODS.index("blind")


@dataclass(frozen=True, slots=True)
class Pirate:
    """The estimator of response latency from client packets alone.

    `auto` uses `blind` for flows without TCP headers. `gap_ns` is the threshold of `gap`. With `literal`, `modes` is
    the paper's Algorithm 2 to the letter, which one outlier misleads.
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
    can: ClassVar[Capabilities] = Capabilities(in_kernel=True)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method; use one of {', '.join(METHODS)}")
        if self.most_epochs < 1:
            raise ValueError("most_epochs must be at least 1")

    def kernel(self, method: int, memory: int) -> _kernels.Pirate:
        """An empty table of flows."""
        return _kernels.Pirate(method, memory, self.epoch_ns, self.fewest, self.gap_ns, self.literal, self.seed)

    def meter(self, point: str) -> PirateMeter:
        """A fresh meter; it expects packets from clients to servers (see `Roles`)."""
        return PirateMeter(self)

    def estimate(self, *synopses: Epochs) -> Report:
        """The report over all flows of one interval; `Epochs.groups` has each flow."""
        (epochs,) = synopses
        return epochs.report()


class PirateMeter:
    """Turns client packets into epochs. It keeps no batch."""

    def __init__(self, estimator: Pirate) -> None:
        self._estimator = estimator
        method = METHODS.index(estimator.method)
        both = estimator.method == "auto"
        memory = estimator.memory // 2 if both else estimator.memory
        self._tcp = estimator.kernel(method, memory)
        self._hidden = estimator.kernel(BLIND, memory) if both else self._tcp
        self._epochs: tuple[list[Array], list[Array]] = ([], [])  # epochs of flows with and without TCP headers
        self._most = max(1, estimator.most_epochs // (2 if both else 1))
        self._listed = [0, 0]
        self._packets = self._unlisted = self._other = 0
        self._last_ns = 0
        self._counted: dict[str, int] = {}

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add packets of clients."""
        self._packets += len(packets)
        if not len(packets):
            return
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        alone = self._hidden is self._tcp
        taken = self._tcp.observe_batch(packets, True, alone)
        if not alone:
            taken += self._hidden.observe_batch(packets, False, True)
        self._other += len(packets) - taken
        self._collect()

    def cut(self, interval: Interval) -> Epochs:
        """The epochs that ended in the interval; open ones continue."""
        self._collect()
        counts = self._counts()
        since = {name: n - self._counted.get(name, 0) for name, n in counts.items()}
        rows = rows_of_all((*self._epochs[0], *self._epochs[1]), EPOCH)
        found = Epochs(judged(rows), self._packets, since | {"unlisted": self._unlisted, "other": self._other})
        found = found if self._estimator.method == "syn" else found.possible()
        self._counted, self._epochs, self._listed = counts, ([], []), [0, 0]
        self._packets = self._unlisted = self._other = 0
        return found

    def finish(self) -> Epochs:
        """The epochs of all flows, including open ones, at the end of the input."""
        for kernel in {id(kernel): kernel for kernel in (self._tcp, self._hidden)}.values():
            kernel.cut(self._last_ns)
        return self.cut(Interval(0, 0))

    @property
    def memory(self) -> int:
        """Size of the tables in bytes."""
        return self._tcp.memory + (self._hidden.memory if self._hidden is not self._tcp else 0)

    def _collect(self) -> None:
        """Keep ended epochs, as many as fit."""
        for place, kernel in enumerate((self._tcp, self._hidden)):
            if not kernel.epochs:
                continue
            room = np.zeros(kernel.epochs, EPOCH)
            kernel.take(room.view("<u8").reshape(len(room), -1))
            listed = min(len(room), self._most - self._listed[place])
            self._unlisted += len(room) - listed
            self._listed[place] += listed
            if listed:  # copy the part: a view would keep the whole array
                self._epochs[place].append(room if listed == len(room) else room[:listed].copy())

    def _counts(self) -> dict[str, int]:
        counts = dict(self._tcp.counts())
        if self._hidden is not self._tcp:
            for name, n in self._hidden.counts().items():
                counts[name] += n
        return counts
