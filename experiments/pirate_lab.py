"""Shared by the Pirate experiments: scenarios of the lab, recorded, estimated and scored. The lab needs root."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from lab.run import flow_key, run
from lab.scenarios import Scenario
from lab.score import CLOSE, Score, batches, errors, score
from wirelag.capture.files import Capture
from wirelag.estimators.pirate import Method, Pirate
from wirelag.packets.roles import Roles
from wirelag.synopses.epochs import REASONS, TUNNEL, Epochs

LITERAL = "modes, literal"
SEED = 1
QUICK_S = 2.0
OF_CONNECTIONS = (0.5, 0.7, 0.9, 1.0)
FEW = 0.05  # of a connection's epochs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """A scenario that was run."""

    capture: Path  # the client's packets
    truth: pl.DataFrame
    both: Path | None
    in_kernel: Epochs | None = None  # measured in the kernel meanwhile


def need_root() -> None:
    """End the program if the lab cannot run."""
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)


@contextmanager
def recorded(
    scenario: Scenario, seconds: float | None = None, seed: int = SEED, in_kernel: Method | None = None
) -> Iterator[Recorded]:
    """Run a scenario; its files exist as long as the context."""
    with TemporaryDirectory() as folder:
        done = run(replace(scenario, seconds=seconds) if seconds else scenario, seed, Path(folder), in_kernel)
        assert done.truth is not None
        inside = Epochs(np.load(done.epochs)) if done.epochs else None
        yield Recorded(done.capture, pl.read_parquet(done.truth), done.both, inside)


def answered(capture: Path, estimator: Pirate) -> Epochs:
    """The epochs of an estimator."""
    meter, roles = estimator.meter("tap"), Roles()
    for batch in Capture([str(capture)]):
        meter.observe(batch[np.flatnonzero(roles.from_client(batch))])
    return meter.finish()


def estimator_of(method: str, gap_ns: int = 1_000_000) -> Pirate:
    """A method by name, including the literal `modes`."""
    for known in ("gap", "modes", "ack", "window", "syn", "auto", "blind"):
        if method == known:
            return Pirate(known, gap_ns=gap_ns)
    assert method == LITERAL
    return Pirate("modes", literal=True)


def answers(epochs: Epochs, batch: bool = False) -> pl.DataFrame:
    """Epochs in the format of `lab.score`; `batch`: when batches were complete."""
    rows, of = epochs.rows, "batch_" if batch else ""
    count = rows[f"{of}count"]
    mean_ns = rows[f"{of}sum_ns"] / np.maximum(count, 1)
    return pl.DataFrame(
        {
            "flow_key": pl.Series([_flow_key(row) for row in rows], dtype=pl.UInt64),
            "start_ns": rows["start_ns"],
            "end_ns": rows["end_ns"],
            "mean_ns": pl.Series(np.where(count > 0, mean_ns, np.nan)).fill_nan(None),
        }
    )


def _flow_key(row: np.void) -> int:
    """The flow key as the truth has it; the key of a tunnel's epoch also depends on what the tunnel calls itself."""
    ports = int(row["ports"])
    if ports & TUNNEL:
        return flow_key(ports >> 32, ports >> 16 & 0xFFFF, ports & 0xFF)
    return int(row["key"])


def scored(record: Recorded, method: str = "auto", gap_ns: int = 1_000_000) -> Score:
    """The score of a method against the client's log."""
    return score(record.truth, answers(answered(record.capture, estimator_of(method, gap_ns))))


def scored_batches(record: Recorded) -> Score:
    """The same for `auto` and batches: from the first request to the end of the last response."""
    return score(batches(record.truth), answers(answered(record.capture, Pirate()), batch=True))


def compared(record: Recorded, method: str = "auto") -> pl.DataFrame:
    """Every epoch with an estimate: `mean_ns`, `true_ns`, `error`."""
    found = errors(record.truth, answers(answered(record.capture, estimator_of(method))))
    return found.filter(pl.col("error").is_not_null())


def of_connections(epochs: pl.DataFrame, kind: pl.Expr) -> tuple[Floats, Floats]:
    """By connection: the share of epochs that are wrong and of this kind; their mean |error|, where there are any."""
    wrong = (pl.col("error").abs() > CLOSE) & kind
    found = epochs.group_by("flow_key").agg(
        wrong.mean().alias("share"), pl.col("error").abs().filter(wrong).mean().alias("size")
    )
    return found["share"].to_numpy(), found["size"].drop_nulls().to_numpy()


def reasons(epochs: Epochs) -> str:
    """Why it abstained, most frequent first."""
    counts = np.bincount(epochs.rows["reason"][epochs.rows["count"] == 0], minlength=len(REASONS))
    return ",".join(REASONS[k] for k in np.argsort(-counts, kind="stable") if counts[k]) or "-"


def latencies_ns(truth: pl.DataFrame) -> Floats:
    """Latencies of all responses."""
    return (truth["t_response_ns"] - truth["t_request_ns"]).to_numpy().astype(np.float64)


def percent(share: float) -> str:
    """A share for tables; empty without an estimate."""
    return "-" if np.isnan(share) else f"{100 * share:.1f}"


def signed(share: float) -> str:
    """The same with its sign."""
    return "-" if np.isnan(share) else f"{100 * share:+.2f}"


def quantiles(values: Floats, *shares: float) -> list[float]:
    """Quantiles; NaN without values."""
    return [float(np.quantile(values, share)) if len(values) else float("nan") for share in shares]
