"""Pirate, figure 9: tail latency with a balancer that follows latency, and without one. Needs the lab, and root.

Four servers, service times lognormal with a mean of 20 ms; connections live for 1 s on average and have one request in
flight. `equal` is the same balancer with constant equal weights. p99 is over all requests, including those of
connections pinned to a slow server.

    python experiments/balance_lab.py [--quick] [--runs N] [--seconds S] [--loads N...]
"""

from __future__ import annotations

import argparse
import os
import select
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

from lab.balance import EQUAL, Site, entries, site
from lab.clients import Load
from lab.processes import Process

SERVICE, WORKERS = "lognormal:18000:0.5:400000", 48
SERVERS = (1, 2, 3, 4)
LIFETIME = "exponential:1000000"
LOADS = (48, 96, 144)  # connections; 192 workers
MOVES_S = 15.0
FAIR = 1 / len(SERVERS)

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
    steered: bool = True,
    acts: Sequence[tuple[float, Act]] = (),
    load: Load | None = None,
) -> Outcome:
    """One run. `acts`: actions by time, in seconds since the start."""
    load = load or Load(lifetime=LIFETIME)
    with TemporaryDirectory() as folder, site("fig", Path(folder), seed, service=SERVICE, workers=WORKERS) as place:
        place.configure(SERVERS, None if steered else EQUAL)
        command = place.steer()
        begin_ns = time.time_ns()
        client = place.ask(connections, seconds, load)
        for at_s, act in sorted(acts, key=lambda one: one[0]):
            _wait_until(begin_ns + int(at_s * 1e9), client)
            act(place)
        client.finish(seconds + 30)
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


def dies(number: int) -> Act:
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
    """p99 of several runs of one load, in ms, with equal weights and with weights that follow latency."""

    equal: list[float]
    aware: list[float]
    requests_per_s: float
    failed: int
    least: float  # smallest weight of any server

    def lower(self) -> list[float]:
        """The reduction, run by run."""
        return [1 - aware / equal for equal, aware in zip(self.equal, self.aware, strict=True)]


def tail(connections: int, runs: int, seconds: float, ill: bool = True) -> Tail:
    """Figure 9, one load. `ill`: one of the servers is slow."""
    found: dict[bool, list[float]] = {False: [], True: []}
    requests, failed, least = 0, 0, 1.0
    for seed in range(1, runs + 1):
        for steered in (False, True):
            acts = moving(seconds, 1 + seed % len(SERVERS)) if ill else []
            one = run(connections, seconds, seed, steered=steered, acts=acts)
            found[steered].append(one.p99_ms())
            requests, failed = requests + len(one.latency_ms), failed + int(one.failed.sum())
            least = min([least, *(weight for number in SERVERS for _, weight in one.weights(number))])
            kind = "aware" if steered else "equal"
            print(f"{connections} connections, seed {seed}, {kind}: {one.p99_ms():.1f} ms", file=sys.stderr, flush=True)
    return Tail(found[False], found[True], requests / (2 * runs * seconds), failed, least)


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


def one_dies(connections: int, seed: int = 1) -> tuple[float, float, float]:
    """A host falls silent: seconds until it has a fifth of its share; failures per second from 5 s on, equal, aware."""
    failures = []
    patient = Load(lifetime=LIFETIME, patience_us=1_000_000)
    for steered in (False, True):
        one = run(connections, 16.0, seed, steered=steered, acts=[(3.0, dies(3))], load=patient)
        failures.append(float(one.failed[(one.ended_s > 8.0) & (one.ended_s < 16.0)].sum()) / 8)
    down = next((at for at, weight in one.weights(3) if at > 3.0 and weight < FAIR / 5), float("inf"))
    return down - 3.0, failures[0], failures[1]


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
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS, help="connections")
    return parser.parse_args()


def main() -> None:
    """Run everything: 25 minutes."""
    asked = arguments()
    need_root()
    if asked.quick:
        asked.runs, asked.loads, asked.seconds = 1, asked.loads[:1], 8.0
    tails = {f"{connections} connections": tail(connections, asked.runs, asked.seconds) for connections in asked.loads}
    header = ("", "requests/s", "equal, ms", "aware, ms", "lower by, %", "failed", "least weight")
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
    back, (least, most), (dead_s, equal, aware), short = (
        recovery(middle),
        all_slow(middle),
        one_dies(middle),
        churn(middle),
    )
    rows: list[tuple[object, ...]] = [
        ("slow: a fifth of its share after, s", back.down_s),
        ("well: 80% of its share after, s", back.up_s),
        ("all slow: least weight, fair shares", least),
        ("all slow: largest weight, fair shares", most),
        ("one dies: a fifth of its share after, s", dead_s),
        ("one dies: failures a second, equal", equal),
        ("one dies: failures a second, aware", aware),
        ("churn: connections a second", short.opened / 12),
        ("churn: failed requests", short.failed),
        ("churn: faults", " ".join(f"{name}={count}" for name, count in short.faults.items()) or "none"),
    ]
    show("what else", ("", "found"), rows)


def row(one: Tail) -> tuple[object, ...]:
    """Means, and standard deviations of the runs."""
    lower = [100 * value for value in one.lower()]
    spreads = [f"{np.mean(values):.1f} +- {np.std(values):.1f}" for values in (one.equal, one.aware, lower)]
    return (round(one.requests_per_s), *spreads, one.failed, f"{one.least:.4f}")


if __name__ == "__main__":
    main()
