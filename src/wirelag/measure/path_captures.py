"""Segments measured from a folder of captures at the ports of routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wirelag.errors import WirelagError
from wirelag.measure.methods import Method
from wirelag.measure.points import CapturePoint, PointPair, ReadOptions

if TYPE_CHECKING:
    from wirelag.capture.pcap import Into, Take
    from wirelag.network.captures import Folder, Port
    from wirelag.network.forwarding import Forwarding
    from wirelag.network.localise import Figures
    from wirelag.network.reports import SegmentReport
    from wirelag.network.segments import Segment
    from wirelag.network.topology import Topology
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.packet_id import PacketId
    from wirelag.synopses.delay_sample import DelaySample

Ends = tuple["Sequence[Port]", "Sequence[Port]"]
FEW_STRAYS = 0.01  # share of a router's packets; fewer on another port do not contradict the topology


class PortPoint(CapturePoint):
    """The ports where a segment begins or ends, and their packets that pass it."""

    def __init__(
        self, paths: Sequence[str], reading: ReadOptions, choose: Callable[[PacketBatch], PacketBatch]
    ) -> None:
        super().__init__({path: path for path in paths}, reading)
        self._choose = choose

    def each(self, packet_id: PacketId, take: Take | None = None, into: Into | None = None) -> Iterator[Any]:
        """What is made of each batch of their packets, in this thread: the points share what chooses packets."""
        take = take if into is None else into.observe
        for batch in super().each(packet_id):
            chosen = self._choose(batch)
            yield chosen if take is None else take(chosen)


@dataclass
class Network:
    """The captures of a network, read only where needed."""

    topology: Topology
    folder: Folder
    method: Method
    interval_ns: int | None
    reading: ReadOptions
    slow_ns: int
    packets: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    forwarding: dict[str, Forwarding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from wirelag.network.forwarding import Prefixes

        self.ids = self.method.packet_id()
        self.routes, self.prefixes = self.folder.routes, Prefixes(self.topology)
        if not self.prefixes:
            raise WirelagError(
                f"{self.topology.name}: has no prefixes, so it is unknown where packets go; use the "
                'OSPF database, or add "prefixes" to the JSON'
            )

    def look(self, paths: Iterable[Sequence[str]], segments: Iterable[Segment]) -> None:
        """Find where flows enter and leave the routers of these paths, and those beside their virtual links."""
        from wirelag.network.forwarding import Forwarding

        routers = {router for path in paths for router in path} & self.folder.routers
        for segment in segments:
            routers |= self.folder.passed(segment) if segment.kind == "virtual" else set()
        for router in sorted(routers):
            seen = Forwarding(router, self.topology, self.routes, self.prefixes)
            for port in (*self.folder.ports(router, "in"), *self.folder.ports(router, "out")):
                file = self.folder.files[port]
                point = CapturePoint({file: file}, self.reading)
                try:
                    for batch in point.batches(self.ids):
                        seen.observe(port.way, port.neighbour, batch)
                except WirelagError as error:
                    raise WirelagError(f"{error}; repair this capture, or leave it out") from None
                self._count(point)
            self.forwarding[router] = seen

    def _count(self, point: CapturePoint) -> None:
        if point.read:
            self.warnings += point.read.warnings
            self.packets += point.read.statistics.packets
            for reason, count in point.read.statistics.skipped.items():
                self.skipped[reason] = self.skipped.get(reason, 0) + count

    def measure(self, segments: Sequence[Segment]) -> list[SegmentReport]:
        """Report each segment that packets passed; a note says why another has no report."""
        found = []
        virtual = [str(segment) for segment in segments if segment.kind == "virtual"]
        if virtual:
            self.notes.append(f"{', '.join(virtual)}: flows of which no packet arrived are not counted as loss")
        for segment in segments:
            ends = self.folder.ends(segment)
            if ends is None:
                continue
            try:
                found.append(self._between(segment, *ends))
            except WirelagError as error:
                sent, arrived = (self._passing(segment, ends, side) for side in (0, 1))
                if sent and not arrived:
                    found.append(_lost(segment, sent, self.method.estimator))
                else:
                    self.notes.append(f"{segment} was not measured: {error}")
        return found

    def _between(self, segment: Segment, up: Sequence[Port], down: Sequence[Port]) -> SegmentReport:
        from wirelag.measure.oneway import floor_of, measure_pair
        from wirelag.measure.oneway_notes import explanations
        from wirelag.network.certainty import sample_error
        from wirelag.network.reports import report_of, surer
        from wirelag.packets.addresses import Direction

        begins, stops = (self._point(segment, (up, down), side) for side in (0, 1))
        between = PointPair(begins, stops, self.ids, 0, self.interval_ns is not None)
        measured = measure_pair(
            between, self.method, direction=Direction(), relation="none", interval_ns=self.interval_ns
        )
        whole = measured.whole
        content = whole.report(measured.estimator).to_json("oneway") | {"floor": floor_of(whole)}
        if content["mean"] is not None and content["floor"] is not None:  # sums may err, but no floor exceeds the mean
            content["floor"] = min(content["floor"], content["mean"])
        intervals = [entry.report.to_json() for entry in measured.entries]
        report = report_of(content | {"intervals": intervals}, str(segment), segment)
        # The error of the whole is learned from its packets: it does not depend on the intervals that are shown.
        report = replace(report, whole=report_of(content, str(segment), segment).whole)
        # What a mean hides matters only where that could be slow.
        matters = self._matters(report.whole) or whole.tail.negative
        slight = set() if matters else set(explanations(measured))
        self.notes += [f"{segment}: {note}" for note in measured.notes if note not in slight]
        self.notes += self._drift(segment, whole.tail) if segment.kind != "inside" else []
        seen = sample_error(whole.tail.sent_ns, whole.tail.delays_ns, whole.tail.weights)
        return replace(report, whole=surer(report.whole, seen, "batches"))

    def _point(self, segment: Segment, ends: Ends, side: int) -> PortPoint:
        """Where a segment begins (0) or ends (1)."""
        from wirelag.network.forwarding import select

        def passing(batch: PacketBatch) -> PacketBatch:
            if segment.kind == "link":
                return batch
            if segment.kind == "inside":
                return self.forwarding[segment.at].select(batch, segment.before, segment.after)
            return select(batch, lambda flow: self._on_virtual(segment, *ends, flow))

        files = [self.folder.files[port] for port in ends[side]]
        return PortPoint(files, self.reading, passing)

    def _passing(self, segment: Segment, ends: Ends, side: int) -> int:
        """The packets there."""
        return sum(len(batch) for batch in self._point(segment, ends, side).batches(self.ids))

    def _drift(self, segment: Segment, tail: DelaySample) -> list[str]:
        """Note where drifting clocks change what a segment seems to add."""
        import numpy as np

        from wirelag.clocks.fit import fit

        none = np.empty(0, np.int64)
        skew = abs(fit(tail.sent_ns, tail.sent_ns + tail.delays_ns, none, none).skew)
        span_ns = int(np.ptp(tail.sent_ns)) if len(tail) else 0
        if skew * span_ns < self.slow_ns / 10:
            return []
        return [
            f"{segment}: its shortest delay changes by {skew * 1e6:.3g} us a second: the clocks of its ends drift "
            "apart, and what it adds includes that"
        ]

    def _matters(self, figures: Figures) -> bool:
        return max(figures.above or 0.0, figures.std or 0.0) * 1e9 > self.slow_ns

    def _on_virtual(self, segment: Segment, up: Sequence[Port], down: Sequence[Port], flow: int) -> bool:
        """Whether a flow goes from one end of a virtual link to the other, and past no other router that can see it."""
        left, entered = self.forwarding[segment.at].left_by(flow), self.forwarding[segment.after].entered_by(flow)
        if left not in {port.neighbour for port in up} or entered not in {port.neighbour for port in down}:
            return False
        return not any(self.forwarding[router].saw(flow) for router in self.folder.passed(segment))

    def shares(self, source: str, target: str) -> dict[tuple[str, str], float]:
        """How many packets of a route went to each of its links, at every router."""
        found: dict[tuple[str, str], float] = {}
        for router in {router for path in self.routes.paths(source, target) for router in path[:-1]}:
            if router in self.forwarding:
                found |= self.forwarding[router].shares(source, target)
        return found

    def unassigned(self) -> dict[str, dict[str, Any]]:
        """For each router: packets that entered, the share with no known egress, and why."""
        from wirelag.network.forwarding import ELSEWHERE, OWN, TWO_WAYS

        told = {}
        for router, forwarding in sorted(self.forwarding.items()):
            reasons: Counter[str] = forwarding.reasons()
            own = reasons.pop(OWN, 0)
            packets, assigned = reasons.total(), reasons.pop("", 0)
            share = 1 - assigned / packets if packets else 0.0
            told[router] = {"packets": packets, "share": share, "own": own, "reasons": dict(reasons)}
            if reasons[ELSEWHERE] + reasons[TWO_WAYS] > FEW_STRAYS * packets:
                strays = (reasons[ELSEWHERE] + reasons[TWO_WAYS]) / packets
                self.notes.append(
                    f"{strays:.1%} of what entered {router} left where {self.topology.name} does not send it, or on "
                    "several ports: routes have changed; use captures and a topology of the same time"
                )
        return told


def _lost(segment: Segment, sent: int, estimator: str) -> SegmentReport:
    """The report of a segment on which all packets sent were lost."""
    from wirelag.network.localise import Figures
    from wirelag.network.reports import SegmentReport

    return SegmentReport(segment, str(segment), estimator, Figures(sent=sent, lost=sent))
