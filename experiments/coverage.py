"""Answers: how many of the 95% intervals that are printed hold the long-run value, on delays that are not only queues.

Seventeen processes over 30 s, connections with levels, and queues by their length (n packets are as many as the queue
itself has meanwhile: few are a short recording), by 10 to 100,000 delays: `rtt` (pings to eight servers), `response`
(requests to four servers) and `oneway` (three flows), of the total, of rows of a quarter, of groups. The statistics of
the commands are called directly; that a command says the same of a capture is checked first. A figure without an
interval is silent. Each share has twice its standard error beside it, from how captures differ. Queues by their length
have tables of their own: by load, pooled over sizes, and load by number of packets, with how many of all figures are
wrong. A line counts the cells of command, kind, load and size that lie outside of 93% to 97% by more than twice their
error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from answer_captures import HEADER, write_exchanges, write_frames
from coverage_reports import Kinds, crossings, responses, round_trips
from delay_processes import LEVELS, PROCESSES, SHORT, Process, sizes_of_connections
from traces import show

import wirelag

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.pings import write_pings

FIGURES = {"mean": "mean", "0.5": "p50", "0.9": "p90", "0.99": "p99"}
# Packets, and captures of each: with fewer than 64 delays there is never an interval.
CAPTURES = {10: 3, 30: 3, 100: 100, 300: 100, 1_000: 100, 3_000: 100, 10_000: 80, 30_000: 40, 100_000: 20}
QUICK = {100: 8, 1_000: 8}
SUMS = {1_000: 12, 10_000: 4}  # of lda, rda and finecomb, by the command: they differ from join in the mean alone
FIFO = ("lda", "rda", "finecomb")
ASKED = (0.93, 0.97)
APART = 1 / 120  # of the recording, from a request to the next, at least
ROWS = 4
BEGIN_NS = 1_767_225_600_000_000_000
KINDS = ("total", "rows", "groups")

Key = tuple[str, str, str, int, str]  # command, kind, process, packets, figure


class Cell:
    """Intervals of many captures: how many, how many hold the truth, and how many could have been."""

    def __init__(self) -> None:
        self.captures: dict[int, list[int]] = {}  # told, right
        self.asked = 0

    def add(self, capture: int, right: bool | None) -> None:
        """Count a figure; None: it is silent."""
        self.asked += 1
        if right is not None:
            one = self.captures.setdefault(capture, [0, 0])
            one[0] += 1
            one[1] += right

    def merge(self, other: Cell, apart: int) -> None:
        """Add another, whose captures are not these; the same number means the same ones."""
        self.asked += other.asked
        for capture, (told, right) in other.captures.items():
            one = self.captures.setdefault(hash((apart, capture)), [0, 0])
            one[0] += told
            one[1] += right

    @property
    def told(self) -> int:
        """How many intervals there are."""
        return sum(told for told, _ in self.captures.values())

    @property
    def share(self) -> float:
        """The share that holds the truth."""
        return sum(right for _, right in self.captures.values()) / max(1, self.told)

    @property
    def error(self) -> float:
        """Its standard error: intervals of one capture are not independent, captures are."""
        each = np.array(list(self.captures.values()), float).reshape(-1, 2)
        if len(each) < 2:
            return 1.0
        apart = each[:, 1] - self.share * each[:, 0]
        by_captures = np.sqrt(float(apart @ apart) * len(each) / (len(each) - 1)) / self.told
        return float(max(by_captures, np.sqrt(0.95 * 0.05 / self.told)))  # also if all or none are right


Told = dict[Key, Cell]


class Recording(NamedTuple):
    """Delays of a capture: when each request, or packet, was sent, of which connection and group it is."""

    sent_ns: Any
    delays_ns: Any
    connection: Any
    group: Any
    row_ns: int


# ---- recordings of a command ----


def pings(rng: np.random.Generator, process: Process, packets: int) -> Recording:
    """Pings to eight servers, or to servers with a level each."""
    sent = np.sort(rng.uniform(0, process.seconds(packets), packets))
    if process is LEVELS:
        which = sizes_of_connections(rng, packets)
        delays = process.law(rng, int(which.max()) + 1)[which] * rng.uniform(0.95, 1.05, packets)
    else:
        which, delays = rng.integers(0, 8, packets), process.over_time(rng, sent)
    return _recording(process.seconds(packets), sent, delays, which, which)


def requests(rng: np.random.Generator, process: Process, packets: int) -> Recording:
    """Connections of three exchanges each, with four servers."""
    connections, seconds = max(2, packets // 3), process.seconds(packets)
    # The first is a handshake; the next request comes after the response.
    asked = np.sort(rng.uniform(0, 1 - 3 * APART, (connections, 4)), axis=1) * seconds + APART * seconds * np.arange(4)
    order = np.argsort(asked, axis=None)
    delays = np.empty(asked.size)
    delays[order] = process.over_time(rng, asked.ravel()[order])
    server = np.repeat(rng.integers(0, 4, connections), 4)
    return _recording(seconds, asked.ravel(), delays, np.repeat(np.arange(connections), 4), server)


def packets_of_flows(rng: np.random.Generator, process: Process, packets: int) -> Recording:
    """Packets of three flows."""
    seconds, flow = process.seconds(packets), rng.integers(0, 3, packets)
    sent = np.sort(rng.uniform(0, seconds, packets))
    return _recording(seconds, sent, process.over_time(rng, sent), flow, flow)


def _recording(seconds: float, sent: Any, delays: Any, connection: Any, group: Any) -> Recording:
    """It begins where a row does."""
    row_ns = round(seconds * 1e9 / ROWS)
    return Recording(BEGIN_NS // row_ns * row_ns + _ns(sent), _ns(delays), connection, group, row_ns)


def _ns(seconds: Any) -> Any:
    return np.round(seconds * 1e9).astype(np.int64)


def _keys(rng: np.random.Generator, one: Recording) -> Any:
    return rng.integers(0, 2**64, int(one.connection.max()) + 1, np.uint64)[one.connection]


def _in_order(one: Recording, keys: Any) -> tuple[Any, Recording, Any]:
    """By the time of the response."""
    seen_ns = one.sent_ns + one.delays_ns
    order = np.argsort(seen_ns, kind="stable")
    return seen_ns[order], _of(one, order), keys[order]


def _of(one: Recording, rows: Any) -> Recording:
    return Recording(*(column[rows] for column in one[:-1]), one.row_ns)


# ---- what the statistics of a command say of a recording ----


def of_pings(one: Recording, keys: Any) -> Kinds:
    """As `rtt`."""
    seen_ns, one, keys = _in_order(one, keys)
    return round_trips(seen_ns, one.delays_ns, keys, one.group, one.row_ns)


def of_requests(one: Recording, keys: Any) -> Kinds:
    """As `response`: handshakes are no exchanges."""
    exchange = np.arange(len(keys)) % 4 > 0
    seen_ns, one, keys = _in_order(_of(one, exchange), keys[exchange])
    return responses(one.sent_ns, seen_ns, keys, one.group, one.row_ns)


def of_packets(one: Recording, keys: Any) -> Kinds:
    """As `oneway`."""
    return crossings(one.sent_ns, one.delays_ns, one.group, one.row_ns)


DIRECT: dict[str, tuple[Callable[..., Recording], Callable[..., Kinds]]] = {
    "rtt": (pings, of_pings),
    "response": (requests, of_requests),
    "oneway": (packets_of_flows, of_packets),
}


# ---- what a command says of a capture ----


def _options(one: Recording, by: str) -> dict[str, Any]:
    return {"by": by, "interval": f"{one.row_ns}ns"}


def _kinds(result: Any) -> Kinds:
    parts = {"total": [result.total], "rows": result.intervals, "groups": result.groups}
    return {kind: [entry.report.ci95 for entry in entries] for kind, entries in parts.items()}


def _flow_keys(path: Path) -> Any:
    return np.concatenate([batch.flow_key for batch in wirelag.read(path)])


def command_rtt(folder: Path, one: Recording) -> tuple[Kinds, Any]:
    """What `rtt` says of these pings, and their flow keys."""
    path = folder / "pings.pcap"
    write_pings(path, 0x20000000 + one.group, one.sent_ns, one.delays_ns)
    keys = np.empty(2 * len(one.group), np.uint64)
    keys[np.argsort(np.concatenate((one.sent_ns, one.sent_ns + one.delays_ns)), kind="stable")] = _flow_keys(path)
    return _kinds(wirelag.rtt(path, **_options(one, "server"))), keys[: len(one.group)]


def command_response(folder: Path, one: Recording) -> tuple[Kinds, Any]:
    """What `response` says of these exchanges, and their flow keys."""
    path = folder / "exchanges.pcap"
    asked, answered = ((part - BEGIN_NS).reshape(-1, 4) / 1e9 for part in (one.sent_ns, one.sent_ns + one.delays_ns))
    server = one.group[::4]
    write_exchanges(path, asked, answered, answered + 1e-4, server, np.arange(len(server)) % 200)
    seconds = np.concatenate([part.ravel() for part in (asked, answered, answered + 1e-4)])
    keys = np.empty(len(seconds), np.uint64)
    keys[np.argsort(_ns(seconds), kind="stable")] = _flow_keys(path)
    return _kinds(wirelag.response(path, **_options(one, "server"))), keys[: asked.size]


def command_oneway(folder: Path, one: Recording, estimator: str = "join") -> tuple[Kinds, Any]:
    """What `oneway` says of these packets; it needs no flow keys."""
    packets = len(one.group)
    frame = np.zeros(packets, HEADER)
    frame["type"], frame["version"], frame["ttl"], frame["protocol"] = 0x0800, 0x45, 64, 17
    frame["source"], frame["target"] = 0x0A000001 + one.group, 0xC6336401
    frame["from_port"], frame["to_port"], frame["length"], frame["id"] = 5000, 5001, 140, np.arange(packets) & 0xFFFF
    frame["seq"] = np.arange(packets)
    up, down = folder / "up.pcap", folder / "down.pcap"
    sent = (one.sent_ns - BEGIN_NS) / 1e9
    write_frames(up, sent, frame)
    write_frames(down, sent + one.delays_ns / 1e9, frame)
    return _kinds(wirelag.oneway(up, down, clock="none", estimator=estimator, **_options(one, "source"))), one.group


COMMANDS: dict[str, Callable[..., tuple[Kinds, Any]]] = {
    "rtt": command_rtt,
    "response": command_response,
    "oneway": command_oneway,
}


def differs(seed: int) -> list[str]:
    """Commands that say something else of a capture than their statistics, called directly."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for command, (record, direct) in DIRECT.items():
            for process, packets in ((PROCESSES[0], 1_000), (PROCESSES[4], 3_000)):
                one = record(np.random.default_rng(seed), process, packets)
                said, keys = COMMANDS[command](Path(folder), one)
                expected = direct(one, keys)
                if not all(_same(said[kind], expected[kind]) for kind in KINDS):
                    found.append(f"{command}, {process.name}")
    return found


