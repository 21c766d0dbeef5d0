"""mPlane, section II: routers measure inside themselves, live, and a queue inside one of them is found.

Six routers run OSPF (FRRouting), each with an agent that meters every way from port to port; a collector follows the
link-state database, and adds up paths. A queue (tbf) is placed at a random port, so that packets wait between the
ports of one router, and all hosts send to each other. Captures at every port, joined by packet, are the truth. Which
segments of the 30 paths does the collector blame, and for how much? Then the same without a queue. Needs root.
"""

import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from typing import Any

import numpy as np
import numpy.typing as npt
from traces import arguments, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

import wirelag
from lab.plane import Plane, wait
from lab.routers import BUSY, Routers
from lab.traffic import Traffic
from wirelag.network.segments import Segment, parse_segment
from wirelag.network.topology import read_topology
from wirelag.synopses.cache import join

SIX = Path(__file__).resolve().parents[1] / "tests" / "data" / "six.json"
ESTIMATORS = ("lda", "rda")
PLACEMENTS, QUICK, SECONDS, TAIL_S = 20, 1, 12.0, 4.0
Port = tuple[str, str]  # a router, and the neighbour that the port leads to


@dataclass
class Placement:
    """What the collector says of a queue at a port, and what captures say."""

    port: Port | None  # None: no queue
    blamed: set[str] = field(default_factory=set)
    adds: dict[str, tuple[float, float]] = field(default_factory=dict)  # by way to the queue: said, and by the captures
    unseen: int = 0  # packets that the agents' captures dropped

    @property
    def right(self) -> bool:
        """Whether exactly the ways to the queue are blamed."""
        return self.blamed == set(self.adds)

    @property
    def errors(self) -> list[float]:
        """The relative error of what each way adds."""
        return [said / exact - 1 for said, exact in self.adds.values()]


@contextmanager
def measuring(estimator: str, folder: Path) -> Iterator[Plane]:
    """Six routers that measure inside themselves and between each other."""
    topology = read_topology(SIX)
    with Routers(f"inside-{estimator}", topology) as routers:
        plane = Plane(routers, folder)
        plane.own_addresses()
        plane.follow(topology.routers, inside=estimator, overlap_s=1.0)
        links = {str(Segment.link(one.source, one.target)) for one in topology.links}
        wait(lambda: plane.measured().keys() >= links, "every link is measured")
        yield plane


def placed(plane: Plane, port: Port | None, seed: int, seconds: float = SECONDS) -> Placement:
    """Send, with a queue at a port or without; ask the collector and the captures."""
    routers, folder = plane.routers, plane.folder / f"run{seed}"
    traffic = Traffic(seconds=seconds)
    hosts = {f"{router}-host": routers.address(router) for router in routers.topology.routers}
    unseen = _unseen(plane)
    began = time()
    with routers.taps(folder / "captures"):
        rate = 0.0 if port is None else traffic.loads(routers.topology)[port] / BUSY
        with nullcontext() if port is None else routers.slow(*port, rate):
            traffic.send(routers.network, hosts, seed)
            ended = time()
    parts = _parts(plane, began, ended - TAIL_S)
    found = Placement(port, {name for name, part in parts.items() if part["blamed"]})
    ways = [] if port is None else [name for name in parts if _leads_to(name, port)]
    for way in ways:
        delays_ns = _joined(folder, parse_segment(way), _covered(plane, way, began, ended - TAIL_S))
        found.adds[way] = parts[way]["adds"], float(delays_ns.mean() - delays_ns.min()) / 1e9
    found.unseen = _unseen(plane) - unseen
    return found


def _leads_to(name: str, port: Port) -> bool:
    segment = parse_segment(name)
    return segment.kind == "inside" and (segment.at, segment.after) == port


def _unseen(plane: Plane) -> int:
    return sum(one["unseen"] for one in plane.ask("agents")["agents"])


def _parts(plane: Plane, began: float, until: float) -> dict[str, dict[str, Any]]:
    """The segments of every path, from intervals that began in this time."""
    names = plane.routers.topology.routers
    wait(lambda: _all_later(plane, until), "the last intervals are settled")
    pairs = [(one, other) for one in names for other in names if one != other]
    paths = [plane.ask(f"path?source={one}&target={other}&from={began}&to={until}") for one, other in pairs]
    if missing := sorted({name for path in paths for name in path["missing"]}):
        raise OSError(f"the collector has no report of {', '.join(missing)}")
    return {part["segment"]: part for path in paths for part in path["segments"]}


def _all_later(plane: Plane, until: float) -> bool:
    """Whether every segment has a settled interval that began later."""
    settled = {one["segment"]: one["settled"] for one in plane.ask("segments")["segments"]}
    now = plane.segments()
    return all(one["start"] >= until for name, one in settled.items() if name in now and one is not None)


def _covered(plane: Plane, segment: str, began: float, until: float) -> tuple[int, int]:
    """The time of a segment's intervals that began in this time: each ends where the next one with packets begins."""
    starts = [round(one["start"] * 1e9) for one in plane.reports(segment, began) if one["sent"]]
    return min(starts), min(start_ns for start_ns in starts if start_ns >= until * 1e9)


def _joined(folder: Path, segment: Segment, times_ns: tuple[int, int]) -> npt.NDArray[np.int64]:
    """How long packets took that entered in this time and left, by the captures."""
    ids, entered_ns = _passed(folder, f"{segment.at}.in.{segment.before}".rstrip("."))
    others, left_ns = _passed(folder, f"{segment.at}.out.{segment.after}".rstrip("."))
    both = join(ids, others)
    sent_ns = entered_ns[both.up_rows]
    delays_ns = left_ns[both.down_rows] - sent_ns
    return delays_ns[(sent_ns >= times_ns[0]) & (sent_ns < times_ns[1])]


def _passed(folder: Path, tap: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    batches = list(wirelag.read(str(folder / "captures" / f"{tap}.pcap")))
    return (
        np.concatenate([batch.packet_id for batch in batches]),
        np.concatenate([batch.time_ns for batch in batches]),
    )


def figures(estimator: str, placements: int, seconds: float = SECONDS) -> list[Placement]:
    """Queues at random ports, and then none."""
    with TemporaryDirectory() as folder, measuring(estimator, Path(folder)) as plane:
        ports = sorted(Traffic().loads(plane.routers.topology))
        queues = [random.Random(seed).choice(ports) for seed in range(placements)]
        return [placed(plane, port, seed, seconds) for seed, port in enumerate([*queues, None])]


def show_figures(estimator: str, found: Iterable[Placement]) -> None:
    rows = []
    for number, one in enumerate(found):
        name = "no queue" if one.port is None else f"{number + 1}: {'>'.join(one.port)}"
        adds = [1e3 * exact for _, exact in one.adds.values()]
        rows.append(
            (
                name,
                str(len(one.blamed)),
                f"{len(one.adds)}",
                "yes" if one.right else f"NO: {' '.join(sorted(one.blamed ^ set(one.adds)))}",
                f"{min(adds):.2f} to {max(adds):.2f}" if adds else "-",
                f"{100 * max(map(abs, one.errors)):.2f}%" if adds else "-",
                str(one.unseen),
            )
        )
    header = ("queue at", "blamed", "ways to it", "exactly these", "they add, ms", "largest error", "unseen")
    show(f"{estimator} inside six routers, live", header, rows)


if __name__ == "__main__":
    options = arguments(__doc__)
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)
    for estimator in ESTIMATORS:
        show_figures(estimator, figures(estimator, QUICK if options.quick else PLACEMENTS))
