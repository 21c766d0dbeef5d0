"""The cost of the live system: bytes per interval, processor time per million packets, memory. Needs root.

`python benchmarks/sizing.py [--seconds 4] [--rate 200000]` prints the tables of docs/reference/operations.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import flood, system
from lab.network import Network
from wirelag.agent.config import Config
from wirelag.agent.forecast import message_bytes
from wirelag.agent.settings import SCHEMA

ESTIMATORS = ("lda", "finecomb", "rda")
COUNTS = (0, 1_000, 100_000, 1_000_000)
TICKS = os.sysconf("SC_CLK_TCK")
FEW_S = 5.0


def processor_s(pid: int) -> float:
    """Processor time used by a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    """Peak memory of a process, including its share of the ring."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def config(estimator: str) -> Config:
    """Of an agent that has one segment, and is otherwise as agents are."""
    settings = SCHEMA.load(None)
    for name, value in (("point", "edge1"), ("interface", "lo"), ("estimator.name", estimator)):
        settings.put(name, value, name)
    return Config.of(settings)


def ask(network: Network, path: str) -> Any:
    """Ask the collector, in the sink's namespace."""
    with network.inside(flood.SINK), urllib.request.urlopen(f"http://127.0.0.1:{system.PORT}{path}") as answer:
        return json.load(answer)


def told(network: Network) -> dict[str, Any]:
    """The collector's state of the agent, once there is any."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if (found := ask(network, "/api/v1/agents")["agents"]) and found[0]["last_interval"]:
            agent: dict[str, Any] = found[0]
            return agent
        time.sleep(0.1)
    raise OSError("the agent was not heard")


def one_agent(estimator: str, rate: float, seconds: float) -> str:
    """An agent under a flood, and then idle."""
    with tempfile.TemporaryDirectory() as name, Network("sizing") as network:
        folder = Path(name)
        flood.build(network)
        collect = [*system.WIRELAG, "collect", "--store", str(folder / "store.db")]
        network.start(flood.SINK, collect, folder / "collector.txt").wait_for_line("collecting at")
        words = ["--point", "sink", "--interface", flood.SOURCE, "--estimator", estimator, "--cut", "clock"]
        words = words if estimator == "lda" else words[:-2]
        words += ["--collector", f"http://127.0.0.1:{system.PORT}", "--spool", str(folder / "spool")]
        words += ["--clock-error", "1us", "--segment", "source>sink"]
        agent = network.start(flood.SINK, [*system.WIRELAG, "agent", *words], folder / "agent.txt")
        agent.wait_for_line("listening at")
        before = told(network), processor_s(agent.pid)
        time.sleep(FEW_S)
        quiet = told(network), processor_s(agent.pid)
        idle = (quiet[1] - before[1]) / FEW_S
        sent, took = flood.result(
            flood.start(network, int(rate * seconds), rate, folder / "flood.txt", 1).finish(60 + seconds)
        )
        time.sleep(2.0)  # for the last interval
        after = told(network), processor_s(agent.pid)
        packets = after[0]["packets"] - quiet[0]["packets"]
        used = after[1] - quiet[1] - idle * (took + 2.0)
        each = (quiet[0]["bytes"] - before[0]["bytes"]) / max(
            1.0, quiet[0]["last_interval"] - before[0]["last_interval"]
        )
        return (
            f"{estimator:9} {sent / took:9,.0f}  {packets / sent:6.1%}  {used / packets * 1e6:6.2f}  {idle:6.1%}"
            f"  {peak_mib(agent.pid):6.0f}  {each:10,.0f}"
        )


def all_of_it(seconds: float) -> str:
    """The lab's whole system: the cost of its collector, and the traffic of its agents with 1% loss."""
    found: list[tuple[float, float, float, float, float]] = []
    lab: list[system.System] = []

    def watch(text: str) -> None:
        if where := re.search(r"page +(\S+)/\s+token +(\S+)", text):
            lab.append(system.System(where[1], where[2], Path()))
            return
        (collector,) = (pid for pid in _children() if b"collect" in Path(f"/proc/{pid}/cmdline").read_bytes())
        agents = lab[0].ask("/api/v1/agents")["agents"]
        sent, packets = (float(sum(one[name] for one in agents)) for name in ("bytes", "packets"))
        found.append((time.monotonic(), processor_s(collector), peak_mib(collector), sent, packets))

    system.run(seconds, 0, 1, watch)
    first, last = found[1], found[-1]
    took, used, _, sent, packets = (after - before for after, before in zip(last, first, strict=True))
    return (
        f"{used / took:.1%} of a core, {last[2]:.0f} MiB; agents, of {packets / took / 4:,.0f} packets a second"
        f" and segment, 1% lost: {sent / took / 4:,.0f} bytes for each interval and segment, from each"
    )


def _children() -> list[int]:
    tasks = Path("/proc/self/task")
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each flood")
    parser.add_argument("--rate", type=float, default=200_000, help="packets a second")
    options = parser.parse_args()
    print("bytes of the first message about an interval, by packets in it")
    print(f"{'':9} " + "".join(f"{count:>12,}" for count in COUNTS))
    for estimator in ESTIMATORS:
        sizes = (message_bytes(config(estimator).measured[0], count) for count in COUNTS)
        print(f"{estimator:9} " + "".join(f"{size:>12,}" for size in sizes))
    print("\nan agent, by method: packets a second, share of them taken in, processor seconds for a million of them,")
    print("share of a core when idle, MiB at most, bytes a second when idle")
    for estimator in ESTIMATORS:
        print(one_agent(estimator, options.rate, options.seconds), flush=True)
    print(f"\nthe collector, two segments at an interval of 1 s: {all_of_it(24.0)}")


if __name__ == "__main__":
    main()
