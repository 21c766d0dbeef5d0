"""Test packets of STAMP sessions, there and back, as bytes (RFC 8762; RFC 8972; TWAMP Light without authentication).

A request has a sequence number, a timestamp, its error estimate and an identifier of the session; a reply has the same
of the reflector, when the request came, what it said, and its TTL. What follows the standard's 44 bytes is padding or
TLVs (RFC 8972): a reply repeats it, and flags TLVs that are not known.

With a key, packets have the standard's 112 bytes: the same fields, further apart, and the first half of an HMAC-SHA-256
of all bytes before it. One whose HMAC does not fit is none.
"""

from __future__ import annotations

import hmac
import struct
from typing import Final, NamedTuple

from wirelag.packets.stamp import ERA, FROM_1900_TO_1970, PTP, SECOND, STANDARD_BYTES

LEAST: Final = 14  # bytes of a request of TWAMP Light: sequence number, timestamp, error estimate
LATELY_NS: Final = 60 * SECOND  # a packet that repeats a time since then is a reply
_HEAD: Final = struct.Struct(">I8sHH")
_REPLY: Final = struct.Struct(">I8sHH8sI8sHxxB3x")
_SEALED_HEAD: Final = struct.Struct(">I12x8sHH68x")
_SEALED_REPLY: Final = struct.Struct(">I12x8sHH4x8s8xI12x8sH6xB15x")
_HMAC: Final = 16
SEALED_BYTES: Final = _SEALED_HEAD.size + _HMAC
_ECHO, _SEALED_ECHO = slice(28, 36), slice(64, 72)  # of a reply: when the request was sent; then its error estimate
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


def _sealed(packed: bytes, key: bytes) -> bytes:
    return packed + hmac.digest(key, packed, "sha256")[:_HMAC]


def _is_sealed(data: bytes, key: bytes) -> bool:
    before, seal = data[: SEALED_BYTES - _HMAC], data[SEALED_BYTES - _HMAC : SEALED_BYTES]
    return len(data) >= SEALED_BYTES and hmac.compare_digest(seal, hmac.digest(key, before, "sha256")[:_HMAC])


def least_bytes(key: bytes | None) -> int:
    """How long packets are at least, with or without authentication."""
    return STANDARD_BYTES if key is None else SEALED_BYTES


def request(
    sequence: int, sent_ns: int, estimate: int, session: int = 0, length: int = 0, key: bytes | None = None
) -> bytes:
    """A request of this length, or as long as it must be; the error estimate says which timestamp it has."""
    stamp = pack_time(sent_ns, _is_ptp(estimate))
    rest = max(0, length - least_bytes(key))
    more = b"" if not rest else _TLV.pack(0, PADDING, rest - 4) + bytes(rest - 4) if rest >= 4 else bytes(rest)
    values = sequence & 0xFFFFFFFF, stamp, estimate, session
    if key is not None:
        return _sealed(_SEALED_HEAD.pack(*values), key) + more
    return _HEAD.pack(*values).ljust(STANDARD_BYTES, b"\0") + more


def _asked(data: bytes, key: bytes | None) -> tuple[int, bytes, int, int]:
    """Sequence number, timestamp, error estimate and session of a request."""
    if key is not None:
        sealed: tuple[int, bytes, int, int] = _SEALED_HEAD.unpack(data[: _SEALED_HEAD.size])
        return sealed
    sequence, stamp, estimate, session = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    return sequence, stamp, estimate, session if len(data) >= STANDARD_BYTES else 0


def _answers(data: bytes, near_ns: int, key: bytes | None) -> bool:
    """Whether a packet is a reply to what was sent here lately, by this clock: it repeats when that was.

    Two reflectors that took replies for requests would answer each other without end, after one forged packet. In a
    request there are zeros, or padding.
    """
    echo = _ECHO if key is None else _SEALED_ECHO
    if len(data) < echo.stop + 2 or not any(data[echo]):
        return False
    sent_ns = read_time(data[echo], _is_ptp(int.from_bytes(data[echo.stop : echo.stop + 2])), near_ns)
    return sent_ns is not None and abs(near_ns - sent_ns) <= LATELY_NS


def read_request(data: bytes, near_ns: int, key: bytes | None = None) -> Request | None:
    """What a request that came at `near_ns` says; None: it is none, as a reply is not."""
    if len(data) < LEAST or _answers(data, near_ns, key) or (key is not None and not _is_sealed(data, key)):
        return None
    sequence, stamp, estimate, session = _asked(data, key)
    sent_ns = read_time(stamp, _is_ptp(estimate), near_ns)
    return None if sent_ns is None else Request(sequence, sent_ns, estimate, session)


def reply(
    data: bytes, sequence: int, received_ns: int, replied_ns: int, estimate: int, ttl: int, key: bytes | None = None
) -> bytes:
    """The reply to a request, as long as it, in the timestamps that it has: TWAMP Light knows only NTP's."""
    asked, stamp, theirs, session = _asked(data, key)
    ptp = _is_ptp(theirs)
    mine = estimate | PTP << 8 if ptp else estimate & ~(PTP << 8)
    times = pack_time(replied_ns, ptp), pack_time(received_ns, ptp)
    values = sequence & 0xFFFFFFFF, times[0], mine, session, times[1], asked, stamp, theirs, ttl
    head = _REPLY.pack(*values) if key is None else _sealed(_SEALED_REPLY.pack(*values), key)
    return head + _flagged(data[least_bytes(key) :])


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


def read_reply(data: bytes, near_ns: int, key: bytes | None = None) -> Reply | None:
    """What a reply says; None: it is none."""
    if len(data) < STANDARD_BYTES or (key is not None and not _is_sealed(data, key)):
        return None
    form = _REPLY if key is None else _SEALED_REPLY
    sequence, replied, estimate, _, received, asked, sent, theirs, ttl = form.unpack(data[: form.size])
    times = (
        read_time(sent, _is_ptp(theirs), near_ns),
        read_time(received, _is_ptp(estimate), near_ns),
        read_time(replied, _is_ptp(estimate), near_ns),
    )
    if times[0] is None or times[1] is None or times[2] is None:
        return None
    return Reply(sequence, asked, times[0], times[1], times[2], estimate, ttl)
