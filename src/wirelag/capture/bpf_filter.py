"""tcpdump expressions as filters of interfaces and files, compiled by libpcap (which comes with tcpdump)."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
import sys
import tempfile
from collections.abc import Iterable
from typing import Any, Final

from wirelag import _kernels
from wirelag.errors import WirelagError

INSTRUCTION_BYTES: Final = 8
_RETURN: Final = 0x06  # BPF_RET | BPF_K: accept this many bytes of the packet
_LOAD, _IF_EQUAL = 0x20, 0x15  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K
_DEVICE: Final = 0xFFFFF008  # SKF_AD_OFF + SKF_AD_IFINDEX: the number of the device that sees the packet
_ERROR_BYTES: Final = 256
_MASK_UNKNOWN: Final = 0xFFFFFFFF
_MAGIC: Final = 0xA1B2C3D4
_MOST_SNAP: Final = 262_144
LIBRARIES: Final = ("libpcap.so.0.8", "libpcap.so.1")


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint), ("instructions", ctypes.c_void_p))


def take(snap_bytes: int) -> bytes:
    """A filter that accepts the first bytes of every packet; with 0 it accepts no packet."""
    return _RETURN.to_bytes(2, "little") + bytes(2) + snap_bytes.to_bytes(4, "little")


def without(devices: Iterable[int]) -> bytes:
    """The beginning of a filter that rejects packets seen at these devices; the rest of it decides on others."""
    steps = [struct.pack("<HBBI", _LOAD, 0, 0, _DEVICE)]
    for number in devices:
        steps += struct.pack("<HBBI", _IF_EQUAL, 0, 1, number), take(0)
    return b"".join(steps)


def compile_filter(expression: str, interface: str, link_type: int, snap_bytes: int) -> bytes:
    """The instructions of a tcpdump expression for this interface.

    libpcap opens the interface for this: only then does it know how this kernel stores VLAN tags.
    """
    pcap = _libpcap()
    said = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = pcap.pcap_create(interface.encode(), said)
    if not handle:
        raise WirelagError(f"{interface}: libpcap cannot open it ({_text(said.value)}); leave the filter out")
    try:
        pcap.pcap_set_snaplen(handle, snap_bytes)
        if pcap.pcap_activate(handle) < 0:
            raise WirelagError(f"{interface}: libpcap cannot open it ({_text(pcap.pcap_geterr(handle))})")
        if pcap.pcap_datalink(handle) != link_type:
            raise WirelagError(f"{interface}: libpcap sees other headers here than wirelag; leave the filter out")
        return _compiled(pcap, handle, expression)
    finally:
        pcap.pcap_close(handle)


def compile_for_file(expression: str, link_type: int, swapped: bool) -> bytes:
    """The instructions of a tcpdump expression for frames of a file with this link type and byte order.

    libpcap reads the header of such a file for this: its instructions are then those of `tcpdump -r`.
    """
    pcap = _libpcap()
    other = {"little": ">", "big": "<"}[sys.byteorder]
    header = struct.pack(f"{other if swapped else '='}IHHiIII", _MAGIC, 2, 4, 0, 0, _MOST_SNAP, link_type)
    said = ctypes.create_string_buffer(_ERROR_BYTES)
    with tempfile.TemporaryFile() as file:
        file.write(header)
        file.flush()
        handle = pcap.pcap_open_offline(f"/proc/self/fd/{file.fileno()}".encode(), said)
    if not handle:
        raise WirelagError(f"filter {expression!r}: libpcap does not know link type {link_type} ({_text(said.value)})")
    try:
        program = _compiled(pcap, handle, expression)
    finally:
        pcap.pcap_close(handle)
    try:
        _kernels.classic_filter(program, b"", 0)
    except ValueError:  # the only one known: it jumps back
        raise WirelagError(f"filter {expression!r}: protochain is not supported; use proto instead") from None
    return program


def _compiled(pcap: Any, handle: int, expression: str) -> bytes:
    program = _Program()
    if pcap.pcap_compile(handle, ctypes.byref(program), expression.encode(), 1, _MASK_UNKNOWN) < 0:
        why = _text(pcap.pcap_geterr(handle))
        raise WirelagError(f"filter {expression!r}: {why}; write it as for tcpdump (man pcap-filter)")
    try:
        return ctypes.string_at(program.instructions, program.count * INSTRUCTION_BYTES)
    finally:
        pcap.pcap_freecode(ctypes.byref(program))


def _libpcap() -> Any:
    for name in (*LIBRARIES, ctypes.util.find_library("pcap")):
        if name is None:
            continue
        try:
            pcap = ctypes.CDLL(name)
        except OSError:
            continue
        pcap.pcap_create.restype = pcap.pcap_open_offline.restype = ctypes.c_void_p
        pcap.pcap_geterr.restype = ctypes.c_char_p
        for function in ("set_snaplen", "activate", "datalink", "geterr", "close"):
            getattr(pcap, f"pcap_{function}").argtypes = [
                ctypes.c_void_p,
                *[ctypes.c_int] * (function == "set_snaplen"),
            ]
        pcap.pcap_compile.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32)
        ]
        return pcap
    raise WirelagError(
        "a filter like tcpdump's needs libpcap: install libpcap0.8 (or tcpdump), or leave the filter out"
    )


def _text(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split())
