"""Drill: a fleet of three collectors, PostgreSQL and a cluster of three brokers, to which everything happens at random.

    python experiments/fleet_drill.py --faults 20          (as root)

Agents send an interval each second, through real spools and connections: half by way of the brokers, half over HTTP
through a load balancer. Meanwhile, at random: a collector or a broker is killed (SIGKILL) or paused (SIGSTOP), the
database is restarted or crashes, the network between any two of them is cut. Then all faults end, and every interval
that both ends saw must be stored once: with the figures that one collector without faults finds in the same messages,
with the packets that were sent and lost in truth, and once in the sums of its minute.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import combinations
from pathlib import Path as File
from typing import Any

sys.path.insert(0, str(File(__file__).parent.parent))
from experiments.drill import Sending, expected, traffic
from lab.fleet import COUNT, Fleet, address_of, missing
from tests.support.agent_messages import SECOND_NS, Agent
from tests.support.faulty_collector import agree, compared
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.store import MINUTE_NS
from wirelag.transport import Address

FAULT_S = (2.0, 8.0)  # how long a fault lasts
PAUSED_S = 60.0  # one pause is this long
PAUSE_S = (0.5, 3.0)  # between two faults
COLLECTORS, BROKERS = ([f"{kind}{i + 1}" for i in range(COUNT)] for kind in ("collector", "broker"))
FAULTS = ("kill collector", "pause collector", "kill broker", "pause broker", "restart database", "cut")


class Faults:
    """What goes wrong in a fleet."""

    def __init__(self, fleet: Fleet, rng: random.Random, longest_s: float, without: list[str]) -> None:
        self._fleet, self._rng, self._longest_s = fleet, rng, longest_s
        self._kinds = [one for one in FAULTS if one not in without]
        self.counted: Counter[str] = Counter()

    async def happen(self, number: int) -> None:
        """One fault, for a while: each kind in turn, then any."""
        rng, fleet = self._rng, self._fleet
        what = self._kinds[number] if number < len(self._kinds) else rng.choice(self._kinds)
        for_s, host = rng.uniform(*FAULT_S), rng.choice(COLLECTORS if "collector" in what else BROKERS)
        self.counted[what] += 1
        if what.startswith("pause"):
            for_s = self._longest_s if what == "pause collector" and self.counted[what] == 1 else for_s
            print(f"  {what} {host} for {for_s:.1f} s", flush=True)
            os.kill(fleet.running[host].pid, signal.SIGSTOP)
            await asyncio.sleep(for_s)
            os.kill(fleet.running[host].pid, signal.SIGCONT)
        elif what == "cut":
            one, other = rng.choice(list(combinations([*COLLECTORS, *BROKERS, "database", "balancer"], 2)))
            print(f"  cut {one} and {other} off for {for_s:.1f} s", flush=True)
            with fleet.cut(one, other):
                await asyncio.sleep(for_s)
        else:
            host = "database" if what == "restart database" else host
            end = rng.choice((signal.SIGINT, signal.SIGQUIT)) if host == "database" else signal.SIGKILL
            print(f"  {what}: {host}, {end.name}, for {for_s / 2:.1f} s", flush=True)
            await asyncio.to_thread(fleet.end, host, end)
            await asyncio.sleep(for_s / 2)
            await asyncio.to_thread(fleet.begin, host)


async def drill(arguments: argparse.Namespace, fleet: Fleet, folder: File) -> bool:
    rng, began_s = random.Random(arguments.seed), time.monotonic()
    seconds = arguments.seconds
    start_ns = (time.time_ns() // SECOND_NS + 2) * SECOND_NS
    agents = [traffic(number, seconds, start_ns) for number in range(arguments.segments)]
    ways = Address(fleet.brokers, insecure=True), Address(fleet.url, fleet.token, insecure=True)
    senders = [
        Sending(agent.messages(0, seconds), folder / f"spool-{agent.point}", ways[(number + side) // 2 % 2])
        for number, ends in enumerate(agents)
        for side, agent in enumerate(ends)
    ]
    for one in senders:
        one.start()
    sending = asyncio.gather(*(one.produce(random.Random(rng.random())) for one in senders))
    faults = Faults(fleet, rng, arguments.paused, arguments.without)
    for number in range(arguments.faults):
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        await faults.happen(number)
    print(f"faults: {dict(faults.counted)}, in {time.monotonic() - began_s:.0f} s", flush=True)
    await sending
    async with asyncio.timeout(arguments.patience):
        await asyncio.gather(*(one.outbox.drained() for one in senders))
    wanted = await asyncio.to_thread(expected, agents, seconds, folder)
    dropped = sum(one.outbox.dropped + one.outbox.refused for one in senders)
    found = await asyncio.to_thread(judged, fleet, agents, wanted, seconds, arguments.patience)
    counted: Counter[str] = Counter()
    for host in COLLECTORS:
        with contextlib.suppress(OSError):
            counted.update(await asyncio.to_thread(lambda host=host: fleet.ask("/api/v1/status", host)["counted"]))
    for one in senders:
        await one.end()
    lost, wrong, untrue, summed = found
    print(
        f"{len(wanted):,} intervals of {len(agents)} segments, {sum(one.killed for one in senders)} agents killed: "
        f"lost {lost}, wrong {wrong}, unlike the truth {untrue}, wrong in minutes {summed}, "
        f"dropped by agents {dropped}; partitions taken over {counted['partitions taken over']}, "
        f"fenced off {counted['partitions lost to another']}, "
        f"internal errors {counted['internal errors']}",
        flush=True,
    )
    return not (lost or wrong or untrue or summed or dropped or counted["internal errors"])


async def handovers(fleet: Fleet) -> bool:
    """How long it takes until others own all partitions of a collector that is killed, paused or cut off."""
    import psycopg

    longest_s = 0.0
    with psycopg.connect(fleet.store, autocommit=True) as base:
        for number, what in enumerate(("killed", "paused", "cut off from the brokers")):
            host = COLLECTORS[number]
            names = "select distinct application_name from pg_stat_activity where client_addr = %s"
            (name,) = (one for (one,) in base.execute(names, (address_of(host),)).fetchall() if one)
            held = "select 1 from wirelag.fences where holder = %s limit 1"
            while not base.execute(held, (name,)).fetchone():  # on a busy machine it may just have lost its work
                await asyncio.sleep(0.02)
            with contextlib.ExitStack() as stack:
                began_s = time.monotonic()
                if what == "killed":
                    fleet.end(host)
                elif what == "paused":
                    os.kill(fleet.running[host].pid, signal.SIGSTOP)
                else:
                    for broker in BROKERS:
                        stack.enter_context(fleet.cut(host, broker))
                while base.execute(held, (name,)).fetchone():
                    await asyncio.sleep(0.02)
                took_s = time.monotonic() - began_s
            longest_s = max(longest_s, took_s)
            print(f"{host} {what}: others own its partitions after {took_s:.2f} s", flush=True)
            if what == "killed":
                fleet.begin(host)
            elif what == "paused":
                os.kill(fleet.running[host].pid, signal.SIGCONT)
            await asyncio.sleep(10.0)  # it has its share again
    return longest_s < 2.0


def judged(
    fleet: Fleet, agents: list[tuple[Agent, Agent]], wanted: dict[tuple[str, int], Any], seconds: int, patience_s: float
) -> tuple[int, int, int, int]:
    """Intervals that are missing, have other figures, or other packets than in truth; and sums that count otherwise."""
    store, deadline = PostgresStore(fleet.store, session="wirelag-judge"), time.monotonic() + patience_s
    try:
        while True:
            found: dict[tuple[str, int], Any] = {}
            twice = untrue = summed = 0
            for ends in agents:
                segment = str(ends[0].segment)
                rows = [row for row in store.rows(segment, None, SECOND_NS, (0, 2**62), 10**6) if row.tally.intervals]
                found |= {(segment, row.start_ns): compared(row.to_json()) for row in rows}
                twice += len(rows) - len({row.start_ns for row in rows})
                untrue += sum((row.tally.sent, row.tally.received) != true(ends, row.start_ns) for row in rows)
                minutes = store.rows(segment, None, MINUTE_NS, (0, 2**62), 10**6)
                parts = Counter(row.start_ns // MINUTE_NS * MINUTE_NS for row in rows)
                summed += sum(one.tally.intervals != parts[one.start_ns] for one in minutes)
            lost = sum(place not in found for place in wanted)
            wrong = twice + sum(not agree(found[place], wanted[place]) for place in wanted if place in found)
            if time.monotonic() > deadline or not (lost or wrong or untrue or summed):
                for place in [place for place in wanted if place in found and not agree(found[place], wanted[place])][
                    :5
                ]:
                    print(f"  {place}: {found[place]} instead of {wanted[place]}")
                return lost, wrong, untrue, summed
            time.sleep(1)
    finally:
        store.close()


def true(ends: tuple[Agent, Agent], start_ns: int) -> tuple[int, ...]:
    """The packets that both ends saw in an interval: the captures beside it, joined."""
    times = (agent.packets.time_ns for agent in ends)
    return tuple(int(((one >= start_ns) & (one < start_ns + SECOND_NS)).sum()) for one in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--handovers", action="store_true", help="only print how long handing over takes")
    parser.add_argument("--seconds", type=int, default=240, help="of traffic; faults end when they end")
    parser.add_argument("--segments", type=int, default=6)
    parser.add_argument("--without", action="append", default=[], choices=FAULTS, help="a kind of fault to leave out")
    parser.add_argument("--paused", type=float, default=PAUSED_S, help="seconds of the longest pause")
    parser.add_argument("--lease", default="1500ms", help="share.lease of the collectors")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to deliver and settle what waits")
    arguments = parser.parse_args()
    if os.geteuid() or (lacking := missing()):
        sys.exit("fleet_drill: needs root" if os.geteuid() else f"fleet_drill: {lacking}")
    with tempfile.TemporaryDirectory(prefix="wirelag-fleet-") as name:
        folder = File(name)
        with Fleet("drill", folder, arguments.lease) as fleet:
            fleet.start_all()
            fleet.wait_until_shared()
            with fleet.inside("agents"):
                is_right = asyncio.run(handovers(fleet) if arguments.handovers else drill(arguments, fleet, folder))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
