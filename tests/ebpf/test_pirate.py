"""`pirate` in the kernel: the same packets give the same epochs as in user space, bit for bit."""

import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from experiments.pirate_lab import answered, recorded
from lab.clients import LOG, Load, Task, read_log
from lab.network import SERVICE_ADDRESS, Network
from lab.scenarios import SCENARIOS
from lab.servers import Httpd
from tests.oracles.pirate_auto import Table
from tests.oracles.pirate_modes import ClientPacket, Settings, travelled
from tests.support import needs
from tests.support.captures import (
    capture_paths,
    ethernet,
    ipv4,
    packets,
    pcap,
    plain_bytes,
    random_frame,
    tcp,
    timestamps,
    udp,
)
from tests.support.client_connections import ACK, IP_ID, SYN, TCP, TIMESTAMPS, TRAVELLED
from tests.support.client_loops import MS, Loop, S, exponential, run
from tests.support.command import WIRELAG
from tests.support.effort import ALONE
from tests.support.experiment_tables import tables_of
from tests.support.in_lab import IN_LAB
from tests.support.pirate_connections import CONNECTIONS, connection, shifted, tampered
from tests.support.response_figures import ASKED, LEAST_ABSTAINED, MOST_BUSY, REACHED, UNKNOWABLE, busy, holds
from wirelag.capture.files import Capture
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.pirate import BESIDES, RECORDS, STEMS, KernelPirate
from wirelag.errors import WirelagError
from wirelag.estimators.pirate import Method, Pirate
from wirelag.estimators.pirate_confidence import judged
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag
from wirelag.packets.interval import Interval
from wirelag.packets.roles import Server
from wirelag.synopses.epochs import EPOCH, METHODS, Epochs

Frames = list[tuple[int, bytes]]

SHORTEST, LONGEST = 14, 3400  # fits into one page together with XDP's headroom
LIMIT = 1_000_000  # instructions, the verifier's limit
MOST_BYTES = {"modes": 160, "auto": 272}  # bytes per flow: record, key, time of its last packet, lock
FULL = 8 * (RECORDS["auto"] + 56)  # bytes of a group of eight flows of auto


@pytest.fixture(autouse=True, scope="module")
def permitted() -> None:
    """Skip unless bpf() is permitted and the package was built with clang."""
    try:
        Dataplane("pirate_modes").close()
    except WirelagError as error:
        if "permit" in str(error) or "without clang" in str(error):
            pytest.skip(needs.ebpf(error))
        raise


# Frames


def frame_of(row: ClientPacket, number: int) -> bytes:
    """A row as a frame of the connection with this number."""
    ends = {"src": (0x0A000000 + number).to_bytes(4, "big"), "ident": row.ip_id if row.has & IP_ID else 0}
    if not row.has & TCP:
        return ethernet(ipv4(udp(bytes(min(row.payload, 1400)), (40000, 9000)), 17, **ends))
    options = b"\2\4" + row.mss.to_bytes(2, "big") if row.tcp_flags & SYN and row.mss else b""
    options += timestamps(row.tsval, row.tsecr) if row.has & TIMESTAMPS else b""
    payload = bytes(min(row.payload, 3000))
    body = tcp(payload, ports=(40000, 80), seq=row.seq, ack=row.ack, flags=row.tcp_flags, options=options)
    return ethernet(ipv4(body, 6, **ends))


def talk(seed: int, rows_each: int = 250) -> Frames:
    """Concurrent connections of all sorts, with tampering."""
    rng = random.Random(seed)
    found = []
    for number, name in enumerate(CONNECTIONS):
        rows = tampered(connection(name)[:rows_each], rng, 0.01)
        rows = [row for row in rows if 0 <= row.time_ns < 2**62]
        rows = shifted(rows, 1_700_000_000 * S + rng.randrange(S))
        found += [(row.time_ns, frame_of(row, number)) for row in rows]
    for number in range(6):
        loop = Loop(exponential(2 * MS), in_flight=1 + number, batch=number > 2, seconds=1)
        found += [(row.time_ns, frame_of(row, 1000 + number)) for row in run(loop, seed)[0]]
    return sorted(one for one in found if 0 <= one[0] < 2**33 * S)


