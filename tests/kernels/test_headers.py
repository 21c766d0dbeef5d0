"""The frame decoder: the kernel equals its twin on built, damaged, random and real frames; numbers as documented."""

import enum
import random
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from tests.oracles import headers as naive
from tests.support import needs
from tests.support.captures import (
    LINK_TYPES,
    Packet,
    capture_name,
    capture_paths,
    damaged,
    ethernet,
    ipv4,
    ipv6,
    packets,
    plain_bytes,
    random_frame,
    tcp,
    timestamps,
    udp,
)
from tests.support.effort import FULL, examples, scaled
from tests.support.places import ROOT
from wirelag import _kernels
from wirelag.capture.pcap import CaptureFile
from wirelag.packets.batch import COLUMNS, Flag, Kind, PacketBatch

COLUMNS_MD = ROOT / "docs" / "reference" / "columns.md"
KERNELS = ROOT / "kernels"
REASONS = {"link_type", "not_ip", "cut", "malformed", "layers"}
MOST_FRAMES = 1000  # an even sample of one capture; all in `make acceptance`

options = st.fixed_dictionaries(
    {
        "tunnels": st.booleans(),
        "fields": st.integers(0, 15),
        "prefix": st.integers(0, 64),
        "seed": st.integers(0, 2**64 - 1),
    }
)
wire_lengths = st.one_of(st.integers(0, 2000), st.integers(0, 2**32 - 1))


def both(frame: bytes, wire_length: int, link_type: int, **wanted: Any) -> dict[str, int] | str:
    """The twins' common result; they must agree."""
    fast = _kernels.decode_frame(frame, wire_length, link_type, **wanted)
    slow = naive.decode(frame, wire_length, link_type, **wanted)
    assert fast == slow, f"{wanted} link type {link_type}, wire length {wire_length}, frame {frame.hex()}"
    return slow


@examples(1000, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False), more=wire_lengths, wanted=options)
def test_twins_agree_on_built_frames(rng: random.Random, more: int, wanted: dict[str, Any]) -> None:
    link_type, frame = random_frame(rng, (1, 1, *LINK_TYPES))
    both(frame, len(frame), link_type, **wanted)
    frame = damaged(rng, frame)
    both(frame, more, link_type, **wanted)


@examples(1000)
@given(
    frame=st.binary(max_size=200),
    link_type=st.one_of(st.sampled_from(LINK_TYPES), st.integers(0, 2**32 - 1)),
    wire_length=wire_lengths,
    wanted=options,
)
@example(frame=b"", link_type=1, wire_length=0, wanted={"tunnels": True, "fields": 15, "prefix": 64, "seed": 2**64 - 1})
def test_twins_agree_on_any_bytes(frame: bytes, link_type: int, wire_length: int, wanted: dict[str, Any]) -> None:
    both(frame, wire_length, link_type, **wanted)


def test_every_kind_flag_and_reason_is_reached() -> None:
    """Enough built frames, with a fixed seed, to show that the property tests reach every branch."""
    rng = random.Random(862)
    seen: Counter[Any] = Counter()
    for _ in range(scaled(60_000)):
        link_type, frame = random_frame(rng, (1, 1, *LINK_TYPES))
        frame = damaged(rng, frame)
        link_type = rng.getrandbits(9) if rng.randrange(100) == 0 else link_type
        wire_length = rng.choice((len(frame), len(frame), len(frame) + 1000, rng.getrandbits(32), 0))
        row = both(
            frame,
            wire_length,
            link_type,
            tunnels=rng.random() < 0.5,
            fields=rng.getrandbits(4),
            prefix=rng.choice((0, 1, 7, 8, 16, 63, 64)),
            seed=rng.getrandbits(64),
        )
        if isinstance(row, str):
            seen[row] += 1
        else:
            seen.update([Kind(row["kind"]), *Flag(row["flags"])])
    assert {*REASONS, *Kind, *Flag} == set(seen)
    assert min(seen.values()) >= scaled(20), seen  # not by accident


