"""Simulated frames and the records of captures in plain Python: the oracle of `sim_frame.h` and `record_writer.h`.

It follows only `docs/reference/simulate.md`, "Bytes".
"""

import ipaddress
import struct
from dataclasses import dataclass

SYN, SYN_ACK, QUERY, ANSWER = 0, 1, 5, 6
WORD = 2**64 - 1


@dataclass(frozen=True)
class Packet:
    """One packet and its connection, as plain numbers; `host` and `port` are (client's, server's)."""

    connection: int
    sender: int
    kind: int
    flags: int
    seq: int
    ack: int
    sack_start: int
    sack_end: int
    ticks: int
    echo: int
    length: int
    ip_id: int
    crossed: bool
    host: tuple[int, int]
    port: tuple[int, int]
    ipv6: bool
    timestamps: bool


def mix(*words: int) -> int:
    """Words as one number."""
    mixed = 0
    for word in words:
        mixed = ((mixed ^ word) + 0x9E3779B97F4A7C15) & WORD
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & WORD
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & WORD
        mixed ^= mixed >> 31
    return mixed


def frame(packet: Packet, seed: int) -> bytes:
    """The whole frame, with all of its payload."""
    dns = packet.kind in (QUERY, ANSWER)
    sides = packet.sender, 1 - packet.sender
    ports = struct.pack(">HH", *(packet.port[side] for side in sides))
    body = _dns(packet) if dns else _tcp(packet, seed)
    body = ports + (struct.pack(">H", 6 + len(body)) + body if dns else body)
    ends = b"".join(_address(packet, side) for side in sides)
    protocol, place = (17, 6) if dns else (6, 16)
    total = _checksum(ends + struct.pack(">IHH", len(body), 0, protocol) + body)
    if dns and total == 0:
        total = 0xFFFF
    body = body[:place] + struct.pack(">H", total) + body[place + 2 :]
    hops = 57 if packet.crossed else 60
    if packet.ipv6:
        ip = struct.pack(">IHBB", 6 << 28, len(body), protocol, hops) + ends
    else:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), packet.ip_id, 0x4000, hops, protocol, 0) + ends
        ip = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
    macs = b"".join(bytes([2, 0, 0, 0, 0, 1 + side]) for side in reversed(sides))
    return macs + (b"\x86\xdd" if packet.ipv6 else b"\x08\x00") + ip + body


def record(time_ns: int, captured: bytes, wire: int, pcapng: bool) -> bytes:
    """A frame as a record of a capture."""
    if not pcapng:
        return struct.pack("<IIII", time_ns // 10**9, time_ns % 10**9, len(captured), wire) + captured
    padded = captured + bytes(-len(captured) % 4)
    size = 32 + len(padded)
    head = struct.pack("<IIIIIII", 6, size, 0, time_ns >> 32, time_ns % 2**32, len(captured), wire)
    return head + padded + struct.pack("<I", size)


def _address(packet: Packet, side: int) -> bytes:
    host = packet.host[side]
    if packet.ipv6:
        return (ipaddress.IPv6Address(f"2001:db8:{side + 1}::") + host + 1).packed
    if side == 0:
        return (ipaddress.IPv4Address("10.0.0.1") + host).packed
    if host < 762:
        first = ("192.0.2.1", "198.51.100.1", "203.0.113.1")[host % 3]
        return (ipaddress.IPv4Address(first) + host // 3).packed
    return (ipaddress.IPv4Address("198.18.0.0") + host).packed


def _tcp(packet: Packet, seed: int) -> bytes:
    """All after the ports."""
    own, other = (mix(packet.connection, side, seed) for side in (packet.sender, 1 - packet.sender))
    stamps = b"\x08\x0a" + struct.pack(">II", packet.ticks, packet.echo) if packet.timestamps else b""
    syn = packet.kind in (SYN, SYN_ACK)
    if syn:
        size = b"\x02\x04" + struct.pack(">H", 1440 if packet.ipv6 else 1460)
        options = size + (b"\x04\x02" + stamps if stamps else b"\x01\x01\x04\x02") + b"\x01\x03\x03\x07"
    else:
        options = b"\x01\x01" + stamps if stamps else b""
        if packet.sack_end:
            edges = ((other + edge) % 2**32 for edge in (packet.sack_start, packet.sack_end))
            options += b"\x01\x01\x05\x0a" + struct.pack(">II", *edges)
    ack = 0 if packet.kind == SYN else (other + packet.ack) % 2**32
    offset, window = (20 + len(options)) // 4 << 4, 64_240 if syn else 501
    fixed = struct.pack(">IIBBHHH", (own + packet.seq) % 2**32, ack, offset, packet.flags, window, 0, 0)
    segment = mix(packet.connection, packet.sender, packet.seq)
    payload = b"".join(mix(segment, i).to_bytes(8, "little") for i in range(8))[: packet.length]
    return fixed + options + payload.ljust(packet.length, b"\0")


def _dns(packet: Packet) -> bytes:
    """All after the UDP length: the checksum, 0, and the message."""
    mixed, answer = mix(packet.connection), packet.kind == ANSWER
    name = bytes(ord("a") + (mixed >> 4 * i) % 16 for i in range(12))
    head = struct.pack(">HHHHHHH", 0, mixed % 2**16, 0x8180 if answer else 0x0100, 1, answer, 0, 0)
    question = b"\x0c" + name + b"\x07example\x03com\x00" + struct.pack(">HH", 1, 1)
    if not answer:
        return head + question
    address = (ipaddress.IPv4Address("192.0.2.0") + mixed % 256).packed
    return head + question + struct.pack(">HHHIH", 0xC00C, 1, 1, 300, 4) + address


def _checksum(data: bytes) -> int:
    words = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
