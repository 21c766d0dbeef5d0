"""Captures for the tests: real ones, a plain reader of their records, and frames built layer by layer.

The reader is written from the formats' specifications and shares no code with the package: it is the tests' oracle.
"""

import gzip
import lzma
import os
import random
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

import zstandard

from tests.support.places import ROOT


def _shared_data() -> Path | None:
    named = os.environ.get("WIRELAG_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


SHARED_DATA = _shared_data()
PCAP_MAGICS = {0xA1B2C3D4: (16, 1000), 0xA1B23C4D: (16, 1), 0xA1B2CD34: (24, 1000)}  # record header, ns per unit
PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"


class Packet(NamedTuple):
    """One record of a capture. `time_ns` is None where the file has no time for it."""

    link_type: int
    time_ns: int | None
    wire_length: int
    frame: bytes


def plain_bytes(path: Path) -> bytes:
    """A file's content, decompressed."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.decompress(data)
    return data


def is_capture(data: bytes) -> bool:
    """Whether this is a pcap or pcapng file, by its first bytes alone."""
    if len(data) < 24:
        return False
    return data.startswith(PCAPNG_MAGIC) or any(
        struct.unpack(order + "I", data[:4])[0] in PCAP_MAGICS for order in "<>"
    )


def capture_paths(*rooms: str) -> list[Path]:
    """Every pcap or pcapng capture below these folders of the shared data, compressed or not."""
    return [path for room in sorted(rooms) for path in _captures_below(room)]


@cache
def _captures_below(room: str) -> list[Path]:
    files = sorted(path for path in (SHARED_DATA / room).rglob("*") if path.is_file()) if SHARED_DATA else []
    return [path for path in files if path.suffix not in (".txt", ".md", ".csv", ".json") and is_capture(_head(path))]


def _head(path: Path) -> bytes:
    """The first bytes of a file's content; empty if they cannot be decompressed."""
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        try:
            if start.startswith(b"\x1f\x8b"):
                return gzip.open(file).read(24)
            if start.startswith(b"\x28\xb5\x2f\xfd"):
                return zstandard.ZstdDecompressor().stream_reader(file).read(24)
            if start.startswith(b"\xfd7zXZ\0"):
                return lzma.open(file).read(24)
        except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError):
            return b""
        return file.read(24)


def capture_name(path: Path) -> str:
    """A capture's name in a test's name."""
    return str(path.relative_to(SHARED_DATA)) if SHARED_DATA else str(path)


def packets(data: bytes) -> Iterator[Packet]:
    """The records of a capture up to the first cut or impossible one."""
    return _pcapng_packets(data) if data.startswith(PCAPNG_MAGIC) else _pcap_packets(data)


def _pcap_packets(data: bytes) -> Iterator[Packet]:
    order = next(order for order in "<>" if struct.unpack(order + "I", data[:4])[0] in PCAP_MAGICS)
    magic, _, minor, _, _, _, link_type = struct.unpack(order + "IHHiIII", data[:24])
    header, unit_ns = PCAP_MAGICS[magic]
    at = 24
    while at + header <= len(data):
        seconds, fraction, captured, wire = struct.unpack_from(order + "IIII", data, at)
        if minor < 3:
            captured, wire = wire, captured
        at += header
        if captured > 262144 or at + captured > len(data):
            return
        yield Packet(link_type & 0xFFFF, seconds * 10**9 + fraction * unit_ns, wire, data[at : at + captured])
        at += captured