@cache
def real(share: int) -> Frames:
    """Frames of the shared captures, file after file."""
    frames: Frames = []
    for path in capture_paths("rtt", "hidden"):
        known = [one for one in packets(plain_bytes(path)) if one.link_type == 1 and one.time_ns is not None]
        known = [one for one in known if SHORTEST <= len(one.frame) <= LONGEST and 0 <= one.time_ns < 2**32 * S]
        frames += [(one.time_ns, one.frame) for one in known[: max(100, len(known) // share)]]
    return frames


# Both implementations


def inside(estimator: Pirate, frames: Frames, **options: bool) -> Epochs:
    """Epochs from the kernel, in order."""
    with KernelPirate(estimator, replayed=True, all_are_clients=True, **options) as meter:
        for number, (time_ns, frame) in enumerate(frames):
            meter.replay(frame, time_ns)
            if number % 1000 == 0:
                meter.collect()
        found = meter.finish()
    assert not any(found.counts[name] for name in ("busy", "untold", "failed")), found.counts
    return found


def batches(frames: Frames, folder: Path, tunnels: bool = False) -> Iterator[PacketBatch]:
    path = folder / "frames.pcap"
    path.write_bytes(pcap([(time_ns, frame, len(frame)) for time_ns, frame in frames], magic=0xA1B23C4D))
    yield from Capture([str(path)], tunnels=tunnels)


def outside(estimator: Pirate, frames: Frames, folder: Path, tunnels: bool = False) -> tuple[Epochs, dict[str, int]]:
    """Epochs from the extension, from a capture."""
    table = estimator.kernel(METHODS.index(estimator.method), estimator.memory)
    last_ns = 0
    for batch in batches(frames, folder, tunnels):
        if table.observe_batch(batch, True, estimator.method != "auto"):
            last_ns = max(last_ns, int(batch.time_ns.max()))
    table.cut(last_ns)
    rows = np.zeros(table.epochs, EPOCH)
    table.take(rows.view("<u8").reshape(len(rows), -1))
    return Epochs(judged(rows)).possible(), table.counts()


def hold_equal(estimator: Pirate, frames: Frames, folder: Path, tunnels: bool = False) -> Epochs:
    found = inside(estimator, frames, tunnels=tunnels)
    expected, counts = outside(estimator, frames, folder, tunnels)
    assert {name: found.counts[name] for name in counts} == counts
    np.testing.assert_array_equal(found.rows, expected.rows)
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("method", STEMS)
def test_connections_of_all_sorts(method: str, tmp_path: Path) -> None:
    found = hold_equal(Pirate(method, 1 << 20, epoch_ns=100 * MS), talk(1, 150), tmp_path)
    assert len(found) > 100
    assert (found.rows["count"] > 0).sum() > 20


@pytest.mark.parametrize(("method", "memory"), [("auto", 1), ("modes", 2 * FULL + 5)])
def test_flows_that_are_evicted(method: str, memory: int, tmp_path: Path) -> None:
    """More flows than slots: the longest silent are evicted, and return in mid-connection."""
    found = hold_equal(Pirate(method, memory, epoch_ns=20 * MS, fewest=1, seed=memory), talk(9, 60), tmp_path)
    assert found.counts["evicted"] > 5


@pytest.mark.every(2)
@pytest.mark.parametrize(("method", "tunnels"), [("auto", False), ("modes", True)])
def test_real_frames(method: str, tunnels: bool, tmp_path: Path, shared_data: Path) -> None:
    found = hold_equal(Pirate(method, 1 << 18, epoch_ns=100 * MS), real(2000), tmp_path, tunnels)
    assert found.packets > 1000


@pytest.mark.parametrize("method", STEMS)
def test_frames_of_any_sort(method: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    frames = [frame for link, frame in (random_frame(rng) for _ in range(3000)) if link == 1]
    frames.append(frame_of(ClientPacket(S, seq=1, ack=1, tcp_flags=ACK, has=TCP), 1))  # both end with a client's packet
    timed = [(S + number * MS, frame) for number, frame in enumerate(frames) if SHORTEST <= len(frame) <= LONGEST]
    found = hold_equal(Pirate(method, 1 << 16), timed, tmp_path, True)
    assert found.packets > 50


def client_rows(batch: PacketBatch) -> Iterator[ClientPacket]:
    """The TCP rows, as input of the twin."""
    for i in np.flatnonzero((batch.kind == Kind.TCP) & ((batch.flags & (Flag.LATER | Flag.SHORT)) == 0)):
        flags = int(batch.flags[i])
        has = TCP | (TIMESTAMPS if flags & Flag.TIMESTAMPS else 0)
        has |= IP_ID if not flags & (Flag.IPV6 | Flag.FRAGMENT) and batch.ip_id[i] else 0
        shown = int(batch.transaction[i]) if batch.message[i] & TcpFlag.SYN else 0
        has |= TRAVELLED if travelled(shown >> 16) else 0
        yield ClientPacket(
            *(int(batch.time_ns[i]), int(batch.flow_key[i]) ^ bool(flags & Flag.REVERSE)),
            *(int(batch.seq[i]), int(batch.ack[i]), int(batch.tsval[i]), int(batch.tsecr[i])),
            *(int(batch.wire_length[i]), int(batch.payload_length[i]), int(batch.ip_id[i])),
            *(shown & 0xFFFF, int(batch.message[i]), has),
        )


def test_the_plain_twin_agrees(tmp_path: Path) -> None:
    frames, memory = talk(5, 120), 2 * FULL
    twin = Table(Settings(epoch_ns=50 * MS), memory, 0)
    last_ns = 0
    for batch in batches(frames, tmp_path):
        rows = list(client_rows(batch))
        twin.observe(rows)
        last_ns = max(last_ns, *(row.time_ns for row in rows))
    twin.cut(last_ns)
    found = inside(Pirate("auto", memory, epoch_ns=50 * MS), frames)
    names = ("key", "start_ns", "end_ns", "requests", "lost", "network_ns", "in_flight")
    names += ("waits", "waits_before", "riding", "turns", "more", "doubts", "traits", "tick")
    said = [tuple(int(row[name]) for name in names) for row in found.rows]
    assert said == [tuple(getattr(epoch, name) for name in names) for epoch in twin.given]


@pytest.mark.parametrize("method", STEMS)
def test_across_the_edges_of_intervals(method: str, tmp_path: Path) -> None:
    """Cut at the same times, both give the same intervals, though the kernel is read later."""
    frames = [one for one in talk(2, 150) if one[0] < 1_700_000_004 * S]
    estimator = Pirate(method, 1 << 20, epoch_ns=50 * MS)
    table = estimator.kernel(METHODS.index(method), estimator.memory)
    length_ns, shown, told = 250 * MS, 0, 0
    begin_ns = frames[0][0] // length_ns * length_ns
    with KernelPirate(estimator, replayed=True, all_are_clients=True) as meter:
        for start_ns in range(begin_ns, frames[-1][0], length_ns):
            interval = Interval(start_ns, start_ns + length_ns)
            while shown < len(frames) and frames[shown][0] < interval.end_ns + 20 * MS:
                meter.replay(frames[shown][1], frames[shown][0])
                shown += 1
            part = [one for one in frames if interval.start_ns <= one[0] < interval.end_ns]
            for batch in batches(part, tmp_path) if part else ():
                table.observe_batch(batch, True, method != "auto")
            rows = np.zeros(table.epochs, EPOCH)
            table.take(rows.view("<u8").reshape(len(rows), -1))
            np.testing.assert_array_equal(meter.cut(interval).rows, Epochs(judged(rows)).possible().rows)
            told += len(rows)
    assert told > 50


# Clients and servers


def test_clients_and_servers() -> None:
    """By named servers, or by ports; other packets are counted."""
    rows = [ClientPacket(S + n * MS, seq=n * 100, ack=1, tcp_flags=ACK, has=TCP) for n in range(20)]
    there = [(row.time_ns, frame_of(row, 7)) for row in rows]
    back = [(t, ethernet(ipv4(tcp(bytes(9), ports=(80, 40000)), 6, dst=b"\x0a\0\0\7"))) for t, _ in there]
    both = sorted(there + back)

    def heard(servers: Sequence[str]) -> tuple[int, int]:
        chosen = tuple(map(Server.parse, servers))
        with KernelPirate(Pirate("modes"), replayed=True, servers=chosen) as meter:
            for time_ns, frame in both:
                meter.replay(frame, time_ns)
            counts = meter.counts()
        return counts["packets"], counts["from_servers"]

    assert heard([]) == (20, 20)
    assert heard(["198.51.100.2:81", "[2001:db8::/32]:443", "198.51.100.0/24:80"]) == (20, 20)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: KernelPirate(Pirate("gap")), "the method gap does not run in the kernel: use auto or modes"),
        (lambda: KernelPirate(Pirate(), servers=[Server.parse("::/0")] * 9), "at most 8 servers"),
        (lambda: KernelPirate(Pirate("modes"), "no0such0if"), "no0such0if: there is no such interface"),
        (
            lambda: KernelPirate(Pirate("modes"), then="/sys/fs/bpf/no/such"),
            "/sys/fs/bpf/no/such: no program is pinned there",
        ),
    ],
)
def test_impossible_settings(make: Callable[[], KernelPirate], line: str) -> None:
    with pytest.raises(WirelagError, match=re.escape(line)) as said:
        make()
    assert "\n" not in str(said.value)


# Bounds


@pytest.mark.parametrize("method", STEMS)
def test_the_verifier_accepts_it_with_room(method: str) -> None:
    with Dataplane(STEMS[method], statistics=True) as plane:
        said = re.search(r"processed (\d+) insns", plane.programs["wl_pirate"].log)
        assert said
        assert int(said[1]) < 0.6 * LIMIT
        assert plane.maps["groups"].value_size == 8 * (RECORDS[method] + BESIDES) <= 8 * MOST_BYTES[method]


def moved(estimator: Pirate, flows: int, packets_in_all: int) -> tuple[Epochs, int]:
    """Send `flows` flows in turn through a table; return also its bytes."""
    with (
        Dataplane("moving", constants={"flows": flows, "turn_ns": 50 * MS}) as moving,
        KernelPirate(estimator, replayed=True, all_are_clients=True, clock=moving.maps[".bss"]) as meter,
    ):
        moving.maps["next"].update(0, meter.program)
        moving.variable("replay_ns").view(np.int64)[0] = S
        frame = ethernet(ipv4(tcp(bytes(100), ports=(40000, 80), options=timestamps(1, 1)), 6))
        for _ in range(0, packets_in_all, 10_000):
            moving.programs["wl_moving"].run(frame, repeat=10_000)
            meter.collect()
        return meter.finish(), meter.memory


@pytest.mark.every(2)
@pytest.mark.parametrize("method", STEMS)
@pytest.mark.parametrize("flows", [1 << 12, pytest.param(1 << 20, marks=pytest.mark.acceptance)])
def test_many_flows(method: str, flows: int) -> None:
    """With room for all, all are reported; with half of the room, flows are evicted. No loss goes uncounted."""
    each = RECORDS[method] + 56
    turns = 6
    roomy = Pirate(method, 2 * flows * each, epoch_ns=200 * MS, fewest=1, most_epochs=1 << 24)
    found, memory = moved(roomy, flows, turns * flows)
    assert memory <= 2 * flows * (RECORDS[method] + BESIDES + 40)
    assert found.counts["flows"] >= 0.999 * flows
    assert found.counts["evicted"] <= 0.02 * turns * flows  # from full groups
    assert found.counts["failed"] == found.counts["busy"] == 0
    assert len(found) + found.counts["untold"] > flows
    churned, _ = moved(Pirate(method, flows * each // 2, fewest=1, most_epochs=1 << 24), flows, 2 * flows)
    assert churned.counts["evicted"] > flows  # all in the second turn, half in the first
    assert churned.counts["flows"] - churned.counts["evicted"] <= flows // 2
    assert churned.counts["failed"] == churned.counts["busy"] == 0


@pytest.mark.parametrize("method", STEMS)
def test_several_processors_at_one_group(method: str) -> None:
    """Each packet is counted once, and no flow is in the table twice."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        pytest.skip(needs.TWO_CPUS)
    row = ClientPacket(S, seq=1, ack=1, tcp_flags=ACK, has=TCP)
    frames = [frame_of(row, number) for number in range(12)]
    runs, repeat = 24, 2000
    with KernelPirate(Pirate(method, 1), replayed=False, all_are_clients=True) as meter:

        def work(processor: int) -> None:
            os.sched_setaffinity(0, {processor})
            for number in range(runs):
                meter.program.run(frames[number % len(frames)], repeat=repeat)

        threads = [threading.Thread(target=work, args=(processor,)) for processor in processors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = meter.counts()
        keys = meter.keys()
    assert counts["packets"] == 2 * runs * repeat
    assert counts["failed"] == 0
    assert counts["flows"] - counts["evicted"] == len(keys) == 8
    assert len(set(keys)) == 8


# At an interface


def test_a_program_that_follows_ours(bpffs: Path) -> None:
    """A pinned program gets every packet after ours: here ours of the other method, which counts them."""
    path = bpffs / "second"
    row = ClientPacket(S, seq=1, ack=1, tcp_flags=ACK, has=TCP)
    with KernelPirate(Pirate("modes", 1), replayed=True, all_are_clients=True) as second:
        second.program.pin(path)
        try:
            with KernelPirate(Pirate("auto", 1), replayed=True, all_are_clients=True, then=str(path)) as first:
                for number in range(5):
                    first.replay(frame_of(row, number), S)
                counts = first.counts()
        finally:
            path.unlink()
        assert counts["packets"] == second.counts()["packets"] == 5
        assert counts["not_handed_on"] == 0


@IN_LAB
@pytest.mark.parametrize("method", ["auto", pytest.param("modes", marks=pytest.mark.acceptance)])
def test_in_the_lab_it_agrees_with_the_capture(method: Method) -> None:
    with recorded(SCENARIOS["w1-exponential"], 1.5, in_kernel=method) as record:
        assert record.in_kernel is not None
        inside, outside = record.in_kernel, answered(record.capture, Pirate(method))
        means = [epochs.report().mean for epochs in (inside, outside)]
    assert len(outside) > (20 if ALONE else 2)
    assert abs(len(inside) - len(outside)) <= max(1, 0.05 * len(outside))  # their clocks differ by some microseconds
    assert inside.rows["requests"].sum() == outside.rows["requests"].sum() > (500 if ALONE else 50)
    assert means[0] == pytest.approx(means[1], rel=0.02)


@IN_LAB
def test_watch(tmp_path: Path) -> None:
    """Reports for each interval while real requests pass, and one at the end; then nothing is attached."""
    command = [*WIRELAG, "watch", "eth0", "response", "--in-kernel"]
    command += ["--interval", "500ms", "--format", "jsonl", "--by", "server"]
    server = Httpd("exponential:2000")
    with Network("watch") as network:
        server.start(network, tmp_path, 1, SERVICE_ADDRESS)
        watch = network.start("point", command, tmp_path / "watch.txt")
        watch.wait_for_line('"packets"')
        client = Load().start(network, Task(SERVICE_ADDRESS, server.port, 4, 1.0, 1, tmp_path))
        client.finish()
        said = watch.stop(signal.SIGINT)
        assert "xdp" not in network.run("point", "ip", "link", "show", "eth0")
    *parts, final = [json.loads(line) for line in said.splitlines()]
    assert final["final"]
    asked = read_log(tmp_path / LOG)
    took_s = (asked["answered_ns"] - asked["asked_ns"]) / S
    assert final["samples"] >= sum(part["samples"] for part in parts) > (200 if ALONE else 20)
    assert took_s.min() < final["mean"] < took_s.max()
    if ALONE:
        assert 0.0015 < final["mean"] < 0.01
    assert final["dropped"] == 0
    assert [group["key"] for group in final["groups"]] == [f"{SERVICE_ADDRESS}:{server.port}"]


# The required figures of `auto`


@IN_LAB
@pytest.mark.acceptance
@pytest.mark.parametrize("options", [[], ["--held-back", "--seed", "2"]])
def test_the_figures_of_response_hold_in_the_kernel(options: list[str]) -> None:
    """With the bounds of tests/docs/test_response_figures.py, on an idle machine."""
    if busy() > MOST_BUSY:
        pytest.skip(needs.IDLE)
    found = tables_of("pirate_kernel", *options, quick=False)["auto in the kernel: epochs, %"]
    asked = ASKED | {name: bounds for name, (bounds, _) in REACHED.items() if name in ASKED}
    assert {name: found[name] for name, bounds in asked.items() if not holds(found[name], bounds)} == {}
    for name in UNKNOWABLE:
        assert name not in found or float(found[name]["abstained"]) >= LEAST_ABSTAINED


@IN_LAB
@pytest.mark.acceptance
def test_the_cost_of_a_packet() -> None:
    """Relative to a program that only passes packets; the time is given, so reading the clock is not measured."""
    if busy() > MOST_BUSY:
        pytest.skip(needs.IDLE)
    found = tables_of("pirate_cost")["times the pass"]["1"]
    assert float(found["modes, told"]) <= 5
    assert float(found["auto, told"]) <= 7
