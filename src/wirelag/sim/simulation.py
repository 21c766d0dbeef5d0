"""A simulation from its scenario: the packets, the captures that contain them, and the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.sim.flights import Sent, send
from wirelag.sim.frames import Frames, build_frames, mark
from wirelag.sim.packets import Gathered, Packets
from wirelag.sim.path import Path, clock, copies, cross, lose
from wirelag.sim.scenario import Scenario
from wirelag.sim.scramble import scramble
from wirelag.sim.traffic import CLIENT, Connections, Hosts, Ints, draw_connections, plan_flights
from wirelag.sim.truth import START_NS, crossings, responses, round_trips

if TYPE_CHECKING:
    import polars as pl

MOST_CONNECTIONS: Final = 20_000  # processed at once
MOST_VAIN_TRIES: Final = 10
BATCH: Final = 65_536  # frames built at once

Columns = dict[str, npt.NDArray[Any]]  # the columns of Packets by name


@dataclass(frozen=True)
class Capture:
    """The capture of one vantage point: rows of the simulation's packets, in order of arrival."""

    time_ns: Ints  # on the point's own clock, ns since 1970
    row: Ints
    crossed: npt.NDArray[np.bool_]  # passed the other point before: its hop limit is lower


@dataclass(frozen=True)
class Simulation:
    """The result: `captures` has one entry per point, upstream first."""

    scenario: Scenario
    packets: Packets
    connections: Connections
    captures: tuple[Capture, ...]
    find_truth: Callable[[], pl.DataFrame] = field(repr=False)

    @cached_property
    def truth(self) -> pl.DataFrame:
        """The truth, a row per delay; found when it is first asked for. Needs polars."""
        return self.find_truth()

    def frames(self, point: int = 0, snaplen: int = 128) -> Iterator[Frames]:
        """The frames of a capture, in batches; each is built while the one before it is used."""
        starts = range(0, len(self.captures[point].row), BATCH)
        with ThreadPoolExecutor(1) as builder:
            building = builder.submit(self._batch, point, 0, snaplen)
            for start in starts[1:]:
                frames, building = building, builder.submit(self._batch, point, start, snaplen)
                yield frames.result()
            yield building.result()

    def _batch(self, point: int, start: int, snaplen: int) -> Frames:
        capture, part = self.captures[point], slice(start, start + BATCH)
        rows, time_ns, crossed = capture.row[part], capture.time_ns[part], capture.crossed[part]
        made = build_frames(self.packets, self.connections, rows, time_ns, crossed, snaplen, self.scenario.seed)
        if self.scenario.marking_ns:
            mark(made, self.packets.sent_ns[rows] // self.scenario.marking_ns % 2 == 1)
        return made


def simulate(scenario: Scenario) -> Simulation:
    """Simulate a scenario; the same scenario gives the same packets, bytes and truth.

    >>> len(simulate(Scenario(packets=100)).captures[0].time_ns)
    100
    """
    rng = np.random.default_rng(scenario.seed)
    hosts = Hosts.draw(scenario, rng)
    path = Path.draw(scenario, rng) if scenario.points == 2 else None
    columns, connections = _traffic(scenario, hosts, path.longest_ns if path else 0, rng)
    packets = _in_order(scenario, columns, connections)
    _kernels.release_memory()
    if path:
        return _two_points(scenario, path, packets, connections, rng)
    return _one_point(scenario, packets, connections)


def _traffic(scenario: Scenario, hosts: Hosts, middle_ns: int, rng: np.random.Generator) -> tuple[Columns, Connections]:
    """Draw connections until the span has enough packets; return their columns, in drawing order."""
    wanted = scenario.packets
    outside = scenario
    if scenario.points == 2:
        # Reordering and copies happen between the points, in `path`. Some packets are lost there; the margin makes a
        # shortfall practically impossible.
        outside = replace(scenario, reorder=0.0, duplicate=0.0)
        wanted = int(scenario.packets / (1 - scenario.loss) * 1.02) + 100
    gathered = Gathered(wanted + wanted // 4)
    filling: Future[None] | None = None
    host_parts: list[Connections] = []
    drawn = have = 0
    # Random choices come one after the other; the columns of one part are filled in while the next one is drawn.
    with ThreadPoolExecutor(1) as filler:
        while have < wanted:
            per_connection = have / drawn if have else 40.0  # a first guess: too few connections rather than too many
            count = min(int((wanted - have) / per_connection * 1.03) + 20, MOST_CONNECTIONS)
            connections = draw_connections(outside, hosts, count, rng)
            sent = send(outside, connections, plan_flights(connections, rng), middle_ns, rng, drawn)
            kept = (sent.time_ns < scenario.duration_ns) & _matters(scenario, sent)
            have += int(kept.sum() if scenario.direction == "both" else (kept & (sent.sender == CLIENT)).sum())
            drawn += count
            if filling:
                filling.result()  # memory: one part is filled in, and one is drawn
            filling = filler.submit(_fill, gathered, sent, kept)
            del sent, kept
            host_parts.append(connections)
            if not have and len(host_parts) == MOST_VAIN_TRIES:
                says = "no packet passes within the duration: choose a longer one or a shorter round-trip time"
                raise ValueError(says)
    if filling:
        filling.result()
    _kernels.release_memory()
    everyone = (np.concatenate([getattr(part, field.name) for part in host_parts]) for field in fields(Connections))
    return gathered.columns(), Connections(*everyone)


def _fill(gathered: Gathered, sent: Sent, kept: npt.NDArray[np.bool_]) -> None:
    gathered.add(sent.packets(kept))


def _matters(scenario: Scenario, sent: Sent) -> npt.NDArray[np.bool_]:
    """Packets that a capture records or its truth needs: for one direction, the client's packets and the responses."""
    if scenario.direction == "both":
        return np.ones(len(sent.time_ns), np.bool_)
    needed = sent.consumes if scenario.points == 1 else np.zeros(len(sent.time_ns), np.bool_)
    return np.where(sent.sender == CLIENT, True, needed)


def _in_order(scenario: Scenario, columns: Columns, connections: Connections) -> Packets:
    """Packets and the network's copies in order of time; for one point and both directions, all that it records.

    Takes the columns one by one, so that no two complete tables are in memory.
    """
    columns["ip_id"] = _ip_ids(scenario, columns, connections)
    time, again = columns.pop("time_ns"), columns["again_ns"]
    del columns["copy"]
    count = len(time)
    copied = np.flatnonzero(again)
    time = np.concatenate([time, time[copied] + again[copied]])
    order = _kernels.stable_order(time)
    if scenario.points == 1 and scenario.direction == "both":
        order = order[: scenario.packets]
    row = np.concatenate([np.arange(count), copied])[order]
    with ThreadPoolExecutor(2) as both:
        names = list(columns)
        ordered = dict(zip(names, both.map(lambda name: columns.pop(name)[row], names), strict=True))
    return Packets(time_ns=time[order], copy=order >= count, **ordered)


def _ip_ids(scenario: Scenario, columns: Columns, connections: Connections) -> npt.NDArray[np.uint16]:
    """Number every host's packets as it sends them, from its own start."""
    hosts = np.stack([connections.client, scenario.clients + connections.server]).astype(np.int32)
    host = hosts[columns["sender"], columns["connection"]]
    first = scramble(np.arange(scenario.clients + scenario.servers), scenario.seed, 1).astype(np.uint16)
    return _kernels.numbers_in_order(_kernels.stable_order(columns["sent_ns"]), host, first)


def _one_point(scenario: Scenario, packets: Packets, connections: Connections) -> Simulation:
    if scenario.direction == "both":
        row = np.arange(scenario.packets)
        truth = partial(round_trips, packets, connections)
    else:
        row = np.flatnonzero(packets.sender == CLIENT)[: scenario.packets]
        number = np.zeros(len(packets), np.int64)
        number[row] = np.arange(1, len(row) + 1)
        truth = partial(responses, packets, connections, number, int(packets.time_ns[row[-1]]))
    capture = Capture(START_NS + packets.time_ns[row], row, np.zeros(len(row), np.bool_))
    return Simulation(scenario, packets, connections, (capture,), truth)


def _two_points(
    scenario: Scenario, path: Path, packets: Packets, connections: Connections, rng: np.random.Generator
) -> Simulation:
    forward = packets.sender == CLIENT
    lost = lose(scenario, packets, rng)
    arrival = np.empty(len(packets), np.int64)
    for way in (True, False):
        arrival[forward == way] = cross(scenario, path, way, packets.time_ns[forward == way], rng)
    again = np.where(lost, 0, copies(scenario, len(packets), rng))

    # The upstream point sees the client's packets first, and the server's second; downstream the reverse.
    up_row, up_time = _seen(packets.time_ns, arrival, again, lost, forward)
    up_row, up_time = up_row[: scenario.packets], up_time[: scenario.packets]
    kept = np.zeros(len(packets), np.bool_)
    kept[up_row] = True
    kept |= ~forward & lost & (packets.time_ns <= up_time[-1])
    down_row, down_time = _seen(packets.time_ns, arrival, again, lost, ~forward)
    down_row, down_time = down_row[kept[down_row]], down_time[kept[down_row]]

    captures = (
        Capture(START_NS + up_time, up_row, ~forward[up_row]),
        Capture(START_NS + clock(scenario, down_time), down_row, forward[down_row]),
    )
    truth = partial(crossings, forward, packets.time_ns, arrival, lost, kept, up_row, down_row)
    return Simulation(scenario, packets, connections, captures, truth)


def _seen(
    sent: Ints, arrival: Ints, again: Ints, lost: npt.NDArray[np.bool_], first: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Rows and times at a point, in order; the `first` packets pass it on leaving, the others on arriving."""
    crossed = np.flatnonzero(~first & ~lost)
    copied = np.flatnonzero(~first & (again > 0))
    row = np.concatenate([np.flatnonzero(first), crossed, copied])
    time = np.concatenate([sent[first], arrival[crossed], arrival[copied] + again[copied]])
    order = _kernels.stable_order(time)
    return row[order], time[order]