def _same(said: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Whether intervals are the same to a microsecond (captures are written from seconds), in any order.

    A row in which packets only arrive has none.
    """
    first, second = (sorted(sorted((name, *ends) for name, ends in one.items()) for one in part if one)
                     for part in (said, expected))  # fmt: skip
    names = [[[name for name, *_ in one] for one in part] for part in (first, second)]
    ends = [np.array([end for one in part for _, *both in one for end in both]) for part in (first, second)]
    return names[0] == names[1] and bool(np.allclose(*ends, rtol=0, atol=1e-6))


# ---- counting ----


def count(told: Told, case: tuple[str, str, int], capture: int, kinds: Kinds, truth: dict[str, float]) -> None:
    """Count the intervals of a capture, by command, process and number of packets."""
    command, process, packets = case
    for kind, reports in kinds.items():
        if kind == "groups" and process == LEVELS.name:  # a group has a level of its own
            continue
        for ci95 in reports:
            for figure in FIGURES:
                ends, cell = ci95.get(figure), told[command, kind, process, packets, figure]
                cell.add(capture, None if ends is None else ends[0] <= truth[figure] <= ends[1])


def run(job: tuple[str, int, int, int, int]) -> Told:
    """All captures of a command, a process and a size."""
    command, place, packets, captures, seed = job
    process = (*PROCESSES, LEVELS)[place]
    told: Told = defaultdict(Cell)
    with tempfile.TemporaryDirectory() as folder:
        for capture in range(captures):
            rng = np.random.default_rng([seed, capture, place, packets, len(command)])
            if command in DIRECT:
                record, direct = DIRECT[command]
                one = record(rng, process, packets)
                kinds = direct(one, _keys(rng, one))
            else:
                one = packets_of_flows(rng, process, packets)
                kinds, _ = command_oneway(Path(folder), one, command.removeprefix("oneway "))
            count(told, (command, process.name, packets), capture, kinds, process.truth)
    return dict(told)


def jobs_of(quick: bool, seed: int, share: float) -> Iterator[tuple[str, int, int, int, int]]:
    """Every capture there is to make, by command, process and size."""
    for command in DIRECT:
        for place in range(len(PROCESSES) + (command == "rtt")):
            for packets, captures in (QUICK if quick else CAPTURES).items():
                yield command, place, packets, max(2, round(captures * share)), seed
    for place, process in enumerate(PROCESSES):
        if process.fifo and not quick:
            for estimator in FIFO:
                for packets, captures in SUMS.items():
                    yield f"oneway {estimator}", place, packets, max(2, round(captures * share)), seed


# ---- tables ----


def pooled(told: Told, **wanted: Any) -> Cell:
    """All cells of these commands, kinds, processes, sizes or figures, as one."""
    whole, names = Cell(), ("command", "kind", "process", "packets", "figure")
    for key, cell in told.items():
        if all(key[names.index(name)] == value for name, value in wanted.items()):
            whole.merge(cell, hash(key[:1] + key[2:4]))
    return whole


def judged(cell: Cell) -> str:
    """Whether a share lies where it should: "" yes, "?" nearly (chance may explain it), "<" or ">" no."""
    low, high = ASKED
    if not cell.told or low <= cell.share <= high:
        return ""
    if low <= cell.share + 2 * cell.error and cell.share - 2 * cell.error <= high:
        return "?"
    return "<" if cell.share < low else ">"


def text(cell: Cell) -> str:
    """The share of intervals that hold the truth, with twice its error, and of figures that are silent."""
    silent = 1 - cell.told / max(1, cell.asked)
    if not cell.told:
        return "silent"
    few = " few" if cell.error > 0.02 else f"±{200 * cell.error:.1f}"
    return f"{100 * cell.share:.1f}{few} {100 * silent:.0f}%{judged(cell) or ' '}"


def columns(told: Told) -> list[tuple[str, str]]:
    """Every command with its kinds."""
    return list(dict.fromkeys((command, kind) for command, kind, *_ in told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few captures: seconds, rough numbers")
    parser.add_argument("--seed", type=int, default=0, help="other captures of the same processes")
    parser.add_argument("--share", type=float, default=1.0, help="of the captures: fewer, so larger errors of shares")
    parser.add_argument("--command", choices=list(DIRECT), help="only this one")
    parser.add_argument("--process", default="", help="only those whose names have this in them")
    parser.add_argument("--processes", type=int, default=1, help="of this machine that share the work")
    chosen = parser.parse_args()
    if differ := differs(chosen.seed):
        sys.exit(f"the command and its statistics, called directly, differ: {'; '.join(differ)}")
    jobs = sorted(jobs_of(chosen.quick, chosen.seed, chosen.share), key=lambda job: -job[2] * job[3])
    jobs = [job for job in jobs if chosen.command in (None, job[0])]
    jobs = [job for job in jobs if chosen.process in (*PROCESSES, LEVELS)[job[1]].name]
    told: Told = {}
    if chosen.processes > 1:
        with ProcessPoolExecutor(chosen.processes) as pool:
            for found in pool.map(run, jobs):
                told |= found
    else:
        for job in jobs:
            told |= run(job)
    if chosen.share < 1:
        print(f"only {chosen.share:.0%} of the captures")
    report(told)


def by_length(told: Told, header: list[str]) -> None:
    """Print the tables of queues by their length, and how many cells lie outside by more than chance."""
    loads: list[list[str]] = []
    for process in SHORT:
        pools = [pooled(told, command=command, kind=kind, process=process.name)
                 for command, kind in sorted(columns(told))]  # fmt: skip
        if any(cell.told for cell in pools):
            loads.append([process.name.rpartition(" ")[2], *map(text, pools)])
    if not loads:
        return
    show("queues by their length, all sizes: 95% intervals that hold, twice the error of that share, silent figures",
         ["load", *header], loads)  # fmt: skip
    lines, marks = [], []
    for process in SHORT:
        for size in sorted({key[3] for key in told}):
            cells = [pooled(told, command=command, kind=kind, process=process.name, packets=size)
                     for command, kind in sorted(columns(told))]  # fmt: skip
            if any(cell.told for cell in cells):
                lines.append([process.name.rpartition(" ")[2], f"{size:,}", *map(held_and_wrong, cells)])
                marks += [(judged(cell), cell.share) for cell in cells if cell.told]
    show("queues by their length: intervals that hold, of figures that have one; figures that are wrong, of all",
         ["load", "packets", *header], lines)  # fmt: skip
    above, below = (sum(mark == one for mark, _ in marks) for one in (">", "<"))
    outside = [sum(share > ASKED[1] for _, share in marks), sum(share < ASKED[0] for _, share in marks)]
    print(f"{len(marks)} cells of command, kind, load and size: by more than twice their error {above} lie above 97%, "
          f"{below} below 93%; by any {outside[0]} above, {outside[1]} below\n")  # fmt: skip


def held_and_wrong(cell: Cell) -> str:
    """The shares of intervals that hold, of figures that have one, and of figures that are wrong."""
    if not cell.told:
        return "silent"
    told = cell.told / cell.asked
    return f"{100 * cell.share:.0f} of {100 * told:.0f}, {100 * told * (1 - cell.share):.1f}"


def report(told: Told) -> None:
    """Print the table and the verdict."""
    plain = {key: cell for key, cell in told.items() if key[0] in DIRECT}
    header = [f"{command} {kind}" for command, kind in sorted(columns(plain))]
    lines: list[list[str]] = []
    processes = [process.name for process in (*PROCESSES, LEVELS)]
    sizes = sorted({key[3] for key in plain})
    cells: dict[str, Cell] = {}
    for name, wanted in [
        *((process, {"process": process}) for process in processes),
        *((f"{size:,} delays", {"packets": size}) for size in sizes),
        *((FIGURES[figure], {"figure": figure}) for figure in FIGURES),
        ("all", {}),
    ]:
        found = [pooled(plain, command=command, kind=kind, **wanted) for command, kind in sorted(columns(plain))]
        cells |= {f"{name}, {column}": cell for column, cell in zip(header, found, strict=True)}
        if any(cell.asked for cell in found):
            lines.append([name, *map(text, found)])
    show(
        "95% intervals that hold the long-run value, twice the error of that share, figures that are silent",
        ["", *header],
        lines,
    )
    by_length(plain, header)
    if len(plain) < len(told):
        others = {key: cell for key, cell in told.items() if key[0] not in DIRECT}
        say = [
            [f"{command} {kind}", text(pooled(others, command=command, kind=kind))] for command, kind in columns(others)
        ]
        show(f"by the command, on queues, only {', '.join(f'{n:,}' for n in SUMS)} delays", ["", "all figures"], say)
    marks = {name: judged(cell) for name, cell in cells.items() if cell.told}
    kinds = [name for name in marks if name.startswith("all, ")]
    inside, chance = (sum(mark == one for mark in marks.values()) for one in ("", "?"))
    print(f"{inside} of {len(marks)} shares lie within 93% to 97%, {chance} more may by chance lie outside (?)")
    for mark, what in (("<", "below"), (">", "above")):
        if missed := [f"{name} ({100 * cells[name].share:.1f}%)" for name in marks if marks[name] == mark]:
            print(f"{what}: {'; '.join(missed)}")
    print("verdict: " + ("holds" if all(marks[name] in ("", "?") for name in kinds) else "does not hold")
          + " for every command and kind")  # fmt: skip


if __name__ == "__main__":
    main()
