"""Live capture: the columns of a file, a count of every drop; replay; privileges."""

import math
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lab import flood
from lab.network import Network
from tests.support import needs
from tests.support.captures import ethernet, ipv4, pcap, random_frame, udp
from tests.support.in_lab import IN_LAB
from tests.support.ring_blocks import packed_block
from tests.support.waiting import PATIENCE_S, until
from wirelag import _kernels
from wirelag.capture.bpf_filter import take
from wirelag.capture.files import Capture
from wirelag.capture.live import FEW, Live, LiveStatistics, Replay, by_clock
from wirelag.capture.ring import open_ring
from wirelag.errors import WirelagError
from wirelag.packets.batch import COLUMNS, Flag, PacketBatch
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId

MS, S = 10**6, 10**9
OPENED: list[Live | socket.socket] = []  # by a test; closed after it
OF_A_FILE = ("number", "offset", "source")  # the position of a packet differs between a ring and a file


@pytest.fixture
def network() -> Iterator[Network]:
    """A source and a sink with a cable between them: `flood` builds it."""
    network = Network("live")
    flood.build(network)
    try:
        yield network
    finally:
        while OPENED:
            OPENED.pop().close()
        network.down()


def collected(live: Live | Replay) -> PacketBatch:
    """All rows so far, copied."""
    live.stop()
    return PacketBatch.concatenate([batch[np.arange(len(batch))] for batch in live])


def raw(network: Network, host: str = flood.SOURCE, interface: str = flood.SINK) -> socket.socket:
    """A socket that sends raw frames."""
    with network.inside(host):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.bind((interface, 0))
    OPENED.append(opened)
    return opened


def listen(network: Network, host: str = flood.SINK, interface: str = flood.SOURCE, **options: Any) -> Live:
    with network.inside(host):
        live = Live(interface, **options)
    OPENED.append(live)
    return live


@IN_LAB
def test_any_sees_each_packet_once(network: Network) -> None:
    """The sink's port is in a bridge: both devices see outgoing packets."""
    for arguments in (
        "link add br0 type bridge forward_delay 0",
        f"link set {flood.SOURCE} master br0",
        "link set br0 up",
        "addr add 192.0.2.1/24 dev br0",
        "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev br0",
    ):
        network.ip(flood.SINK, arguments)
    live, bridge = (listen(network, interface=name, packet_id=PacketId(), filter="udp") for name in ("any", "br0"))
    with network.inside(flood.SINK), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        for to in (*5 * ["192.0.2.2"], "127.0.0.1"):
            own.sendto(b"once", (to, 2000))
    assert len(collected(bridge)) == len(collected(live)) == 5


# ---- the ring ----


def rows_of(
    memory: npt.NDArray[np.uint8], block_bytes: int, outgoing: bool = True
) -> tuple[list[PacketBatch], _kernels.Ring]:
    ring = _kernels.Ring(memory, block_bytes, 1, outgoing=outgoing)
    batches: list[PacketBatch] = []
    while True:
        batch = np.empty(_kernels.BATCH_BYTES, np.uint8)
        rows = ring.take(batch)
        if rows < 0:
            return batches, ring
        batches.append(PacketBatch.in_memory(batch, rows))


