"""Pirate, figure 9: tail latency with a balancer that follows latency, and without one. Needs the lab, and root.

Four servers, service times lognormal with a mean of 20 ms; connections live for 1 s on average and have one request in
flight. `equal` is the same balancer with constant equal weights, `aware` follows latency, `paper` too, with the paper's
controller. p99 is over all requests, including those of connections pinned to a slow server.

    python experiments/balance_lab.py [--quick] [--runs N] [--seconds S] [--loads N...]
    python experiments/balance_lab.py --in-flight 1 4 16 [--runs N] [--seconds S]      by method
    python experiments/balance_lab.py --loops 1 4 16 [--runs N] [--seconds S]      closed and open loops, W in flight
    (--together 48: half the load of these two)

In an open loop clients ask at random times, whatever the answers do: W in flight is then the mean while all servers are
well. Latencies count from the time at which a request was due. A server has four times the workers there, since with 48
one that is slowed five times cannot do its share of the requests, and its queue would only grow.
    python experiments/balance_lab.py --deaths [--runs N]      how long a dead server gets connections: 3 minutes
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from pirate_lab import need_root
from traces import show

from lab.balance import EQUAL, Opening, Site, entries, opened, site
from lab.clients import Load
from lab.network import POINT_ADDRESS, PROMPT
from lab.processes import Process

SERVICE, WORKERS = "lognormal:18000:0.5:400000", 48
SERVERS = (1, 2, 3, 4)
LIFETIME = "exponential:1000000"
LOADS = (48, 96, 144)  # connections; 192 workers
MOVES_S = 15.0
FAIR = 1 / len(SERVERS)
UNCHECKED = {**EQUAL, "health": {"check": "none"}}
KINDS: dict[str, dict[str, Any] | None] = {"equal": EQUAL, "aware": None, "paper": {"controller": "paper"}}
METHODS: dict[str, dict[str, Any] | None] = {"equal": EQUAL, "auto": {"method": "auto"}, "modes": {"method": "modes"}}
TOGETHER = 96  # requests in flight, of all connections
FEWEST = 8  # connections
MEAN_S = 0.02  # of the service times
OPEN_WORKERS = 4 * WORKERS
LOOPS: dict[str, dict[str, Any] | None] = {"equal": EQUAL, "aware": None}

Act = Callable[[Site], None]


@dataclass(frozen=True)
class Outcome:
    """The record of a run."""

    latency_ms: npt.NDArray[np.float64]  # latencies of answered requests
    ended_s: npt.NDArray[np.float64]  # when each request ended, since the start
    failed: npt.NDArray[np.bool_]
    server: npt.NDArray[np.uint16]
    said: list[dict[str, Any]]  # output of the command, with `at`: seconds since the start

    def p99_ms(self) -> float:
        """Over all answered requests."""
        return float(np.percentile(self.latency_ms, 99))

    def weights(self, number: int) -> list[tuple[float, float]]:
        """The weights of a server, with their times."""
        names = f"server{number}"
        return [(one["at"], back["weight"]) for one in self.said for back in one["backends"] if back["name"] == names]


def run(
    connections: int,
    seconds: float,
    seed: int,
    *,
    settings: dict[str, Any] | None = None,
    acts: Sequence[tuple[float, Act]] = (),
    load: Load | None = None,
    openings: tuple[int, list[Opening]] | None = None,
    workers: int = WORKERS,
) -> Outcome:
    """One run. `acts`: actions by time, in seconds since the start. `openings`: of this server, to be added."""
    load = load or Load(lifetime=LIFETIME)
    given = {"service": SERVICE, "workers": workers, "before": PROMPT}
    with TemporaryDirectory() as folder, site("fig", Path(folder), seed, **given) as place:  # type: ignore[arg-type]
        place.configure(SERVERS, settings)
        command = place.steer()
        wire = None if openings is None else place.openings(openings[0])
        begin_ns = time.time_ns()
        client = place.ask(connections, seconds, load)
        for at_s, act in sorted(acts, key=lambda one: one[0]):
            _wait_until(begin_ns + int(at_s * 1e9), client)
            act(place)
        client.finish(seconds + 30)
        if wire is not None and openings is not None:
            openings[1].extend(opened(wire))
        asked, said = place.asked(), entries(command)
    for one in said:
        one["at"] = one["time"] - begin_ns / 1e9
    failed = asked["failed"] > 0
    return Outcome(
        (asked["answered_ns"] - asked["asked_ns"])[~failed] / 1e6,
        (asked["answered_ns"] - begin_ns) / 1e9,
        failed,
        asked["server"],
        said,
    )


def _wait_until(time_ns: int, client: Process) -> None:
    """Wait until then, or until the client has ended."""
    ended = os.pidfd_open(client.pid)
    try:
        select.select([ended], [], [], max(0.0, (time_ns - time.time_ns()) / 1e9))
    finally:
        os.close(ended)


def slow(number: int) -> Act:
    """Make it slow."""
    return lambda place: place.slow(number)


def well(number: int) -> Act:
    """Let it recover."""
    return lambda place: place.well(number)


def killed(number: int) -> Act:
    """Kill its process: its host refuses connections from now on."""
    return lambda place: os.kill(place.servers[number].pid, signal.SIGKILL)


def silent(number: int) -> Act:
    """Make its host silent from now on."""
    return lambda place: place.network.ip(f"server{number}", "link set eth0 down")


def moving(seconds: float, first: int) -> list[tuple[float, Act]]:
    """One server is slow at a time, another one every MOVES_S."""
    acts: list[tuple[float, Act]] = [(0.0, slow(first))]
    for count, at_s in enumerate(np.arange(MOVES_S, seconds, MOVES_S).tolist()):
        old, new = (SERVERS[(first - 1 + count + step) % len(SERVERS)] for step in (0, 1))
        acts += [(at_s, well(old)), (at_s, slow(new))]
    return acts


# ---- output ----


@dataclass(frozen=True)
class Tail:
    """p99 of several runs of one load, in ms, by kind of balancer; the first kind is `equal`."""

    p99_ms: dict[str, list[float]]
    requests_per_s: float
    failed: int
    least: float  # smallest weight of any server, but with the paper's controller, which has no floor

    def lower(self, kind: str = "aware") -> list[float]:
        """The reduction, run by run."""
        return [1 - mine / equal for equal, mine in zip(self.p99_ms["equal"], self.p99_ms[kind], strict=True)]


def tail(
    connections: int,
    runs: int,
    seconds: float,
    ill: bool = True,
    kinds: dict[str, dict[str, Any] | None] = KINDS,
    load: Load | None = None,
    workers: int = WORKERS,
) -> Tail:
    """Figure 9, one load. `ill`: one of the servers is slow."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    requests, failed, least = 0, 0, 1.0
    for seed in range(1, runs + 1):
        for kind, settings in kinds.items():
            acts = moving(seconds, 1 + seed % len(SERVERS)) if ill else []
            one = run(connections, seconds, seed, settings=settings, acts=acts, load=load, workers=workers)
            found[kind].append(one.p99_ms())
            requests, failed = requests + len(one.latency_ms), failed + int(one.failed.sum())
            if kind != "paper":
                least = min([least, *(weight for number in SERVERS for _, weight in one.weights(number))])
            print(f"{connections} connections, seed {seed}, {kind}: {one.p99_ms():.1f} ms", file=sys.stderr, flush=True)
    return Tail(found, requests / (len(kinds) * runs * seconds), failed, least)


