"""Where more workers stop helping: a model of up to 10,000 workers and 100,000 captures. No cluster runs.

    python benchmarks/fleet_scale.py                       what a task costs scheduler and client is measured here
    python benchmarks/fleet_scale.py --no-measure          ... is assumed, too
    python benchmarks/fleet_scale.py --read 300 --store 20     workers that read 300 MB/s, a store that gives 20 GB/s

How fast a worker reads, what the store gives, and how long a look at a capture takes are assumptions: a real store
decides them. The output names what was measured and what was assumed.

A task passes four stations: scheduler, store, worker and client. There is one scheduler and one client, and all readers
share the bytes per second of the store. The simulation follows every task through them. It says how long a question
takes, how busy each station is, and how many workers are too many.
"""

import argparse
import heapq
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from wirelag.units import format_size

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PACKETS = 1_000_000  # of the task whose result the client adds up
RESULTS = 200


@dataclass(frozen=True)
class Costs:
    """Of one task, in seconds, and in bytes. All are assumed, but for those that `measured` replaces."""

    look: float = 0.05  # of a worker, for each capture
    scheduler: float = 0.0010  # of the scheduler, for each task
    client: float = 0.004  # of the client: receive, keep, merge
    read: float = 80e6  # bytes of captures that a worker reads and measures in a second
    task: int = 256 << 20  # bytes of captures of a task
    capture: int = 100 << 20  # bytes of a capture
    store: float = 100e9  # bytes a second of the store, to all workers together


@dataclass(frozen=True)
class Ran:
    """How long it took, and what each station did."""

    seconds: float
    scheduler: float  # shares of the time
    client: float
    workers: float
    store: float

    @property
    def busiest(self) -> str:
        """What limits it."""
        shares = {"scheduler": self.scheduler, "client": self.client, "workers": self.workers, "store": self.store}
        return max(shares, key=lambda name: shares[name])


def simulate(costs: Costs, captures: int, workers: int) -> Ran:
    """Every task through the scheduler, a worker and the client, in order."""
    per_task = max(1, costs.task // costs.capture)
    tasks = [costs.look * 16] * -(-captures // 16)  # looks, sixteen captures at a time
    looks = len(tasks)
    rate = min(costs.read, costs.store / workers)
    tasks += [per_task * costs.capture / rate] * -(-captures // per_task)
    free = [0.0] * workers
    scheduler = client = busy = 0.0
    ended = 0.0
    for place, work in enumerate(tasks):
        if place == looks:  # pieces are planned when all captures were looked at
            ready = max(max(free), client)
            free, scheduler = [ready] * workers, max(scheduler, ready)
        scheduler += costs.scheduler
        began = max(heapq.heappop(free), scheduler)
        heapq.heappush(free, began + work)
        busy += work
        client = max(client, began + work) + costs.client
        ended = max(ended, client)
    whole = captures * costs.capture
    count = len(tasks)
    used = whole / costs.store / ended
    return Ran(ended, count * costs.scheduler / ended, count * costs.client / ended, busy / ended / workers, used)


def measured(costs: Costs) -> Costs:
    """The scheduler's and the client's cost on this machine."""
    from distributed import Client, LocalCluster

    from tests.support.simulated_captures import write_simulation
    from wirelag.measure.pieces import Piece, Read
    from wirelag.measure.rtt import RttSettings
    from wirelag.measure.rtt_heard import Heard
    from wirelag.measure.rtt_many import RttPart, hear
    from wirelag.packets.filters import Filter
    from wirelag.scale.engine import Engine, Task
    from wirelag.scale.finished import Finished, name_of
    from wirelag.sim import Scenario, simulate

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        engine = Engine(client)
        list(engine.run([Task("nothing", bytes, (0,)) for _ in range(50)]))
        began = time.perf_counter()
        list(engine.run([Task("nothing", bytes, (0,)) for _ in range(1000)]))
        scheduler = (time.perf_counter() - began) / 1000
    settings = RttSettings(cores=1)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tap.pcap"
        write_simulation(simulate(Scenario(packets=PACKETS, seed=1)), path)
        result = hear([Piece((Read(path, path),))], settings, Filter(), False, False)
    total, finished = RttPart(Heard.fresh(settings)), Finished()
    began = time.perf_counter()
    for place in range(RESULTS):  # as a run does: keep it, read it, add it; intervals are added up at the end
        finished.add(name_of(place), result)
        total.merge(finished.result(name_of(place)))
    list(total.together(settings))
    taken = time.perf_counter() - began
    finished.close(keep=False)
    return replace(costs, scheduler=scheduler, client=taken / RESULTS)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=int, default=100_000)
    parser.add_argument("--read", type=float, default=80, help="MB/s that a worker reads and measures (assumed)")
    parser.add_argument("--store", type=float, default=100, help="GB/s of the store, to all workers (assumed)")
    parser.add_argument("--no-measure", action="store_true")
    given = parser.parse_args()
    costs = Costs(read=given.read * 1e6, store=given.store * 1e9)
    costs, how = (costs, "assumed") if given.no_measure else (measured(costs), "measured here")
    whole = given.captures * costs.capture
    print(f"{given.captures:,} captures of {format_size(costs.capture)}, {format_size(whole)} in all")
    stations = f"{costs.scheduler * 1e3:.2f} ms of the scheduler, {costs.client * 1e3:.2f} ms of the client"
    print(f"{how}: a task takes {stations}")
    print(f"assumed: a worker reads {format_size(costs.read)}/s, the store gives {format_size(costs.store)}/s to all")
    print(f"assumed: a worker looks at a capture for {costs.look * 1e3:.0f} ms")
    columns = f"{'scheduler':>10} {'client':>7} {'workers':>8} {'store':>6}"
    print(f"{'workers':>8} {'time':>9} {'speed-up':>9} {columns}  busiest")
    first = None
    for workers in (1, 10, 100, 300, 1000, 2000, 3000, 10_000):
        ran = simulate(costs, given.captures, workers)
        first = first or ran.seconds
        shares = f"{ran.scheduler:>10.0%} {ran.client:>7.0%} {ran.workers:>8.0%} {ran.store:>6.0%}"
        print(f"{workers:>8,} {ran.seconds:>7,.0f} s {first / ran.seconds:>9,.0f} {shares}  {ran.busiest}")


if __name__ == "__main__":
    main()
