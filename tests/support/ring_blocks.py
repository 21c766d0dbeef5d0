"""Blocks of a packet socket's ring, built by hand."""

import struct
from itertools import pairwise


def packed_block(frames: list[bytes], *, size: int = 1 << 14, outgoing: bool = False, tag: int | None = None) -> bytes:
    """A block as the kernel fills it, after linux/if_packet.h."""
    body, starts = bytearray(48), []
    for frame in frames:
        starts.append(len(body))
        status = 1 | (0x10 | 0x40 if tag is not None else 0)
        at = 48 + 20 + 16
        header = struct.pack(
            "=6I2H2I2H8x", 0, 7, 5, len(frame), len(frame), status, at, at + 14, 0, tag or 0, 0x88A8, 0
        )
        sender = struct.pack("=HHiHBB8x", 17, 0, 1, 1, 4 if outgoing else 0, 6)
        record = (header + sender).ljust(at, b"\0") + frame
        body += record.ljust((len(record) + 7) & ~7, b"\0")
    for start, following in pairwise(starts):
        struct.pack_into("=I", body, start, following - start)
    struct.pack_into("=II4I", body, 0, 1, 0, 1, len(frames), 48, len(body))
    return bytes(body.ljust(size, b"\0"))
