"""Test packets of STAMP sessions, there and back, as bytes (RFC 8762, unauthenticated; RFC 8972; TWAMP Light).

A request has a sequence number, a timestamp, its error estimate and an identifier of the session; a reply has the same
of the reflector, when the request came, what it said, and its TTL. What follows the standard's 44 bytes is padding or
TLVs (RFC 8972): a reply repeats it, and flags TLVs that are not known.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from wirelag.packets.stamp import ERA, FROM_1900_TO_1970, PTP, SECOND, STANDARD_BYTES

LEAST: Final = 14  # bytes of a request of TWAMP Light: sequence number, timestamp, error estimate
LATELY_NS: Final = 60 * SECOND  # a packet that repeats a time since then is a reply
_HEAD: Final = struct.Struct(">I8sHH")
_REPLY: Final = struct.Struct(">I8sHH8sI8sHxxB3x")
_ECHO: Final = slice(28, 36)  # of a reply: when the request was sent; then its error estimate
_TLV: Final = struct.Struct(">BBH")
PADDING: Final = 1  # the one type of TLV that means the same in a reply
UNKNOWN, MALFORMED = 0x80, 0x40  # flags of a TLV


class Request(NamedTuple):
    """What a sender says."""

    sequence: int
    sent_ns: int
    estimate: int
    session: int


class Reply(NamedTuple):
    """What a reflector says; times are on its clock, but for `sent_ns`."""

    sequence: int
    request: int  # the sequence number of the request
    sent_ns: int  # when the request was sent
    received_ns: int
    replied_ns: int
    estimate: int
    ttl: int


def pack_time(time_ns: int, ptp: bool) -> bytes:
    """A timestamp: truncated PTP (seconds and ns since 1970) or NTP (seconds and 2^-32 s since 1900)."""
    seconds, ns = divmod(time_ns, SECOND)
    if ptp:
        return struct.pack(">II", seconds & 0xFFFFFFFF, ns)
    fraction = ((ns << 32) + SECOND // 2) // SECOND
    whole = ((seconds + FROM_1900_TO_1970) << 32) + fraction & (1 << 64) - 1
    return whole.to_bytes(8)


def read_time(data: bytes, ptp: bool, near_ns: int) -> int | None:
    """The time nearest to `near_ns` that has this timestamp; None: it is impossible."""
    seconds, fraction = int.from_bytes(data[:4]), int.from_bytes(data[4:8])
    if ptp:
        if fraction >= SECOND:
            return None
        time_ns = seconds * SECOND + fraction
    else:
        time_ns = (seconds - FROM_1900_TO_1970) * SECOND + (fraction * SECOND + (1 << 31) >> 32)
    return time_ns + (near_ns - time_ns + ERA // 2) // ERA * ERA


def _is_ptp(estimate: int) -> bool:
    return bool(estimate >> 8 & PTP)


def request(sequence: int, sent_ns: int, estimate: int, session: int = 0, length: int = STANDARD_BYTES) -> bytes:
    """A request of this length; the error estimate says which timestamp it has."""
    stamp = pack_time(sent_ns, _is_ptp(estimate))
    rest = max(0, length - STANDARD_BYTES)
    more = b"" if not rest else _TLV.pack(0, PADDING, rest - 4) + bytes(rest - 4) if rest >= 4 else bytes(rest)
    return _HEAD.pack(sequence & 0xFFFFFFFF, stamp, estimate, session).ljust(STANDARD_BYTES, b"\0") + more


def _answers(data: bytes, near_ns: int) -> bool:
    """Whether a packet is a reply to what was sent here lately, by this clock: it repeats when that was.

    Two reflectors that took replies for requests would answer each other without end, after one forged packet. In a
    request there are zeros, or padding.
    """
    if len(data) < _ECHO.stop + 2 or not any(data[_ECHO]):
        return False
    sent_ns = read_time(data[_ECHO], _is_ptp(int.from_bytes(data[_ECHO.stop : _ECHO.stop + 2])), near_ns)
    return sent_ns is not None and abs(near_ns - sent_ns) <= LATELY_NS


def read_request(data: bytes, near_ns: int) -> Request | None:
    """What a request that came at `near_ns` says; None: it is none, as a reply is not."""
    if len(data) < LEAST or _answers(data, near_ns):
        return None
    sequence, stamp, estimate, session = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    sent_ns = read_time(stamp, _is_ptp(estimate), near_ns)
    if sent_ns is None:
        return None
    return Request(sequence, sent_ns, estimate, session if len(data) >= STANDARD_BYTES else 0)


def reply(data: bytes, sequence: int, received_ns: int, replied_ns: int, estimate: int, ttl: int) -> bytes:
    """The reply to a request, as long as it, in the timestamps that it has: TWAMP Light knows only NTP's."""
    asked, stamp, theirs, session = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    ptp = _is_ptp(theirs)
    mine = estimate | PTP << 8 if ptp else estimate & ~(PTP << 8)
    times = pack_time(replied_ns, ptp), pack_time(received_ns, ptp)
    if len(data) < STANDARD_BYTES:
        session = 0
    head = _REPLY.pack(sequence & 0xFFFFFFFF, times[0], mine, session, times[1], asked, stamp, theirs, ttl)
    return head + _flagged(data[STANDARD_BYTES:])


def _flagged(rest: bytes) -> bytes:
    """What follows the standard's bytes, with flags at TLVs that are unknown or do not end; zeros are padding."""
    if not any(rest):
        return rest
    made, at = bytearray(rest), 0
    while at + _TLV.size <= len(made):
        _, kind, length = _TLV.unpack_from(made, at)
        if at + _TLV.size + length > len(made):
            made[at] |= MALFORMED
            break
        if kind != PADDING:
            made[at] |= UNKNOWN
        at += _TLV.size + length
    return bytes(made)


def read_reply(data: bytes, near_ns: int) -> Reply | None:
    """What a reply says; None: it is none."""
    if len(data) < STANDARD_BYTES:
        return None
    sequence, replied, estimate, _, received, asked, sent, theirs, ttl = _REPLY.unpack(data[: _REPLY.size])
    times = (
        read_time(sent, _is_ptp(theirs), near_ns),
        read_time(received, _is_ptp(estimate), near_ns),
        read_time(replied, _is_ptp(estimate), near_ns),
    )
    if times[0] is None or times[1] is None or times[2] is None:
        return None
    return Reply(sequence, asked, times[0], times[1], times[2], estimate, ttl)
