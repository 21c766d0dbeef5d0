"""What `plan` has to say, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirelag.network.classes import RouterCost, Size
    from wirelag.network.plan import Extent, Plan, Turnover


@dataclass
class Planned:
    """A plan and what was asked about it."""

    plan: Plan
    strategy: str
    seed: int
    estimator: str
    size: Size
    classes: int
    interval_ns: int
    priced: list[str]  # the routers whose costs are told
    failed: list[tuple[str, str]]
    after: Plan | None  # with the links in `failed` gone
    is_brief: bool
    is_costed: bool

    @cached_property
    def costs(self) -> list[RouterCost]:
        """What measuring inside each router takes."""
        from wirelag.network.classes import router_cost

        of = self.size, self.classes, self.interval_ns
        return [router_cost(self.plan, router, *of) for router in self.priced]

    @cached_property
    def turnovers(self) -> list[Turnover]:
        """What changes for whom when the links fail."""
        from wirelag.network.plan import turnover

        return [] if self.after is None else list(turnover(self.plan, self.after))

    @cached_property
    def notes(self) -> list[str]:
        """What to know of the numbers."""
        notes = []
        steps = self.plan.steps
        if self.plan.is_capped:
            notes.append(
                "equal paths, or their hops, are more than 2^55 somewhere: numbers of paths and hops are lower bounds, "
                "and nobody knows the hops of a path"
            )
        if not any(self.plan.gains().values()) and steps:
            notes.append("every path to measure is one link: no other router would save anything")
        if self.after is not None:
            import rustworkx as rx

            whole, parts = (rx.is_strongly_connected(one.topology.graph) for one in (self.plan, self.after))
            if whole and not parts:
                notes.append("without what fails some routers do not reach each other: their paths have no successor")
            notes.append("while routes converge both are measured, what vanishes and what appears")
        return notes

    def to_json(self) -> dict[str, Any]:
        """The JSON contract."""
        plan, before, after = self.plan, self.plan.before, self.plan.extent
        topology = plan.topology
        answer: dict[str, Any] = {
            "command": "plan",
            "topology": {
                "name": topology.name,
                "routers": len(topology.routers),
                "links": len(topology.links),
                "notes": list(topology.notes),
            },
            "strategy": self.strategy,
            "seed": self.seed if self.strategy == "random" else None,
            "upgraded": plan.upgraded,
        }
        for name in ("probe_hops", "granularity", "shortest", "longest", "paths"):
            answer[name] = {"before": getattr(before, name), "after": getattr(after, name)}
        answer["steps"] = [{"router": step.router, "given": step.given} | _numbers(step.extent) for step in plan.steps]
        answer["routers"] = [self._watching(router) for router in topology.routers]
        answer["classes"] = {
            "estimator": self.estimator,
            "bytes": self.size.bytes,
            "wire_bytes": self.size.wire_bytes,
            "interval": self.interval_ns / 1e9,
            "classes": self.classes,
            "routers": [asdict(cost) for cost in self.costs],
        }
        answer["fail"] = self._failing()
        answer["notes"] = self.notes
        return answer

    def _watching(self, router: str) -> dict[str, Any]:
        links, virtual, inside = self.plan.watches(router)
        answer: dict[str, Any] = {"router": router, "upgraded": router in self.plan.upgraded}
        answer |= {"links": links, "virtual": virtual, "inside": inside}
        if not self.is_brief:
            answer["segments"] = [str(segment) for segment in self.plan.watched(router)]
        return answer

    def _failing(self) -> dict[str, Any] | None:
        if self.after is None:
            return None
        changes = [
            {"router": one.router} | {name: [str(s) for s in getattr(one, name)] for name in ("new", "gone", "changed")}
            for one in self.turnovers
        ]
        return {"links": [list(pair) for pair in self.failed], **_numbers(self.after.extent), "routers": changes}


def _numbers(extent: Extent) -> dict[str, Any]:
    return {name: getattr(extent, name) for name in ("paths", "probe_hops", "shortest", "longest", "granularity")}


def curve(planned: Planned) -> list[dict[str, Any]]:
    """A row for each upgrade, the first before any."""
    first = {"upgraded": 0, "router": None, "given": False} | _numbers(planned.plan.before)
    return [
        first,
        *(
            {"upgraded": i, "router": step.router, "given": step.given} | _numbers(step.extent)
            for i, step in enumerate(planned.plan.steps, 1)
        ),
    ]
