"""References that an agent sends: captured packets decide, as in the simulator; the share holds whatever they are."""

import socket

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples
from wirelag import _kernels
from wirelag.agent import references
from wirelag.agent.config import Reference
from wirelag.agent.references import Emitter
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import COLUMNS, Block, Kind, PacketBatch
from wirelag.packets.injection import Injection
from wirelag.packets.stamp import NONE, PORT, PTP, error_estimate, parse
from wirelag.protocol.messages import ClockReading
from wirelag.sim.queue import DROP_TAIL

BEGAN_NS, SECOND_NS = 1_790_000_000 * 10**9, 10**9
LINK = 12_500_000
KINDS = ("1-in-n", "1-in-tau", "both", "adaptive")
CLOCK = ClockReading(True, 1_000, "chrony")


class Clock:
    """The module `time` of a host whose clocks stand still unless the test moves them."""

    def __init__(self) -> None:
        self.now_ns, self.set_ns = 5 * SECOND_NS, BEGAN_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + self.set_ns


class Wire:
    """A socket: packets as they were sent, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.sent = clock, []  # type: tuple[Clock, list[tuple[int, bytes]]]

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        assert to == ("192.0.2.2", PORT)
        self.sent.append((self.clock.now_ns, data))

    def close(self) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Wire]:
    clock = Clock()
    wire = Wire(clock)
    monkeypatch.setattr(references, "time", clock)
    monkeypatch.setattr(references, "_socket", lambda *_: wire)
    return clock, wire


def emitter_of(injection: Injection, among: str = "") -> Emitter:
    ways = (Direction.parse(among),) if among else ()
    stream = Reference("192.0.2.2", 0, 0, injection, watches=True, among=ways)
    return Emitter((stream,), None, SECOND_NS, print, lambda: CLOCK)


def packets(times_ns: npt.ArrayLike, sizes: npt.ArrayLike, first_id: int = 0) -> PacketBatch:
    """As captured, from 10.1.0.1 to 10.2.0.1."""
    times = np.asarray(times_ns, np.int64)
    columns = {name: np.zeros((len(times), width) if width > 1 else len(times), kind) for name, kind, width in COLUMNS}
    columns["time_ns"] = times
    columns["wire_length"] = np.asarray(sizes, np.uint32)
    columns["packet_id"] = np.arange(first_id, first_id + len(times), dtype=np.uint64)
    for name, last in (("src", 0x0A010001), ("dst", 0x0A020001)):
        columns[name][:, 1] = np.uint64(0xFFFF << 32 | last)
    return PacketBatch(columns)


def simulated(injection: Injection, times_ns: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> list[int]:
    """When the simulator sends them."""
    return _kernels.queue_pass(times_ns, sizes, LINK, 1 << 16, DROP_TAIL, injection.rule)[1].tolist()


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_sends_where_the_simulator_does(kind: str, host: tuple[Clock, Wire]) -> None:
    """It hears of each packet, and looks at its clock, where the simulator does."""
    clock, wire = host
    injection = Injection(LINK, kind, n=7, tau_ns=3_000_000, longest_ns=5_000_000, depth_ns=SECOND_NS, wait_ns=0)  # type: ignore[arg-type]
    rng = np.random.default_rng(4)
    began_ns = clock.now_ns
    times_ns = began_ns + np.cumsum(rng.pareto(1.5, 4_000) * 60_000).astype(np.int64)
    sizes = rng.choice([54, 590, 1514], 4_000).astype(np.uint32)
    emitter = emitter_of(injection)
    first = [] if kind in ("1-in-n",) else [began_ns]  # time counts from the beginning on
    expected = simulated(injection, np.append(np.array(first, np.int64), times_ns), np.append([0] * len(first), sizes))
    due = iter([*expected, 1 << 62])
    upcoming = next(due)
    for i, (time_ns, size) in enumerate(zip(times_ns.tolist(), sizes.tolist(), strict=True)):
        while upcoming < time_ns:
            clock.now_ns = upcoming
            emitter.hear(packets([], []))
            upcoming = next(due)
        clock.now_ns = time_ns
        emitter.hear(packets([time_ns + clock.set_ns], [size], i))
        while upcoming <= time_ns:
            upcoming = next(due)
    assert [at_ns for at_ns, _ in wire.sent] == expected
    assert len(expected) > 100


hostile = st.lists(
    st.tuples(
        st.sampled_from([0, 1_000, 1_000_000, 10**8, 3 * SECOND_NS]),  # time that passes
        st.lists(st.sampled_from([-(10**18), -SECOND_NS, -1, 0, 5, 10**6, 10**18]), max_size=8),  # times of packets
        st.sampled_from([0, 54, 1514, 65_535, 2**32 - 1]),
        st.sampled_from([0, 0, 0, -(10**12), 10**12]),  # the clock is set
    ),
    max_size=60,
)


@examples(150)
@given(steps=hostile, kind=st.sampled_from(KINDS), share=st.sampled_from([0.00002, 0.005]))
def test_the_share_holds_whatever_is_captured(
    steps: list[tuple[int, list[int], int, int]], kind: str, share: float
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock()
        wire = Wire(clock)
        patched.setattr(references, "time", clock)
        patched.setattr(references, "_socket", lambda *_: wire)
        injection = Injection(
            LINK, kind, n=1, tau_ns=1_000_000, longest_ns=1_000_000, n_least=1, n_most=1, most_share=share,
            depth_ns=SECOND_NS, size=106,
        )  # type: ignore[arg-type]  # fmt: skip
        emitter, began_ns = emitter_of(injection), clock.now_ns
        for passed_ns, times, size, step_ns in steps:
            clock.now_ns += passed_ns
            clock.set_ns += step_ns
            at_ns = np.clip(np.array(times, np.int64) + BEGAN_NS, 0, (1 << 62) - 1)
            emitter.hear(packets(at_ns, [size] * len(times)))
            allowed = share * LINK * (clock.now_ns - began_ns) / 1e9
            assert 106 * len(wire.sent) <= allowed + 1e-6


def test_of_several_that_were_due_one_is_sent(host: tuple[Clock, Wire]) -> None:
    clock, wire = host
    emitter = emitter_of(Injection(LINK, "1-in-n", n=2, most_share=1))
    times_ns = clock.time_ns() + np.arange(100) * 10_000
    clock.now_ns += 2_000_000
    emitter.hear(packets(times_ns, np.full(100, 100)))
    assert len(wire.sent) == 1


def captured(wire: Wire, later_ns: int, first: int) -> PacketBatch:
    """References that were sent, as the capture sees them leave."""
    found = [one for one in wire.sent[first:] if one]
    batch = packets([at_ns + BEGAN_NS + later_ns for at_ns, _ in found], [106] * len(found))
    for i, (_, data) in enumerate(found):
        batch.kind[i], batch.dst_port[i], batch.message[i] = Kind.STAMP, PORT, PTP
        batch.seq[i] = int.from_bytes(data[:4])
        batch.transaction[i] = int.from_bytes(data[4:12])
        batch.payload_length[i] = 64
    return batch


def test_references_carry_when_they_leave_and_the_packet_before(host: tuple[Clock, Wire]) -> None:
    clock, wire = host
    emitter = emitter_of(Injection(LINK, "1-in-n", n=1, most_share=1, wait_ns=0), "10.1.0.0/16>")
    later_ns = 37_000
    for i in range(30):
        clock.now_ns += 1_000_000
        time_ns = clock.time_ns() - 300
        other = packets([time_ns + 100], [70], 999)
        other.src[:, 1] = np.uint64(0xFFFF << 32 | 0x0A030001)  # not among those that they travel among
        sent = len(wire.sent)
        emitter.hear(packets([time_ns], [200], 1000 + i))
        emitter.hear(other)
        emitter.hear(captured(wire, later_ns, sent))
        assert len(wire.sent) == sent + 1
    at_ns, data = wire.sent[-1]
    carried_ns = int.from_bytes(data[4:8]) * SECOND_NS + int.from_bytes(data[8:12])
    assert carried_ns == at_ns + BEGAN_NS + later_ns
    assert int.from_bytes(data[12:14]) == error_estimate(CLOCK.error_ns)
    assert data[44:48] == b"WLR1"
    assert int.from_bytes(data[48:52]) * SECOND_NS + int.from_bytes(data[52:56]) == at_ns + BEGAN_NS - 300
    assert int.from_bytes(data[56:]) == 1029


def test_a_copy_that_comes_back_does_not_count(host: tuple[Clock, Wire]) -> None:
    clock, wire = host
    emitter = emitter_of(Injection(LINK, "1-in-n", n=1, most_share=1, wait_ns=0))
    for i in range(20):
        clock.now_ns += 1_000_000
        sent = len(wire.sent)
        emitter.hear(packets([clock.time_ns()], [200], i))
        emitter.hear(captured(wire, 40_000_000, sent))  # 40 ms later: from another host
    at_ns, data = wire.sent[-1]
    assert int.from_bytes(data[4:8]) * SECOND_NS + int.from_bytes(data[8:12]) == at_ns + BEGAN_NS


@pytest.mark.parametrize("ns", [SECOND_NS, 0xFFFFFFFF])
def test_an_impossible_time_of_the_packet_before_is_refused(ns: int, host: tuple[Clock, Wire]) -> None:
    clock, wire = host
    emitter = emitter_of(Injection(LINK, "1-in-n", n=1, most_share=1, wait_ns=0))
    clock.now_ns += 1_000_000
    emitter.hear(packets([clock.time_ns()], [200], 7))
    data = bytearray(wire.sent[0][1])

    def read() -> tuple[int, int]:
        batch = captured(wire, 0, 0)
        batch.captured_length[:], batch.payload_offset[:], batch.offset[:] = 64, 0, 0
        block = Block("", 0, np.frombuffer(bytes(data), np.uint8))
        whole = PacketBatch({name: getattr(batch, name) for name, _, _ in COLUMNS}, (block,))
        found = parse(whole, np.array([0]))
        return int(found.previous_sent_ns[0]), int(found.previous_id[0])

    assert read() == (clock.time_ns(), 7)
    data[52:56] = ns.to_bytes(4)
    assert read() == (NONE, 0)


def test_sockets_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback: what packets make due arrives, once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        monkeypatch.setattr(references, "PORT", heard.getsockname()[1])
        injection = Injection(LINK, "1-in-n", n=1, most_share=1, wait_ns=0)
        emitter = Emitter((Reference("127.0.0.1", 0, 0, injection, watches=True),), None, SECOND_NS, print)
        emitter.hear(packets([BEGAN_NS], [200], 3))
        heard.settimeout(30)
        assert int.from_bytes(heard.recv(100)[56:]) == 3
        assert emitter.sent == 1
        emitter.close()
