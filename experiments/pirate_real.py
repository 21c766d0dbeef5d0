"""Pirate: `auto` on real captures of both directions: estimates from client packets alone, beside the exchanges seen.

An epoch is compared with the mean of the single exchanges of its flow that ended in it, if there are three of them and
it is at least 1 ms (below that the path from the point to the client matters). Captures are those of shared/data/rtt
beside the repository, or below the folder in WIRELAG_SHARED_DATA; large ones and those of echo servers are left out.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from traces import arguments, show

from wirelag.capture.files import Capture
from wirelag.errors import WirelagError
from wirelag.estimators.pairs import Pairs
from wirelag.estimators.pirate import Pirate
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval
from wirelag.packets.roles import Roles
from wirelag.synopses.epochs import Epochs
from wirelag.synopses.request_response import Exchanges

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = Path(os.environ.get("WIRELAG_SHARED_DATA") or ROOT.parent / "shared" / "data") / "rtt"
LARGEST = 2_500_000  # bytes of a file
LEAST_EXCHANGES, LEAST_NS = 3, 1_000_000
BANDS = ((90, 100), (70, 89), (0, 69))  # ranges of confidence, %
QUICK = 12  # captures


def heard(path: Path) -> tuple[Epochs, Exchanges]:
    """Results from clients' packets, and from both directions."""
    roles = Roles()
    meter, pairs = Pirate().meter("tap"), Pairs(from_client=Roles().from_client).meter("tap")
    for batch in Capture([str(path)], filter=Filter(protocols=(6,))):
        meter.observe(batch[np.flatnonzero(roles.from_client(batch))])
        pairs.observe(batch)
    epochs = meter.finish().one_way()
    return epochs, pairs.cut(Interval(0, 0)).told_by(epochs)


def compared(epochs: Epochs, exchanges: Exchanges) -> Iterator[tuple[int, float]]:
    """Confidence and signed error of every epoch that can be compared."""
    single = exchanges.single.rows
    for ends, rows in epochs.by_ends():
        mine = single[(single["ends"] == np.array(ends, np.uint64)).all(axis=1)]
        for row in rows[rows["count"] > 0]:
            inside = mine[(mine["last_ns"] >= row["start_ns"]) & (mine["last_ns"] <= row["end_ns"])]
            if len(inside) < LEAST_EXCHANGES:
                continue
            mean_ns = float((inside["last_ns"] - inside["request_ns"]).mean())
            if mean_ns >= LEAST_NS:
                yield int(row["confidence"]), float(row["sum_ns"]) / float(row["count"]) / mean_ns - 1


def main() -> None:
    chosen = arguments(__doc__)
    paths = sorted(p for p in CAPTURES.glob("*/*") if p.stat().st_size <= LARGEST and "echo-conn" not in str(p))
    if not paths:
        sys.exit(f"{CAPTURES}: there are no captures; name their folder with WIRELAG_SHARED_DATA")
    found: list[tuple[int, float]] = []
    of: Counter[str] = Counter()
    for path in paths[:: max(1, len(paths) // QUICK)] if chosen.quick else paths:
        try:
            errors = list(compared(*heard(path)))
        except WirelagError:
            of["unreadable"] += 1
            continue
        of["read"] += 1
        of["compared"] += bool(errors)
        found += errors
    rows: list[tuple[object, ...]] = []
    for least, most in BANDS:
        errors_of = np.array([error for confidence, error in found if least <= confidence <= most])
        far = int(np.count_nonzero(np.abs(errors_of) > 0.5))
        rows.append((f"{least} to {most}%", len(errors_of), far, int(np.count_nonzero(np.abs(errors_of) <= 0.15))))
    show(
        f"epochs of {of['compared']} of {of['read']} captures, by confidence",
        ("confidence", "epochs", "off by > 50%", "within 15%"),
        rows,
    )


if __name__ == "__main__":
    main()
