"""The error of estimates against what the client saw.

An estimate is for a flow and an epoch [start_ns, end_ns): the mean latency of the responses that ended in it. Its error
is signed and relative to the true mean over the same responses. Batches: from a batch's first request to the end of its
last response.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

CLOSE, FAR_OFF = 0.15, 0.50


@dataclass(frozen=True)
class Score:
    """The score of the epochs in which the client got at least one response."""

    epochs: int
    abstained: float  # share
    median: float  # median signed error of estimates; NaN: there was none
    close: float  # share of estimates within 15%
    far_off: float  # share of estimates off by more than 50%

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.epochs} epochs, abstained {self.abstained:.1%}, |median| {abs(self.median):.2%}, "
            f"within 15% {self.close:.1%}, off by more than 50% {self.far_off:.1%}"
        )


def batches(truth: pl.DataFrame) -> pl.DataFrame:
    """The truth with one row per batch instead of one per request."""
    return truth.group_by("flow_key", "round").agg(pl.col("t_request_ns").min(), pl.col("t_response_ns").max())


def errors(truth: pl.DataFrame, epochs: pl.DataFrame) -> pl.DataFrame:
    """`epochs` (flow_key, start_ns, end_ns, mean_ns; null: abstained) with `true_ns` and `error`.

    Epochs in which no response ended are left out: they have no truth.
    """
    flow = pl.col("flow_key")
    # Cumulative sums, so that an epoch's sum is the difference of two look-ups.
    ends = truth.sort("t_response_ns").select(
        "flow_key",
        pl.col("t_response_ns").alias("at_ns"),
        (pl.col("t_response_ns") - pl.col("t_request_ns")).cum_sum().over(flow).alias("sum_ns"),
        pl.int_range(1, pl.len() + 1).over(flow).alias("count"),
    )
    joined = epochs.with_row_index("row")
    for edge in ("start_ns", "end_ns"):
        # The last response strictly before the edge.
        joined = (
            joined.with_columns((pl.col(edge) - 1).alias("edge_ns"))
            .sort("edge_ns")
            .join_asof(ends, left_on="edge_ns", right_on="at_ns", by="flow_key", check_sortedness=False)
            .rename({"sum_ns": f"sum_{edge}", "count": f"count_{edge}"})
            .drop("edge_ns", "at_ns", strict=False)
        )
    count = pl.col("count_end_ns").fill_null(0) - pl.col("count_start_ns").fill_null(0)
    total = pl.col("sum_end_ns").fill_null(0) - pl.col("sum_start_ns").fill_null(0)
    return (
        joined.filter(count > 0)
        .with_columns(true_ns=total / count)
        .with_columns(error=pl.col("mean_ns") / pl.col("true_ns") - 1)
        .sort("row")
        .select(*epochs.columns, "true_ns", "error")
    )


def score(truth: pl.DataFrame, epochs: pl.DataFrame) -> Score:
    """All epochs with responses, of all flows."""
    all_errors = errors(truth, epochs)["error"]
    answered = all_errors.drop_nulls()
    count = len(all_errors)
    return Score(
        epochs=count,
        abstained=1 - len(answered) / count if count else float("nan"),
        median=_number(answered.median()),
        close=_number((answered.abs() <= CLOSE).mean()),
        far_off=_number((answered.abs() > FAR_OFF).mean()),
    )


def main(truth_path: Path, epochs_path: Path) -> None:
    """Print the score of the estimates in a file."""
    truth, epochs = pl.read_parquet(truth_path), pl.read_parquet(epochs_path)
    print(score(truth, epochs))
    if "batch_mean_ns" in epochs.columns:
        answers = epochs.drop("mean_ns").rename({"batch_mean_ns": "mean_ns"})
        print("batches:", score(batches(truth), answers))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