def by_method(windows: Sequence[int], runs: int, seconds: float, together: int = TOGETHER) -> None:
    """Figure 9 with several requests in flight, by method."""
    loads = {
        f"{window} in flight": (max(FEWEST, together // window), Load(lifetime=LIFETIME, in_flight=window))
        for window in windows
    }
    rows: list[tuple[object, ...]] = []
    for name, (connections, load) in loads.items():
        one = tail(connections, runs, seconds, kinds=METHODS, load=load)
        p99 = [f"{np.mean(values):.1f}" for values in one.p99_ms.values()]
        lower = [
            f"{100 * np.mean(one.lower(kind)):.1f} +- {100 * np.std(one.lower(kind)):.1f}" for kind in ("auto", "modes")
        ]
        rows.append((f"{name}, {connections} connections", round(one.requests_per_s), *p99, *lower, one.failed))
    header = ("", "requests/s", "equal, ms", "auto, ms", "modes, ms", "auto lower by, %", "modes lower by, %", "failed")
    show("p99, one of four servers slowed 5x, by method", header, rows)


def by_loop(windows: Sequence[int], runs: int, seconds: float, together: int = TOGETHER) -> None:
    """Figure 9 with clients that wait for responses, and with clients that do not; then the same with equal servers."""
    rows: list[tuple[object, ...]] = []
    lower = list[float]()
    for loop, workers in (("closed", WORKERS), ("open", OPEN_WORKERS)):
        for window in windows:
            connections = max(FEWEST, together // window)
            load = Load(lifetime=LIFETIME, in_flight=window)
            if loop == "open":
                load = Load(pattern="open", lifetime=LIFETIME, rate=window / MEAN_S)
            ill = tail(connections, runs, seconds, kinds=LOOPS, load=load, workers=workers)
            well = tail(connections, runs, seconds / 2, ill=False, kinds=LOOPS, load=load, workers=workers)
            lower += ill.lower()
            found = [f"{np.mean(one.p99_ms[kind]):.1f}" for one in (ill, well) for kind in LOOPS]
            spreads = [f"{100 * np.mean(one.lower()):.1f} +- {100 * np.std(one.lower()):.1f}" for one in (ill, well)]
            cells = (*found[:2], spreads[0], *found[2:], spreads[1])
            rows.append((f"{loop}, W = {window}", round(ill.requests_per_s), *cells, ill.failed + well.failed))
    ill_cells, well_cells = (
        tuple(f"{what}: {cell}" for cell in ("equal, ms", "aware, ms", "lower by, %"))
        for what in ("one slow", "all well")
    )
    show("p99, closed and open loops", ("", "requests/s", *ill_cells, *well_cells, "failed"), rows)
    error = np.std(lower) / max(1, len(lower) - 1) ** 0.5
    show(
        "one slow, all rows",
        ("", "lower by, %", "standard error"),
        [("mean", 100 * float(np.mean(lower)), 100 * float(error))],
    )


@dataclass(frozen=True)
class Recovery:
    """Seconds from a change of a server until its weight reflects it."""

    down_s: float  # below a fifth of its share
    up_s: float  # at least 80% of it
    stays: bool  # and from then on at least half of it
    failed: int


def recovery(connections: int, seed: int = 1) -> Recovery:
    """A server is slow for 12 s, then healthy."""
    ill_s, well_s = 2.0, 14.0
    one = run(connections, 34.0, seed, acts=[(ill_s, slow(2)), (well_s, well(2))])
    weights = one.weights(2)
    down = next((at for at, weight in weights if at > ill_s and weight < FAIR / 5), float("inf"))
    up = next((at for at, weight in weights if at > well_s and weight >= 0.8 * FAIR), float("inf"))
    stays = all(weight >= 0.5 * FAIR for at, weight in weights if at > up)
    return Recovery(down - ill_s, up - well_s, stays, int(one.failed.sum()))


def all_slow(connections: int, seed: int = 1) -> tuple[float, float]:
    """The smallest and the largest weight, in fair shares, from 4 s after all got slow."""
    one = run(connections, 14.0, seed, acts=[(3.0, slow(number)) for number in SERVERS])
    shares = [weight / FAIR for number in SERVERS for at, weight in one.weights(number) if at > 7.0]
    return min(shares), max(shares)


@dataclass(frozen=True)
class Floor:
    """One server stays slow: from 10 s on, when its old connections have ended."""

    p99_ms: float
    well_ms: float  # the same of the requests to the other servers
    equal_ms: float  # p99 with equal weights
    requests: float  # share of requests to the slow server


def stays_slow(connections: int, seed: int = 1) -> Floor:
    """A server is slow from the start, for 40 s."""
    found = {}
    for steered in (False, True):
        one = run(connections, 40.0, seed, settings=None if steered else EQUAL, acts=[(0.0, slow(2))])
        late, ill = (one.ended_s[~one.failed] > 10.0), (one.server[~one.failed] == 2)
        p99 = [float(np.percentile(one.latency_ms[rows], 99)) for rows in (late, late & ~ill)]
        found[steered] = (*p99, float(ill[late].mean()))
    return Floor(found[True][0], found[True][1], found[False][0], found[True][2])


@dataclass(frozen=True)
class Death:
    """A server dies. What was sent to it afterwards, by the packets on its wire."""

    out_s: float  # until it was out of the table
    connections: int  # of clients: packets that open one, each repetition counted
    last_s: float  # when the last of them was sent
    checks: int  # health checks until it was out
    failed: float  # requests a second, from 5 s after its death on


def one_dies(connections: int, seed: int, dies: Callable[[int], Act], settings: dict[str, Any] | None = None) -> Death:
    """Server 3 dies after 3 s and a part, so that deaths are spread over the time between two checks."""
    patient = Load(lifetime=LIFETIME, patience_us=1_000_000)
    sent, at_s = list[Opening](), 3.0 + 0.37 * seed % 1

    def act(place: Site) -> None:
        sent.append(Opening(time.time_ns() / 1e9, "death"))
        dies(3)(place)

    one = run(connections, 14.0, seed, settings=settings, acts=[(at_s, act)], load=patient, openings=(3, sent))
    died_s = sent[0].time_s
    down = [said["time"] for said in one.said for back in said["backends"] if is_down(back, 3)]
    out_s = min(down, default=float("inf")) - died_s
    after = [(opening.time_s - died_s, opening.source) for opening in sent[1:] if opening.time_s > died_s]
    clients = [late_s for late_s, source in after if source != POINT_ADDRESS]
    checks = [late_s for late_s, source in after if source == POINT_ADDRESS and late_s <= out_s]
    failed = one.failed[(one.ended_s > at_s + 5) & (one.ended_s < at_s + 10)].sum() / 5
    return Death(out_s, len(clients), max(clients, default=0.0), len(checks), float(failed))


def is_down(backend: dict[str, Any], number: int) -> bool:
    """Whether a line of the command says so of this server."""
    return bool(backend["name"] == f"server{number}" and backend["standing"] == "down")


@dataclass(frozen=True)
class Churn:
    """The fate of many short connections."""

    opened: int
    requests: int
    failed: int
    faults: dict[str, int]


def churn(connections: int, seed: int = 1) -> Churn:
    """Connections that live for 50 ms, and a slow server that moves. Nothing should fail."""
    load = Load(lifetime="exponential:50000")
    one = run(connections, 12.0, seed, acts=[(2.0, slow(1)), (7.0, well(1)), (7.0, slow(2))], load=load)
    opened = sum(back["opened"] for said in one.said for back in said["backends"])
    faults = {name: count for name, count in one.said[-1]["counters"].items() if count}
    return Churn(opened, len(one.latency_ms), int(one.failed.sum()), faults)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of one load: rough numbers")
    parser.add_argument("--deaths", action="store_true", help="only how long a dead server gets connections")
    parser.add_argument("--in-flight", type=int, nargs="+", help="only this: requests in flight, by method")
    parser.add_argument("--loops", type=int, nargs="+", help="only this: requests in flight, closed and open loops")
    parser.add_argument("--together", type=int, default=TOGETHER, help="requests in flight, of all connections")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS, help="connections")
    return parser.parse_args()


def main() -> None:
    """Run everything: 35 minutes."""
    asked = arguments()
    need_root()
    if asked.deaths:
        deaths(asked.loads[len(asked.loads) // 2], asked.runs)
        return
    if asked.in_flight:
        by_method(asked.in_flight, asked.runs, asked.seconds, asked.together)
        return
    if asked.loops:
        by_loop(asked.loops, asked.runs, asked.seconds, asked.together)
        return
    if asked.quick:
        asked.runs, asked.loads, asked.seconds = 1, asked.loads[:1], 8.0
    tails = {f"{connections} connections": tail(connections, asked.runs, asked.seconds) for connections in asked.loads}
    ours = ("equal, ms", "aware, ms", "lower by, %", "paper, ms", "paper lower by, %")
    header = ("", "requests/s", *ours, "failed", "least weight")
    show("p99, one of four servers slowed 5x", header, [(name, *row(one)) for name, one in tails.items()])
    lower = [one for found in tails.values() for one in found.lower()]
    error = np.std(lower) / max(1, len(lower) - 1) ** 0.5
    show(
        "p99, all loads",
        ("", "lower by, %", "standard error"),
        [("mean", 100 * float(np.mean(lower)), 100 * float(error))],
    )
    if asked.quick:
        return
    middle = asked.loads[len(asked.loads) // 2]
    show(
        "p99, equal servers",
        header,
        [(f"{middle} connections", *row(tail(middle, asked.runs, asked.seconds / 2, ill=False)))],
    )
    rest(middle, min(asked.runs, 4))


def rest(connections: int, runs: int) -> None:
    """Everything but figure 9."""
    back, (least, most), floor, short = (
        recovery(connections),
        all_slow(connections),
        stays_slow(connections),
        churn(connections),
    )
    rows: list[tuple[object, ...]] = [
        ("slow: a fifth of its share after, s", back.down_s),
        ("well: 80% of its share after, s", back.up_s),
        ("all slow: least weight, fair shares", least),
        ("all slow: largest weight, fair shares", most),
        ("one stays slow: p99, equal, ms", floor.equal_ms),
        ("one stays slow: p99, aware, ms", floor.p99_ms),
        ("one stays slow: p99 of the others, ms", floor.well_ms),
        ("one stays slow: its requests, %", 100 * floor.requests),
        ("churn: connections a second", short.opened / 12),
        ("churn: failed requests", short.failed),
        ("churn: faults", " ".join(f"{name}={count}" for name, count in short.faults.items()) or "none"),
    ]
    show("what else", ("", "found"), rows)
    deaths(connections, runs)


def deaths(connections: int, runs: int) -> None:
    """How long a dead server is in the table, and what is sent to it."""
    rows = []
    for name, dies in (("its process is killed", killed), ("its host falls silent", silent)):
        found = [one_dies(connections, seed, dies) for seed in range(1, runs + 1)]
        equal = one_dies(connections, 1, dies, UNCHECKED)
        out, last, sent = ([getattr(one, what) for one in found] for what in ("out_s", "last_s", "connections"))
        rows.append(
            (
                name,
                f"{np.mean(out):.2f} ({min(out):.2f} to {max(out):.2f})",
                f"{max(last):.2f}",
                f"{min(one.checks for one in found)} to {max(one.checks for one in found)}",
                f"{np.mean(sent):.0f} ({max(sent)} at most)",
                f"{np.mean([one.failed for one in found]):.1f} ({equal.failed:.1f})",
            )
        )
    header = ("one dies", "out after, s", "last opening, s", "checks until then", "openings sent to it")
    show("a dead server", (*header, "failures a second after 5 s (equal weights, no checks)"), rows)


def row(one: Tail) -> tuple[object, ...]:
    """Means, and standard deviations of the runs."""
    aware, paper = ([100 * value for value in one.lower(kind)] for kind in ("aware", "paper"))
    found = (one.p99_ms["equal"], one.p99_ms["aware"], aware, one.p99_ms["paper"], paper)
    spreads = [f"{np.mean(values):.1f} +- {np.std(values):.1f}" for values in found]
    return (round(one.requests_per_s), *spreads, one.failed, f"{one.least:.4f}")


if __name__ == "__main__":
    main()