@pytest.mark.every(6)
@pytest.mark.parametrize("path", capture_paths("rtt", "hidden", "twopoint", "malformed"), ids=capture_name)
def test_twins_agree_on_real_frames(path: Path) -> None:
    frames = list(packets(plain_bytes(path)))
    step = 1 if FULL else max(1, len(frames) // MOST_FRAMES)
    for packet in frames[::step]:
        for tunnels in (False, True):
            both(packet.frame, packet.wire_length, packet.link_type, tunnels=tunnels)


@pytest.mark.usefixtures("shared_data")
def test_real_frames_were_found() -> None:
    assert len(capture_paths("rtt", "hidden", "twopoint", "malformed")) > 100


def test_offsets_beyond_16_bits() -> None:
    """Extension headers and tunnels can move a packet beyond byte 65,535; the column keeps the lower 16 bits."""
    packet = ipv4(tcp(b"payload of it", options=timestamps(3, 4)), 6)
    extensions = b"".join(bytes((60 if i < 7 else 17, 255)) + bytes(2046) for i in range(8))
    for ethertype in (b"\x08\0", b"\x86\xdd", b"\x86\xdd", b"\x86\xdd"):
        geneve = b"\x3f\0" + ethertype + bytes(4 + 4 * 63)
        packet = ipv6(extensions + udp(geneve + packet, (9, 6081), length=0), 60, length=0)  # jumbograms
    for tunnels in (False, True):
        for cut in (len(packet) - 5, 70_000, 66_800, 20_000):
            both(packet[:cut], len(packet), 101, tunnels=tunnels, prefix=64)
    row = both(packet, len(packet), 101, tunnels=True)
    assert isinstance(row, dict)
    assert (row["kind"], row["tsval"], row["payload_length"]) == (Kind.TCP, 3, 13)
    assert row["payload_offset"] == len(packet) - 13 - 65536


MSS = b"\2\4\5\xb4"
BLOCK = b"\1\1\5\x0a" + bytes(range(8))


@pytest.mark.parametrize(
    ("flags", "options", "transaction"),
    [
        (0x02, MSS, 1460),
        (0x12, timestamps(3, 4) + MSS, 1460),
        (0x02, b"\2\4\0\0" + MSS + b"\2\4\1\1", 1460),
        (0x02, b"\2\3\5\xb4\2\6\5\xb4\0\0", 0),
        (0x10, MSS, 0),
        (0x02, BLOCK + MSS, 1460),
        (0x10, MSS + BLOCK, int.from_bytes(range(8), "big")),
    ],
)
def test_a_syn_has_hop_limit_and_mss_and_other_segments_a_sack_block(
    flags: int, options: bytes, transaction: int
) -> None:
    frame = ethernet(ipv4(tcp(flags=flags, options=options), 6))
    row = both(frame, len(frame), 1)
    assert isinstance(row, dict)
    assert row["transaction"] == transaction + (64 << 16 if flags & 0x02 else 0)


# ---- golden rows: whole frames, whole rows; columns that are not named are 0. They fix the ids across versions ----

GOLDEN: dict[str, tuple[Packet, dict[str, Any], dict[str, int] | str]] = {
    "tcp with timestamps and sack": (
        Packet(
            1,
            0,
            1514,
            bytes.fromhex(
                "000102030405060708090a0b080045b800501234400040060000c0000201c63364029c40005001020304a0b0c0d0b01801f6"
                "000000000101080a11223344556677880101050a0000000000000000474554202f20485454502f312e310d0a"
            ),
        ),
        {},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0x5428F19E90F7EE27,
            "packet_id": 0xFD442BA681A5FEA,
            "payload_length": 16,
            "seq": 0x1020304,
            "ack": 0xA0B0C0D0,
            "tsval": 0x11223344,
            "tsecr": 0x55667788,
            "src_port": 40000,
            "dst_port": 80,
            "window": 502,
            "ip_id": 0x1234,
            "flags": Flag.TIMESTAMPS | Flag.SACK,
            "payload_offset": 78,
            "protocol": 6,
            "traffic_class": 0xB8,
            "kind": Kind.TCP,
            "message": 0x18,
        },
    ),
    "dns over ipv6 behind a vlan tag": (
        Packet(
            1,
            0,
            83,
            bytes.fromhex(
                "000102030405060708090a0b8100000a86dd628000000019114020010db800000000000000000000000120010db800000000"
                "000000000000000200359c4000190000beef818000010001000000000377777700"
            ),
        ),
        {},
        {
            "src_high": 0x20010DB800000000,
            "src_low": 0x1,
            "dst_high": 0x20010DB800000000,
            "dst_low": 0x2,
            "flow_key": 0xE89C07E666B08D26,
            "packet_id": 0x412F0D00FF1D9BF8,
            "transaction": 0xBEEF,
            "payload_length": 17,
            "src_port": 53,
            "dst_port": 40000,
            "flags": Flag.IPV6 | Flag.VLAN,
            "payload_offset": 66,
            "protocol": 17,
            "traffic_class": 0x28,
            "kind": Kind.DNS,
            "message": 0x81,
        },
    ),
    "icmp echo reply, cut": (
        Packet(101, 0, 36, bytes.fromhex("450000240001000040010000c6336402c00002010000abcd0007000961626364")),
        {},
        {
            "src_low": 0xFFFFC6336402,
            "dst_low": 0xFFFFC0000201,
            "flow_key": 0xA2BABCE8414161EB,
            "packet_id": 0x1CE3D56F84DCD58C,
            "transaction": 0x7,
            "payload_length": 8,
            "seq": 0x9,
            "ip_id": 0x1,
            "flags": Flag.REVERSE | Flag.PREFIX_CUT,
            "payload_offset": 28,
            "protocol": 1,
            "kind": Kind.ICMP,
        },
    ),
    "ntp response, raw": (
        Packet(
            228,
            0,
            76,
            bytes.fromhex(
                "4500004c0001000040110000c0000201c6336402007b007b0038000024000000000000000000000000000000000000000000"
                "0000e1b2c3d4a596877800000000000000000102030405060708"
            ),
        ),
        {},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0xFBA3C151BC7606C9,
            "packet_id": 0x9DE526C90809FB25,
            "transaction": 0xE1B2C3D4A5968778,
            "payload_length": 48,
            "src_port": 123,
            "dst_port": 123,
            "ip_id": 0x1,
            "payload_offset": 28,
            "protocol": 17,
            "kind": Kind.NTP,
            "message": 0x4,
        },
    ),
    "quic short header with the spin bit": (
        Packet(
            113,
            0,
            65,
            bytes.fromhex(
                "00000000000000000000000000000800450000310001000040110000c0000201c6336402c35001bb001d0000600102030405"
                "060708090a0b0c0d0e0f1011121314"
            ),
        ),
        {},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0xE852296AB7DC41BA,
            "packet_id": 0x6C06223F00578FA7,
            "transaction": 0x102030405060708,
            "payload_length": 21,
            "src_port": 50000,
            "dst_port": 443,
            "ip_id": 0x1,
            "payload_offset": 44,
            "protocol": 17,
            "kind": Kind.QUIC,
            "message": 0x60,
        },
    ),
    "a later fragment": (
        Packet(
            1,
            0,
            47,
            bytes.fromhex(
                "000102030405060708090a0b080045000021004d00b940110000c0000201c63364026e6f20706f7274732068657265"
            ),
        ),
        {},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0x8656C862DF3765DC,
            "packet_id": 0xB07927BCA049909,
            "payload_length": 13,
            "ip_id": 0x4D,
            "flags": Flag.FRAGMENT | Flag.LATER,
            "protocol": 17,
        },
    ),
    "vxlan, the carrier": (
        Packet(
            1,
            0,
            104,
            bytes.fromhex(
                "000102030405060708090a0b08004500005a0001000040110000c0000201c6336402c35012b5004600000800000000000000"
                "000102030405060708090a0b08004500002800010000400600000a0000020a00000101bb9c410000000900000008501201f4"
                "00000000"
            ),
        ),
        {},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0x7CFDC1F0A6162DC8,
            "packet_id": 0xDBDE7279F784703C,
            "payload_length": 62,
            "src_port": 50000,
            "dst_port": 4789,
            "ip_id": 0x1,
            "flags": Flag.TUNNEL,
            "payload_offset": 42,
            "protocol": 17,
            "kind": Kind.UDP,
            "message": 0x8,
        },
    ),
    "vxlan, followed": (
        Packet(
            1,
            0,
            104,
            bytes.fromhex(
                "000102030405060708090a0b08004500005a0001000040110000c0000201c6336402c35012b5004600000800000000000000"
                "000102030405060708090a0b08004500002800010000400600000a0000020a00000101bb9c410000000900000008501201f4"
                "00000000"
            ),
        ),
        {"tunnels": True},
        {
            "src_low": 0xFFFF0A000002,
            "dst_low": 0xFFFF0A000001,
            "flow_key": 0xF1B618921D83D67A,
            "packet_id": 0x159C4E973500D56C,
            "transaction": 64 << 16,
            "seq": 0x9,
            "ack": 0x8,
            "src_port": 443,
            "dst_port": 40001,
            "window": 500,
            "ip_id": 0x1,
            "flags": Flag.REVERSE | Flag.INNER,
            "payload_offset": 104,
            "protocol": 6,
            "kind": Kind.TCP,
            "message": 0x12,
        },
    ),
    "wireguard data, without a packet id": (
        Packet(
            1,
            0,
            74,
            bytes.fromhex(
                "000102030405060708090a0b08004500003c0001000040110000c0000201c6336402ca6cca6c00280000040000000df0ad8b"
                "070000000000000000000000000000000000000000000000"
            ),
        ),
        {"fields": 0, "prefix": 0},
        {
            "src_low": 0xFFFFC0000201,
            "dst_low": 0xFFFFC6336402,
            "flow_key": 0x8F7A2BA1831E621C,
            "transaction": 0x8BADF00D,
            "payload_length": 32,
            "seq": 0x7,
            "src_port": 51820,
            "dst_port": 51820,
            "ip_id": 0x1,
            "payload_offset": 42,
            "protocol": 17,
            "kind": Kind.WIREGUARD,
            "message": 0x4,
        },
    ),
    "an impossible header": (
        Packet(
            1,
            0,
            54,
            bytes.fromhex(
                "000102030405060708090a0b0800440000280001000040060000c0000201c63364029c4001bb0000000100000002501001f4"
                "00000000"
            ),
        ),
        {},
        "malformed",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_rows(name: str) -> None:
    packet, wanted, expected = GOLDEN[name]
    if isinstance(expected, dict):
        expected = dict.fromkeys(naive.COLUMNS, 0) | {"wire_length": packet.wire_length} | expected
    assert both(packet.frame, packet.wire_length, packet.link_type, **wanted) == expected


# ---- names and numbers as documented ----


def tables() -> list[list[list[str]]]:
    """The tables of columns.md, as cells without headings."""
    found, rows = [], []
    for line in [*COLUMNS_MD.read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" |")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def test_columns_are_as_documented() -> None:
    documented = []
    for names, dtype, *_ in tables()[0]:
        width, scalar = dtype.split(" x ") if " x " in dtype else ("1", dtype)
        documented += [(name, scalar, int(width)) for name in re.findall(r"`(\w+)`", names)]
    assert documented == list(COLUMNS) == _kernels.columns()
    batch = PacketBatch.empty()
    for name, scalar, count in documented:
        column = getattr(batch, name)
        assert (str(column.dtype), column.shape) == (scalar, (0, count) if count > 1 else (0,))


@pytest.mark.parametrize(("table", "number", "name", "names"), [(1, 0, 1, Flag), (2, 1, 0, Kind)])
def test_flags_and_kinds_are_as_documented(table: int, number: int, name: int, names: type[enum.Enum]) -> None:
    values = {row[name]: int(row[number]) for row in tables()[table]}
    if names is Flag:
        values = {flag: 1 << bit for flag, bit in values.items()}
    assert values == {member.name: member.value for member in names}
    # Kernel and twin define them separately.
    source = "".join(path.read_text() for path in sorted(KERNELS.glob("*.h")))
    declared = re.search(rf"enum wl_{names.__name__.lower()}\s*{{(.*?)}};", source, re.DOTALL)
    assert declared is not None
    assert re.findall(r"WL_(\w+)", declared[1]) == [member.name for member in names]
    assert [int(bit) for bit in re.findall(r"1 << (\d+)", declared[1])] == (
        list(range(len(names))) if names is Flag else []
    )
    for member in names:
        assert getattr(naive, member.name) == member.value


@pytest.mark.parametrize(("fields", "prefix"), [(16, 0), (15, 65)])
def test_impossible_parameters_are_refused(fields: int, prefix: int) -> None:
    with pytest.raises(ValueError, match="packet id"):
        _kernels.decode_frame(ethernet(ipv4(tcp(), 6)), 54, 1, fields=fields, prefix=prefix)


def test_group_tags_are_passed(shared_data: Path) -> None:
    """Every frame of this capture has Cisco metadata; tshark finds a TCP packet in each."""
    (path,) = (shared_data / "wild").glob("*__tls_sgt.pcap.gz")
    capture = CaptureFile(str(path))
    assert sum(len(batch) for batch in capture) == capture.statistics.packets == 2_431
    assert capture.statistics.skipped == {}


@pytest.mark.parametrize("control", [b"", bytes(4), b"\0\0\0\x07"])
@pytest.mark.parametrize("tag", [b"", b"\0\5\x08\0"])
def test_pseudowires_are_entered(control: bytes, tag: bytes) -> None:
    inner = ethernet(tag + ipv4(tcp(b"x"), 6), 0x8100 if tag else 0x0800)
    wired = both(ethernet(struct.pack(">I", 16 << 12 | 0x140) + control + inner, 0x8847), 200, 1)
    plain = both(inner, 200, 1)
    assert isinstance(wired, dict)
    assert isinstance(plain, dict)
    assert wired["flags"] == plain["flags"] | Flag.MPLS
    assert wired["packet_id"] == plain["packet_id"]


def test_a_pseudowire_without_ip_is_not_ip() -> None:
    label = struct.pack(">I", 16 << 12 | 0x140)
    assert both(ethernet(label + ethernet(bytes(46), 0x0806), 0x8847), 64, 1) == "not_ip"
    nested = ethernet(label + ethernet(label + ethernet(ipv4(tcp(), 6)), 0x8847), 0x8847)
    assert both(nested, len(nested), 1) == "not_ip"


@pytest.mark.parametrize(("name", "rows"), [("80211http", 26), ("nflog-http", 13)])
def test_real_frames_of_rare_links_give_rows(name: str, rows: int) -> None:
    """As many as tshark finds TCP segments in."""
    paths = [path for path in capture_paths("malformed") if path.name.startswith(name)]
    if not paths:
        pytest.skip(needs.SHARED_DATA)
    assert sum(len(batch) for batch in CaptureFile(str(paths[0]))) == rows
