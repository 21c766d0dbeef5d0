"""Segments measured from a folder of captures at the ports of routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirelag.cli.points import CapturePoint
from wirelag.cli.points import Segment as Between
from wirelag.cli.progress import with_progress
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.filters import Filter
    from wirelag.intervals import Delimiters
    from wirelag.network.captures import Folder, Port
    from wirelag.network.forwarding import Forwarding
    from wirelag.network.reports import SegmentReport
    from wirelag.network.segments import Segment
    from wirelag.network.topology import Topology
    from wirelag.packets import PacketBatch, PacketId

Method = Callable[[int | None], tuple[Any, "Delimiters | None"]]
FEW_STRAYS = 0.01  # of a router's packets: fewer by another port say nothing of its topology


class PortPoint(CapturePoint):
    """Ports where a segment begins or ends: those of their packets that pass it."""

    def __init__(
        self, paths: Sequence[str], wanted: Filter, quiet: bool, choose: Callable[[PacketBatch], PacketBatch]
    ) -> None:
        super().__init__(paths[0], wanted, tunnels=False, quiet=quiet)
        self.name = " and ".join(paths)
        self._paths, self._wanted, self._choose = paths, wanted, choose

    def batches(self, packet_id: PacketId) -> Iterator[PacketBatch]:
        """Their packets in order of time, with such ids."""
        from wirelag.io.capture import Capture

        self.read = Capture(self._paths, filter=self._wanted, packet_id=packet_id)
        return (self._choose(batch) for batch in with_progress(self.read, self._quiet))


@dataclass
class Network:
    """The captures of a network, read as far as they are needed."""

    topology: Topology
    folder: Folder
    method: Method
    interval_ns: int | None
    wanted: Filter
    ids: PacketId
    quiet: bool
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    forwarding: dict[str, Forwarding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from wirelag.network.forwarding import Prefixes

        self.routes, self.prefixes = self.folder.routes, Prefixes(self.topology)
        if not self.prefixes:
            raise WirelagError(
                f"{self.topology.name}: has no prefixes, so that nobody can say where packets go; take the "
                'OSPF database, or add "prefixes" to the JSON'
            )

    def look(self, segments: Iterable[Segment]) -> None:
        """See where flows enter and leave the routers of these segments."""
        from wirelag.network.forwarding import Forwarding

        routers = set()
        for segment in segments:
            routers |= {segment.at} if segment.kind == "inside" else set()
            routers |= {segment.at, segment.after, *self.folder.passed(segment)} if segment.kind == "virtual" else set()
        for router in sorted(routers):
            seen = Forwarding(router, self.topology, self.routes, self.prefixes)
            for port in (*self.folder.ports(router, "in"), *self.folder.ports(router, "out")):
                point = CapturePoint(self.folder.files[port], self.wanted, tunnels=False, quiet=self.quiet)
                for batch in point.batches(self.ids):
                    seen.observe(port.way, port.neighbour, batch)
                self.warnings += point.read.warnings if point.read else []
            self.forwarding[router] = seen

    def measure(self, segments: Iterable[Segment]) -> list[SegmentReport]:
        """A report of each that packets passed; of the others a note says why there is none."""
        found = []
        for segment in segments:
            ends = self.folder.ends(segment)
            if ends is None:
                continue
            try:
                found.append(self._between(segment, *ends))
            except WirelagError as error:
                self.notes.append(f"{segment} was not measured: {error}")
        return found

    def _between(self, segment: Segment, up: Sequence[Port], down: Sequence[Port]) -> SegmentReport:
        from wirelag.cli.oneway import floor_of, measure_segment
        from wirelag.courses import Direction
        from wirelag.network.forwarding import select
        from wirelag.network.reports import report_of

        def passing(batch: PacketBatch) -> PacketBatch:
            if segment.kind == "link":
                return batch
            if segment.kind == "inside":
                return self.forwarding[segment.at].select(batch, segment.before, segment.after)
            return select(batch, lambda flow: self._on_virtual(segment, up, down, flow))

        def point(ports: Sequence[Port]) -> PortPoint:
            return PortPoint([self.folder.files[port] for port in ports], self.wanted, self.quiet, passing)

        between = Between(point(up), point(down), self.ids, 0)
        measured = measure_segment(between, self.method, Direction(), "none", self.interval_ns, None)
        self.notes += [f"{segment}: {note}" for note in measured.notes]
        content = measured.whole.report(measured.estimator).to_json("oneway") | {"floor": floor_of(measured.whole)}
        content["intervals"] = [line.report.to_json() for line in measured.lines]
        return report_of(content, str(segment), segment)

    def _on_virtual(self, segment: Segment, up: Sequence[Port], down: Sequence[Port], flow: int) -> bool:
        """Whether a flow goes from one end of a virtual link to the other, and past no other router that can see it."""
        left, entered = self.forwarding[segment.at].left_by(flow), self.forwarding[segment.after].entered_by(flow)
        if len(left) != 1 or len(entered) != 1:
            return False
        if not left <= {port.neighbour for port in up} or not entered <= {port.neighbour for port in down}:
            return False
        return not any(self.forwarding[router].entered_by(flow) for router in self.folder.passed(segment))

    def shares(self, source: str, target: str) -> dict[tuple[str, str], float]:
        """How many packets of a route were seen to take each of its links."""
        found: dict[tuple[str, str], float] = {}
        for router in {router for path in self.routes.paths(source, target) for router in path[:-1]}:
            if router in self.forwarding:
                found |= self.forwarding[router].shares(source, target)
        return found

    def unassigned(self) -> dict[str, dict[str, Any]]:
        """Of each router: packets that entered, the share that was given to no egress, and why."""
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
                    f"{strays:.1%} of what entered {router} left where {self.topology.name} does not send it, or by "
                    "several ports: routes changed meanwhile; take captures and topology of one time"
                )
        return told
