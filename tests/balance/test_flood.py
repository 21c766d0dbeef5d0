"""A flood of forged packets at a real balancer: no established connection moves, and new ones are served.

`make test` runs a short one; the whole one, 200,000 packets a second for 30 s, is in `make acceptance`.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.balance import Site, site
from lab.clients import Load
from lab.network import FIRST_SERVER, SERVICE_ADDRESS, mac_of
from tests.support.balanced_site import LONG_S, received, stop_client, traffic
from tests.support.effort import ALONE, FULL
from tests.support.in_lab import IN_LAB
from tests.support.waiting import PATIENCE_S, until
from wirelag.balance.maglev import maglev
from wirelag.ebpf.balance import open_balancer
from wirelag.ebpf.balance_maps import CONNECTION, SEEN_SHIFT, SETTLED_NS, Balancer
from wirelag.ebpf.service import Backend, Service, Way

pytestmark = IN_LAB
RATE, SECONDS = (200_000, 30) if FULL else (20_000, 0.6)
LASTING, PASSING = Load(patience_us=20_000_000), Load(lifetime="exponential:300000", patience_us=20_000_000)
NAMES = ("server1", "server2", "server3")
TURNS = ((0.6, 0.2, 0.2), (0.1, 0.8, 0.1), (0.3, 0.1, 0.6), (0.008, 0.492, 0.5))
MOVES_PER_S = 5


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("flood", tmp_path, seed=3, servers=3, service="exponential:15000", workers=64) as built:
        yield built


class Weights:
    """Moves weights until it is stopped."""

    def __init__(self, balancer: Balancer, slots: dict[str, int]) -> None:
        self._balancer, self._slots, self._ends, self.moves = balancer, slots, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.wait(1 / MOVES_PER_S):
            weights = dict(zip(NAMES, TURNS[self.moves % len(TURNS)], strict=True))
            self._balancer.set_table(maglev(weights, self._slots))
            self.moves += 1

    def __enter__(self) -> "Weights":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def steered(place: Site) -> tuple[Balancer, dict[str, int]]:
    with place.network.inside("point"):
        balancer = open_balancer(
            Service(SERVICE_ADDRESS, (80,)),
            "eth0",
            table_size=65_537,
            connections=131_072 if FULL else 4096,
            most_backends=8,
            idle_ns=300 * 10**9,
            pins=None,
        )
    macs = [bytes.fromhex(mac_of(FIRST_SERVER + i).replace(":", "")) for i in range(3)]
    slots = balancer.set_backends([Backend(NAMES[i], f"10.5.0.{FIRST_SERVER + i}", Way(macs[i])) for i in range(3)])
    balancer.set_table(maglev(dict.fromkeys(NAMES, 1.0), slots))
    return balancer, slots


@pytest.mark.parametrize("kinds", [("acks", "syns"), ("pairs", "pairs")] if FULL else [("acks", "pairs")], ids=str)
def test_a_flood_moves_no_connection_and_new_ones_are_served(place: Site, kinds: tuple[str, str]) -> None:
    """Clients that stay, and clients whose connections last 0.3 s; weights move five times a second."""
    balancer, slots = steered(place)
    try:
        lasting = place.ask(12, LONG_S, LASTING)
        until(lambda: sum(received(place, number) for number in (1, 2, 3)) > 600, "traffic")  # one may get none
        if FULL:  # longer than the flood's own connections last
            until(lambda: settled(balancer) == 12, "12 settled connections")
        with place.forgotten(), Weights(balancer, slots) as weights:
            floods = [place.forge(kind, RATE / 2, SECONDS, seed) for seed, kind in enumerate(kinds)]
            passing = place.within("passing").ask(12, LONG_S, PASSING)
            said = [flood.finish(SECONDS + PATIENCE_S) for flood in floods]
            traffic(place, 1, 2, 3)
            until(lambda: weights.moves >= 2 and connections(place) > 12 + 24, "moves, and connections after the first")
        found = Counter(balancer.read().counters)
        asked, new = stop_client(lasting, place), stop_client(passing, place.within("passing"))
    finally:
        balancer.close(leave=False)
    sent = [re.search(r"sent=(\d+) seconds=([0-9.]+)", one) for one in said]
    rate = sum(int(one[1]) / float(one[2]) for one in sent if one)
    print(f"{kinds}: {rate:,.0f} forged packets/s for {SECONDS} s, {weights.moves} moves of weights")
    print(f"{len(asked):,} requests on 12 lasting, {len(new):,} on {opened(new):,} new connections; {dict(+found)}")
    assert rate > RATE * (0.9 if ALONE else 0.05)
    assert opened(new) > 12, "new connections are served"
    assert weights.moves >= 2
    assert found["orphaned"] == 0


def settled(balancer: Balancer) -> int:
    held = balancer.maps["connections"].memory().view(CONNECTION)
    return int((held["seen"] - held["since"] > SETTLED_NS >> SEEN_SHIFT).sum())


def connections(place: Site) -> int:
    """How many the clients have opened."""
    names, numbers = (
        line.split() for line in place.network.run("client", "grep", "^Tcp:", "/proc/net/snmp").splitlines()
    )
    return int(dict(zip(names, numbers, strict=True))["ActiveOpens"])


def opened(asked: np.ndarray) -> int:
    return int((asked["round"] == 0).sum())