def aligned(data: bytes) -> npt.NDArray[np.uint8]:
    memory = np.zeros(len(data) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory[start : start + len(data)]


def test_blocks_are_taken_in_turn_and_given_back() -> None:
    frames = [ethernet(ipv4(udp(b"x", (1000 + i, 9)), 17)) for i in range(5)]
    memory = aligned(packed_block(frames[:2]) + packed_block(frames[2:]))
    (first, second), ring = rows_of(memory, len(memory) // 2)
    assert first.src_port.tolist() == [1000, 1001]
    assert second.src_port.tolist() == [1002, 1003, 1004]
    assert second.time_ns.tolist() == [7 * S + 5] * 3
    assert memory[8:12].view(np.uint32)[0] == 0
    assert memory[len(memory) // 2 :][8:12].view(np.uint32)[0] == 0
    assert ring.statistics()["packets"] == 5


def test_a_block_with_more_packets_than_a_batch_is_given_back_at_its_end() -> None:
    frame = ethernet(ipv4(udp(b"x", (7, 9)), 17))
    memory = aligned(packed_block([frame] * (_kernels.BATCH_ROWS + 800), size=1 << 22))
    batches, _ = rows_of(memory, len(memory))
    assert [len(batch) for batch in batches] == [_kernels.BATCH_ROWS, 800]


def test_a_ring_can_leave_all_columns_but_two_alone() -> None:
    rng = random.Random(5)
    plain = [ethernet(ipv4(udp(b"x" * i, (1000 + i, 9)), 17)) for i in range(100)]
    memory = aligned(packed_block([*plain, *(random_frame(rng)[1] for _ in range(200))], size=1 << 19))
    (whole,), _ = rows_of(memory.copy(), len(memory))
    ring, batch = _kernels.Ring(memory, len(memory), 1, few=True), np.full(_kernels.BATCH_BYTES, 7, np.uint8)
    found = PacketBatch.in_memory(batch, ring.take(batch))
    assert len(found) == len(whole) > 100
    assert all((getattr(found, name) == getattr(whole, name)).all() for name in FEW)
    assert (found.flow_key == 0x0707070707070707).all()


@IN_LAB
def test_few_columns_are_enough_for_ids_and_times(network: Network) -> None:
    lives = [listen(network, packet_id=PacketId(), few=few) for few in (False, True)]
    sender = raw(network)
    for i in range(50):
        sender.send(ethernet(ipv4(udp(bytes([i]), (i, 9)), 17)))
    for live in lives:
        live.stop()
    whole, few = ([batch for batch in live if len(batch)] for live in lives)
    ids = [np.concatenate([batch.packet_id for batch in batches]).tolist() for batches in (whole, few)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 50
    assert not hasattr(few[0], "src")


def test_tags_that_the_kernel_removed_are_put_back() -> None:
    frame = ethernet(ipv4(udp(b"x", (7, 9)), 17))
    memory = aligned(packed_block([frame], tag=0x2064))
    (batch,), _ = rows_of(memory, len(memory))
    assert batch.has(Flag.VLAN).tolist() == [True]
    assert batch.wire_length.tolist() == [len(frame) + 4]
    start = int(batch.offset[0])
    assert memory[start : start + len(frame) + 4].tobytes() == frame[:12] + b"\x88\xa8\x20\x64" + frame[12:]


def test_unwanted_directions_are_counted() -> None:
    frame = ethernet(ipv4(udp(b"x", (7, 9)), 17))
    memory = aligned(packed_block([frame] * 3, outgoing=True))
    batches, ring = rows_of(memory, len(memory), outgoing=False)
    assert sum(map(len, batches)) == 0
    assert ring.statistics()["unwanted"] == 3


@pytest.mark.parametrize("seed", range(4))
def test_no_content_of_a_block_leads_out_of_it(seed: int) -> None:
    """fuzz/ring.c checks this under AddressSanitizer; here it must end, and count no more than fits."""
    rng = random.Random(seed)
    for _ in range(400):
        frames = [random_frame(rng)[1] for _ in range(rng.randrange(1, 5))]
        data = bytearray(packed_block(frames, size=1 << 16, tag=rng.choice([None, 5])))
        for _ in range(rng.randrange(1, 8)):
            place = rng.choice([rng.randrange(12, 24), rng.randrange(48, 400)])
            data[place] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        memory = aligned(bytes(data))
        batches, ring = rows_of(memory, len(memory))
        assert ring.statistics()["packets"] <= len(data) // 68
        assert all(int(batch.offset[row]) < len(data) for batch in batches for row in range(len(batch)))


@pytest.mark.parametrize(("size", "block"), [(1 << 14, 1 << 13), (100, 48), (1 << 14, 0)])
def test_memory_that_is_not_a_ring_is_refused(size: int, block: int) -> None:
    if size % (block or 7):
        with pytest.raises(ValueError, match="blocks of one size"):
            _kernels.Ring(aligned(bytes(size)), block, 1)
    else:
        assert _kernels.Ring(aligned(bytes(size)), block, 1).take(np.empty(_kernels.BATCH_BYTES, np.uint8)) == -1


# ---- an interface ----


@IN_LAB
def test_columns_equal_those_of_a_capture_at_the_same_interface(network: Network, tmp_path: Path) -> None:
    """Random frames of every layer, some tagged; tcpdump listens at the same interface."""
    path = tmp_path / "beside.pcap"
    options = "-i source -n -s 65535 -B 8192 -Z root --immediate-mode --time-stamp-precision=nano -U -w"
    command = ["tcpdump", *options.split(), str(path)]
    beside = network.start(flood.SINK, command, tmp_path / "tcpdump.txt")
    beside.wait_for_line("listening on")
    rng = random.Random(3)
    made = (frame for link, frame in iter(lambda: random_frame(rng), None) if link == 1 and 60 <= len(frame) <= 1514)
    frames = list(islice(made, 1000))  # made before: the kernel closes a block of the ring after a while, full or not
    live, out = (
        listen(network, packet_id=PacketId(), tunnels=True, snap_bytes=65535, ring_bytes=128 << 20),
        raw(network),
    )
    for frame in frames:
        out.send(frame)
    seen = collected(live)
    beside.wait_until_idle()
    beside.stop(signal.SIGINT)
    expected = Capture([str(path)], packet_id=PacketId(), tunnels=True)
    wanted = PacketBatch.concatenate(list(expected))
    assert expected.statistics.packets == live.statistics.packets == len(frames)
    assert expected.statistics.skipped == live.statistics.skipped
    assert seen.has(Flag.VLAN).any()
    for name, _, _ in COLUMNS:
        if name not in OF_A_FILE:
            np.testing.assert_array_equal(getattr(seen, name), getattr(wanted, name), err_msg=name)


@IN_LAB
def test_frames_can_be_looked_up_in_the_ring(network: Network) -> None:
    live, frame = listen(network), ethernet(ipv4(udp(b"hello", (7, 9)), 17)).ljust(60, b"\0")
    raw(network).send(frame)
    batch = next(batch for batch in live if len(batch))
    assert batch.frame(0) == frame


@IN_LAB
def test_a_small_ring_keeps_slow_packets_while_nobody_reads(network: Network) -> None:
    """The kernel hands over a block with one packet after a while: they must last for a reader that is stalled."""
    with network.inside(flood.SINK), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        ring = open_ring(
            "lo", expression="udp", promiscuous=False, ring_bytes=4 << 20, poll_ms=1, snap_bytes=96, fanout=None,
            direction="both", clock="kernel",
        )  # fmt: skip
        OPENED.append(ring.socket)
        status = ring.memory.view(np.uint32)[2 :: ring.block_bytes // 4]  # of each block
        for number in range(1, 31):
            out.sendto(b"x", ("127.0.0.1", 9))
            until(lambda: int((status & 1).sum()) == number, "a block with the packet")  # noqa: B023
        assert ring.counters()[:2] == (30, 0)


@IN_LAB
def test_a_loopback_shows_each_packet_once(network: Network) -> None:
    live = listen(network, flood.SINK, "lo", filter="udp and dst port 9")
    with network.inside(flood.SINK), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(10):
            out.sendto(b"x", ("127.0.0.1", 9))
    assert len(collected(live)) == 10


@IN_LAB
@pytest.mark.parametrize(("direction", "expected"), [("both", [1, 2]), ("in", [2]), ("out", [1])])
def test_directions(network: Network, direction: str, expected: list[int]) -> None:
    live = listen(network, flood.SOURCE, flood.SINK, direction=direction)
    raw(network).send(ethernet(ipv4(udp(b"x", (1, 9)), 17)))
    raw(network, flood.SINK, flood.SOURCE).send(ethernet(ipv4(udp(b"x", (2, 9)), 17)))
    assert collected(live).src_port.tolist() == expected


@IN_LAB
def test_the_kernel_filters_as_tcpdump_does(network: Network) -> None:
    """Also by VLAN, where the filter must know that the kernel removes tags from frames."""
    tagged = ethernet(struct.pack("!HH", 5, 0x0800) + ipv4(udp(b"x", (3, 9)), 17), 0x8100)
    frames = [ethernet(ipv4(udp(b"x", (port, 9)), 17)) for port in (1, 2)] + [tagged]
    lives = {text: listen(network, filter=text) for text in ("udp src port 2", "vlan 5", "vlan 6", "not vlan")}
    out = raw(network)
    for frame in frames:
        out.send(frame.ljust(60, b"\0"))
    found = {text: collected(live).src_port.tolist() for text, live in lives.items()}
    assert found == {"udp src port 2": [2], "vlan 5": [3], "vlan 6": [], "not vlan": [1, 2]}


@IN_LAB
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interface": "eth77"}, r"eth77: there is no such interface; there are lo, source"),
        ({"filter": "host and and"}, r"filter 'host and and': .*; write it as for tcpdump"),
        ({"clock": "hardware"}, r"source: this card does not timestamp packets"),
        ({"ring_bytes": 1 << 44}, r"source: a ring must have 256 KiB to 4 GiB, not 17,592,186,044,416 bytes"),
    ],
)
def test_impossible_settings_are_one_line(network: Network, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WirelagError, match=message) as caught:
        listen(network, **options)
    assert "\n" not in str(caught.value)


@IN_LAB
def test_an_interface_that_is_down_or_goes_down(network: Network) -> None:
    live = listen(network)
    raw(network).send(ethernet(ipv4(udp(b"x", (1, 9)), 17)))
    network.ip(flood.SINK, "link set source down")
    with pytest.raises(WirelagError, match="source: the interface went down or has gone"):
        until_error(live)
    assert live.statistics.packets == 1
    with pytest.raises(WirelagError, match="source: the interface is down; bring it up"):
        listen(network)


@IN_LAB
def test_an_interface_that_disappears(network: Network) -> None:
    live = listen(network)
    network.ip(flood.SINK, "link del source")
    with pytest.raises(WirelagError, match="source: the interface went down or has gone"):
        until_error(live)


def until_error(live: Live) -> None:
    for _ in live:
        pass


@IN_LAB
def test_drops_are_counted_and_dated(network: Network, tmp_path: Path) -> None:
    """The ring is not read during the flood: it holds the first packets, the rest is dropped."""
    began_ns = time.time_ns()
    live = listen(network, ring_bytes=1 << 20)
    sent, _ = flood.result(flood.start(network, 60_000, None, tmp_path / "flood.txt").finish())
    seen = collected(live)
    statistics = live.statistics
    assert statistics.received + statistics.dropped == sent
    assert statistics.dropped > 10_000
    assert statistics.freezes >= 1
    assert len(seen) == statistics.packets == statistics.received
    now_ns = time.time_ns()
    assert live.dropped_during(Interval(began_ns, now_ns)) == statistics.dropped
    assert live.dropped_during(Interval(now_ns + S, now_ns + 2 * S)) == 0
    assert live.dropped_during(Interval(0, S)) == 0


@IN_LAB
def test_a_flood_that_is_read_loses_nothing(network: Network, tmp_path: Path) -> None:
    live = listen(network)  # the whole flood fits: no machine is too slow
    process = flood.start(network, 200_000, 200_000, tmp_path / "flood.txt")
    seen = idle = 0
    for batch in live:
        seen += len(batch)
        idle = 0 if len(batch) else idle + 1
        if idle > 5 and "sent=" in process.said():
            live.stop()
    sent, _ = flood.result(process.said())
    statistics = live.statistics
    assert (seen, statistics.received, statistics.dropped) == (sent, sent, 0)


@IN_LAB
def test_time_passes_while_only_unwanted_packets_arrive(network: Network, tmp_path: Path) -> None:
    """Blocks fill faster than they are polled and hold only unwanted packets: intervals end all the same."""
    live = listen(network, wanted=Filter(ports=(1,)))
    process = flood.start(network, 10_000_000, 400_000, tmp_path / "flood.txt")
    filtered = [0]
    for batch in live:
        assert not len(batch)
        if (now := live.statistics.filtered) > filtered[-1]:
            filtered.append(now)
        if len(filtered) > 3 or "sent=" in process.said():
            process.stop()
            live.stop()
    assert len(filtered) > 3, "no time was reported while packets came"


@IN_LAB
def test_fanout_shares_packets_by_flow(network: Network) -> None:
    lives = [listen(network, fanout=77) for _ in range(2)]
    out = raw(network)
    for port in range(1000, 1200):
        out.send(ethernet(ipv4(udp(b"x", (port, 9)), 17)))
        out.send(ethernet(ipv4(udp(b"x", (9, port)), 17, src=b"\xc6\x33\x64\2", dst=b"\xc0\0\2\1")))
    keys = [collected(live).flow_key.tolist() for live in lives]
    assert len(keys[0]) + len(keys[1]) == 400
    assert min(map(len, keys)) > 50
    assert not set(keys[0]) & set(keys[1])


@IN_LAB
def test_stop_ends_at_the_packets_that_have_arrived(network: Network, tmp_path: Path) -> None:
    live, beside = listen(network), listen(network)
    process = flood.start(network, 10_000_000, 100_000, tmp_path / "flood.txt")
    seen = last_ns = 0
    for batch in live:
        if len(batch):
            seen, last_ns = seen + len(batch), int(batch.time_ns[-1])
        if seen > 5000 and live._stopped_ns is None:
            live.stop()
    assert "sent=" not in process.said(), "more arrives"
    assert live._stopped_ns is not None
    assert last_ns <= live._stopped_ns
    beside.stop(live._stopped_ns)
    assert abs(seen - sum(map(len, beside))) <= 1  # each stamps packets itself: one may be on either side of the end


# ---- privileges ----

LISTEN_AND_DROP = """
import glob, os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from wirelag.capture.privileges import drop_privileges
from wirelag.errors import WirelagError
from wirelag.capture.live import Live
try:
    live = Live("lo")
except WirelagError as error:
    sys.exit(str(error))
drop_privileges()
tasks = glob.glob("/proc/self/task/*/status")
assert len(tasks) == 1
status = dict(line.split(":\\t") for line in open(tasks[0]).read().splitlines() if ":\\t" in line)
print(status["Uid"].split()[0], status["CapEff"], status["CapPrm"], status["NoNewPrivs"])
live.stop()
print(sum(map(len, live)), live.statistics.dropped)
try:
    Live("lo")
except WirelagError as error:
    print(error)
"""


OTHER = ("setpriv", "--reuid", "65534", "--clear-groups")


def as_other(network: Network, *setpriv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = network.command(flood.SINK, [*setpriv, sys.executable, "-c", LISTEN_AND_DROP])
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=PATIENCE_S
    )


@IN_LAB
@pytest.mark.skipif(shutil.which("setpriv") is None, reason=needs.program("setpriv"))
def test_cap_net_raw_is_enough_and_is_dropped(network: Network) -> None:
    # Reading our files may need another capability if they are in root's home; it is dropped as well.
    kept = "+net_raw,+dac_read_search"
    done = as_other(network, *OTHER, "--inh-caps", kept, "--ambient-caps", kept)
    first, second, third = done.stdout.splitlines()
    assert first == "65534 0000000000000000 0000000000000000 1"
    assert second == "0 0"
    assert third.startswith("lo: listening needs CAP_NET_RAW")
    without = as_other(network, *OTHER, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    assert without.stderr.startswith("lo: listening needs CAP_NET_RAW: run as root (sudo), or give it with setpriv")


@IN_LAB
def test_root_becomes_the_user_of_sudo(network: Network) -> None:
    for environment, user in (({"SUDO_UID": "1234", "SUDO_GID": "1234"}, "1234"), ({"SUDO_UID": ""}, "65534")):
        first, second, third = as_other(network, **environment).stdout.splitlines()
        assert first in (f"{user} 0000000000000000 0000000000000000 1", "0 0000000000000000 0000000000000000 1")
        assert second == "0 0"
        assert third.startswith("lo: listening needs CAP_NET_RAW")


# ---- replay, and intervals by the clock ----


def capture_of(path: Path, times_ns: list[int]) -> str:
    frames = [(time_ns, ethernet(ipv4(udp(b"x", (1000 + i, 9)), 17))) for i, time_ns in enumerate(times_ns)]
    path.write_bytes(pcap([(time_ns // 1000, frame, len(frame)) for time_ns, frame in frames]))
    return str(path)


class Virtual:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += math.ceil(seconds * S)


def test_replay_keeps_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Virtual()
    monkeypatch.setattr("wirelag.capture.live.time", clock)
    times_ns = [S, S + 100 * MS, S + 100 * MS, S + 50 * MS, S + 600 * MS]
    replay = Replay([capture_of(tmp_path / "a.pcap", times_ns)], speed=2.0)
    rows, late_ns, empty = [], [], 0
    for batch in replay:
        empty += not len(batch)
        rows += batch.src_port.tolist()
        late_ns += [replay.now_ns() - int(batch.time_ns.max())] if len(batch) else []
    assert rows == [1000, 1001, 1002, 1003, 1004]
    assert 300 * MS <= clock.now_ns < 300 * MS + 100
    assert empty >= 14  # one for each 20 ms of the gaps of 50 and 250 ms
    assert 0 <= min(late_ns) <= max(late_ns) < 100
    assert replay.statistics == LiveStatistics(5, packets=5, wire_bytes=replay.statistics.wire_bytes, backwards=1)


def test_replay_at_full_speed_and_stop(tmp_path: Path) -> None:
    path = capture_of(tmp_path / "a.pcap", [i * 3600 * S for i in range(1, 50)])
    assert sum(map(len, Replay([path], speed=None))) == 49
    slow = Replay([path], speed=1.0)
    seen = 0
    for batch in slow:
        seen += len(batch)
        slow.stop()
    assert seen == 1


class Scripted:
    """A source with a scripted clock and scripted batches: (now, times of packets)."""

    def __init__(self, script: list[tuple[int, list[int]]]) -> None:
        self.name, self.poll_ms = "scripted", 20
        self.began_ns: int | None = None
        self.warnings: list[str] = []
        self._script = script
        self._now_ns = 0

    def __iter__(self) -> Iterator[PacketBatch]:
        for now_ns, times_ns in self._script:
            self._now_ns = now_ns
            yield PacketBatch({"time_ns": np.array(times_ns, np.int64)})

    def now_ns(self) -> int:
        return self._now_ns

    @property
    def quiet_ns(self) -> int:
        return self._now_ns

    @property
    def statistics(self) -> LiveStatistics:
        return LiveStatistics()

    def dropped_during(self, interval: Interval) -> int:
        return 0

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def told(script: list[tuple[int, list[int]]]) -> list[tuple[int, list[int] | None]]:
    """Intervals of one second, by number: packets, or None for an end."""
    ms = [(now * MS, [t * MS for t in times]) for now, times in script]
    parts = by_clock(Scripted(ms), S)
    return [(i.start_ns // S, None if p is None else (p.time_ns // MS).tolist()) for i, p in parts]


def test_intervals_end_by_packets_or_by_the_clock() -> None:
    assert told([(5000, [4990, 5100, 6000])]) == [
        (4, [4990]),
        (4, None),
        (5, [5100]),
        (5, None),
        (6, [6000]),
        (6, None),
    ]
    # Without packets the clock ends an interval, three polls late; also an empty one.
    quiet: list[tuple[int, list[int]]] = [(t, []) for t in range(5020, 7200, 20)]
    assert told([(5000, [5000]), *quiet]) == [(5, [5000]), (5, None), (6, None), (7, None)]
    # The reader lags: while packets arrive, the clock ends nothing.
    assert told([(9000, [5000]), (9000, [5500]), (9000, [6100])]) == [
        *((5, [5000]), (5, [5500]), (5, None), (6, [6100]), (6, None))
    ]
    # A packet with an earlier time stays in the open interval.
    assert told([(6010, [6000]), (6010, [5999, 6001])]) == [(6, [6000]), (6, [5999]), (6, [6001]), (6, None)]
    # After an hour of sleep the intervals in between are left out.
    assert told([(5000, [5000]), (3_600_500, [])]) == [(5, [5000]), (5, None), (3600, None)]
    assert told([(0, []), (5010, [])]) == [(5, None)]


def test_the_smallest_filter_takes_the_first_bytes() -> None:
    assert take(512) == struct.pack("=HBBI", 0x06, 0, 0, 512)
