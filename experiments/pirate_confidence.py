"""Pirate: the confidences in src/wirelag/estimators/pirate_confidence.py, from captures of many projects and the lab.

Every epoch is put on its ground, and its answer compared with the truth: exact exchanges of the full capture, or the
log of the lab's client. `pirate_confidence.tsv` holds the counts for each ground and source (the project of a capture;
the lab is one source). The confidence of a ground is its share of answers within 25%; a project counts as at most MOST
epochs of a ground, the lab as at most MOST_LAB, and two right and two wrong answers are added.

    python experiments/pirate_confidence.py              the table from pirate_confidence.tsv
    python experiments/pirate_confidence.py --measure    count again: captures, and the lab (needs root)

A test compares the table with the code.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from traces import show

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wirelag.estimators.pirate_confidence import FLOOR, GROUNDS, grounds  # noqa: E402

COUNTS = Path(__file__).with_suffix(".tsv")
MOST, MOST_LAB = 30, 500  # epochs of one source on one ground that count: captures of a project are alike
ADDED = 2  # right answers, and as many wrong ones
NEAR, FAR = 0.25, 0.5
SURE = 70  # percent
OTHERS = ("gap", "modes", "ack", "window", "syn")  # auto and blind are measured together
LAB = "lab"


class Count(NamedTuple):
    """The epochs of a source on a ground."""

    ground: str
    source: str
    epochs: int
    near: int  # answers within 25%
    far: int  # answers off by more than 50%


def confidence_of(counts: Iterable[Count]) -> int:
    """In percent, for the counts of one ground; nothing is certain."""
    epochs = near = 0.0
    for one in counts:
        most = MOST_LAB if one.source == LAB else MOST
        weight = min(1.0, most / one.epochs) if one.epochs else 0.0
        epochs, near = epochs + weight * one.epochs, near + weight * one.near
    return min(99, round(100 * (near + ADDED) / (epochs + 2 * ADDED)))


def confidences(counts: list[Count]) -> dict[str, int]:
    """The confidence of every ground."""
    return {ground.name: confidence_of([c for c in counts if c.ground == ground.name]) for ground in GROUNDS}


def left_out(counts: list[Count]) -> list[tuple[str, int, int, int]]:
    """Each project scored by what all others and the lab say: its sure answers, how many are near, and far off."""
    found = []
    counts = [c for c in counts if c.ground not in OTHERS]
    for source in sorted({c.source for c in counts} - {LAB}):
        said = confidences([c for c in counts if c.source != source])
        sure = [c for c in counts if c.source == source and said[c.ground] >= SURE]
        found.append((source, sum(c.epochs for c in sure), sum(c.near for c in sure), sum(c.far for c in sure)))
    return found


def read_counts() -> list[Count]:
    with COUNTS.open(newline="") as file:
        return [
            Count(r["ground"], r["source"], *(int(r[n]) for n in ("epochs", "near", "far")))
            for r in csv.DictReader(file, delimiter="\t")
        ]


# ---- counting ----


def counted(rows: Any, truth: Any, source: str) -> Iterator[tuple[str, str, str]]:
    """The ground of each answer, its source, and how right it is."""
    place, sum_ns, count = grounds(rows)
    for where, total, n, true_ns in zip(place.tolist(), sum_ns.tolist(), count.tolist(), truth, strict=True):
        if n and true_ns:
            off = abs(total / n / true_ns - 1)
            yield GROUNDS[where].name, source, "near" if off <= NEAR else "far" if off > FAR else "between"


def epochs_of(method: str, clients: Any) -> Any:
    """Epochs as the kernel gives them."""
    from wirelag.estimators.pirate import Pirate
    from wirelag.synopses.epochs import EPOCH, METHODS

    found = []
    for name in (method, "blind") if method == "auto" else (method,):
        table = Pirate().kernel(METHODS.index(name), 64 << 20)
        table.observe_batch(clients, name != "blind", name != "auto")
        table.cut(int(clients.time_ns.max()) if len(clients) else 0)
        rows = np.zeros(table.epochs, EPOCH)
        table.take(rows.view("<u8").reshape(len(rows), len(EPOCH.names or ())))
        found.append(rows)
    return np.concatenate(found)


def of_capture(path: Path) -> list[tuple[str, str, str]]:
    """An epoch counts if all exchanges that begin in it are single."""
    from pirate_wild_rows import by_flow, measured, of_clients, of_flow, truth_of

    from wirelag.capture.files import Capture
    from wirelag.errors import WirelagError
    from wirelag.packets.batch import PacketBatch
    from wirelag.synopses.epochs import Epochs

    try:
        everything = PacketBatch.concatenate(list(Capture([str(path)])))
        clients = of_clients(everything)
        _, exchanges = measured(everything, clients)
    except (WirelagError, ValueError):
        return []
    exact, said = of_flow(exchanges), []
    for method in ("auto", *OTHERS):
        for ends, rows in by_flow(Epochs(epochs_of(method, clients)).possible()):
            told = [truth_of(row, exact.get(ends, exchanges.rows[:0])) for row in rows]
            truth = [t["truth"] * 1e9 if t["truth"] and t["single"] == t["exchanges"] else 0 for t in told]
            said += counted(rows, truth, "__".join(path.name.split("__")[:2]))
    return said


def of_scenario(name: str) -> list[tuple[str, str, str]]:
    """A scenario of the lab, four seconds of it."""
    import polars as pl
    from pirate_lab import recorded

    from lab.scenarios import SCENARIOS
    from lab.score import errors
    from wirelag.capture.files import Capture
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.roles import Roles
    from wirelag.synopses.epochs import Epochs

    said = []
    with recorded(SCENARIOS[name], 4.0) as record:
        packets = PacketBatch.concatenate(list(Capture([str(record.capture)])))
        clients = packets[np.flatnonzero(Roles().from_client(packets))]
        for method in ("auto", *OTHERS):
            rows = Epochs(epochs_of(method, clients)).possible().rows
            asked = {"flow_key": rows["key"], "start_ns": rows["start_ns"], "end_ns": rows["end_ns"]}
            found = errors(record.truth, pl.DataFrame(asked | {"mean_ns": np.arange(len(rows), dtype=np.float64)}))
            truth = np.zeros(len(rows))
            truth[found["mean_ns"].to_numpy().astype(int)] = found["true_ns"].to_numpy()
            said += counted(rows, truth.tolist(), LAB)
    return said


def measure() -> list[Count]:
    """Count again."""
    from pirate_lab import need_root
    from pirate_wild import captures_of

    from lab.scenarios import SCENARIOS

    need_root()
    with multiprocessing.Pool(2) as pool:
        said = [one for found in pool.imap(of_capture, captures_of()) for one in found]
    for name, scenario in SCENARIOS.items():
        if scenario.client.logs:
            said += of_scenario(name)
    counts = Counter(said)
    keys = sorted({(ground, source) for ground, source, _ in counts})
    return [
        Count(ground, source, sum(of.values()), of["near"], of["far"])
        for ground, source in keys
        if (of := {how: counts[ground, source, how] for how in ("near", "between", "far")})
    ]


def tables(counts: list[Count]) -> None:
    """Print what each ground is worth, and what a project is told by all others."""
    said = confidences(counts)
    rows: list[tuple[object, ...]] = []
    for ground in GROUNDS:
        of = [c for c in counts if c.ground == ground.name]
        for title, mine in (
            ("captures", [c for c in of if c.source != LAB]),
            ("lab", [c for c in of if c.source == LAB]),
        ):
            n, near, far = (sum(getattr(c, what) for c in mine) for what in ("epochs", "near", "far"))
            shares = (f"{near / n:.0%}", f"{far / n:.0%}") if n else ("-", "-")
            rows.append((ground.name, title, len(mine), n, *shares, said[ground.name]))
    show("grounds", ("ground", "from", "sources", "epochs", "within 25%", "off by > 50%", "confidence, %"), rows)
    left_out_table(counts)


def left_out_table(counts: list[Count]) -> None:
    """Print what confidences from all other sources promise for a project that they do not know."""
    found = [row for row in left_out(counts) if row[1]]
    sums = [sum(row[i] for row in found if isinstance(row[i], int)) for i in (1, 2, 3)]
    rows = [(name, n, f"{near / n:.0%}", f"{far / n:.1%}") for name, n, near, far in [*found, ("all", *sums)] if n]
    if found:
        near, far = (sum(row[i] / row[1] for row in found) / len(found) for i in (2, 3))
        rows.append(("all, projects with equal weight", sums[0], f"{near:.0%}", f"{far:.1%}"))
    header = ("project", "epochs", "within 25%", "off by > 50%")
    show(f"confidence of {SURE}% and more, each project left out", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="count again")
    if parser.parse_args().measure:
        found = measure()
        with COUNTS.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(Count._fields)
            writer.writerows(found)
    counts = read_counts()
    tables(counts)
    held = {ground.name: ground.confidence for ground in GROUNDS}
    changed = [(name, held[name], said) for name, said in confidences(counts).items() if held[name] != said]
    if changed:
        show("differ from the code", ("ground", "code", "here"), changed)
        sys.exit(1)
    print(f"the code has the same confidences; below {FLOOR}% an epoch is silent")


if __name__ == "__main__":
    main()
