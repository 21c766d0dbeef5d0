"""A crossing in a few numbers: the form in which a result travels if one point has measured both ends.

Law: what is read back gives the same figures: counts, moments, order, and a sample of single delays with their weights.
When the sampled packets were sent does not travel, nor do packets that wait for their counterpart. Every number has a
bound, so that sums of many still fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from wirelag.codec import MOST_COUNT, array_of, number_of
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.reordering import Order

MOST_NS: Final = 1 << 62  # of one delay
MOST_SUM: Final = 1 << 100  # of all delays
MOST_REAL: Final = 1e40
MOST_DELAYS: Final = 1 << 16
_MOMENTS: Final = ("rest_ns", "squares_ns2", "doubt_ns2")  # real numbers


def to_fields(crossing: Crossing) -> dict[str, Any]:
    """Named numbers, and the sampled delays."""
    moments = crossing.moments
    return {
        "sent": crossing.sent,
        "received": crossing.received,
        "used": moments.used,
        "sum_ns": moments.sum_ns,
        "weight": moments.weight,
        "known": moments.known,
        **{name: float(getattr(moments, name)) for name in _MOMENTS},
        "duplicated": crossing.duplicated,
        "reordered": crossing.reordered,
        "checked": crossing.order.checked,
        "overtaken": crossing.order.overtaken,
        "min_ns": crossing.min_ns,
        "max_ns": crossing.max_ns,
        "why": crossing.reason,
        "delays_ns": crossing.tail.delays_ns,
        "weights": crossing.tail.weights,
    }


def from_fields(fields: Mapping[str, Any]) -> Crossing:
    """The inverse of `to_fields`; a ValueError if the numbers are impossible."""
    used, weight, known, checked, overtaken = (
        number_of(fields, name) for name in ("used", "weight", "known", "checked", "overtaken")
    )
    if not used <= weight or not known <= weight or not overtaken <= checked:
        raise ValueError("has more packets than there were")
    delays_ns, weights = (array_of(fields, name, np.int64) for name in ("delays_ns", "weights"))
    if len(delays_ns) != len(weights) or len(weights) > MOST_DELAYS:
        raise ValueError("has a sample of delays that is none")
    if len(weights) and not (int(weights.min()) >= 1 and int(weights.max()) < MOST_COUNT // MOST_DELAYS):
        raise ValueError("has weights that no sample has")
    if len(delays_ns) and max(-int(delays_ns.min()), int(delays_ns.max())) > MOST_NS:
        raise ValueError("has a delay that is too long")
    why = fields["why"]
    if why is not None and not isinstance(why, str):
        raise ValueError("has a reason that is no text")
    squares = {name: _real(fields[name], name == "rest_ns") for name in _MOMENTS}
    return Crossing(
        number_of(fields, "sent"),
        number_of(fields, "received"),
        Moments(used, _whole(fields["sum_ns"], MOST_SUM), weight, known=known, **squares),
        duplicated=None if fields["duplicated"] is None else number_of(fields, "duplicated"),
        reordered=None if fields["reordered"] is None else number_of(fields, "reordered"),
        order=Order(checked, overtaken),
        tail=DelaySample(np.zeros(len(delays_ns), np.int64), delays_ns, weights),
        min_ns=None if fields["min_ns"] is None else _whole(fields["min_ns"], MOST_NS),
        max_ns=None if fields["max_ns"] is None else _whole(fields["max_ns"], MOST_NS),
        reason=why,
    )


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not -most <= value <= most:
        raise ValueError("has a value that should be an integer but is not")
    return value


def _real(value: Any, signed: bool) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > MOST_REAL:
        raise ValueError("has a value that should be a number but is not")
    if value < 0 and not signed:
        raise ValueError("has a variance below 0")
    return float(value)