def _pcapng_packets(data: bytes) -> Iterator[Packet]:
    order, at = "<", 0
    interfaces: list[tuple[int, int, int, int]] = []
    while at + 12 <= len(data):
        if data[at : at + 4] == PCAPNG_MAGIC:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, length = struct.unpack_from(order + "II", data, at)
        length = (length + 3) & ~3
        if length < 12 or at + length > len(data):
            return
        body = data[at + 8 : at + length - 4]
        at += length
        if kind == 1:
            interfaces.append((*struct.unpack_from(order + "H2xI", body), *_time_options(order, body[8:])))
        elif kind in (2, 6):
            number = struct.unpack_from(order + ("I" if kind == 6 else "H"), body)[0]
            high, low, captured, wire = struct.unpack_from(order + "4xIIII", body)
            if number >= len(interfaces) or 20 + captured > len(body):
                return
            link_type, _, resolution, offset = interfaces[number]
            yield Packet(link_type, time_ns(high << 32 | low, resolution, offset), wire, body[20 : 20 + captured])
        elif kind == 3:
            wire = struct.unpack_from(order + "I", body)[0]
            link_type, snaplen, _, _ = interfaces[0]
            yield Packet(link_type, None, wire, body[4 : 4 + min(wire, snaplen or wire)])


def _time_options(order: str, options: bytes) -> tuple[int, int]:
    resolution, offset, at = 6, 0, 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(order + "HH", options, at)
        value = options[at + 4 : at + 4 + length]
        if code == 0 or len(value) < length:
            break
        if code == 9 and length >= 1:
            resolution = value[0]
        if code == 14 and length >= 8:
            offset = struct.unpack(order + "q", value[:8])[0]
        at += 4 + (length + 3 & ~3)
    return resolution, offset


def time_ns(stamp: int, resolution: int, offset_s: int) -> int | None:
    """A pcapng timestamp as whole ns since 1970, rounded down; None if it exceeds int64."""
    unit = Fraction(1, 2 ** (resolution & 127)) if resolution & 128 else Fraction(1, 10**resolution)
    ns = int(stamp * unit * 10**9) + offset_s * 10**9
    return ns if -(2**63) < ns < 2**63 - 1 else None


def pcap(
    records: list[tuple[int, bytes, int]],
    *,
    order: str = "<",
    magic: int = 0xA1B2C3D4,
    link_type: int = 1,
    minor: int = 4,
) -> bytes:
    """A pcap file of (time in the file's unit, frame, wire length)."""
    header, unit_ns = PCAP_MAGICS[magic]
    parts = [struct.pack(order + "IHHiIII", magic, 2, minor, 0, 0, 262144, link_type)]
    for stamp, frame, wire in records:
        seconds, fraction = divmod(stamp, 10**9 // unit_ns)
        lengths = (wire, len(frame)) if minor < 3 else (len(frame), wire)
        parts.append(struct.pack(order + "IIII", seconds, fraction, *lengths) + bytes(header - 16) + frame)
    return b"".join(parts)


def block(order: str, kind: int, body: bytes) -> bytes:
    """One pcapng block."""
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str = "<") -> bytes:
    """A section header block."""
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(
    order: str = "<", link_type: int = 1, resolution: int | None = None, offset_s: int | None = None, snaplen: int = 0
) -> bytes:
    """An interface description block."""
    options = b"" if resolution is None else struct.pack(order + "HHB3x", 9, 1, resolution)
    options += b"" if offset_s is None else struct.pack(order + "HHq", 14, 8, offset_s)
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, snaplen) + options + bytes(4))


def enhanced(order: str, frame: bytes, stamp: int, number: int = 0, wire: int | None = None) -> bytes:
    """An enhanced packet block."""
    lengths = len(frame), len(frame) if wire is None else wire
    return block(order, 6, struct.pack(order + "IIIII", number, stamp >> 32, stamp & 0xFFFFFFFF, *lengths) + frame)


# ---- frames, layer by layer ----

USUAL_LINKS = (0, 1, 9, 12, 14, 50, 51, 101, 104, 108, 113, 204, 228, 229, 276)
LINK_TYPES = (*USUAL_LINKS, 105, 127, 239)
ECHO_TYPES = (0, 8, 13, 14, 15, 16, 17, 18, 128, 129)
QUIC_VERSIONS = (0, 1, 0x6B3343CF, 0x709A50C4, 0xFF00001D, 0xFACEB002, 0x51303530, 0x54303531, 0x1A2A3A4A)
QUIC_VERSIONS += (0xF0F0F000, 0xF0F0F1F3, 0x50435130, 0xABCD0001)


