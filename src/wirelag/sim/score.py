"""The error of a report against the truth of a simulation. Times in a report are seconds, in the truth ns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

# The columns that identify the quantity of a truth.
NEEDED: Final = {
    "round_trip": ("kind", "leg", "delay_ns", "retransmitted"),
    "response": ("kind", "delay_ns", "last_ns"),
    "one_way": ("direction", "delay_ns", "lost"),
}


@dataclass(frozen=True)
class Line:
    """One statistic of a report beside its true value, in seconds; None: not in the report."""

    name: str
    estimate: float | None
    truth: float
    interval: tuple[float, float] | None

    @property
    def error(self) -> float | None:
        """Signed relative error, (estimate - truth) / truth."""
        if self.estimate is None or self.truth == 0:
            return None
        return (self.estimate - self.truth) / self.truth

    @property
    def covered(self) -> bool | None:
        """Whether the 95% interval contains the truth."""
        return None if self.interval is None else self.interval[0] <= self.truth <= self.interval[1]


@dataclass(frozen=True)
class FlowScore:
    """The flows of a report against their truth: medians of unsigned relative errors, share of intervals that cover it.

    None: no flow has the figure, or none has a true deviation above 0.
    """

    flows: int  # flows with a mean in both
    true_flows: int
    mean_error: float | None
    std_error: float | None
    covered: float | None

    def to_json(self) -> dict[str, Any]:
        """The JSON form, as part of a score."""
        return {
            "samples": {"estimate": self.flows, "truth": self.true_flows},
            "median_error": {"mean": self.mean_error, "std": self.std_error},
            "covered": self.covered,
        }


@dataclass(frozen=True)
class Score:
    """A report against the truth; `flows` if both distinguish flows."""

    quantity: str
    samples: int
    true_samples: int
    lines: tuple[Line, ...]
    flows: FlowScore | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the score."""
        return {
            "command": "score",
            "quantity": self.quantity,
            "samples": {"estimate": self.samples, "truth": self.true_samples},
            "statistics": [
                {
                    "name": line.name,
                    "estimate": line.estimate,
                    "truth": line.truth,
                    "relative_error": line.error,
                    "ci95": list(line.interval) if line.interval else None,
                    "covered": line.covered,
                }
                for line in self.lines
            ],
            "flows": self.flows.to_json() if self.flows else None,
        }


def true_delays(
    truth: pl.DataFrame, quantity: str, kind: str | None = None, leg: str | None = None, direction: str = "forward"
) -> npt.NDArray[np.float64]:
    """The delays in seconds that a perfect tool would report.

    Round trips: those whose request was seen once and whose own arrival triggered the acknowledgement.
    """
    needed = NEEDED.get(quantity)
    if needed is None:
        raise ValueError(f"unknown quantity {quantity!r}; known: {', '.join(NEEDED)}")
    missing = [name for name in needed if name not in truth.columns]
    if missing:
        raise ValueError(
            f"no column {missing[0]!r}, which the truth of a {quantity} needs: "
            "score a report with the truth of its own capture"
        )
    if quantity == "round_trip":
        truth = truth.filter(~pl.col("retransmitted"))
    elif quantity == "one_way":
        truth = truth.filter(~pl.col("lost") & (pl.col("direction") == direction))
    for column, value in (("kind", kind), ("leg", leg)):
        if value is not None:
            if column not in truth.columns:
                raise ValueError(f"the truth of a {quantity} has no {column}: leave --{column} out")
            truth = truth.filter(pl.col(column) == value)
    if truth.is_empty():
        raise ValueError(f"no true {quantity} delay is left: choose another kind, leg or direction")
    return truth["delay_ns"].cast(pl.Float64).to_numpy() / 1e9


def score(
    report: Mapping[str, Any],
    truth: pl.DataFrame,
    kind: str | None = None,
    leg: str | None = None,
    direction: str = "forward",
) -> Score:
    """Compare mean, standard deviation and quantiles of a report with those of the true delays."""
    quantity = report.get("quantity")
    if not isinstance(quantity, str):
        raise ReportError('no "quantity": use the JSON of wirelag rtt, response, oneway or flows')
    samples = report.get("samples")
    if not isinstance(samples, int) or isinstance(samples, bool):
        raise ReportError('"samples" is not an integer')
    quantiles = _mapping(report, "quantiles")
    intervals = _mapping(report, "ci95")
    if quantity not in NEEDED:
        raise ReportError(f'"quantity" is {quantity!r}, must be one of {", ".join(NEEDED)}')
    if leg is None and report.get("leg") in ("server", "client"):
        leg = str(report["leg"])  # a report of one leg is held against its truth
    delays = true_delays(truth, quantity, kind, leg, direction)
    true_values = {"mean": float(delays.mean()), "std": float(delays.std())}
    estimates = {name: _number(report, name) for name in true_values}
    for name in quantiles:
        true_values[name] = float(np.quantile(delays, _share(name)))
        estimates[name] = _number(quantiles, name)
    lines = [Line(name, estimates[name], value, _interval(intervals, name)) for name, value in true_values.items()]
    return Score(quantity, samples, len(delays), tuple(lines), _score_flows(report, truth))


def _score_flows(report: Mapping[str, Any], truth: pl.DataFrame) -> FlowScore | None:
    """Every flow of the report against all of its packets that arrived."""
    rows = report.get("flows")
    if rows is None or "flow" not in truth.columns:
        return None
    if not isinstance(rows, list) or not all(
        isinstance(row, Mapping) and isinstance(row.get("key"), str) for row in rows
    ):
        raise ReportError('"flows" is not a list of objects with a "key"')
    intervals = [_interval(row, "ci95") for row in rows]
    said = pl.DataFrame(
        {
            "flow": [row["key"] for row in rows],
            "mean": [_number(row, "mean") for row in rows],
            "std": [_number(row, "std") for row in rows],
            "low": [pair[0] if pair else None for pair in intervals],
            "high": [pair[1] if pair else None for pair in intervals],
        },
        schema={"flow": pl.String} | dict.fromkeys(("mean", "std", "low", "high"), pl.Float64),
    )
    delay = pl.col("delay_ns") / 1e9
    true = (
        truth.filter(~pl.col("lost"))
        .group_by("flow")
        .agg(delay.mean().alias("true_mean"), delay.std(ddof=0).alias("true_std"))
    )
    both = said.join(true, on="flow").filter(pl.col("mean").is_not_null())
    varied = both.filter(pl.col("true_std") > 0)
    figures = (
        both.select(((pl.col("mean") - pl.col("true_mean")) / pl.col("true_mean")).abs().median()).item(),
        varied.select(((pl.col("std") - pl.col("true_std")) / pl.col("true_std")).abs().median()).item(),
        both.select(pl.col("true_mean").is_between("low", "high").mean()).item(),
    )
    return FlowScore(both.height, true.height, *figures)


class ReportError(ValueError):
    """The report, not the truth, is at fault."""


def _mapping(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = report.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ReportError(f'"{name}" is not an object')
    return value


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ReportError(f'"{name}" is not a number')
    return float(value)


def _share(name: str) -> float:
    try:
        share = float(name)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ReportError(f'quantile "{name}" does not lie between 0 and 1')
    return share


def _interval(intervals: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    pair = intervals.get(name)
    if pair is None or pair == [None, None]:
        return None
    if not isinstance(pair, list) or len(pair) != 2:
        raise ReportError(f'the 95% interval of "{name}" is not [low, high]')
    low, high = (_number({name: value}, name) for value in pair)
    return None if low is None or high is None else (low, high)
