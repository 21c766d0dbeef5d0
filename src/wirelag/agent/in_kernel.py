"""An agent whose meters run inside the kernel. Settings that need single packets are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from wirelag.agent.edges import Closed, Edges
from wirelag.agent.settings import MOST_SEGMENTS
from wirelag.estimators.catalogue import between_points
from wirelag.estimators.lda import Lda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.settings import Settings
from wirelag.twopoint.spans import ALL, Cut

if TYPE_CHECKING:
    from wirelag.agent.config import Config, Measured
    from wirelag.ebpf.lda import KernelLda, KernelSegment, Piece
    from wirelag.ebpf.source import KernelSource
    from wirelag.protocol.terms import Terms

SHORTEST_NS: Final = 100 * 10**6  # shortest interval: one is read while the next fills


def check(settings: Settings, terms: Terms, measured: tuple[Measured, ...]) -> None:
    """Raise a WirelagError if the kernel cannot do what is configured."""
    if settings["capture.then"] is not None and not settings["capture.in_kernel"]:
        raise settings.wrong("capture.then", "needs in_kernel (--in-kernel)")
    if not settings["capture.in_kernel"]:
        return
    if not terms.estimator.can.in_kernel:
        known = ", ".join(between_points(in_kernel=True))
        raise settings.wrong("estimator.name", f"{terms.estimator.name} cannot run in the kernel; known: {known}")
    if settings["interface"] is None:
        raise settings.wrong("read", "the kernel reads no captures: leave in_kernel (--in-kernel) out")
    if settings["interval"] < SHORTEST_NS or settings["interval"] < 2 * settings["grace"]:
        raise settings.wrong("interval", "is too short: the kernel needs at least 100 ms, and twice the grace")
    for name, given in {
        "filter": settings["filter"] is not None,
        "capture.promiscuous": settings["capture.promiscuous"],
        "capture.clock": settings["capture.clock"] != "kernel",
    }.items():
        if given:
            raise settings.wrong(name, "is not available in the kernel: leave in_kernel (--in-kernel) out")
    if terms.by is not None and terms.delimiters is not None and terms.delimiters.colour is not None:
        raise settings.wrong("by", "the kernel tells no classes apart where colours cut: leave one of them out")
    for i, one in enumerate(measured):
        if one.way is not None and max(len(one.way.source), len(one.way.destination)) > 1:
            raise settings.wrong(f"segments.{i}.direction", "the kernel compares with one network on each side")


class KernelMeter:
    """One segment in the kernel, in the form that an agent cuts; it gets no packets here."""

    def __init__(self, inside: KernelSegment, estimator: Any, at_packets: bool) -> None:
        self._inside, self._estimator, self._at_packets = inside, estimator, at_packets
        self._held: Cut | None = None  # of the open interval, up to the last piece that was read
        self._looked_ns = self._latest_ns = self._told = 0
        self._open = True
        self.times_ns: tuple[int, int] | None = None  # if packets have come: since when, and the latest

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Do nothing: the kernel sees the packets."""

    def added(self, first: Any, second: Any) -> Any:
        """Merge two synopses of neighbouring intervals."""
        return self._estimator.added(first, second)

    def cut(self, interval: Interval) -> Cut:
        """The cut of an interval."""
        if not self._at_packets:
            piece = self._inside.cut(interval)
            return Cut(interval, piece.synopses, piece.known)
        held, self._held = self._held, None
        if held is None:
            return Cut(interval, {ALL: self._estimator.meter("upstream").cut(interval)})
        return replace(held, interval=interval)

    def ended(self, edges: Edges, now_ns: int | None) -> Iterator[Closed]:
        """What has ended by now, cut at packets; without a time, everything up to the last packet."""
        for piece, opened in self._inside.pieces(now_ns):
            self._hold(edges, piece)
            if opened.anew:
                yield from edges.end(self.cut)
            if opened.edge is not None:
                yield from edges.at(opened.edge, self.cut)
        if now_ns is None:
            self._hold(edges, self._inside.rest())
            return
        latest_ns = self._inside.latest_ns
        self.times_ns = (min(self._looked_ns, latest_ns), latest_ns) if latest_ns > self._latest_ns else None
        self._looked_ns, self._latest_ns = now_ns, max(latest_ns, self._latest_ns)

    def _hold(self, edges: Edges, piece: Piece) -> None:
        if not piece.synopses[ALL].packets:
            return
        edges.grow(piece.first_ns, piece.latest_ns)
        cut = Cut(Interval(piece.first_ns, piece.latest_ns + 1), piece.synopses, piece.known)
        self._held = cut if self._held is None else self._held.joined(cut, self.added)

    def revise(self, cut: Cut) -> None:
        """Do nothing: which classes are measured next is decided when a part is complete."""

    def unseen(self) -> int:
        """Packets that were not counted since the last call."""
        before, self._told = self._told, self._inside.missed
        return self._told - before

    def keys(self, cut: Cut) -> Mapping[int, str]:
        """The names of the classes of a cut that is complete; if some had no room, the largest get it."""
        if self._inside.classes is None:
            return {}
        self._inside.revise()
        return {tag: self._inside.classes.keys[tag] for tag in cut.synopses if tag != ALL}

    def close(self) -> None:
        """Measure it no longer."""
        if self._open:
            self._open = False
            self._inside.close()