def ipv4(
    body: bytes,
    protocol: int,
    *,
    src: bytes = b"\xc0\0\2\1",
    dst: bytes = b"\xc6\x33\x64\2",
    tos: int = 0,
    ident: int = 1,
    fragment: int = 0,
    ttl: int = 64,
    checksum: int = 0,
    options: bytes = b"",
    length: int | None = None,
) -> bytes:
    """An IPv4 packet; `fragment` is the word of flags and offset."""
    size = 20 + len(options)
    length = min(size + len(body), 65535) if length is None else length
    return (
        struct.pack(">BBHHHBBH", 0x40 | size // 4, tos, length, ident, fragment, ttl, protocol, checksum)
        + src
        + dst
        + options
        + body
    )


def ipv6(
    body: bytes,
    next_header: int,
    *,
    src: bytes = b"\x20\1\x0d\xb8" + bytes(11) + b"\1",
    dst: bytes = b"\x20\1\x0d\xb8" + bytes(11) + b"\2",
    traffic_class: int = 0,
    hops: int = 64,
    length: int | None = None,
) -> bytes:
    """An IPv6 packet."""
    length = min(len(body), 65535) if length is None else length
    return struct.pack(">IHBB", 6 << 28 | traffic_class << 20, length, next_header, hops) + src + dst + body


def tcp(
    payload: bytes = b"",
    *,
    ports: tuple[int, int] = (40000, 443),
    seq: int = 1,
    ack: int = 2,
    flags: int = 0x10,
    window: int = 500,
    checksum: int = 0,
    options: bytes = b"",
) -> bytes:
    """A TCP segment; the options are padded to a multiple of 4 bytes."""
    options += bytes(-len(options) % 4)
    return (
        struct.pack(">HHIIBBHHH", *ports, seq, ack, (20 + len(options)) // 4 << 4, flags, window, checksum, 0)
        + options
        + payload
    )


def timestamps(tsval: int, tsecr: int) -> bytes:
    """The options of nearly every TCP segment."""
    return b"\1\1\x08\x0a" + struct.pack(">II", tsval, tsecr)


def udp(payload: bytes, ports: tuple[int, int] = (40000, 40001), length: int | None = None) -> bytes:
    """A UDP datagram."""
    return struct.pack(">HHHH", *ports, min(8 + len(payload), 65535) if length is None else length, 0) + payload


def ethernet(payload: bytes, ethertype: int = 0x0800) -> bytes:
    """An Ethernet frame."""
    return bytes(range(12)) + struct.pack(">H", ethertype) + payload


def random_frame(rng: random.Random, links: Sequence[int] = (1, 1, *USUAL_LINKS)) -> tuple[int, bytes]:
    """A link type and a plausible frame: random layers that reach every branch of the decoder."""
    link_type = rng.choice(links)
    if link_type in (12, 14, 101, 228, 229):
        return link_type, _ip(rng, 0)[1]
    if link_type in (0, 108):
        version, packet = _ip(rng, 0)
        family = 2 if version == 4 else rng.choice((10, 24, 28, 30))
        return link_type, struct.pack(rng.choice("<>") + "I", family) + packet
    if link_type in (9, 50, 204):
        return link_type, (b"\1" if link_type == 204 else b"") + rng.choice((b"", b"\xff\3")) + _ppp(rng, 0)
    if link_type == 51:
        return link_type, b"\x11\0\0\1\0\0" + _ppp(rng, 0)
    if link_type == 239:
        return link_type, _nflog(rng, _ip(rng, 0)[1])
    if link_type in (105, 127):
        return link_type, (_radiotap(rng) if link_type == 127 else b"") + _wifi(rng)
    ethertype, payload = _layers(rng, 0)
    kind = struct.pack(">H", ethertype)
    return link_type, {1: bytes(12) + kind, 104: b"\x0f\0" + kind, 113: bytes(14) + kind, 276: kind + bytes(18)}[
        link_type
    ] + payload


def _radiotap(rng: random.Random) -> bytes:
    size = rng.choice((8, 9, 24, 60))
    return struct.pack("<BBHI", 0, 0, rng.choice((size, size, 7)), 0) + bytes(size - 8)


def _wifi(rng: random.Random) -> bytes:
    """A frame of IEEE 802.11; most are data."""
    kind, control = rng.choice((0x08, 0x08, 0x88, 0x88, 0x80, 0x48)), rng.choice((1, 2, 3, 0x41, 0x81, 0x83))
    several = kind == 0x88 and rng.randrange(4) == 0
    ethertype, payload = _layers(rng, 0)
    head = bytes((kind, control)) + bytes(28 if control & 3 == 3 else 22)
    if kind == 0x88:
        head += bytes((0x80 if several else 0, 0)) + bytes(4 if control & 0x80 else 0) + bytes(14 if several else 0)
    snap = rng.choice((b"\xaa\xaa\3\0\0\0", b"\xaa\xaa\3\0\0\0", b"\x42\x42\3\0\0\0"))
    return head + snap + struct.pack(">H", ethertype) + payload


def _nflog(rng: random.Random, packet: bytes) -> bytes:
    """Fields before the packet, in either byte order."""
    order = rng.choice("<>")
    fields = b""
    for _ in range(rng.choice((0, 1, 2, 3, 15, 16))):
        value = bytes(rng.randrange(9))
        fields += struct.pack(order + "HH", 4 + len(value), rng.choice((1, 2, 10))) + value + bytes(-len(value) % 4)
    body = struct.pack(order + "HH", rng.choice((4 + len(packet), 4 + len(packet), 3)) & 0xFFFF, 9) + packet
    return b"\2" + rng.choice((b"\0", b"\0", b"\0", b"\1")) + bytes(2) + fields + body


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """The frame, cut or with some bytes changed; unchanged half of the time."""
    data = bytearray(frame)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        if data:
            data[rng.randrange(min(len(data), 120))] = rng.choice(
                (0, 1, 4, 5, 6, 44, 0x45, 0x60, 255, rng.randrange(256))
            )
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.randrange(4) == 0 else data)


def _layers(rng: random.Random, depth: int) -> tuple[int, bytes]:
    """An ethertype and its payload."""
    version, packet = _ip(rng, depth)
    ethertype, labels = (0x0800 if version == 4 else 0x86DD), rng.choice((0, 0, 0, 1, 2, 9))
    if rng.randrange(4) == 0:
        ethertype, packet = 0x8909, _metadata(rng, ethertype) + packet
    if labels and rng.randrange(3) == 0:
        packet = rng.choice((b"", bytes(4), b"\0\0\1\2", b"\1\0")) + ethernet(packet, ethertype)
    for i in range(labels):
        packet = struct.pack(">I", rng.getrandbits(20) << 12 | (0x100 if i == 0 else 0)) + packet
    if labels:
        ethertype = rng.choice((0x8847, 0x8848))
    elif rng.randrange(8) == 0:
        ethertype, packet = 0x8864, b"\x11\0\0\1\0\0" + _ppp(rng, depth)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 8))):
        packet = struct.pack(">HH", rng.getrandbits(16), ethertype) + packet
        ethertype = rng.choice((0x8100, 0x88A8, 0x9100))
    if rng.randrange(8) == 0:
        packet = b"\xaa\xaa\3\0\0\0" + struct.pack(">H", ethertype) + packet
        ethertype = len(packet) % 0x600
    return (rng.choice((0x0806, 0x0800, 0x86DD, 0x05FF)) if rng.randrange(30) == 0 else ethertype), packet


