"""Groups of round trips in order, and those that break an agreement.

No report is made for that: there may be a million groups. Law: a group's place, and whether it breaks an agreement, are
those that its own delays give (`Distribution`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wirelag.packets.grouping import OTHER
from wirelag.stats.distributions import Distributions
from wirelag.stats.sla import Sla
from wirelag.synopses.connections import Connections
from wirelag.synopses.group_delays import GroupDelays
from wirelag.synopses.samples import LEGS

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.uint32]


def order(groups: GroupDelays, leg: str, sort: str, connections: Connections) -> Places:
    """The largest figure of a leg first; then groups without delays there, by the other leg; "other" last.

    `connections` have the round trips of both legs together.
    """
    places = groups.places()
    values, others = np.full(len(places), np.nan), np.zeros(len(places))
    for some, legs in groups.many():
        each = [_figure(one, sort) for one in legs]
        others[some] = np.nan_to_num(np.fmax(*each))
        if leg in LEGS:
            values[some] = each[LEGS.index(leg)]
        elif leg != "both":
            values[some] = _figure(legs[0].plus(legs[1]), sort)
    if leg == "both":
        tags, whole = connections.distributions()
        known = np.append(_figure(whole, sort), np.nan)
        mine = groups.tags_and_before()[0]
        at = np.searchsorted(tags, mine)
        found = np.append(tags, OTHER)[at] == mine
        values[: len(mine)] = known[np.where(found, at, len(tags))]
    without = np.isnan(values)
    return places[np.lexsort((-np.where(without, others, values), without, places == 0))]


def _figure(delays: Distributions, name: str) -> Floats:
    """A figure by its name in tables, in seconds; NaN without delays."""
    if name == "samples":
        return delays.samples
    found = delays.quantile_ns(float(f"{float(name[1:]) / 100:g}")) if name[0] == "p" else getattr(delays, f"{name}_ns")
    return np.asarray(found / 1e9)


def failing(groups: GroupDelays, slas: Sequence[Sla], places: Places) -> dict[str, Places]:
    """Which of the groups at these places break an agreement, on its leg or on any, for each that is broken."""
    came = groups.places()
    fails = {sla.text: np.zeros(len(came), np.bool_) for sla in slas}
    for sla in slas:
        asked = [i for i, leg in enumerate(LEGS) if sla.leg in (None, leg)]
        for some, legs in groups.many():
            fails[sla.text][some] = np.any([sla.broken_by(legs[i]) for i in asked], axis=0)
        if not groups.complete:
            other = groups.delays(0)
            fails[sla.text][-1] = any(sla.holds(other[i]) is False for i in asked)
    return {text: places[np.isin(places, came[some])] for text, some in fails.items() if some.any()}
