"""Flow key and packet id: their inputs, and no collisions in structured traffic.

Counts may differ by six standard deviations from those of independent uniform 64-bit hashes: with the few thousand
counts below, a good hash fails once in 100,000. The input is fixed, so the result is always the same.
"""

import itertools
import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.captures import ethernet, ipv4, ipv6, tcp, timestamps, udp
from tests.support.effort import FULL
from wirelag import _kernels
from wirelag.capture.pcap import CaptureFile
from wirelag.packets.batch import Flag, PacketBatch
from wirelag.packets.packet_id import PacketId

SIGMAS = 6
PAYLOAD = bytes(range(40))
WITHOUT_FLOW = PacketId(flow=False).fields
A4, B4 = b"\n\0\0\1", b"\n\0\0\2"
A6, B6 = bytes(15) + b"\1", b"\x20\1" + bytes(14)


def row(frame: bytes, fields: int = 15, prefix: int = 16, seed: int = 0) -> dict[str, int]:
    found = _kernels.decode_frame(frame, len(frame), 1, fields=fields, prefix=prefix, seed=seed)
    assert isinstance(found, dict), found
    return found


def icmp(kind: int = 8, code: int = 0, ident: int = 7, seq: int = 1, checksum: int = 0) -> bytes:
    return struct.pack(">BBHHH", kind, code, checksum, ident, seq) + PAYLOAD


def segment(
    ports: tuple[int, int] = (40000, 443), tsval: int = 5, tsecr: int = 6, payload: bytes = PAYLOAD, **header: int
) -> bytes:
    return tcp(payload, ports=ports, options=timestamps(tsval, tsecr), **header)


def v4(body: bytes, protocol: int = 6, **header: int | bytes) -> bytes:
    return ethernet(ipv4(body, protocol, **header))  # type: ignore[arg-type]


def v6(body: bytes, protocol: int = 6, **header: int | bytes) -> bytes:
    return ethernet(ipv6(body, protocol, **header), 0x86DD)  # type: ignore[arg-type]


def fragment6(offset_more: int, ident: int) -> bytes:
    return v6(struct.pack(">BBHI", 17, 0, offset_more, ident) + udp(PAYLOAD), 44)


# ---- inputs ----


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize(
    ("forth", "back"),
    [
        (v4(segment((1, 2)), src=A4, dst=B4), v4(segment((2, 1)), src=B4, dst=A4)),
        (v4(segment((1, 2)), src=A4, dst=A4), v4(segment((2, 1)), src=A4, dst=A4)),
        (v6(segment((1, 2)), src=A6, dst=B6), v6(segment((2, 1)), src=B6, dst=A6)),
        (v4(udp(PAYLOAD, (9, 7)), 17, src=A4, dst=B4), v4(udp(b"", (7, 9)), 17, src=B4, dst=A4)),
        (v4(icmp(8), 1, src=A4, dst=B4), v4(icmp(0), 1, src=B4, dst=A4)),
        (v6(icmp(128), 58, src=A6, dst=B6), v6(icmp(129), 58, src=B6, dst=A6)),
    ],
)
def test_the_flow_key_is_the_same_in_both_directions(forth: bytes, back: bytes, seed: int) -> None:
    one, other = row(forth, seed=seed), row(back, seed=seed)
    assert one["flow_key"] == other["flow_key"]
    assert {bool(one["flags"] & Flag.REVERSE), bool(other["flags"] & Flag.REVERSE)} == {False, True}
    assert one["packet_id"] != other["packet_id"]


def test_the_flow_key_distinguishes_conversations() -> None:
    frames = [
        *(
            v4(segment(ports), src=src, dst=B4)
            for ports in ((1, 2), (2, 1), (1, 3), (3, 2))
            for src in (A4, b"\n\0\0\3")
        ),
        v4(udp(PAYLOAD, (1, 2)), 17, src=A4, dst=B4),
        *(v4(icmp(8, ident=ident), 1, src=A4, dst=B4) for ident in (1, 2)),
        v6(segment((1, 2))),
    ]
    assert len({row(frame)["flow_key"] for frame in frames}) == len(frames)


