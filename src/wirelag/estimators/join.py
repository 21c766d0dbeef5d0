"""Every packet at both points: the one-way delay of each, exact.

Guarantee: every packet whose id occurs equally often at both points gets its delay; nothing is estimated. Ids that
occur more often at one point than at the other are counted but not timed. If an interval has more packets than fit,
both points keep the same share of them (synopses/cache.py), and counts are scaled. Memory: 24 bytes per packet and
point within an interval, at most `memory`; 40 more per upstream packet if endpoints are kept about them.

It is the ground truth for the other methods; it sends some 13 bytes per packet, which they avoid.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from wirelag.codec import packed_size
from wirelag.estimators.protocol import Capabilities
from wirelag.report import Report
from wirelag.synopses.cache import (
    ENTRY_BYTES,
    PLACE_BYTES,
    About,
    Cached,
    CacheMeter,
    Crossed,
    CrossedSink,
    class_memory,
)
from wirelag.synopses.crossing import Crossing, joined

NAME: Final = "join"


@dataclass(frozen=True, slots=True)
class Join:
    """The estimator of one-way delay by packet id.

    With `about`, what each point keeps about packets, it passes every packet that both points saw to the `sinks`.
    """

    memory: int = 512 << 20
    seed: int = 0
    cores: int = field(default=1, compare=False, repr=False)  # threads that join; no result depends on them
    about: tuple[About, About] | None = field(default=None, compare=False, repr=False)
    sinks: tuple[CrossedSink, ...] = field(default=(), compare=False, repr=False)

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("upstream", "downstream")
    can: ClassVar[Capabilities] = Capabilities(live=False, each_packet=True)  # live it would send every packet

    @property
    def capacity(self) -> int:
        """Packets that a point holds at most."""
        return max(1, self.memory // 2 // (ENTRY_BYTES + PLACE_BYTES))

    def meter(self, point: str) -> CacheMeter:
        """A fresh meter for one point."""
        about = None if self.about is None else self.about[self.points.index(point)]
        return CacheMeter(self.capacity, self.seed, about=about)

    def of_class(self, most: int) -> Join:
        """The estimator of one class, with its part of the memory."""
        return replace(self, memory=class_memory(self.memory, most), about=None, sinks=())

    def added(self, first: Cached, second: Cached) -> Cached:
        """Merge two neighbouring intervals of one point."""
        return first.followed_by(second, self.capacity)

    def estimate(self, *synopses: Cached) -> Report:
        """The report of one interval's caches."""
        return self.cross(*synopses).report(NAME)

    def cross(self, up: Cached, down: Cached) -> Crossing:
        """The crossing: delays of packets seen at both points, and counts of the others."""
        crossing = joined(up, down, self._pass_on if self.sinks else None, self.cores)
        crossing.wire_bytes = packed_size(down.to_fields())
        return crossing

    def _pass_on(self, crossed: Crossed) -> None:
        for sink in self.sinks:
            sink(crossed)
