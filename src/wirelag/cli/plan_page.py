"""The page of `wirelag plan --html`: what was planned, in the shape the page wants."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Final

from wirelag.cli.output import write_html
from wirelag.cli.plan_table import costs_subject, costs_sum, failure_text

if TYPE_CHECKING:
    from wirelag.cli.plan_answer import Planned
    from wirelag.network.plan import Extent, Plan

MOST_DRAWN: Final = 2_000  # routers up to which others are drawn, to compare with


def write_page(path: str, planned: Planned) -> None:
    """Write it, or say why that is not possible."""
    from wirelag import __version__
    from wirelag.render.html.plan import PlanPage, render_plan

    page = PlanPage(
        title="Where to measure",
        subject=planned.plan.topology.name,
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        plan=planned.plan,
        curves=[(_name(planned), _extents(planned.plan)), *_drawn(planned)],
        costs=planned.costs,
        costs_text=[costs_subject(planned), costs_sum(planned)],
        failure=failure_text(planned),
        notes=planned.notes,
    )
    write_html(path, render_plan(page))


def _name(planned: Planned) -> str:
    return "routers drawn at random" if planned.strategy == "random" else f"this plan (by {planned.strategy})"


def _extents(plan: Plan) -> list[Extent]:
    return [plan.before, *(step.extent for step in plan.steps)]


def _drawn(planned: Planned) -> list[tuple[str, list[Extent]]]:
    """As many routers, but drawn: what the choice is worth."""
    from wirelag.network.plan import Plan

    plan = planned.plan
    chosen = sum(not step.given for step in plan.steps)
    if planned.strategy == "random" or not chosen or len(plan.topology.routers) > MOST_DRAWN:
        return []
    other = Plan(plan.topology, [step.router for step in plan.steps if step.given])
    other.choose(chosen, "random", planned.seed)
    return [("as many drawn at random", _extents(other))]