BASE = v4(segment())


@pytest.mark.parametrize("fields", [15, WITHOUT_FLOW])
@pytest.mark.parametrize(
    ("one", "other"),
    {
        "ttl": (BASE, v4(segment(), ttl=3)),
        "ip checksum": (BASE, v4(segment(), checksum=0xABCD)),
        "tcp checksum": (BASE, v4(segment(checksum=0xABCD))),
        "udp checksum": (v4(udp(PAYLOAD), 17), v4(udp(PAYLOAD)[:6] + b"\xab\xcd" + PAYLOAD, 17)),
        "icmp checksum": (v4(icmp(), 1), v4(icmp(checksum=0xABCD), 1)),
        "dscp and ecn": (BASE, v4(segment(), tos=0xFF)),
        "dscp and ecn of ipv6": (v6(segment()), v6(segment(), traffic_class=0xFF)),
        "hop limit": (v6(segment()), v6(segment(), hops=3)),
        "ece and cwr": (BASE, v4(segment(flags=0x10 | 0xC0))),
        "vlan": (BASE, ethernet(b"\0\x0a\x08\0" + BASE[14:], 0x8100)),
        "two vlans": (BASE, ethernet(b"\0\x0a\x81\0\0\x0b\x08\0" + BASE[14:], 0x88A8)),
        "mpls": (BASE, ethernet(b"\0\1\x01\x40" + BASE[14:], 0x8847)),
        "mac addresses": (BASE, bytes(12) + BASE[12:]),
        "padding": (BASE, BASE + bytes(6)),
        "payload behind the prefix": (BASE, v4(segment(payload=PAYLOAD[:16] + bytes(24)))),
    }.values(),
)
def test_the_packet_id_does_not_depend_on_fields_that_hops_change(one: bytes, other: bytes, fields: int) -> None:
    assert one != other
    assert row(one, fields)["packet_id"] == row(other, fields)["packet_id"]


ALWAYS = {
    "protocol": v4(segment(), 99),
    "length": v4(segment(payload=PAYLOAD + b"!")),
    "ip id": v4(segment(), ident=2),
    "more fragments": v4(segment(), fragment=0x2000),
    "fragment offset": v4(segment(), fragment=0x0010),
    "seq": v4(segment(seq=3)),
    "ack": v4(segment(ack=3)),
    "syn": v4(segment(flags=0x12)),
    "window": v4(segment(window=501)),
    "tsval": v4(segment(tsval=7)),
    "tsecr": v4(segment(tsecr=7)),
    "first payload byte": v4(segment(payload=b"\xff" + PAYLOAD[1:])),
    "last byte of the prefix": v4(segment(payload=PAYLOAD[:15] + b"\xff" + PAYLOAD[16:])),
}
FLOW = {
    "src": v4(segment(), src=A4),
    "dst": v4(segment(), dst=A4),
    "src port": v4(segment((40001, 443))),
    "dst port": v4(segment((40000, 444))),
    "swapped ports": v4(segment((443, 40000))),
    "swapped addresses": v4(segment(), src=b"\xc6\x33\x64\2", dst=b"\xc0\0\2\1"),
}


def test_the_packet_id_depends_on_all_fields_that_hops_keep() -> None:
    ids = [row(frame)["packet_id"] for frame in (BASE, *ALWAYS.values(), *FLOW.values())]
    assert len(set(ids)) == len(ids)
    assert row(BASE, seed=1)["packet_id"] != row(BASE)["packet_id"]


