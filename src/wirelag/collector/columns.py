"""A result as the values of a row: the columns that every store has, and both ways between them and a `Tally`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from wirelag.collector.tally import Tally
from wirelag.stats.moments import Moments

SINGLE: Final = (
    "estimator", "intervals", "missed", "covered_ns", "sent", "received", "loss_sent", "lost", "lost_low", "lost_high",
    "reordered", "duplicated", "unseen_up", "unseen_down", "clock_error_ns", "unsynchronised", "min_ns", "max_ns",
    "samples", "squares", "negative", "reason",
)  # fmt: skip
TEXTS: Final = {"estimator", "reason"}
FLOATS: Final = {"lost", "lost_low", "lost_high", "rest_ns", "squares_ns2", "doubt_ns2"}
MOMENTS: Final = tuple(one.name for one in fields(Moments))
LATER: Final = ("references_received", "references_lost", "checked", "overtaken")  # some files of version 1 lack them
_SINGLE, _MOMENTS, _LATER = (attrgetter(*names) for names in (SINGLE, MOMENTS, LATER))
COLUMNS: Final = (*SINGLE, *MOMENTS, "bins", *LATER)


def values_of(tally: Tally) -> list[Any]:
    """What is stored of a result, in the order of the columns."""
    return [*_SINGLE(tally), *_MOMENTS(tally.moments), tally.packed_bins(), *_LATER(tally)]


def tally_of(row: Sequence[Any]) -> Tally | None:
    """The inverse; None if the values are impossible, as those of older versions may be."""
    values = dict(zip(COLUMNS, row, strict=True))
    try:
        for name, value in zip(COLUMNS, row, strict=True):
            kind = type(value)
            if kind is str and name not in TEXTS:  # more than 63 bits
                values[name] = int(value)
            elif kind is float and not math.isfinite(value):
                return None
        bins, moments = values.pop("bins"), {name: values.pop(name) for name in MOMENTS}
        tally = Tally(**values, moments=Moments(**moments))
        tally.unpack_bins(bins)
    except (ValueError, TypeError, ArithmeticError, LookupError, zlib.error):
        return None
    return tally
