"""Messages as bytes, whatever their names are."""

import struct
import zlib

from wirelag.protocol.dictionary import lengthen, shorten
from wirelag.protocol.messages import VERSION


def as_message(names: bytes, arrays: bytes = b"") -> bytes:
    """A message with these names and a valid checksum."""
    short = shorten(names)
    body = struct.pack("<I", len(short)) + short + arrays
    return struct.pack("<4sII", b"WLAG", VERSION, zlib.crc32(body)) + body


def taken_apart(data: bytes) -> tuple[bytes, bytes]:
    """Names and arrays."""
    end = 16 + struct.unpack_from("<I", data, 12)[0]
    return lengthen(data[16:end], 1 << 20), data[end:]
