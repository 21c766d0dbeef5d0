"""Link headers whose length varies: radiotap, IEEE 802.11, NFLOG (docs/reference/columns.md, "Link types")."""

from typing import Literal


class NoRowError(Exception):
    """The frame does not lead to a complete, valid IP header; the argument is the reason."""


def read(data: bytes, at: int, size: int) -> int:
    """A big-endian integer, if all of it is captured."""
    if at + size > len(data):
        raise NoRowError("cut")
    return int.from_bytes(data[at : at + size], "big")


def behind_radiotap(data: bytes) -> int:
    """Where the frame behind a radiotap header begins."""
    size = int.from_bytes(read(data, 2, 2).to_bytes(2, "big"), "little")
    if size < 8:
        raise NoRowError("malformed")
    return size


def behind_wifi(data: bytes, at: int) -> int:
    """Where the ethertype of an IEEE 802.11 frame is."""
    kind, control = read(data, at, 1), read(data, at, 2) & 0xFF
    if kind not in (0x08, 0x88) or control & 0x40:
        raise NoRowError("not_ip")
    addresses = 4 if control & 0x03 == 0x03 else 3
    behind = at + 6 + 6 * addresses
    if kind == 0x88:
        several = read(data, behind, 2) >> 8 & 0x80
        behind += 2 + (4 if control & 0x80 else 0) + (14 if several else 0)
    if behind > len(data):
        raise NoRowError("cut")
    if data[behind : behind + 6] != b"\xaa\xaa\3\0\0\0" or len(data) < behind + 8:
        raise NoRowError("not_ip")
    return behind + 6


def behind_nflog(data: bytes) -> int:
    """Where the packet of NFLOG begins."""
    if read(data, 0, 4) >> 16 & 0xFF:
        raise NoRowError("malformed")
    at = 4
    for _ in range(16):
        field = read(data, at, 4).to_bytes(4, "big")
        order: Literal["little", "big"] = "little" if field[3] == 0 else "big"
        size, kind = int.from_bytes(field[:2], order), int.from_bytes(field[2:], order)
        if size < 4:
            raise NoRowError("malformed")
        if kind == 9:
            return at + 4
        at += -(-size // 4) * 4
        if at > len(data):
            raise NoRowError("cut")
    raise NoRowError("layers")
