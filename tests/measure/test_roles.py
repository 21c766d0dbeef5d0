"""Which packets clients sent: by SYNs, by ports, by named servers; the same for any batches."""

import random
import struct
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.oracles import roles as oracle
from tests.support.captures import ethernet, ipv4, ipv6, pcap, tcp, udp
from tests.support.effort import scaled
from tests.support.places import ROOT
from wirelag import _kernels
from wirelag.measure.response_heard import ResponseSettings
from wirelag.measure.response_method import MOST_BATCHES, ResponseMeter
from wirelag.packets.batch import Flag, Kind, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.roles import LOOK_AHEAD, MOST_SERVERS, Roles, Server, ahead

A, B, C = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\xc0\0\2\1"
SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10


def segment(src: bytes, dst: bytes, ports: tuple[int, int], flags: int = ACK) -> bytes:
    return ethernet(ipv4(tcp(b"x", ports=ports, flags=flags), 6, src=src, dst=dst))


def read(folder: Path, *frames: bytes) -> PacketBatch:
    path = folder / "some.pcap"
    path.write_bytes(pcap([(i, frame, len(frame)) for i, frame in enumerate(frames)]))
    return PacketBatch.concatenate(list(wirelag.read(str(path))))


def from_client(packets: PacketBatch, *servers: str) -> list[bool]:
    found: list[bool] = Roles(tuple(map(Server.parse, servers))).from_client(packets).tolist()
    return found


# ---- inferred roles ----


@pytest.mark.parametrize(
    ("ports", "client"),
    [
        ((40_000, 443), True),
        ((443, 40_000), False),
        ((5_000, 443), True),  # registered to well-known
        ((40_000, 8_080), True),
        ((8_080, 40_000), False),
        ((32_767, 32_768), False),
        ((1_024, 1_023), True),
        ((40_000, 50_000), True),  # alike: the first to speak
        ((50_000, 40_000), True),
        ((53, 53), True),
        ((1_022, 22), True),
        ((22, 1_022), False),
        ((20_000, 6_379), True),  # a service
        ((44_818, 5_050), False),
    ],
)
def test_roles_by_ports(ports: tuple[int, int], client: bool, tmp_path: Path) -> None:
    frames = [segment(A, C, ports), ethernet(ipv4(udp(b"x", ports), 17, src=A, dst=C))]
    assert from_client(read(tmp_path, *frames)) == [client] * 2


def test_a_syn_decides_before_ports(tmp_path: Path) -> None:
    """A server at port 50000, with a request from port 80."""
    frames = [
        segment(A, C, (80, 50_000)),  # by its ports
        segment(A, C, (80, 50_000), SYN),
        segment(C, A, (50_000, 80), SYN_ACK),
        segment(A, C, (80, 50_000)),
        segment(C, A, (50_000, 80)),
        segment(B, C, (443, 50_000)),  # another client, the same server
        segment(C, B, (50_000, 443)),
    ]
    assert from_client(read(tmp_path, *frames)) == [False, True, False, True, False, True, False]


def test_a_syn_ack_marks_a_server(tmp_path: Path) -> None:
    frames = [segment(C, A, (50_000, 80), SYN_ACK), segment(A, C, (80, 50_000)), segment(C, A, (50_000, 80))]
    assert from_client(read(tmp_path, *frames)) == [False, True, False]


def test_two_servers_that_talk_are_distinguished_by_ports(tmp_path: Path) -> None:
    """Both were asked before, so a SYN does not decide this conversation."""
    frames = [
        segment(B, A, (40_000, 6_379), SYN),
        segment(B, C, (40_001, 443), SYN),
        segment(A, C, (6_379, 443)),
        segment(C, A, (443, 6_379)),
    ]
    assert from_client(read(tmp_path, *frames))[2:] == [True, False]


# ---- named servers ----


@pytest.mark.parametrize(
    ("text", "net", "port"),
    [
        ("10.0.0.0/8", "10.0.0.0/8", 0),
        ("192.0.2.1", "192.0.2.1/32", 0),
        ("192.0.2.1:443", "192.0.2.1/32", 443),
        ("10.1.2.3/8:80", "10.0.0.0/8", 80),
        ("2001:db8::/32", "2001:db8::/32", 0),
        ("2001:db8::1", "2001:db8::1/128", 0),
        ("[2001:db8::1]:443", "2001:db8::1/128", 443),
        ("[2001:db8::/32]:443", "2001:db8::/32", 443),
        ("[2001:db8::1]", "2001:db8::1/128", 0),
    ],
)
def test_notations_of_servers(text: str, net: str, port: int) -> None:
    server = Server.parse(text)
    assert (str(server.net), server.port) == (net, port)


