"""Results as OpenMetrics text, for Prometheus' textfile collector and whatever else reads it; times in seconds.

Law: one family for each figure, one sample for each row; a figure that is not known has no sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import WirelagError
from wirelag.render.rows import COUNTS, TEXTS

if TYPE_CHECKING:
    from wirelag.measure.result import Result

_QUANTITY: Final = {"rtt": "round_trip", "response": "response", "oneway": "one_way", "flows": "flow", "stamp": "stamp"}
_LABELS: Final = ("scope", "key", "leg", "method")  # what tells rows apart
_PLAIN: Final = {"confidence", "in_flight"}  # neither a time nor a count of this measurement
_MOMENTS: Final = ("start", "end")
_COUNTED: Final = COUNTS | {"bytes", "timed", "references", "lost_low", "lost_high"}
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def text(result: Result) -> Iterator[str]:
    """The text, family by family, and its end."""
    if result.command not in _QUANTITY:
        raise WirelagError(f"{result.command} has no figures for OpenMetrics; {', '.join(_QUANTITY)} have")
    rows = [row for table in result.tables() for row in table.rows()]
    prefix = f"wirelag_{_QUANTITY[result.command]}"
    for name in rows[0] if rows else ():
        if name not in TEXTS and name not in _MOMENTS:
            yield from _family(prefix, name, rows)
    yield "# EOF\n"


def _family(prefix: str, figure: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    plain = figure.replace(".", "_")
    unit = "" if figure in _PLAIN else figure if figure == "bytes" else "seconds" if figure not in _COUNTED else ""
    name = f"{prefix}_{plain}" + (f"_{unit}" if unit and unit != plain else "")
    samples = [(row, row[figure]) for row in rows if row[figure] is not None and math.isfinite(row[figure])]
    if not samples:
        return
    yield f"# TYPE {name} gauge\n"
    if unit:
        yield f"# UNIT {name} {unit}\n"
    yield f"# HELP {name} {_help(figure)}\n"
    for row, value in samples:
        labels = {label: row[label] for label in _LABELS if row.get(label)}
        if row.get("start") is not None:
            labels["start"] = f"{row['start']:.3f}"  # an interval: its key is only for people
        inside = ",".join(f'{label}="{str(told).translate(_ESCAPES)}"' for label, told in labels.items())
        yield f"{name}{{{inside}}} {value!r}\n"


def _help(figure: str) -> str:
    bound = figure.rpartition("_")
    if bound[2] in ("low", "high"):
        end = "Lower" if bound[2] == "low" else "Upper"
        return f"{end} end of the 95% interval of {bound[0]}."
    return f"{figure.replace('_', ' ').capitalize()}, as the column {figure} of CSV."