class KernelMeters:
    """The meters of an agent in the kernel."""

    def __init__(self, inside: KernelLda) -> None:
        self._inside = inside

    def open(self, measured: Measured) -> KernelMeter:
        """Measure a segment from now on."""
        segment = self._inside.open(measured.way, measured.references_only)
        return KernelMeter(segment, self._inside.estimator, self._inside.delimiters is not None)


def _room(config: Config) -> int:
    """How many segments there may be at once."""
    return min(MOST_SEGMENTS, len(config.measured) + (MOST_SEGMENTS if config.m_set is not None else 0))


def memory_bytes(config: Config) -> int:
    """The memory of all CPUs."""
    from wirelag.agent.config import grouping_of
    from wirelag.ebpf.bpf import cpus
    from wirelag.ebpf.lda import bytes_for

    terms, grouping = config.terms, grouping_of(config.terms.by)
    classes = grouping.most + 1 if grouping is not None else 0
    assert isinstance(terms.estimator, Lda)
    return cpus() * bytes_for(terms.estimator, _room(config), terms.delimiters is not None, classes)


def open_kernel(config: Config, tell: Callable[[str], None]) -> tuple[KernelSource, KernelMeters] | None:
    """Attach. On failure report why and return None; raise if another program must run after wirelag's."""
    from wirelag.agent.config import grouping_of
    from wirelag.ebpf.dataplane import UnavailableError
    from wirelag.ebpf.source import KernelSource

    assert config.interface is not None
    terms = config.terms
    try:
        inside = _program(terms.estimator.name)(
            terms.estimator,
            config.interface,
            config.interval_ns,
            packet_id=terms.packet_id,
            tunnels=config.tunnels,
            delimiters=terms.delimiters,
            grouping=grouping_of(terms.by),
            room=_room(config),
            then=config.then,
        )
    except UnavailableError as error:
        if config.then is not None:
            raise
        tell(f"{error}; measuring outside the kernel instead")
        return None
    for note in inside.hooks.notes:
        tell(note)
    source = KernelSource(
        config.interface,
        statistics=inside.statistics,
        check=inside.hooks.check,
        collect=inside.collect,
        close=inside.close,
    )
    return source, KernelMeters(inside)


def _program(name: str) -> Any:
    """The meter of a method in the kernel: it has the same stem in ebpf/."""
    return getattr(import_module(f"wirelag.ebpf.{name}"), f"Kernel{name.capitalize()}")