def _metadata(rng: random.Random, ethertype: int) -> bytes:
    return bytes((rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2)))) + b"\0\1\0\2" + struct.pack(">H", ethertype)


def _ppp(rng: random.Random, depth: int) -> bytes:
    version, packet = _ip(rng, depth)
    if rng.randrange(4) == 0:
        return rng.choice((b"\2\x81", b"\2\x83")) + struct.pack(">I", 0x100) + packet
    protocol = b"\x21" if version == 4 else b"\x57"
    return rng.choice((b"\0", b"")) + protocol + packet


def _ip(rng: random.Random, depth: int) -> tuple[int, bytes]:
    protocol, body = _transport(rng, depth)
    if rng.randrange(3):
        if rng.randrange(10) == 0:
            body = bytes((protocol, 4)) + bytes(6 + 16) + body
            protocol = 51
        return 4, ipv4(
            body,
            protocol,
            src=rng.choice((b"\n\0\0\1", rng.randbytes(4))),
            dst=rng.choice((b"\n\0\0\1", rng.randbytes(4))),
            tos=rng.getrandbits(8),
            ident=rng.getrandbits(16),
            fragment=rng.choice((0, 0, 0, 0x4000, 0x2000, 0x2001, 185)),
            options=bytes(4 * rng.choice((0, 0, 0, 1, 10))),
            length=rng.choice((None, None, None, None, 0, 20, rng.randrange(100))),
        )
    for _ in range(rng.choice((0, 0, 0, 1, 2, 8, 9))):
        kind = rng.choice((0, 43, 44, 51, 60, 135))
        if kind == 44:
            body = struct.pack(">BBHI", protocol, 0, rng.choice((0, 0, 1, 8, 1481)), rng.getrandbits(32)) + body
        else:
            units = rng.choice((0, 1, 2))
            body = bytes((protocol, units)) + bytes(6 + units * (4 if kind == 51 else 8)) + body
        protocol = kind
    return 6, ipv6(
        body,
        protocol,
        src=rng.randbytes(16),
        dst=rng.randbytes(16),
        traffic_class=rng.getrandbits(8),
        length=rng.choice((None, None, None, None, 0, rng.randrange(100))),
    )


