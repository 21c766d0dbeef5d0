"""Pirate: `auto` on a folder of captures of all kinds: estimates from client packets alone, beside exact exchanges.

Every capture below FOLDER is reduced to the packets of its clients. An epoch has a truth if an exchange of its flow
began in it, and is clean if there are at least four, none of them overlapping, pipelined or cut. Captures are those of
shared/data/wild beside the repository, or below the folder in WIRELAG_SHARED_DATA, unless FOLDER is given. `--rows`
writes a row per epoch with all that is known of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import polars as pl
from traces import show

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pirate_confidence import left_out_table, read_counts  # noqa: E402
from pirate_wild_rows import Row, rows_of  # noqa: E402

from wirelag.errors import WirelagError  # noqa: E402

CAPTURES = Path(os.environ.get("WIRELAG_SHARED_DATA") or ROOT.parent / "shared" / "data") / "wild"
BANDS = (0.0, 0.3, 0.5, 0.7, 0.85, 1.01)  # of confidence
LATENCIES = {"< 100 us": 1e-4, "< 1 ms": 1e-3, "< 10 ms": 1e-2, "< 100 ms": 1e-1, "more": float("inf")}
NOT_CAPTURES = (".tsv", ".csv", ".md", ".txt", ".json", ".parquet")
QUICK = 20  # captures
FAR, NEAR = 0.5, 0.25  # off by more than this; within that
SCORE = ("epochs", "off by > 50%", "within 25%", "share within 25%")
PROMISE = (*SCORE, "mean confidence", "difference, points")
ENOUGH = 30  # epochs


def captures_of(folder: Path = CAPTURES) -> list[Path]:
    """The captures below a folder."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in NOT_CAPTURES)


def one(path: Path) -> tuple[Path, list[Row], str]:
    """The rows of a capture, or the reason why there are none."""
    try:
        return path, rows_of(path), ""
    except (WirelagError, OSError, ValueError) as error:
        return path, [], str(error)


def scored(frame: pl.DataFrame) -> tuple[int, int, int, str]:
    error = (frame["estimate"] / frame["truth"] - 1).abs()
    near = int((error <= NEAR).sum())
    return len(frame), int((error > FAR).sum()), near, f"{near / len(frame):.0%}" if len(frame) else "-"


def kept(name: str, part: pl.DataFrame) -> tuple[object, ...]:
    """What was promised beside what came true, in points if there are enough epochs to tell."""
    score = scored(part)
    if not len(part):
        return name, *score, "-", "-"
    mean = float(part["confidence"].to_numpy().mean())
    return name, *score, f"{mean:.0%}", f"{100 * (score[2] / len(part) - mean):+.0f}" if len(part) >= ENOUGH else "-"


def by(frame: pl.DataFrame, name: str) -> list[tuple[object, ...]]:
    """Score the answered epochs of each value of a column, most epochs first; silent ones are counted."""
    rows: list[tuple[object, ...]] = []
    for (value,), part in frame.group_by([name], maintain_order=True):
        answered = part.filter(pl.col("count") > 0)
        sure = answered.filter(pl.col("confidence") >= 0.7)
        rows.append((value, len(part), *scored(answered), *scored(sure)[:2]))
    return sorted(rows, key=lambda row: (-int(str(row[1])), str(row[0])))


def tables(frame: pl.DataFrame) -> None:
    """Print the scores of all epochs with a truth, then those of clean ones."""
    told = frame.filter(pl.col("truth").is_not_null() & (pl.col("truth") > 0))
    answered, clean = told.filter(pl.col("count") > 0), told.filter("clean")
    clean_answered = clean.filter(pl.col("count") > 0)
    show(
        "epochs, and how many `auto` answers",
        ("epochs", "all", "answered", "share"),
        [
            (name, len(part), n := int((part["count"] > 0).sum()), f"{n / max(1, len(part)):.1%}")
            for name, part in (("all", frame), ("with a truth", told), ("clean", clean))
        ],
    )
    for name, part in (("with a truth", answered), ("clean", clean_answered)):
        bands = [
            (f"{low:.2f} to {min(high, 1):.2f}", part.filter(pl.col("confidence").is_between(low, high, closed="left")))
            for low, high in pairwise(BANDS)
        ]
        bands.append(("0.70 and more", part.filter(pl.col("confidence") >= 0.7)))
        show(f"answered epochs by confidence, {name}", ("confidence", *PROMISE), [kept(*band) for band in bands])
        classes = sorted(part.group_by(["class"]), key=lambda of: (-len(of[1]), str(of[0])))
        rows = [kept(str(value), of) for (value,), of in classes if len(of) >= ENOUGH]
        show(f"classes with at least {ENOUGH} answers, {name}", ("class", *PROMISE), rows)
    head = ("epochs", "answered", *SCORE[1:], "of 70% and more", "off by > 50% of these")
    show("by class, clean", ("class", *head), by(clean, "class"))
    show("by method, clean", ("method", *head), by(clean, "method"))
    bounds: Callable[[float], str] = lambda truth: next(n for n, most in LATENCIES.items() if truth < most)  # noqa: E731
    named = clean.with_columns(pl.col("truth").map_elements(bounds, pl.String).alias("latency"))
    show("by true latency, clean", ("latency", *head), by(named, "latency"))
    silent = told.filter(pl.col("count") == 0)
    reasons = silent.group_by("reason").agg(pl.len(), pl.col("clean").sum()).sort("len", "reason", descending=True)
    show("silent epochs by reason", ("reason", "with a truth", "clean"), reasons.rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=CAPTURES, help="searched recursively")
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK} captures")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write a row per epoch (.parquet or .csv)")
    chosen = parser.parse_args()
    if chosen.rows and chosen.rows.suffix not in (".parquet", ".csv"):
        sys.exit(f"{chosen.rows}: rows are written as .parquet or .csv")
    paths = captures_of(chosen.folder)
    if not paths:
        sys.exit(f"{chosen.folder}: there are no captures; name their folder")
    if chosen.quick:
        paths = paths[:: max(1, len(paths) // QUICK)][:QUICK]
    with multiprocessing.Pool(max(1, chosen.jobs)) as pool:
        found = list(pool.imap(one, paths, chunksize=1))
    rows = [row for _, of_path, _ in found for row in of_path]
    failed = [(path.name, why) for path, _, why in found if why]
    print(f"{len(found)} captures, {len(failed)} of them not measured, {len(rows)} epochs\n")
    if rows:
        frame = pl.DataFrame(rows, infer_schema_length=None)
        if chosen.rows:
            frame.write_parquet(chosen.rows) if chosen.rows.suffix == ".parquet" else frame.write_csv(chosen.rows)
        tables(frame)
        left_out_table(read_counts())
    if failed:
        show("captures that were not measured", ("capture", "why"), failed)


if __name__ == "__main__":
    main()
