"""Answers: how many of the 95% intervals that are printed hold the long-run value, on delays that are not only queues.

Sixteen processes over 30 s, 10 to 100,000 packets, by `rtt` (pings to eight servers), `response` (requests to four
servers) and `oneway` (three flows; join, and lda, rda, finecomb where packets keep their order): of the total, of rows
of 7.5 s, of groups. "silent" is the share of figures without an interval.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from answer_captures import HEADER, write_exchanges, write_frames
from delay_processes import LEVELS, PROCESSES, SECONDS, Process, sizes_of_connections
from traces import arguments, show

import wirelag

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.pings import write_pings

FIGURES = ("mean", "0.5", "0.9", "0.99")
NAMES = ("mean", "p50", "p90", "p99")
COUNTS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
FEW, MANY = 1_000, 10_000  # the edges of sizes in the tables
INTERVAL = "7.5s"
FIFO = ("lda", "rda", "finecomb")
BEGIN_NS = 1_767_225_600_000_000_000

Case = tuple[str, str, str]  # command, kind, process
Told = dict[tuple[Case, int, str], list[int]]  # by size and figure: intervals, those that hold the truth, all


def count(told: Told, case: Case, packets: int, entries: Iterable[Any], truth: dict[str, float]) -> None:
    """Count the intervals of reports."""
    for report in entries:
        if not report.samples:
            continue
        for figure in FIGURES:
            ends, cell = report.ci95.get(figure), told[case, packets, figure]
            cell[2] += 1
            if ends is not None:
                cell[0] += 1
                cell[1] += ends[0] <= truth[figure] <= ends[1]


def rtt(told: Told, folder: Path, rng: np.random.Generator, process: Process, packets: int) -> None:
    """Round trips of pings, by server."""
    sent = np.sort(rng.uniform(0, SECONDS, packets))
    if process is LEVELS:
        which = sizes_of_connections(rng, packets)
        delays = process.law(rng, int(which.max()) + 1)[which] * rng.uniform(0.95, 1.05, packets)
    else:
        which, delays = rng.integers(0, 8, packets), process.over_time(rng, sent)
    path = folder / "pings.pcap"
    write_pings(path, 0x20000000 + which, BEGIN_NS + _ns(sent), _ns(delays))
    result = wirelag.rtt(path, by="server", interval=INTERVAL)
    parts = {"total": [result.total], "rows": result.intervals}
    if process is not LEVELS:  # a group has a level of its own
        parts["groups"] = list(result.groups)
    for kind, entries in parts.items():
        count(told, ("rtt", kind, process.name), packets, (entry.report for entry in entries), process.truth)


def response(told: Told, folder: Path, rng: np.random.Generator, process: Process, packets: int) -> None:
    """Exchanges of one request and one response: each connection has a handshake and three of them."""
    connections = max(2, packets // 3)
    asked = np.sort(rng.uniform(0, SECONDS, (connections, 4)), axis=1)
    order = np.argsort(asked, axis=None)
    delays = np.empty(asked.size)
    delays[order] = process.over_time(rng, asked.ravel()[order])
    answered = asked + delays.reshape(asked.shape)
    server, client = rng.integers(0, 4, connections), rng.integers(0, 200, connections)
    path = folder / "exchanges.pcap"
    write_exchanges(path, asked, answered, answered + 1e-4, server, client)
    result = wirelag.response(path, by="server", interval=INTERVAL)
    if result.report.estimator != "pairs":
        return
    for kind, entries in (("total", [result.total]), ("rows", result.intervals), ("groups", result.groups)):
        count(told, ("response", kind, process.name), packets, (entry.report for entry in entries), process.truth)


def oneway(told: Told, folder: Path, rng: np.random.Generator, process: Process, packets: int) -> None:
    """Packets of three flows."""
    sent = np.sort(rng.uniform(0, SECONDS, packets))
    frame = np.zeros(packets, HEADER)
    frame["type"], frame["version"], frame["ttl"], frame["protocol"] = 0x0800, 0x45, 64, 17
    frame["source"], frame["target"] = 0x0A000001 + rng.integers(0, 3, packets), 0xC6336401
    frame["from_port"], frame["to_port"], frame["length"], frame["id"] = 5000, 5001, 140, np.arange(packets) & 0xFFFF
    frame["seq"] = np.arange(packets)
    up, down = folder / "up.pcap", folder / "down.pcap"
    write_frames(up, sent, frame)
    write_frames(down, sent + process.over_time(rng, sent), frame)
    for estimator in ("join", *(FIFO if process.fifo else ())):
        result = wirelag.oneway(up, down, clock="none", estimator=estimator, by="source", interval=INTERVAL)
        for kind, entries in (("total", [result.total]), ("rows", result.intervals), ("groups", result.groups)):
            reports = (entry.report for entry in entries)
            count(told, (f"oneway {estimator}", kind, process.name), packets, reports, process.truth)


def _ns(seconds: Any) -> Any:
    return np.round(seconds * 1e9).astype(np.int64)


COMMANDS = {"rtt": rtt, "response": response, "oneway": oneway}


def run(job: tuple[str, int, int, int]) -> Told:
    """All captures of a command, a process and a size."""
    command, place, packets, captures = job
    process = (*PROCESSES, LEVELS)[place]
    told: Told = defaultdict(lambda: [0, 0, 0])
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(captures):
            rng = np.random.default_rng([seed, place, packets, len(command)])
            COMMANDS[command](told, Path(folder), rng, process, packets)
    return dict(told)


def rows(told: Told, sizes: list[int]) -> Iterator[list[str]]:
    """For each process and kind: coverage by figure, of all figures, how many, and the share without an interval."""
    for case in dict.fromkeys(case for case, packets, _ in told if packets in sizes):
        cells = [np.sum([told.get((case, size, figure), [0, 0, 0]) for size in sizes], axis=0) for figure in FIGURES]
        whole = np.sum(cells, axis=0)
        yield [*case, *map(_share, [*cells, whole]), str(int(whole[0])), f"{1 - whole[0] / max(1, whole[2]):.0%}"]


def _share(cell: Any) -> str:
    return f"{cell[1] / cell[0]:.1%}" + ("" if cell[0] >= 30 else f" ({int(cell[0])})") if cell[0] else "-"


def main() -> None:
    chosen = arguments(__doc__)
    counts = COUNTS[2:5:2] if chosen.quick else COUNTS
    jobs = []
    for command in COMMANDS:
        for place in range(len(PROCESSES) + (command == "rtt")):
            for packets in counts:
                captures = 4 if chosen.quick else 20 if packets < FEW else 12 if packets < MANY else 4
                if packets <= 30_000 or command != "oneway":
                    jobs.append((command, place, packets, captures))
    jobs.sort(key=lambda job: -job[2])
    told: Told = {}
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(run, jobs):
            told |= found
    order = {process.name: place for place, process in enumerate((*PROCESSES, LEVELS))}
    told = dict(sorted(told.items(), key=lambda item: (item[0][0][:2], order[item[0][0][2]])))
    header = ("command", "kind", "process", *NAMES, "all", "intervals", "silent")
    few, medium, many = ([n for n in counts if low <= n < high] for low, high in ((0, FEW), (FEW, MANY), (MANY, 10**9)))
    for sizes in filter(None, (few, medium, many)):
        show(
            f"95% intervals that hold the long-run value, {sizes[0]:,} to {sizes[-1]:,} packets",
            header,
            rows(told, sizes),
        )
    whole = np.sum(list(told.values()), axis=0)
    print(f"all: {whole[1] / whole[0]:.1%} of {whole[0]:,} intervals; {1 - whole[0] / whole[2]:.0%} silent")


if __name__ == "__main__":
    main()
