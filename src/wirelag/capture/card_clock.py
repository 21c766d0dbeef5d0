"""The clock of a network card, which timestamps packets: whether there is one, and how far it is from the host's.

Law: the distance is measured between two readings of the host's clock (PTP_SYS_OFFSET of linux/ptp_clock.h), so it is
known to half the time between these; the narrowest of several samples counts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Final

from wirelag.errors import WirelagError

_SIOCETHTOOL: Final = 0x8946
_GET_TIMESTAMPING: Final = 0x41  # ethtool command
_RAW_HARDWARE, _RX_HARDWARE = 1 << 6, 1 << 2
_SYS_OFFSET: Final = 0x43403D05
_SAMPLES: Final = 9  # of at most 25
_HEAD, _TIME, _TIMES = 16, 16, 2 * 25 + 1


def card_of(opened: socket.socket, interface: str) -> int:
    """The number of the clock with which a card timestamps incoming packets; a WirelagError if it does not."""
    info = ctypes.create_string_buffer(struct.pack("I", _GET_TIMESTAMPING), 44)
    try:
        fcntl.ioctl(opened, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(info)))
    except OSError:
        raise no_stamps(interface) from None
    able, number = struct.unpack_from("Ii", info, 4)
    if ~able & (_RAW_HARDWARE | _RX_HARDWARE):
        raise no_stamps(interface)
    return int(number)


def no_stamps(interface: str) -> WirelagError:
    """The error of a card without timestamps."""
    return WirelagError(f"{interface}: this card does not timestamp packets")


class CardClock:
    """The clock of an interface's card, open as long as the process: rights may be given up afterwards."""

    def __init__(self, interface: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            number = card_of(asking, interface)
        self._path = f"/dev/ptp{number}"
        try:
            self._file = os.open(self._path, os.O_RDONLY)
            self.apart_ns()
        except OSError as error:
            reason = f"{self._path}: {error.strerror}"
            raise WirelagError(f"{interface}: the clock of this card cannot be read ({reason})") from None

    def apart_ns(self) -> tuple[int, int]:
        """How far the card's clock is ahead of the host's, and the largest error of that."""
        return apart_of(
            fcntl.ioctl(self._file, _SYS_OFFSET, struct.pack("I", _SAMPLES).ljust(_HEAD + _TIME * _TIMES, b"\0"))
        )

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


def apart_of(answer: bytes) -> tuple[int, int]:
    """The same from the kernel's answer: readings of the host, the card, the host, and so on.

    >>> times = [(7, 100), (7, 5_000), (7, 300), (7, 5_150), (7, 420)]
    >>> apart_of(struct.pack("I12x", 2) + b"".join(struct.pack("qIxxxx", *time) for time in times))
    (4790, 60)
    """
    (samples,) = struct.unpack_from("I", answer)
    times = [
        seconds * 10**9 + nanoseconds
        for seconds, nanoseconds in struct.iter_unpack("qIxxxx", answer[_HEAD : _HEAD + _TIME * (2 * samples + 1)])
    ]
    found = (
        (after - before, card, before)
        for before, card, after in zip(times[::2], times[1::2], times[2::2], strict=False)
    )
    width, card, before = min(found)
    return card - before - width // 2, (width + 1) // 2
