"""The plain twin of what leaves the balancer: frames and tunnels (docs/concepts/balancing.md, "Tunnels").

Written from that page and the RFCs: checksums are computed over all that they cover, byte by byte.
"""

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

from tests.oracles.hashing import endpoint, mix

TAGS = (0x8100, 0x88A8)
UDP, ICMP, ICMPV6 = 17, 1, 58
Address = IPv4Address | IPv6Address


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(data[i] << 8 | data[i + 1] for i in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return total ^ 0xFFFF


def link_of(frame: bytes) -> tuple[bytes, bytes]:
    """The tags of a frame, and its IP packet without what follows it."""
    at = 12
    while struct.unpack_from(">H", frame, at)[0] in TAGS and at < 20:
        at += 4
    packet = frame[at + 2 :]
    if packet[0] >> 4 == 4:
        return frame[12:at], packet[: struct.unpack_from(">H", packet, 2)[0]]
    return frame[12:at], packet[: 40 + struct.unpack_from(">H", packet, 4)[0]]


def ends_of(packet: bytes) -> tuple[Address, Address]:
    if packet[0] >> 4 == 4:
        return ip_address(packet[12:16]), ip_address(packet[16:20])
    return ip_address(packet[8:24]), ip_address(packet[24:40])


def ipv4(
    mark: int, number: int, fragment: int, ttl: int, protocol: int, source: Address, to: Address, body: bytes
) -> bytes:
    length = 20 + len(body)
    ends = source.packed + to.packed
    head = struct.pack(">BBHHHBBH", 0x45, mark, length, number, fragment, ttl, protocol, 0) + ends
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def ipv6(mark: int, label: int, hops: int, following: int, source: Address, to: Address, body: bytes) -> bytes:
    words = 6 << 28 | mark << 20 | label
    return struct.pack(">IHBB", words, len(body), following, hops) + source.packed + to.packed + body


def pseudo(source: Address, to: Address, protocol: int, length: int) -> bytes:
    """What a checksum in IPv6 also covers (RFC 8200)."""
    return source.packed + to.packed + struct.pack(">IxxxB", length, protocol)


def flow_hash(seed: int, packet: bytes) -> int:
    """The hash of the client and the service's port; an error is about the connection whose packet it quotes."""
    client, _ = ends_of(packet)
    six = packet[0] >> 4 == 6
    head = 40 if six else (packet[0] & 15) * 4
    body, protocol = packet[head:], packet[6 if six else 9]
    if protocol in (ICMP, ICMPV6):
        quoted = body[8:]
        _, client = ends_of(quoted)
        service_port, port = struct.unpack_from(">HH", quoted, 40 if six else 20)
    else:
        port, service_port = struct.unpack_from(">HH", body)
    number = int(client) | (0 if six else 0xFFFF << 32)
    return mix(endpoint(seed, number >> 64, number & 2**64 - 1, port | service_port << 16))


def has_checksum(packet: bytes) -> bool:
    """Whether what is inside has one: UDP over IPv4 may not."""
    head = (packet[0] & 15) * 4
    return packet[0] >> 4 == 6 or packet[9] != UDP or packet[head + 6 : head + 8] != b"\0\0"


def encapsulated(
    frame: bytes, via: str, own: bytes, mac: bytes, source: str, address: str, port: int, seed: int
) -> bytes:
    """The frame that leaves for a backend at `address`; `own`, `mac`: MAC addresses of this host and of the next."""
    tags, packet = link_of(frame)
    rest = frame[12 + len(tags) + 2 + len(packet) :]  # padding stays behind the packet
    if via == "l2":
        return mac + own + frame[12:]
    inner_six, here, there = packet[0] >> 4 == 6, ip_address(source), ip_address(address)
    mark = (int.from_bytes(packet[:2], "big") >> 4) & 255 if inner_six else packet[1]
    hops = packet[7 if inner_six else 8]
    hashed, body, protocol = flow_hash(seed, packet), packet, 41 if inner_six else 4
    if via == "gue":
        protocol = UDP
        head = struct.pack(">HHHH", 49152 + hashed % 2**14, port, 8 + len(packet), 0)
        if there.version == 6 and has_checksum(packet):
            sum_ = checksum(pseudo(here, there, UDP, 8 + len(packet)) + head + packet) or 0xFFFF
            head = head[:6] + struct.pack(">H", sum_)
        body = head + packet
    if there.version == 6:
        return (
            mac
            + own
            + tags
            + b"\x86\xdd"
            + ipv6(mark, hashed >> 12 & 0xFFFFF, hops, protocol, here, there, body)
            + rest
        )
    number, fragment = struct.unpack_from(">HH", packet, 4)
    return (
        mac + own + tags + b"\x08\x00" + ipv4(mark, number, fragment & 0x4000, hops, protocol, here, there, body) + rest
    )


def told(frame: bytes, own: bytes, fits: int) -> bytes | None:
    """The frame that tells a sender what fits; None: nobody is told, because the packet may be cut, or is an error."""
    tags, packet = link_of(frame)
    client, service = ends_of(packet)
    if packet[0] >> 4 == 4:
        if not packet[6] & 0x40 or packet[9] == ICMP:
            return None
        body = struct.pack(">BBHHH", 3, 4, 0, 0, fits) + packet[:68]
        body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
        return frame[6:12] + own + tags + b"\x08\x00" + ipv4(0, 0, 0, 64, ICMP, service, client, body)
    if packet[6] == ICMPV6:
        return None
    body = struct.pack(">BBHI", 2, 0, 0, fits) + packet[:1232]
    sum_ = checksum(pseudo(service, client, ICMPV6, len(body)) + body)
    body = body[:2] + struct.pack(">H", sum_) + body[4:]
    return frame[6:12] + own + tags + b"\x86\xdd" + ipv6(0, 0, 64, ICMPV6, service, client, body)
