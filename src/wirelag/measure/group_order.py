"""Groups of round trips in order, and those that break an agreement.

No report is made for that: there may be a million groups. Law: a group's place, and whether it breaks an agreement, are
those that its own delays give (`Distribution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wirelag import _kernels
from wirelag.packets.grouping import OTHER
from wirelag.stats.ranking import FEWEST, Few, fewest
from wirelag.synopses.samples import LEGS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.stats.distributions import Distributions
    from wirelag.stats.sla import Sla
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_delays import GroupDelays

    Floats: TypeAlias = npt.NDArray[np.float64]

Places: TypeAlias = "memoryview[int]"
"""The places of groups in memory."""


def order(groups: GroupDelays, leg: str, sort: str, connections: Connections) -> tuple[Places, Few]:
    """The largest figure of a leg first, then groups with too few samples for a place.

    Groups without delays of that leg follow, by the other leg; "other" is last. `connections` have the round trips of
    both legs together.
    """
    name, q = ("quantile", _share(sort)) if sort[0] == "p" else (sort, 0.0)
    given: tuple[Floats, ...] = ()
    of_leg = LEGS.index(leg) if leg in LEGS else len(LEGS)
    if leg == "both":
        import numpy as np

        whole, at = _both(groups, connections)
        given = tuple(np.append(_figure(whole, name), np.nan)[at] for name in (sort, "samples"))
    places, enough, few = _kernels.group_order(groups.kernel, name, q, fewest(sort), of_leg, *given)
    return places, (enough, few)


def _share(sort: str) -> float:
    return float(f"{float(sort[1:]) / 100:g}")


def _tags(groups: GroupDelays) -> npt.NDArray[np.uint64]:
    """What decides between equal figures: not which group came first, which depends on who read what."""
    import numpy as np

    return np.append(groups.tags_and_before()[0], np.zeros(int(not groups.complete), np.uint64))


def _figure(delays: Distributions, name: str) -> Floats:
    """A figure by its name in tables, in seconds; NaN without delays."""
    if name == "samples":
        return delays.samples
    found: Floats = delays.quantile_ns(_share(name)) if name[0] == "p" else getattr(delays, f"{name}_ns")
    return found / 1e9


def _both(groups: GroupDelays, connections: Connections) -> tuple[Distributions, npt.NDArray[np.intp]]:
    """The round trips of both legs together, and which of them are those of each group; one beyond: it has none."""
    import numpy as np

    tags, whole = connections.distributions()
    mine = groups.tags_and_before()[0]
    at = np.searchsorted(tags, mine)
    return whole, np.where(np.append(tags, OTHER)[at] == mine, at, len(tags))


def failing(
    groups: GroupDelays, slas: Sequence[Sla], connections: Connections
) -> dict[str, tuple[Any, Floats, Floats]]:
    """Which groups break an agreement, on its leg or on any, worst first, with values (ns, or shares) and samples.

    Those with too few samples for a place come last.
    """
    import numpy as np

    came, samples = groups.places(), np.zeros(len(groups.places()))
    found: dict[str, tuple[Any, Floats, Floats]] = {}
    for sla in slas:
        worst = np.full(len(came), -np.inf)  # of those that break it
        if sla.leg == "both":
            whole, at = _both(groups, connections)
            worst[: len(at)] = np.append(_breaking(sla, whole), -np.inf)[at]
            samples[: len(at)] = np.append(whole.samples, 0)[at]
            others = [connections.distribution(int(OTHER))]
        else:
            asked = [i for i, leg in enumerate(LEGS) if sla.asks(leg)]
            for some, legs in groups.many():
                each = np.array([_breaking(sla, legs[i]) for i in asked])
                worst[some], at_leg = each.max(axis=0), each.argmax(axis=0)
                samples[some] = np.choose(at_leg, [legs[i].samples for i in asked])
            others = [groups.delays(0)[i] for i in asked]
        if not groups.complete:
            worst[-1] = max((sla.value(one) or 0.0 for one in others if sla.holds(one) is False), default=-np.inf)
        broken = np.flatnonzero(worst > -np.inf)
        if len(broken):
            broken = broken[np.lexsort((_tags(groups)[broken], -worst[broken], samples[broken] < FEWEST))]
            found[sla.text] = came[broken], worst[broken], samples[broken]
    return found


def _breaking(sla: Sla, delays: Distributions) -> Floats:
    """The values of those that break an agreement; the others are below any."""
    import numpy as np

    return np.where(sla.broken_by(delays), sla.values(delays), -np.inf)
