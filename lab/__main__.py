"""`python -m lab`: run scenarios, record routers, try the live system, score estimates, clean up. Needs root."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from lab import fleet, system
from lab.network import sweep
from lab.routers import BUSY, Routers
from lab.run import run
from lab.scenarios import SCENARIOS, held_back, missing
from lab.score import main as score_main
from lab.traffic import USUAL, Traffic
from wirelag.errors import WirelagError
from wirelag.network.topology import read_topology


def _run(options: argparse.Namespace) -> None:
    names = list(SCENARIOS) if options.name == "all" else [options.name]
    for name in names:
        scenario = SCENARIOS[name]
        if options.held_back:
            scenario = held_back(scenario)
        if options.seconds:
            scenario = replace(scenario, seconds=options.seconds)
        if options.both:
            scenario = replace(scenario, both=True)
        if lacking := missing(scenario):
            if options.name != "all":
                raise OSError(f"{name} {lacking}")
            print(f"{name}: skipped, it {lacking}", flush=True)
            continue
        folder = options.output / name if options.name == "all" else options.output
        result = run(scenario, options.seed, folder, options.in_kernel)
        left = (result.capture, result.truth or "no truth", result.both, result.epochs)
        print(f"{name}:", *(one for one in left if one), flush=True)


def _list(options: argparse.Namespace) -> None:
    for scenario in SCENARIOS.values():
        size = f"{scenario.connections:3} connections {scenario.seconds:4g} s"
        print(f"{scenario.name:22} {size}  {scenario.server} <- {scenario.client}")


def _routers(options: argparse.Namespace) -> None:
    with Routers("routers", read_topology(options.topology)) as routers:
        for one, other in options.fail:
            routers.fail(one, other)
        slow = [(router, neighbour) for router, neighbour in options.slow]
        routers.record(options.output, options.seed, slow, Traffic(options.seconds), options.busy)
    print(f"{options.output / 'ospf.json'} {options.output / 'captures'}")


def _system(options: argparse.Namespace) -> None:
    if os.geteuid():
        raise OSError("the lab builds hosts in namespaces, which needs root: sudo make lab")
    for line in system.run(options.seconds, options.port, options.seed, lambda text: print(text, flush=True)):
        print(line)


def _fleet(options: argparse.Namespace) -> None:
    for line in fleet.run(options.seconds, options.port, options.seed, lambda text: print(text, flush=True)):
        print(line)


def _down(options: argparse.Namespace) -> None:
    for name in sweep():
        print(f"removed {name}")


def _score(options: argparse.Namespace) -> None:
    score_main(options.truth, options.epochs)


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="run a scenario")
    one.set_defaults(do=_run)
    one.add_argument("name", choices=[*SCENARIOS, "all"], metavar="NAME", help="see list; all: each in its own folder")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--seconds", type=float, help="instead of the scenario's")
    one.add_argument("--held-back", action="store_true", help="with other service times and sizes")
    one.add_argument("--both", action="store_true", help="also record both directions at the client")
    one.add_argument("--in-kernel", choices=["auto", "modes"], help="measure inside the kernel, too: epochs.npy")
    one.add_argument("-o", dest="output", type=Path, required=True, help="folder")
    commands.add_parser("list", help="list the scenarios").set_defaults(do=_list)
    routers = commands.add_parser("routers", help="routers that run OSPF: their database, and captures at every port")
    routers.set_defaults(do=_routers)
    routers.add_argument("topology", metavar="TOPOLOGY", help="as of wirelag plan; weights are OSPF's costs")
    for option, what in (("--slow", "packets wait where A sends to B"), ("--fail", "this link has failed")):
        routers.add_argument(option, nargs=2, action="append", default=[], metavar=("A", "B"), help=what)
    routers.add_argument("--busy", type=float, default=BUSY, help="share of the time that slow ports send")
    routers.add_argument("--seconds", type=float, default=USUAL.seconds, help="of traffic")
    routers.add_argument("--seed", type=int, default=1)
    routers.add_argument("-o", dest="output", type=Path, required=True, help="folder")
    for name, do, what in (
        ("system", _system, "agents, a collector and its page, with traffic between two hosts"),
        ("fleet", _fleet, "the same with three collectors, a database and a cluster of brokers"),
    ):
        live = commands.add_parser(name, help=what)
        live.set_defaults(do=do)
        live.add_argument("--seconds", type=float, help="and then end; without: until Ctrl-C")
        live.add_argument("--port", type=int, default=system.PORT, help="of the page, on 127.0.0.1; 0: any")
        live.add_argument("--seed", type=int, default=1)
    commands.add_parser("down", help="remove what ended processes left behind").set_defaults(do=_down)
    score = commands.add_parser("score", help="how far answers are from the truth")
    score.set_defaults(do=_score)
    score.add_argument("truth", type=Path, help="truth.parquet of a run")
    score.add_argument("epochs", type=Path, help="Parquet: flow_key, start_ns, end_ns, mean_ns (null: abstained)")
    options = parser.parse_args()
    try:
        options.do(options)
    except (OSError, WirelagError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
