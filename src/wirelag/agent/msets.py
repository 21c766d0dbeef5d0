"""What an agent cuts: the segments of its settings, and those of the m-set that the collector sends.

Law: settings come first: a segment named there never belongs to the collector. A segment of the m-set is cut by the
clock like all others, from its announcement until it is removed or its time is over; the first and last interval state
how much of them was covered. Segments that stay are not affected when others come and go.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from wirelag.agent.config import Config, Measured, PortSetting, Reference
from wirelag.agent.cutting import AtPackets, ByClock, CutPart, Unseen, cutter
from wirelag.agent.in_kernel import KernelMeters
from wirelag.agent.inside import Inside, Ways
from wirelag.agent.settings import MOST_SEGMENTS
from wirelag.errors import WirelagError
from wirelag.network.forwarding import Passage
from wirelag.network.segments import EDGE, parse_segment
from wirelag.packets.batch import PacketBatch
from wirelag.protocol.messages import Message

FOREVER_NS: Final = 2**62


@dataclass(frozen=True, slots=True)
class MSet:
    """The segments that the collector wants measured here, and since when."""

    since_ns: int
    measured: dict[Measured, int]  # and until when
    references: tuple[Reference, ...]
    left_out: int  # beyond the limit of one agent, or invalid
    ways: Ways | None = None  # inside this router; None: it does not measure there

    def held(self, now_ns: int) -> dict[Measured, int]:
        """The segments that are still valid."""
        return {one: until_ns for one, until_ns in self.measured.items() if now_ns < until_ns}


def m_set_of(message: Message, config: Config) -> MSet:
    """The segments requested by a message, as far as this agent can measure them."""
    own = {one.segment for one in config.measured}
    measured: dict[Measured, int] = {}
    references: list[Reference] = []
    left_out = 0
    ways, ports = dict[Passage, int](), dict[str, str]()
    for record in message.records:
        segment, source, target, until_ns = (record[name] for name in ("segment", "source", "target", "until_ns"))
        if segment in own:
            continue
        if record["way"] == "inside":
            one_way = parse_segment(segment)
            ways[one_way.before, one_way.after] = FOREVER_NS if until_ns is None else until_ns
            ports |= {one_way.before: source, one_way.after: target}
            continue
        try:
            reference = config.reference(segment, source, target, until_ns)
            one = config.of_references(segment, source, target)
        except (WirelagError, ValueError):
            left_out += 1
            continue
        if len(measured) >= MOST_SEGMENTS:
            left_out += 1
            continue
        measured[one] = FOREVER_NS if until_ns is None else until_ns
        if record["way"] == "out":
            references.append(reference)
    inside = None
    if config.inside is not None and config.inside.ports is None:
        inside = Ways(tuple(PortSetting(to, None, address) for to, address in ports.items() if to != EDGE), ways)
    return MSet(message.interval.start_ns, measured, tuple(references), left_out, inside)


@dataclass(slots=True)
class _Cutting:
    """Segments that are cut together, and until when."""

    cuts: ByClock | AtPackets
    unseen: Unseen
    until_ns: int = FOREVER_NS


class Cutters:
    """Packets into parts, for everything measured now. All methods but `turn` are called by one thread."""

    def __init__(
        self,
        config: Config,
        began_ns: int,
        live: bool,
        in_kernel: KernelMeters | None = None,
        inside: Inside | None = None,
    ) -> None:
        """`live`: packets may be dropped, and the clock is the host's. `in_kernel`: the meters, if the kernel measures.

        `inside`: of this router, if it is measured.
        """
        self._config, self._live, self._in_kernel, self._inside = config, live, in_kernel, inside
        self._told: queue.SimpleQueue[MSet] = queue.SimpleQueue()
        self._own: list[_Cutting] = []
        self._turned: dict[Measured, _Cutting] = {}
        if config.measured:
            self._own.append(self._cutting(config.measured, began_ns, 0))

    def _cutting(self, measured: tuple[Measured, ...], began_ns: int, dropped: int) -> _Cutting:
        config = self._config
        unseen = Unseen.since(config.interval_ns, began_ns, dropped)
        cutting = _Cutting(cutter(measured, config.interval_ns, config.grace_ns, unseen, self._in_kernel), unseen)
        if self._live:
            cutting.cuts.begin(began_ns)
        return cutting

    def turn(self, m_set: MSet) -> None:
        """Set the m-set from the next packets on; from any thread."""
        self._told.put(m_set)

    def take(self, packets: PacketBatch, now_ns: int, dropped: int) -> Iterator[CutPart]:
        """Add packets, or none, at `now_ns`; `dropped`: total so far."""
        while not self._told.empty():
            yield from self._turn(self._told.get(), now_ns, dropped)
        for one in self._all():
            if self._live:
                one.unseen.read(dropped, now_ns)
                yield from one.cuts.begin_anew(now_ns)
            yield from one.cuts.take(packets) if len(packets) else one.cuts.passed(now_ns)
        if self._inside is not None:
            yield from self._inside.take(packets, now_ns, dropped)
        for measured, one in list(self._turned.items()):
            if now_ns >= one.until_ns:
                yield from self._turned.pop(measured).cuts.end(one.until_ns)

    def stepped(self, now_ns: int) -> None:
        """The clock was set, and is `now_ns`; called before packets after that are added."""
        for one in self._all():
            one.cuts.stepped(now_ns)
        if self._inside is not None:
            self._inside.stepped()

    def end(self, now_ns: int) -> Iterator[CutPart]:
        """End of input."""
        for one in self._all():
            yield from one.cuts.end(now_ns)
        if self._inside is not None:
            yield from self._inside.end(now_ns)

    def _all(self) -> Iterable[_Cutting]:
        return [*self._own, *self._turned.values()]

    def _turn(self, m_set: MSet, now_ns: int, dropped: int) -> Iterator[CutPart]:
        if self._inside is not None and m_set.ways is not None:
            self._inside.turn(m_set.ways)
        for measured in [one for one in self._turned if one not in m_set.measured]:
            yield from self._turned.pop(measured).cuts.end(now_ns)
        for measured, until_ns in m_set.measured.items():
            if measured not in self._turned and now_ns < until_ns:
                self._turned[measured] = self._cutting((measured,), now_ns, dropped)
            if measured in self._turned:
                self._turned[measured].until_ns = until_ns
