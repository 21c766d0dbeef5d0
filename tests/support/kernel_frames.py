"""Frames for programs in the kernel."""

import struct


def tcp(up: bool, flow: int, seq: int, ack: int, flags: int, payload: int) -> bytes:
    """A segment of a connection with timestamps, to the server or from it."""
    ends = [(bytes((10, 0, 0, 1)), 40_000 + flow), (bytes((10, 9, 9, 9)), 443)]
    (src, src_port), (dst, dst_port) = ends if up else ends[::-1]
    stamps = struct.pack(">III", 0x0101080A, seq + 7, ack + 7)
    segment = struct.pack(">HHIIBBHHH", src_port, dst_port, seq, ack, 0x80, flags, 512, 0, 0) + stamps + bytes(payload)
    length = 20 + len(segment)
    return (
        bytes(12) + struct.pack(">HBBHHHBBH", 0x800, 0x45, 0, length, seq & 0xFFFF, 0, 64, 6, 0) + src + dst + segment
    )


def udp(src_port: int, dst_port: int, payload: bytes, tos: int = 0, src: bytes = b"\x0a\x00\x00\x01") -> bytes:
    """A datagram to 10.9.9.9."""
    datagram = struct.pack(">HHHH", src_port, dst_port, 8 + len(payload), 0) + payload
    header = struct.pack(">HBBHHHBBH", 0x800, 0x45, tos, 20 + len(datagram), dst_port & 0xFFFF, 0, 64, 17, 0)
    return bytes(12) + header + src + bytes((10, 9, 9, 9)) + datagram