@pytest.mark.parametrize(
    "text", ["", ":", "443", "nowhere:443", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:-1",
             "10.0.0.0/40", "[2001:db8::1]:", "[2001:db8::1]:http", "2001:db8::1::2"]
)  # fmt: skip
def test_invalid_servers(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 10\.0\.0\.0/8|the port must be 1 to 65535"):
        Server.parse(text)


def test_the_advice_of_an_error_can_be_followed() -> None:
    with pytest.raises(ValueError, match="write ") as told:
        Server.parse("nowhere")
    for word in str(told.value).split("write ")[1].replace(" or ", ", ").split(", "):
        Server.parse(word)


def test_named_servers_override_inferred_ones(tmp_path: Path) -> None:
    frames = [
        segment(A, C, (40_000, 443), SYN),
        segment(C, A, (443, 40_000), SYN_ACK),
        ethernet(ipv6(tcp(ports=(443, 40_000)), 6), 0x86DD),
    ]
    packets = read(tmp_path, *frames)
    assert from_client(packets) == [True, False, False]
    assert from_client(packets, "10.0.0.0/8") == [False, True, False]
    assert from_client(packets, "192.0.2.1:443") == [True, False, False]
    assert from_client(packets, "192.0.2.1:80") == [False, False, False]
    assert from_client(packets, "2001:db8::2", "192.0.2.0/24") == [True, False, True]


# ---- studied packets ----


def told(*frames: tuple[int, bytes]) -> PacketBatch:
    """Packets at these times in milliseconds."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(pcap([(1_000 * ms, frame, len(frame)) for ms, frame in frames]))
        file.flush()
        return PacketBatch.concatenate(list(wirelag.read(file.name)))


def studied(packets: PacketBatch) -> tuple[list[bool], int]:
    roles = Roles()
    roles.study(packets[: ahead(packets, packets.time_ns[0])])
    return roles.from_client(packets).tolist(), roles.guessed


def data(src: bytes, dst: bytes, ports: tuple[int, int], size: int) -> bytes:
    return ethernet(ipv4(tcp(b"x" * size, ports=ports, flags=ACK), 6, src=src, dst=dst))


def test_an_endpoint_with_several_peers_is_a_server() -> None:
    """Even if its port is the higher one, and from the first packet on."""
    packets = told(
        (0, data(C, A, (50_000, 2_000), 900)),
        (1, data(A, C, (2_000, 50_000), 900)),
        (2, data(B, C, (3_000, 50_000), 900)),
    )
    assert studied(packets) == ([False, True, True], 0)


def test_an_endpoint_of_datagrams_with_several_peers_may_be_a_client() -> None:
    frames = [(A, C, (40_000, 50_000)), (C, A, (50_000, 40_000)), (A, B, (40_000, 50_000)), (B, A, (50_000, 40_000))]
    packets = told(
        *((i, ethernet(ipv4(udp(b"xx", ports), 17, src=a, dst=b))) for i, (a, b, ports) in enumerate(frames))
    )
    assert studied(packets) == ([True, False, True, False], 2)


def test_a_conversation_that_begins_later_is_begun_by_its_client() -> None:
    small, large = data(C, A, (40_000, 50_000), 10), data(A, C, (50_000, 40_000), 900)
    before = (0, segment(B, C, (40_000, 443)))
    assert studied(told(before, (1, large), (2, small)))[0] == [True, False, True]
    assert studied(told(before, (1_000, large), (1_001, small)))[0] == [True, True, False]


def test_a_client_sends_less_and_pauses() -> None:
    there, back = data(A, C, (40_000, 50_000), 100), data(C, A, (50_000, 40_000), 100)
    pauses = told((0, back), (9, there), (13, back), (14, there), (18, back), (500, there), (504, back), (505, there))
    assert studied(pauses) == ([False, True] * 4, 1)
    # Without the pause only the first to speak tells them apart, or else the bytes.
    alike = told((0, back), (9, there), (13, back), (22, there))
    assert studied(alike)[0] == [True, False] * 2
    less = told((0, back), (9, data(A, C, (40_000, 50_000), 10)), (13, back), (22, there))
    assert studied(less)[0] == [False, True] * 2


def test_the_only_direction_is_taken_for_the_client() -> None:
    assert studied(told(*((i, data(A, C, (40_000, 50_000), 900)) for i in range(5)))) == ([True] * 5, 1)


def test_a_syn_among_the_studied_packets_counts_for_all_of_them() -> None:
    packets = told(
        (0, data(C, A, (50_000, 40_000), 10)),
        (1, data(A, C, (40_000, 50_000), 900)),
        (2, segment(B, C, (40_000, 50_000), SYN)),
    )
    assert studied(packets) == ([False, True, True], 0)


def test_the_twin_finds_the_same() -> None:
    rng = random.Random(7)
    differ = 0
    for _ in range(scaled(200)):
        packets = PacketBatch.concatenate([told(*random_frames(rng))])
        cut = rng.randrange(len(packets))
        twin, roles = oracle.Roles(), Roles()
        plain = [plain_packet(packets, i) for i in range(len(packets))]
        twin.study(plain[:cut])
        roles.study(packets[:cut])
        expected = [twin.from_client(packet) for packet in plain]
        parts = [roles.from_client(packets[:cut]), roles.from_client(packets[cut:])]
        assert np.concatenate(parts).tolist() == expected
        assert roles.guessed == len(twin.guesses)
        differ += expected != Roles().from_client(packets).tolist()
    assert differ > scaled(60)  # to study is not idle


def test_well_known_ports_come_before_peers(tmp_path: Path) -> None:
    """Port 443 has two peers, and 80 is the lower one of two well-known ports: that decides (rule 3 before rule 4)."""
    packets = read(tmp_path, segment(A, C, (80, 443)), segment(B, C, (40_000, 443)), segment(C, A, (443, 80)))
    roles = Roles()
    roles.study(packets)
    assert roles.from_client(packets).tolist() == [False, True, True]


def random_frames(rng: random.Random) -> list[tuple[int, bytes]]:
    """Conversations of few endpoints, in both directions, most without a SYN."""
    hosts, ports = [A, B, C], (22, 80, 443, 3_000, 5_432, 9_999, 40_000, 44_818, 50_000, 60_000)
    pairs = [(rng.sample(hosts, 2), (rng.choice(ports), rng.choice(ports))) for _ in range(6)]
    at, frames = 0, []
    for _ in range(60):
        at += rng.choice((0, 0, 1, 3, 20, 300))
        (src, dst), (of, to) = rng.choice(pairs)
        if rng.random() < 0.5:
            src, dst, of, to = dst, src, to, of
        size = rng.choice((0, 1, 10, 100, 1_000))
        if rng.random() < 0.2:
            frame = ethernet(ipv4(udp(b"x" * size, (of, to)), 17, src=src, dst=dst))
        else:
            flags = SYN if rng.random() < 0.02 else SYN_ACK if rng.random() < 0.02 else ACK
            frame = ethernet(ipv4(tcp(b"x" * size, ports=(of, to), flags=flags), 6, src=src, dst=dst))
        frames.append((at, frame))
    return frames


def plain_packet(packets: PacketBatch, i: int) -> oracle.Packet:
    tcp = bool(packets.of_kind(Kind.TCP)[i])
    opening = int(packets.message[i]) & (SYN | ACK) if tcp else 0
    return oracle.Packet(
        time_ns=int(packets.time_ns[i]),
        conversation=int(packets.flow_key[i]),
        backwards=bool(packets.has(Flag.REVERSE)[i]),
        src=packets.address(packets.src, i),
        src_port=int(packets.src_port[i]),
        dst=packets.address(packets.dst, i),
        dst_port=int(packets.dst_port[i]),
        payload=int(packets.payload_length[i]),
        tcp=tcp,
        asks=opening == SYN,
        grants=bool(opening & SYN) and opening != SYN,
    )


def test_ranks_are_those_of_the_page() -> None:
    assert list(_kernels.PORT_RANKS) == [oracle.rank(port) for port in range(1 << 16)]
    assert len(oracle.SERVICES) > 100


# ---- real captures ----


@pytest.mark.parametrize(
    ("name", "server", "responses", "guessed"),
    [
        ("ITI__ICS-Security-Tools__pcaps__CIP__cip_only", "192.168.0.30:44818", 9_350, 0),  # its port is a service's
        ("ITI__ICS-Security-Tools__pcaps__MELSEC__melsoft_variant_clean", "192.168.3.18:5001", 5_521, 1),
        ("seladb__PcapPlusPlus__Tests__ExamplesTest__pcap_examples__http-packets", "172.16.210.84:31600", 104, 12),
    ],
)
def test_conversations_without_a_syn(shared_data: Path, name: str, server: str, responses: int, guessed: int) -> None:
    result = wirelag.response(shared_data / "wild" / f"{name}.pcap.gz")
    found = result.to_dict()
    assert [(group["key"], group["method"], group["samples"]) for group in found["groups"]] == [
        (server, ["pairs"], responses)
    ]
    assert found["clients"]["guessed"] == guessed
    assert found["clients"]["packets"] < 0.6 * found["packets"]
    assert any("who is the client is a guess" in note for note in result.notes) == (guessed > 0)


def test_most_clients_are_found_without_syns(shared_data: Path) -> None:
    """97% of the conversations, and far more than by ports alone where these are alike."""
    script = ROOT / "experiments" / "roles_score.py"
    ran = subprocess.run([sys.executable, script, shared_data / "wild"], capture_output=True, text=True, check=True)
    _, conversations, by_ports, right = ran.stdout.strip().splitlines()[-1].split()[:4]
    assert int(conversations) > 1_000
    assert float(right.rstrip("%")) >= max(97, float(by_ports.rstrip("%")) + 1)


# ---- batches and memory ----


def test_any_split_gives_the_same_rows(tmp_path: Path) -> None:
    rng = random.Random(5)
    frames = []
    for _ in range(400):
        ends = rng.sample([A, B, C], 2)
        ports = rng.choice((80, 5_000, 40_000, 50_000)), rng.choice((443, 6_379, 40_001, 60_000))
        frames.append(segment(ends[0], ends[1], ports, rng.choice((ACK, ACK, ACK, SYN, SYN_ACK))))
    packets = read(tmp_path, *frames)
    whole = from_client(packets)
    assert 0.2 < np.mean(whole) < 0.9
    for _ in range(5):
        cuts = [0, *sorted(rng.sample(range(1, 400), rng.randrange(1, 40))), 400]
        roles = Roles()
        parts = [roles.from_client(packets[np.arange(a, b)]) for a, b in pairwise(cuts)]
        assert np.concatenate(parts).tolist() == whole


def test_any_batches_give_the_same_result() -> None:
    """Also beyond the packets that are looked at before any is judged, and with more batches than may wait."""
    rng = random.Random(3)
    frames, at = [], 0
    for _ in range(LOOK_AHEAD // 60 + 20):
        some = random_frames(rng)
        frames += [(at + ms // 1000, frame) for ms, frame in some]
        at += some[-1][0] // 5000
    packets = told(*frames)
    whole = heard(packets, [])
    assert whole[2] > 0
    late = told(*random_frames(random.Random(4)))  # more than the first second
    assert 0 < ahead(late, late.time_ns[0]) < len(late)
    for _ in range(10):
        assert heard(late, sorted(rng.sample(range(1, len(late)), 5))) == heard(late, [])
    tiny = list(range(1, 2 * MOST_BATCHES))
    for cuts in (tiny, sorted(rng.sample(range(1, len(packets)), 30)), [LOOK_AHEAD], [LOOK_AHEAD - 1, LOOK_AHEAD + 1]):
        assert heard(packets, cuts) == whole


def heard(packets: PacketBatch, cuts: list[int]) -> tuple[int, int, int, bytes, bytes]:
    meter = ResponseMeter(ResponseSettings(), at_end=True)
    for begin, end in pairwise([0, *cuts, len(packets)]):
        meter.observe(packets[begin:end])
    found = meter.finish()
    rows = found.epochs.rows.tobytes(), found.exchanges.rows.tobytes()
    return found.from_clients, found.from_servers, found.guessed, *rows


def test_intervals_that_end_early_change_nothing() -> None:
    """Without a packet yet, and within the first second."""
    packets = told(*random_frames(random.Random(8)))
    begin_ns = int(packets.time_ns[0])
    meter = ResponseMeter(ResponseSettings(), at_end=False)
    assert meter.cut(Interval(0, begin_ns)).from_clients == 0
    meter.observe(packets[:3])
    assert meter.cut(Interval(begin_ns, int(packets.time_ns[2]) + 1)).from_clients == 0
    meter.observe(packets[3:])
    live = meter.finish()
    assert (live.from_clients, live.from_servers, live.guessed) == heard(packets, [])[:3]


def test_servers_beyond_the_limit_are_known_by_their_ports(tmp_path: Path) -> None:
    many = [segment(A, struct.pack(">I", (11 << 24) + i), (80, 50_000), SYN) for i in range(MOST_SERVERS + 50)]
    roles = Roles()
    roles.from_client(read(tmp_path, *many))
    later = [segment(A, struct.pack(">I", (11 << 24) + i), (80, 50_000)) for i in range(MOST_SERVERS + 50)]
    known = roles.from_client(read(tmp_path, *later))
    assert np.count_nonzero(known) == MOST_SERVERS
