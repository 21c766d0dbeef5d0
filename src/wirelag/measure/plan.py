"""Where to measure: which routers to upgrade first, what that saves, and which segments each router watches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import WirelagError
from wirelag.measure.methods import Method
from wirelag.measure.result import Result
from wirelag.units import Duration, Share, duration_ns, one_of, share, size_bytes, within
from wirelag.units import Size as Bytes

if TYPE_CHECKING:
    from wirelag.network.classes import RouterCost, Size
    from wirelag.network.plan import Extent, Plan, Turnover
    from wirelag.network.topology import Topology

ESTIMATORS: Final = ("lda", "finecomb", "rda")
SHARE: Final = 0.15  # default share of the routers: more of them gain little


@dataclass(repr=False, eq=False)
class PlanResult(Result):
    """A plan, its costs, and the effect of failed links."""

    command: ClassVar[str] = "plan"
    plan: Plan
    strategy: str
    seed: int
    estimator: str
    size: Size
    classes: int
    interval_ns: int
    priced: list[str]  # routers whose costs are shown
    failed: list[tuple[str, str]]
    after: Plan | None  # without the links in `failed`
    is_brief: bool
    is_costed: bool
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def costs(self) -> list[RouterCost]:
        """The cost of measuring inside each router."""
        from wirelag.network.classes import router_cost

        of = self.size, self.classes, self.interval_ns
        return [router_cost(self.plan, router, *of) for router in self.priced]

    @cached_property
    def turnovers(self) -> list[Turnover]:
        """What changes for each router when the links fail."""
        from wirelag.network.plan import turnover

        return [] if self.after is None else list(turnover(self.plan, self.after))

    @cached_property
    def notes(self) -> list[str]:  # type: ignore[override]
        """Notes on the figures."""
        notes = []
        steps = self.plan.steps
        if self.plan.is_capped:
            notes.append(
                "equal paths, or their hops, exceed 2^55 somewhere: counts of paths and hops are lower bounds, "
                "and the hops of a path are unknown"
            )
        if not any(self.plan.gains().values()) and steps:
            notes.append("every path to measure is one link: upgrading another router would save nothing")
        if self.after is not None:
            import rustworkx as rx

            whole, parts = (rx.is_strongly_connected(one.topology.graph) for one in (self.plan, self.after))
            if whole and not parts:
                notes.append("after the failure some routers cannot reach each other: no path replaces theirs")
            notes.append("while routes converge, old and new segments are both measured")
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """A row for each upgrade; the first is before any."""
        first = {"upgraded": 0, "router": None, "given": False} | _numbers(self.plan.before)
        steps = enumerate(self.plan.steps, 1)
        return [
            first,
            *({"upgraded": i, "router": step.router, "given": step.given} | _numbers(step.extent) for i, step in steps),
        ]

    def parts(self) -> Iterable[dict[str, Any]]:
        return self.rows()

    def table(self) -> list[str]:
        from wirelag.render.plan import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.plan_page import page

        return page(self)

    def to_dict(self) -> dict[str, Any]:
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


def plan(
    topology: str | PathLike[str],
    *,
    upgrade: int | None = None,
    strategy: str = "count",
    upgraded: Sequence[str] | str = (),
    seed: int = 0,
    fail: Sequence[str] | str = (),
    router: Sequence[str] | str | None = None,
    interval: Duration = "1s",
    classes: int = 1,
    estimator: str = "lda",
    rows: int | None = None,
    tail: int = 2048,
    packets_per_interval: int = 100_000,
    loss: Share = "0.1%",
    synopsis: Bytes | None = None,
    brief: bool = False,
) -> PlanResult:
    """Plan where to measure: which routers to upgrade first, what that saves, and what each router watches.

    `upgraded` routers can measure already; `fail` names links (`A-B`) whose failure to examine.
    """
    from wirelag.network.plan import STRATEGIES, Plan
    from wirelag.network.topology import read_topology

    upgraded, fail = ([given] if isinstance(given, str) else given for given in (upgraded, fail))
    router = [router] if isinstance(router, str) else router
    one_of(strategy, STRATEGIES, "strategy")
    if upgrade is not None:
        within(upgrade, 0, 1 << 16, "upgrade")
    within(classes, 1, 1 << 16, "classes")
    within(seed, 0, (1 << 64) - 1, "seed")
    interval_ns = duration_ns(interval, "interval")
    size = _size(estimator, rows, tail, packets_per_interval, loss, synopsis)
    network = read_topology(fspath(topology))
    given = routers_of(upgraded, network)
    for name in router or ():
        network.check(name)
    pairs = [_pair(text, network) for text in fail]
    found = Plan(network, given)
    found.choose(_wanted(upgrade, network, given), strategy, seed)  # type: ignore[arg-type]
    return PlanResult(
        found,
        strategy,
        seed,
        estimator if synopsis is None else "given",
        size,
        classes,
        interval_ns,
        found.upgraded if router is None else list(dict.fromkeys(router)),
        pairs,
        Plan(network.without(*pairs), found.upgraded) if pairs else None,
        is_brief=brief,
        is_costed=router is not None or interval_ns != 10**9 or classes != 1,
    )


def _wanted(upgrade: int | None, network: Topology, given: list[str]) -> int:
    """How many routers to choose."""
    if upgrade is None:
        return 0 if given else math.ceil(SHARE * len(network.routers))
    if upgrade + len(given) > len(network.routers):
        raise WirelagError(
            f"{network.name}: cannot upgrade {upgrade} more routers, only "
            f"{len(network.routers) - len(given)} are left; give a smaller --upgrade"
        )
    return upgrade


def _size(estimator: str, rows: int | None, tail: int, packets: int, loss: Share, synopsis: Bytes | None) -> Size:
    """How large a synopsis is."""
    from wirelag.network.classes import Size

    within(packets, 1, 1 << 40, "packets_per_interval")
    if synopsis is not None:
        size = within(size_bytes(synopsis, "synopsis"), 1, 1 << 40, "synopsis")
        return Size(size, size)
    one_of(estimator, ESTIMATORS, "estimator")
    return Size.of(Method(estimator=estimator, rows=rows, tail=tail).make(), packets, share(loss, "loss"))


def routers_of(texts: Iterable[str], network: Topology) -> list[str]:
    """Routers by name; a name may contain commas, so a known name is not split at them."""
    known = set(network.routers)
    names = [name for text in texts for name in ([text] if text in known else text.split(","))]
    for name in names:
        network.check(name)
    return names


def _pair(text: str, network: Topology) -> tuple[str, str]:
    """The two routers of a link, A>B or A-B; names may contain hyphens, so each is tried."""
    if ">" in text:
        one, _, other = text.partition(">")
        return one, other
    known = set(network.routers)
    cuts = [(text[:i], text[i + 1 :]) for i, char in enumerate(text) if char == "-"]
    found = [pair for pair in cuts if known.issuperset(pair)]
    if len(found) != 1:
        why = "could mean several links" if found else "does not name two routers"
        raise WirelagError(f"{network.name}: --fail {text} {why}; write it as 'A>B'")
    return found[0]
