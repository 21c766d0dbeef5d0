"""A packet socket with a ring that the kernel fills: opening, counters, closing (man 7 packet, TPACKET_V3)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag.capture.bpf_filter import INSTRUCTION_BYTES, compile_filter, take, without
from wirelag.capture.card_clock import card_of, no_stamps
from wirelag.capture.netlink import devices_above
from wirelag.errors import WirelagError

Clock = Literal["kernel", "hardware"]
Direction = Literal["both", "in", "out"]

BLOCK_BYTES: Final = 1 << 20
LEAST_BLOCK_BYTES: Final = 1 << 17  # large enough for a frame of any length with all its headers
LEAST_BLOCKS: Final = 32  # each is handed over after `poll_ms`, even with one packet: a reader may stall this often
LEAST_RING_BYTES, MOST_RING_BYTES = 1 << 18, 1 << 32
ANY: Final = "any"  # every Ethernet port of this host, each packet once; never goes down
LINKS: Final = {  # numbers of link layers: the kernel's (linux/if_arp.h), and those of capture files
    1: 1, 772: 1,  # Ethernet, loopback
    519: 101, 65534: 101, 768: 101, 769: 101, 776: 101,  # IP alone: raw, tun and WireGuard, tunnels
    778: 228, 823: 229,  # GRE over IPv4 and IPv6
}  # fmt: skip
EVERY_PROTOCOL: Final = 3
FRAME_BYTES: Final = 1 << 11  # required by the kernel, but without meaning in version 3
TAG_BYTES: Final = 4
NEW_GROUP: Final = -1  # a new group of rings that share packets: the kernel picks a free number
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
_SIOCGIFFLAGS, _SIOCGIFHWADDR, _SIOCSHWTSTAMP = 0x8913, 0x8927, 0x89B0
_RAW_HARDWARE, _FILTER_ALL = 1 << 6, 1
_SO_ATTACH_FILTER: Final = 26
_ADD_MEMBERSHIP, _RX_RING, _STATISTICS, _VERSION, _RESERVE = 1, 5, 6, 10, 12
_TIMESTAMP, _FANOUT, _IGNORE_OUTGOING = 17, 18, 23
_SOL_PACKET: Final = 263
_VERSION_3: Final = 2
_PROMISCUOUS: Final = 1
_FANOUT_HASH, _UNIQUE = 0, 0x2000  # without the flag that joins fragments, which would change packets


@dataclass(slots=True)
class Ring:
    """A socket and its memory. `link_type` is as in capture files."""

    socket: socket.socket
    memory: npt.NDArray[np.uint8]
    block_bytes: int
    link_type: int
    loopback: bool
    _map: mmap.mmap

    def counters(self) -> tuple[int, int, int]:
        """Since the last call: packets that passed the filter, those dropped, and how often dropping started."""
        found = struct.unpack("3I", self.socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        return found[0], found[1], found[2]

    def group(self) -> int:
        """The number of the group of rings that share packets with this one; 0: none."""
        return int(self.socket.getsockopt(_SOL_PACKET, _FANOUT)) & 0xFFFF

    def close(self) -> None:
        """Stop receiving. The memory is released when no longer referenced."""
        self.socket.close()


def open_ring(
    interface: str,
    *,
    expression: str | None,
    promiscuous: bool,
    ring_bytes: int,
    poll_ms: int,
    snap_bytes: int,
    fanout: int | None,
    direction: Direction,
    clock: Clock,
) -> Ring:
    """Open a ring. No packet enters before everything is set up."""
    if not LEAST_RING_BYTES <= ring_bytes <= MOST_RING_BYTES:
        raise WirelagError(f"{interface}: a ring must have 256 KiB to 4 GiB, not {ring_bytes:,} bytes")
    try:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    except PermissionError:
        raise WirelagError(
            f"{interface}: listening needs CAP_NET_RAW: run as root (sudo), or give it with "
            f"setpriv --inh-caps +net_raw --ambient-caps +net_raw"
        ) from None
    except OSError as error:
        raise WirelagError(f"{interface}: no packet socket here ({error.strerror}); read a capture with -r") from None
    try:
        link_type, loopback = link_of(opened, interface)
        beside = "lo" if interface == ANY else interface  # it also has Ethernet headers
        program = compile_filter(expression, beside, link_type, snap_bytes) if expression else take(snap_bytes)
        if interface == ANY:
            program = without(devices_above()) + program
        if clock == "hardware":
            _stamp_in_hardware(opened, interface)
        block_bytes = max(LEAST_BLOCK_BYTES, min(BLOCK_BYTES, _power_of_two(ring_bytes // LEAST_BLOCKS)))
        blocks = max(2, ring_bytes // block_bytes)
        _attach(opened, take(0))
        opened.setsockopt(_SOL_PACKET, _VERSION, _VERSION_3)
        opened.setsockopt(_SOL_PACKET, _RESERVE, TAG_BYTES)
        if direction == "in" or loopback:
            opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        frames = blocks * block_bytes // FRAME_BYTES
        opened.setsockopt(
            _SOL_PACKET, _RX_RING, struct.pack("7I", block_bytes, blocks, FRAME_BYTES, frames, poll_ms, 0, 0)
        )
        mapped = mmap.mmap(opened.fileno(), blocks * block_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        if promiscuous and interface != ANY:
            request = struct.pack("iHH8s", socket.if_nametoindex(interface), _PROMISCUOUS, 0, b"")
            opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
        if interface == ANY:
            _bind_everywhere(opened)
        else:
            opened.bind((interface, EVERY_PROTOCOL))
        if fanout is not None:
            how = _FANOUT_HASH | (_UNIQUE if fanout == NEW_GROUP else 0)
            number = 0 if fanout == NEW_GROUP else fanout & 0xFFFF
            opened.setsockopt(_SOL_PACKET, _FANOUT, struct.pack("I", number | how << 16))
        _attach(opened, program)
    except OSError as error:
        opened.close()
        raise WirelagError(f"{interface}: {_why(error, ring_bytes)}") from None
    except BaseException:
        opened.close()
        raise
    return Ring(opened, np.frombuffer(mapped, np.uint8), block_bytes, link_type, loopback, mapped)


def link_of(opened: socket.socket, name: str) -> tuple[int, bool]:
    """The link type of an interface that is up, and whether it is a loopback."""
    if name == ANY:
        return LINKS[1], False
    try:
        socket.if_nametoindex(name)
    except OSError:
        known = ", ".join(sorted(found for _, found in socket.if_nameindex()))
        raise WirelagError(f"{name}: there is no such interface; there are {known}") from None
    request = struct.pack("16s24x", name.encode())
    (flags,) = struct.unpack_from("H", fcntl.ioctl(opened, _SIOCGIFFLAGS, request), 16)
    (hardware,) = struct.unpack_from("H", fcntl.ioctl(opened, _SIOCGIFHWADDR, request), 16)
    if not flags & IFF_UP:
        raise WirelagError(f"{name}: the interface is down; bring it up with: ip link set {name} up")
    if hardware not in LINKS:
        raise WirelagError(f"{name}: unknown link layer (number {hardware}); wirelag reads Ethernet, IP and GRE")
    return LINKS[hardware], bool(flags & IFF_LOOPBACK)


def _stamp_in_hardware(opened: socket.socket, interface: str) -> None:
    """Make the card timestamp every incoming packet."""
    try:
        card_of(opened, interface)
        wish = ctypes.create_string_buffer(struct.pack("3i", 0, 0, _FILTER_ALL), 12)
        fcntl.ioctl(opened, _SIOCSHWTSTAMP, struct.pack("16sP16x", interface.encode(), ctypes.addressof(wish)))
        opened.setsockopt(_SOL_PACKET, _TIMESTAMP, _RAW_HARDWARE)
    except PermissionError:
        raise WirelagError(f"{interface}: hardware timestamps need CAP_NET_ADMIN and CAP_NET_RAW") from None
    except (OSError, WirelagError):
        raise WirelagError(f"{no_stamps(interface)}; use the kernel's timestamps (--clock kernel)") from None


def _attach(opened: socket.socket, program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HP", len(program) // INSTRUCTION_BYTES, ctypes.addressof(instructions))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _bind_everywhere(opened: socket.socket) -> None:
    """Listen at all interfaces: number 0 (man 7 packet), which Python's `bind` cannot express."""
    address = struct.pack("=HHi12x", socket.AF_PACKET, socket.htons(EVERY_PROTOCOL), 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.bind(opened.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _power_of_two(number: int) -> int:
    return 1 << max(number, 1).bit_length() - 1


def _why(error: OSError, ring_bytes: int) -> str:
    if error.errno == errno.ENOMEM:
        return f"the kernel has no {ring_bytes >> 20} MiB for the ring; choose a smaller ring"
    if error.errno == errno.ENODEV:
        return "the interface has gone"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "listening needs CAP_NET_RAW: run as root (sudo)"
    return f"cannot listen ({error.strerror or os.strerror(error.errno or errno.EIO)})"