def _transport(rng: random.Random, depth: int) -> tuple[int, bytes]:
    """A protocol number and the IP payload; a tunnel contains another packet, up to a limited depth."""
    payload = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 15, 16, 17, 40, 64, 65)))
    choice = rng.randrange(10 if depth > 5 else 14)
    if choice < 3:
        return 6, tcp(
            payload,
            ports=(rng.getrandbits(16), rng.choice((80, 443))),
            seq=rng.getrandbits(32),
            ack=rng.getrandbits(32),
            flags=rng.getrandbits(8),
            window=rng.getrandbits(16),
            options=_options(rng),
        )
    if choice < 7:
        return 17, _application(rng, payload)
    if choice == 7:
        return rng.choice((1, 58)), bytes((rng.choice((*ECHO_TYPES, 3, 11)), rng.getrandbits(2))) + rng.randbytes(
            6
        ) + payload
    if choice == 8:
        return rng.choice((50, 50, 33, 132, 136)), rng.randbytes(8) + payload
    if choice == 9:
        return rng.choice((2, 59, 89, 6, 17)), payload
    return _tunnel(rng, depth + 1)


def _options(rng: random.Random) -> bytes:
    """At most 40 bytes of TCP options, valid and invalid."""
    known = [b"\1", b"\1\1", timestamps(rng.getrandbits(32), 7), b"\x08\x0a" + rng.randbytes(8), b"\x08\x09" + bytes(7)]
    known += [b"\x05\x0a" + rng.randbytes(8), b"\x02\4\5\xb4", b"\4\2", b"\x03\x03\7", b"\xfd\1", b"\xfe\x28", b"\0"]
    return b"".join(rng.choice(known) for _ in range(rng.choice((0, 1, 1, 2, 3, 5))))[:40]


