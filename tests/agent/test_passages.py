"""Which way packets take through a router: both ends select the same packets, whatever routes and flows do."""

from collections.abc import Sequence
from ipaddress import ip_address

import numpy as np
import numpy.typing as npt
import pytest

from wirelag.agent.passages import (
    EQUAL_PATHS,
    MOST_MOVES,
    NO_ROUTE,
    NOT_CAPTURED,
    NOT_ENTERED,
    NOT_WANTED,
    UNSTEADY,
    Passages,
    segment_of,
)
from wirelag.network.segments import EDGE, parse_segment
from wirelag.packets.address import Address
from wirelag.packets.batch import PacketBatch

A, C, D, HOST, TUNNEL = 2, 3, 4, 5, 9  # interfaces
PORTS = {A: "A", C: "C", D: "D", HOST: EDGE}
ONE, EQUAL, OWN, INTO_TUNNEL = "10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.4.1"
ROUTES = {ONE: {C}, EQUAL: {C, D}, OWN: set[int](), INTO_TUNNEL: {TUNNEL}}
SECOND_NS = 10**9
Seen = tuple[int, bool, int, str, int]  # interface, whether it leaves, flow, destination, packet id


def exits(to: Address) -> frozenset[int]:
    return frozenset(ROUTES[str(to)])


def batch(packets: Sequence[Seen], start_ns: int = SECOND_NS) -> PacketBatch:
    interfaces, leaves, flows, targets, ids = zip(*packets, strict=True)
    found = PacketBatch(
        {
            "time_ns": np.arange(start_ns, start_ns + len(packets), dtype=np.int64),
            "flow_key": np.array(flows, np.uint64),
            "flags": np.zeros(len(packets), np.uint16),
            "packet_id": np.array(ids, np.uint64),
            "dst": np.array([[0, 0xFFFF << 32 | int(ip_address(to))] for to in targets], np.uint64),
        }
    )
    found.port = np.array([2 * one + out for one, out in zip(interfaces, leaves, strict=True)], np.uint32)
    return found


def passages(wanted: frozenset[tuple[str, str]] | None = None, most_flows: int = 1 << 10) -> Passages:
    found = Passages(exits, most_flows)
    found.connect(PORTS, wanted)
    return found


def ids(packets: PacketBatch, rows: npt.NDArray[np.intp]) -> list[int]:
    found: list[int] = packets.packet_id[rows].tolist()
    return found


def ways(found: Passages, packets: PacketBatch) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
    return {way: (ids(packets, up), ids(packets, down)) for way, (up, down) in found.sort(packets).items()}


def test_a_packet_takes_the_way_of_its_route() -> None:
    found = passages()
    seen = batch([(A, False, 1, ONE, 10), (A, True, 2, ONE, 99), (C, True, 1, ONE, 10), (HOST, False, 3, ONE, 11)])
    assert ways(found, seen) == {("A", "C"): ([10], [10]), (EDGE, "C"): ([11], [])}  # 11 is lost, or still inside
    assert found.left_out == {NOT_ENTERED: 1}  # the router itself has sent it


@pytest.mark.parametrize(("target", "why"), [(OWN, NO_ROUTE), (INTO_TUNNEL, NOT_CAPTURED), (ONE, NOT_WANTED)])
def test_what_has_no_way_is_counted(target: str, why: str) -> None:
    found = passages(frozenset([("A", "D")]))
    assert ways(found, batch([(A, False, 1, target, 10)])) == {}
    assert found.left_out == {why: 1}


def test_equal_paths_count_once_the_flow_is_seen_to_leave_and_then_at_both_ends() -> None:
    found = passages()
    first = [(A, False, 1, EQUAL, 10), (A, False, 1, EQUAL, 11), (D, True, 1, EQUAL, 10)]
    assert ways(found, batch(first)) == {("A", "D"): ([], [])}
    assert found.left_out == {EQUAL_PATHS: 2}
    then = [(A, False, 1, EQUAL, 12), (D, True, 1, EQUAL, 11), (D, True, 1, EQUAL, 12)]
    # 11 entered before the flow was known: its end is left out, too.
    assert ways(found, batch(then, SECOND_NS + 10**6)) == {("A", "D"): ([12], [12])}
    assert found.left_out == {EQUAL_PATHS: 2}


def test_a_change_of_routes_undoes_what_was_seen() -> None:
    found = passages()
    before = [(A, False, 1, ONE, 10), (C, True, 1, ONE, 10)]
    assert ways(found, batch(before)) == {("A", "C"): ([10], [10])}
    ROUTES[ONE] = {D}
    try:
        assert ways(found, batch([(A, False, 1, ONE, 11)])) == {("A", "C"): ([11], [])}  # nobody said so yet
        found.reroute()
        after = [(A, False, 1, ONE, 12), (D, True, 1, ONE, 12)]
        assert ways(found, batch(after)) == {("A", "D"): ([12], [12])}
    finally:
        ROUTES[ONE] = {C}


def test_what_a_flow_does_outweighs_its_route() -> None:
    """A rule of the router sends it another way than its table says."""
    found = passages()
    ways(found, batch([(A, False, 1, ONE, 10), (D, True, 1, ONE, 10)]))
    then = [(A, False, 1, ONE, 11), (D, True, 1, ONE, 11)]
    assert ways(found, batch(then)) == {("A", "D"): ([11], [11])}


def test_a_flow_that_keeps_changing_its_port_is_left_out_at_both_ends() -> None:
    found = passages()
    for turn in range(2 * MOST_MOVES):
        seen = [(A if turn % 2 else D, False, 1, ONE, turn), (C, True, 1, ONE, turn)]
        last = ways(found, batch(seen))
    assert last == {}
    assert found.left_out == {UNSTEADY: MOST_MOVES - 1}


def test_memory_is_bounded() -> None:
    found = passages(most_flows=64)
    for number in range(1000):
        seen = [(A, False, number, ONE, number), (C, True, number, ONE, number)]
        assert ways(found, batch(seen)) == {("A", "C"): ([number], [number])}
    assert len(found._flows) + len(found._older) <= 64


def test_both_ends_select_the_same_packets_of_random_traffic() -> None:
    """Whatever order flows come in: a packet that leaves and was selected entered selected, on the same way."""
    rng = np.random.default_rng(1)
    found, entered, left = passages(), dict[int, tuple[str, str]](), dict[int, tuple[str, str]]()
    inside: list[tuple[int, str, int, int]] = []
    number = 0
    for turn in range(200):
        some: list[Seen] = []
        for _ in range(20):
            if inside and rng.random() < 0.5:
                flow, to, one, by = inside.pop(int(rng.integers(len(inside))))
                some.append((by, True, flow, to, one))
            else:
                flow, number = int(rng.integers(40)), number + 1
                to = EQUAL if flow % 2 else ONE
                some.append((A if flow % 3 else HOST, False, flow, to, number))
                inside.append((flow, to, number, C if to == ONE or flow % 5 else D))
        packets = batch(some, SECOND_NS + turn * 10**6)
        for way, (up, down) in ways(found, packets).items():
            entered |= dict.fromkeys(up, way)
            left |= dict.fromkeys(down, way)
    assert len(left) > 1000
    assert left.items() <= entered.items()


def test_ways_are_named_like_segments() -> None:
    assert parse_segment(segment_of("B", ("A", EDGE))).before == "A"
