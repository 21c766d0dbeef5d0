"""The inside of a router, live: an agent's part on a real router with a real queue, and mPlane with a queue in it."""

import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lab.network import Network
from tests.support import needs
from tests.support.in_lab import IN_LAB
from tests.support.m_sets import config_of
from tests.support.places import ROOT
from tests.support.router_taps import WITH_ROUTERS
from wirelag.agent.inside import Inside
from wirelag.agent.settling import Settling
from wirelag.capture.live import Live
from wirelag.packets.batch import PacketBatch
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.results import Rank, Result
from wirelag.protocol.session import Rounds
from wirelag.synopses.cache import join

sys.path.insert(0, str(ROOT / "experiments"))

from mplane_inside import PLACEMENTS, figures, show_figures

pytestmark = IN_LAB
AGENT = """
point = "B"
interface = "any"
interval = "200ms"
[inside]
by = "ports"
estimator = "{}"
[[ports]]
to = "A"
interface = "left"
[[ports]]
to = "C"
address = "10.2.0.1"
"""
PACKETS, BYTES, RATE_MBIT = 1500, 600, 4  # some ten intervals: lda cuts at packets that chance picks
CLOSE = 0.1


@pytest.fixture(scope="module")
def router() -> Iterator[Network]:
    """A router between two hosts, with a queue at its port to the right."""
    network = Network("inside")
    network.clear()
    try:
        network.add("router", "net.ipv4.ip_forward=1")
        for host, port, number in (("client", "left", 1), ("server", "right", 2)):
            network.add(host)
            network.link("router", port, host, "eth0")
            network.ip("router", f"addr add 10.{number}.0.1/24 dev {port}")
            network.ip(host, f"addr add 10.{number}.0.2/24 dev eth0")
            network.ip(host, f"route add default via 10.{number}.0.1")
        network.run("router", *f"tc qdisc add dev right root tbf rate {RATE_MBIT}mbit burst 2000 latency 1s".split())
        yield network
    finally:
        network.down()


def send(network: Network) -> None:
    """Bursts of datagrams, in several flows, at 96% of the queue's rate: for two seconds, or longer if busy."""
    rng = random.Random(1)
    with network.inside("client"):
        flows = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]
    due_s = time.monotonic()
    for number in range(PACKETS):
        if number % 4 == 0:
            time.sleep(max(0.0, due_s + 0.004 * rng.random() - time.monotonic()))
            due_s = max(due_s, time.monotonic() - 0.02) + 4 * BYTES * 8e-6 / RATE_MBIT  # what was late stays late
        flow = flows[number // 4 % 8]
        flow.sendto(number.to_bytes(8, "big") + rng.randbytes(BYTES - 50), ("10.2.0.2", 9000))
    for flow in flows:
        flow.close()


def measured(network: Network, estimator: str, folder: Path) -> tuple[list[Message], list[PacketBatch]]:
    """What the agent would send about the traffic, and what its capture saw."""
    config = config_of(folder, AGENT.format(estimator))
    assert config.inside is not None
    seen: list[PacketBatch] = []
    with network.inside("router"):
        inside = Inside(config, config.inside, pytest.fail)
        settling = Settling("B", config.inside.terms, 1 << 24, time.time_ns())
        with Live("any", filter="udp dst port 9000", packet_id=config.terms.packet_id, ports=True) as live:
            sending = threading.Thread(target=send, args=(network,))
            sending.start()
            messages: list[Message] = []
            for batch in live:
                now_ns = live.now_ns() if len(batch) else live.quiet_ns
                messages += settling.take(list(inside.take(batch, now_ns, live.dropped)))
                if len(batch):
                    columns = {"time_ns": batch.time_ns.copy(), "packet_id": batch.packet_id.copy()}
                    seen.append(PacketBatch(columns))
                    seen[-1].port = batch.port
                elif not sending.is_alive():
                    live.stop()
            sending.join()
            assert live.dropped == 0
            messages += settling.take(list(inside.end(live.now_ns()))) + settling.end()
        inside.close()
    return messages, seen


@pytest.mark.parametrize("estimator", ["lda", "rda"])
def test_a_way_through_a_router_is_measured_exactly(estimator: str, router: Network, tmp_path: Path) -> None:
    """Each interval of the way has the packets and the delays of the join of both ports."""
    if missing := needs.absent("tc"):
        pytest.skip(missing)
    messages, seen = measured(router, estimator, tmp_path)
    ids, times_ns, ports = (
        np.concatenate([getattr(batch, name) for batch in seen]) for name in ("packet_id", "time_ns", "port")
    )
    leaves = ports % 2 == 1
    both = join(ids[~leaves], ids[leaves])
    entered_ns = times_ns[~leaves][both.up_rows]
    delays_ns = times_ns[leaves][both.down_rows] - entered_ns
    assert len(delays_ns) > 0.9 * PACKETS
    assert delays_ns.mean() > 10**6

    rounds, results = Rounds((), named_by_agents=True), list[Result]()
    for message in messages:
        said = decode(encode(message))
        assert (said.type, said.point, said.segment) == ("crossing", "B", "B[A>C]")
        results += [one for one in rounds.take(said, 0) if isinstance(one, Result)]
    results.sort(key=lambda one: one.interval.start_ns)
    busy = [one for one in results if one.crossings[None].sent]
    assert len(busy) >= 3
    for one, other in pairwise(busy):
        during = (entered_ns >= one.interval.start_ns) & (entered_ns < other.interval.start_ns)
        crossing = one.crossings[None]
        assert one.rank == Rank.SETTLED
        assert (one.clock.error_ns, one.clock.synchronised) == (0, True) if one.clock else False
        assert (crossing.sent, crossing.used, crossing.sum_ns) == (during.sum(), during.sum(), delays_ns[during].sum())
        if one.losses[None].lost is not None:
            assert one.losses[None].lost == 0
        assert crossing.tail.delays_ns.min() >= delays_ns[during].min()


@pytest.mark.acceptance
@WITH_ROUTERS
@pytest.mark.parametrize("estimator", ["lda", "rda"])
def test_a_queue_inside_a_router_is_found_live(estimator: str) -> None:
    """At 20 random ports; and no segment is blamed without a queue."""
    found = figures(estimator, PLACEMENTS)
    show_figures(estimator, found)
    assert [one.port for one in found if not one.right] == []
    assert all(abs(error) <= CLOSE for one in found for error in one.errors)