def test_without_flow_it_does_not_depend_on_addresses_and_ports() -> None:
    """Address translation changes them, and the identifier of a ping."""
    base = row(BASE, WITHOUT_FLOW)["packet_id"]
    assert {row(frame, WITHOUT_FLOW)["packet_id"] for frame in FLOW.values()} == {base}
    ids = [base, *(row(frame, WITHOUT_FLOW)["packet_id"] for frame in ALWAYS.values())]
    assert len(set(ids)) == len(ids)
    pings = {row(v4(icmp(ident=ident), 1, src=src), WITHOUT_FLOW)["packet_id"] for ident in (1, 2) for src in (A4, B4)}
    assert len(pings) == 1


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("length", {"length"}),
        ("ip_id", {"ip id", "more fragments", "fragment offset"}),
        ("transport", {"seq", "ack", "syn", "window", "tsval", "tsecr"}),
    ],
)
def test_an_excluded_field_does_not_matter(field: str, names: set[str]) -> None:
    without = PacketId(**{field: False}).fields
    base = row(BASE, without)["packet_id"]
    changed = {name for name, frame in ALWAYS.items() if row(frame, without)["packet_id"] != base}
    # A later fragment has no transport header: kind and payload change, too.
    assert changed - {"fragment offset"} == set(ALWAYS) - names - {"fragment offset"}


def test_icmp_and_ipv6_fragments_have_different_ids() -> None:
    frames = [v4(icmp(*header), 1) for header in itertools.product((8, 0, 3), (0, 1), (1, 2), (1, 2))]
    frames += [fragment6(*header) for header in itertools.product((0, 1, 8, 9, 1480), (1, 2, 0x10001))]
    assert len({row(frame)["packet_id"] for frame in frames}) == len(frames)


# ---- structured traffic ----


def read_ids(path: Path, frames: npt.NDArray[np.uint8], packet_id: PacketId) -> PacketBatch:
    """Ids of frames of one length (a row each), read from a capture."""
    count, length = frames.shape
    records = np.zeros((count, 16 + length), np.uint8)
    records[:, 8:16] = np.frombuffer(struct.pack("<II", length, length), np.uint8)
    records[:, 16:] = frames
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + records.tobytes())
    return PacketBatch.concatenate(list(CaptureFile(str(path), packet_id=packet_id)))