def _application(rng: random.Random, payload: bytes) -> bytes:
    """A UDP datagram of each recognised kind, or nearly so."""
    kind = rng.choice(("dns", "ntp", "stamp", "esp", "wireguard", "long", "short", "other"))
    port = rng.getrandbits(16)
    if kind == "dns":
        port, payload = rng.choice((53, 5353, 5355)), rng.randbytes(rng.choice((11, 12, 40)))
    elif kind == "ntp":
        port, payload = 123, bytes((rng.getrandbits(8),)) + rng.randbytes(rng.choice((46, 47, 60)))
    elif kind == "stamp":
        port, payload = 862, rng.randbytes(rng.choice((13, 14, 44)))
    elif kind == "esp":
        port, payload = 4500, rng.choice((bytes(4), rng.randbytes(4))) + payload
    elif kind == "wireguard":
        message, length = rng.choice(((1, 148), (2, 92), (3, 64), (4, 32), (4, 48), (4, 16), (1, 92), (4, 33)))
        payload = bytes((message, 0, 0, 0)) + rng.randbytes(length - 4)
    elif kind == "long":
        version, size = rng.choice((*QUIC_VERSIONS, rng.getrandbits(32))), rng.choice((0, 1, 7, 8, 9, 20, 21))
        payload = struct.pack(">BIB", 0x80 | rng.getrandbits(7), version, size) + rng.randbytes(
            rng.choice((0, size, 30))
        )
    elif kind == "short":
        port, payload = rng.choice((443, 4433, 8443)), bytes((0x40 | rng.getrandbits(6),)) + payload
    ports = (port, rng.getrandbits(16))
    return udp(payload, rng.choice((ports, ports[::-1])), rng.choice((None, None, None, 0, 7, 8, 20)))


def _tunnel(rng: random.Random, depth: int) -> tuple[int, bytes]:
    kind = rng.choice(("ip", "gre", "pptp", "vxlan", "geneve", "gtp"))
    packet = _ip(rng, depth)[1]
    ethertype, layered = _layers(rng, depth)
    framed = ethernet(layered, ethertype)
    if kind == "ip":
        return rng.choice((4, 41)), packet
    if kind == "gre":
        bits = rng.choice((0, 0, 0x8000, 0x2000, 0x1000, 0xB000, 0x4000, 2))
        inner, content = rng.choice(
            ((0x6558, framed), (0x88BE, (bytes(8) if bits & 0x1000 else b"") + framed), (ethertype, layered))
        )
        return 47, struct.pack(">HH", bits, inner) + bytes(4 * (bits & 0xB000).bit_count()) + content
    if kind == "pptp":
        bits = rng.choice((0x2001, 0x3001, 0x2081, 0x3081))
        return 47, struct.pack(">HH", bits, 0x880B) + bytes(4 + 4 * (bits & 0x1080).bit_count()) + rng.choice(
            (b"", b"\xff\3")
        ) + _ppp(rng, depth)
    if kind == "vxlan":
        return 17, udp(bytes((rng.choice((8, 8, 8, 0)),)) + bytes(7) + framed, (rng.getrandbits(16), 4789))
    if kind == "geneve":
        options = rng.choice((0, 0, 1, 63))
        inner, content = rng.choice(((0x6558, framed), (ethertype, layered)))
        return 17, udp(
            struct.pack(">BBHI", rng.choice((0, 0, 0, 64)) | options, 0, inner, 0) + bytes(4 * options) + content,
            (9, 6081),
        )
    bits, extensions = rng.choice((0, 0, 1, 2, 4, 7)), b""
    if bits & 4:
        extensions = b"".join(b"\1\0\0\x85" for _ in range(rng.choice((0, 1, 3, 4)))) + b"\1\0\0\0"
    header = struct.pack(">BBHI", 0x30 | bits, rng.choice((255, 255, 255, 1)), 0, 0) + (
        b"\0\0\0" + (b"\x85" if bits & 4 else b"\0") if bits else b""
    )
    return 17, udp(header + extensions + packet, rng.choice(((2152, 2152), (2152, 9), (9, 2152))))
