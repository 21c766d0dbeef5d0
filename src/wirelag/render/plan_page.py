"""The page of `wirelag plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wirelag.render.html.plan import PlanPage, render_plan
from wirelag.render.plan import costs_subject, costs_sum, failure_text

if TYPE_CHECKING:
    from wirelag.measure.plan import PlanResult
    from wirelag.network.plan import Extent, Plan

MOST_DRAWN: Final = 2_000  # routers; with more, no random choice is drawn to compare


def page(planned: PlanResult) -> str:
    """The page of a plan."""
    return render_plan(
        PlanPage(
            title="Where to measure",
            subject=planned.plan.topology.name,
            command_line=planned.command_line,
            plan=planned.plan,
            curves=[(_name(planned), _extents(planned.plan)), *_drawn(planned)],
            costs=planned.costs,
            costs_text=[costs_subject(planned), costs_sum(planned)],
            failure=failure_text(planned),
            warnings=[*planned.plan.topology.notes, *planned.notes],
        )
    )


def _name(planned: PlanResult) -> str:
    return "random routers" if planned.strategy == "random" else f"this plan (by {planned.strategy})"


def _extents(plan: Plan) -> list[Extent]:
    return [plan.before, *(step.extent for step in plan.steps)]


def _drawn(planned: PlanResult) -> list[tuple[str, list[Extent]]]:
    """As many routers at random, to show what the plan's choice gains."""
    from wirelag.network.plan import Plan

    plan = planned.plan
    chosen = sum(not step.given for step in plan.steps)
    if planned.strategy == "random" or not chosen or len(plan.topology.routers) > MOST_DRAWN:
        return []
    other = Plan(plan.topology, [step.router for step in plan.steps if step.given])
    other.choose(chosen, "random", planned.seed)
    return [("as many random routers", _extents(other))]