def grid(template: bytes, fields: dict[int, tuple[str, int, int]]) -> npt.NDArray[np.uint8]:
    """Every combination of field values start, start + 1 ...; `fields`: by offset the dtype, count and start."""
    axes = [np.arange(count, dtype=np.uint64) + np.uint64(start) for _, count, start in fields.values()]
    values = [axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij")]
    frames = np.tile(np.frombuffer(template, np.uint8), (len(values[0]), 1))
    for (at, (dtype, _, _)), column in zip(fields.items(), values, strict=True):
        big_endian = column.astype(dtype).view(np.uint8).reshape(len(column), -1)
        frames[:, at : at + big_endian.shape[1]] = big_endian
    return frames


IP_ID, SRC, DST, PORTS, SEQ, ACK, TSVAL, BODY = 18, 26, 30, 34, 38, 42, 58, 66
GRIDS = {
    "seq, one by one": {SEQ: (">u4", 300_000, 0)},
    "seq by segments and ack": {SEQ: (">u4", 600, 2**32 - 300), ACK: (">u4", 500, 0)},
    "tsval and ip id": {TSVAL: (">u4", 600, 10**6), IP_ID: (">u2", 500, 0)},
    "seq, ack, tsval and ip id": {
        SEQ: (">u4", 24, 0),
        ACK: (">u4", 24, 0),
        TSVAL: (">u4", 24, 0),
        IP_ID: (">u2", 24, 0),
    },
    "address and ports": {SRC: (">u4", 64, 0xC0A80000), PORTS: (">u2", 70, 1024), PORTS + 2: (">u2", 70, 1024)},
    "payload": {BODY: (">u4", 550, 0), BODY + 8: (">u4", 550, 0)},
}


HOSTS = 1024 if FULL else 512


def within(count: int, mean: float, deviation: float) -> bool:
    return abs(count - mean) <= SIGMAS * deviation + 1


@pytest.mark.every(8)
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("seed", [0, 0x5EED])
def test_ids_of_structured_traffic_look_random(name: str, seed: int, tmp_path: Path) -> None:
    batch = read_ids(tmp_path / "grid.pcap", grid(BASE, GRIDS[name]), PacketId(seed=seed))
    ids, n = batch.packet_id, len(batch)
    assert n >= 290_000
    assert len(np.unique(ids)) == n  # expected: n^2 / 2^65, less than one in ten million runs
    pairs = n * (n - 1) / 2
    for part, bits in ((ids >> np.uint64(32), 32), (ids & np.uint64(0xFFFFFFFF), 32), (ids & np.uint64(0xFFFFFF), 24)):
        equal = sum(math.comb(int(many), 2) for many in np.unique(part, return_counts=True)[1])
        mean = pairs / 2**bits
        assert within(equal, mean, math.sqrt(mean)), bits
    for bit in range(64):
        ones = int(np.count_nonzero(ids >> np.uint64(bit) & np.uint64(1)))
        assert within(ones, n / 2, math.sqrt(n) / 2), bit
        flips = int(np.count_nonzero((ids[1:] ^ ids[:-1]) >> np.uint64(bit) & np.uint64(1)))
        assert within(flips, n / 2, math.sqrt(n) / 2), bit


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("flow_key", {SRC: (">u4", HOSTS, 0x0A000000), DST: (">u4", HOSTS, 0x0A000000)}),
        ("packet_id", {SRC: (">u4", HOSTS, 0x0A000000), DST: (">u4", HOSTS, 0x0A000000)}),
        ("packet_id", {SRC: (">u4", HOSTS, 0x0A000000), BODY + 12: (">u4", HOSTS, 0)}),
    ],
    ids=["flows of neighbours", "packets of neighbours", "address and payload"],
)
def test_neighbouring_hosts_do_not_collide(
    column: str, fields: dict[int, tuple[str, int, int]], tmp_path: Path
) -> None:
    """Packets of 1,024 hosts in one network (512 in `make test`); expected: 3 collisions in 100 million runs.

    A single step() is nearly additive in the bits of its word: sums of two would collide here.
    """
    batch = read_ids(tmp_path / "grid.pcap", grid(BASE, fields), PacketId())
    assert len(batch) == HOSTS * HOSTS
    assert len(np.unique(getattr(batch, column))) == len(batch)


def test_flow_keys_of_structured_traffic_do_not_collide(tmp_path: Path) -> None:
    """Each unordered pair of endpoints has one key."""
    batch = read_ids(tmp_path / "grid.pcap", grid(BASE, GRIDS["address and ports"]), PacketId())
    ends = [
        np.column_stack((getattr(batch, end)[:, 1], getattr(batch, f"{end}_port").astype(np.uint64)))
        for end in ("src", "dst")
    ]
    one, other = (end[:, 0] << np.uint64(16) | end[:, 1] for end in ends)
    conversations = np.unique(np.column_stack((np.minimum(one, other), np.maximum(one, other))), axis=0)
    keys = np.unique(batch.flow_key)
    assert len(keys) == len(conversations)
    for bit in range(64):
        ones = int(np.count_nonzero(keys >> np.uint64(bit) & np.uint64(1)))
        assert within(ones, len(keys) / 2, math.sqrt(len(keys)) / 2), bit


@pytest.mark.every(2)
@pytest.mark.parametrize("field", ["seq", "ack", "tsval", "window"])
def test_every_input_bit_reaches_every_output_bit(field: str) -> None:
    """Avalanche: over many packets, flipping an input bit flips each output bit half of the time."""
    trials, bits = 300, 16 if field == "window" else 32
    for bit in range(bits):
        flips = np.zeros(64, np.int64)
        for trial in range(trials):
            value = trial * 2654435761 % 2**bits
            one, other = (row(v4(segment(**{field: number})))["packet_id"] for number in (value, value ^ 1 << bit))  # type: ignore[arg-type]
            flips += (np.uint64(one ^ other) >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(np.int64)
        assert np.abs(flips - trials / 2).max() <= SIGMAS * math.sqrt(trials) / 2
