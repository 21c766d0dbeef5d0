"""Which packets clients sent: by SYNs, by ports, by named servers; the same for any batches."""

import random
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.support.captures import ethernet, ipv4, ipv6, pcap, tcp, udp
from wirelag.packets.batch import PacketBatch
from wirelag.packets.roles import MOST_SERVERS, Roles, Server

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
        ((40_000, 50_000), True),  # ambiguous
        ((50_000, 40_000), True),
        ((53, 53), True),
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


def test_servers_beyond_the_limit_are_known_by_their_ports(tmp_path: Path) -> None:
    many = [segment(A, struct.pack(">I", (11 << 24) + i), (80, 50_000), SYN) for i in range(MOST_SERVERS + 50)]
    roles = Roles()
    roles.from_client(read(tmp_path, *many))
    later = [segment(A, struct.pack(">I", (11 << 24) + i), (80, 50_000)) for i in range(MOST_SERVERS + 50)]
    known = roles.from_client(read(tmp_path, *later))
    assert np.count_nonzero(known) == MOST_SERVERS
