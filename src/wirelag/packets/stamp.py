"""Reference packets on the wire: STAMP sender packets (RFC 8762, unauthenticated, UDP port 862), built and parsed.

The standard's 44 bytes: sequence number, timestamp, error estimate, zeros. Our fields follow, where other STAMP
receivers see padding: "WLR1", the send time of the regular packet before this one, and that packet's id. Our timestamps
are truncated PTP (seconds and ns, 32 bits each, as the error estimate states) since 1970; other senders may use NTP.
Both lack the upper bits of the seconds: the candidate nearest to the capture time is taken.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import Kind, PacketBatch

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PORT: Final = 862
STANDARD_BYTES: Final = 44
PAYLOAD_BYTES: Final = 64
MAGIC: Final = b"WLR1"
NONE: Final = int(np.iinfo(np.int64).min)
SYNCHRONISED, PTP, SCALE = 0x80, 0x40, 0x3F  # first byte of the error estimate: S, Z, and the scale
UNSYNCHRONISED_PTP: Final = 0x4001  # S 0, Z 1, scale 0, multiplier 1 (0 is not allowed)
SECOND: Final = 10**9
ERA: Final = SECOND << 32  # timestamps repeat after this time
FROM_1900_TO_1970: Final = 2_208_988_800
EARLIEST, LATEST = -(1 << 62), 1 << 62  # limits of a capture time: beyond them no candidate is nearest

TIME: Final = [("seconds", ">u4"), ("ns", ">u4")]
LAYOUT: Final = np.dtype(
    [
        ("sequence", ">u4"),
        ("time", TIME),
        ("error_estimate", ">u2"),
        ("zeros", "V30"),
        ("magic", "S4"),
        ("previous_time", TIME),
        ("previous_id", ">u8"),
    ]
)


_PACKED: Final = struct.Struct(">IIIH30x4sIIQ")  # the same layout
HEAD: Final = np.dtype(LAYOUT.descr[:3])
BEHIND: Final = np.dtype(LAYOUT.descr[4:])  # our fields, after the standard's bytes


@dataclass(frozen=True)
class Stamps:
    """Contents of reference packets, one entry per requested row."""

    sequence: npt.NDArray[np.uint32]
    sent_ns: Ints  # NONE: not a STAMP sender packet, or its timestamp is impossible
    previous_sent_ns: Ints  # NONE: not given
    previous_id: Words  # packet id computed by the sender; 0 where previous_sent_ns is NONE

    def __len__(self) -> int:
        return len(self.sequence)


def error_estimate(error_ns: int) -> int:
    """The error estimate of a sender whose clock is synchronised to within this error.

    The multiplier, 1 to 255, times 2^(scale - 32) seconds: at least the error, and at most a hundredth more.

    >>> hex(error_estimate(1000))
    '0xc587'
    """
    steps = -(-(max(0, error_ns) << 32) // SECOND)
    scale = max(0, steps.bit_length() - 8)
    multiplier = -(-steps >> scale)
    if multiplier > 255:
        scale, multiplier = scale + 1, 128
    return (SYNCHRONISED | PTP | min(scale, SCALE)) << 8 | max(1, multiplier)


def stated_error_ns(estimate: int) -> int | None:
    """The error that an error estimate states; None: the clock is not synchronised, or that is not known.

    >>> stated_error_ns(error_estimate(1000)), stated_error_ns(UNSYNCHRONISED_PTP)
    (1006, None)
    """
    first, multiplier = estimate >> 8, estimate & 0xFF
    if not first & SYNCHRONISED or not multiplier:
        return None
    return -(-(multiplier * SECOND << (first & SCALE)) >> 32)


def errors_ns(packets: PacketBatch, rows: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Whether senders of references on STAMP's own port report a synchronised clock, and its maximum error.

    If the multiplier was not captured, the largest is assumed.
    """
    first = packets.message[rows]
    gathered, whole = _gathered(packets, rows, 12, 14)
    multiplier = np.where(whole, gathered[:, 1], 255).astype(np.float64)
    found = np.ceil(np.ldexp(multiplier * SECOND, (first & SCALE).astype(np.int64) - 32))
    return (first & SYNCHRONISED) != 0, np.minimum(found, 1 << 62).astype(np.int64)


def payload(
    sequence: int, time_ns: int, previous: tuple[int, int] | None = None, estimate: int = UNSYNCHRONISED_PTP
) -> bytes:
    """The payload of one reference packet; `previous` is the time and id of the regular packet before it.

    >>> payload(7, 1_500_000_000).hex(" ", 4)[:35]
    '00000007 00000001 1dcd6500 40010000'
    """
    seconds, ns = divmod(time_ns, SECOND)
    before, before_ns = divmod(previous[0], SECOND) if previous else (0, 0)
    before_id = previous[1] if previous else 0
    whole = 0xFFFFFFFF
    return _PACKED.pack(sequence & whole, seconds & whole, ns, estimate, MAGIC, before & whole, before_ns, before_id)


def payloads(
    sequence: npt.NDArray[np.uint32], time_ns: Ints, previous_ns: Ints, previous_id: Words
) -> npt.NDArray[np.uint8]:
    """The payloads of many packets, one row each: always 64 bytes, even if no packet came before (its time is NONE)."""
    records: npt.NDArray[Any] = np.zeros(len(sequence), LAYOUT)
    known = previous_ns != NONE
    records["sequence"] = sequence
    _put_time(records["time"], time_ns)
    records["error_estimate"] = UNSYNCHRONISED_PTP
    records["magic"] = MAGIC
    _put_time(records["previous_time"], np.where(known, previous_ns, 0))
    records["previous_id"] = np.where(known, previous_id, 0)
    return records.view(np.uint8).reshape(-1, PAYLOAD_BYTES)


def parse(packets: PacketBatch, rows: npt.NDArray[np.intp], anywhere: bool = False) -> Stamps:
    """Parse the reference packets among these rows; other packets are recognised and yield NONE.

    The decoder has read those on STAMP's own port; `anywhere` also reads other ports, from the captured bytes.
    """
    if not len(rows):
        return Stamps(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
    near_ns = np.minimum(np.maximum(packets.time_ns[rows], EARLIEST), LATEST)
    lengths = packets.payload_length[rows]
    sender = lengths >= STANDARD_BYTES
    if anywhere:
        bytes_read, whole = _gathered(packets, rows, 0, HEAD.itemsize)
        head = bytes_read.view(HEAD).reshape(-1)
        sender &= whole
        sequence = head["sequence"].astype(np.uint32)
        seconds, fraction = (head["time"][name].astype(np.uint64) for name in ("seconds", "ns"))
        ptp = (head["error_estimate"] >> 8 & PTP) != 0
    else:
        sender &= (packets.kind[rows] == Kind.STAMP) & (packets.dst_port[rows] == PORT)
        sequence, stamp = packets.seq[rows], packets.transaction[rows]
        seconds, fraction = stamp >> np.uint64(32), stamp & np.uint64(0xFFFFFFFF)
        ptp = (packets.message[rows] & PTP) != 0
    sent_ns = _time_ns(seconds, fraction, ptp, near_ns)
    sent_ns[~sender] = NONE

    if not (lengths >= PAYLOAD_BYTES).any():
        return Stamps(sequence, sent_ns, np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.uint64))
    behind, whole = _gathered(packets, rows, STANDARD_BYTES, PAYLOAD_BYTES)
    fields = behind.view(BEHIND).reshape(-1)
    ours = whole & (sent_ns != NONE) & ptp & (fields["magic"] == MAGIC)
    seconds, ns = fields["previous_time"]["seconds"], fields["previous_time"]["ns"]
    previous_ns = _time_ns(seconds.astype(np.uint64), ns.astype(np.uint64), np.ones(len(rows), np.bool_), near_ns)
    previous_ns[~ours | ((seconds == 0) & (ns == 0))] = NONE
    previous_id = np.where(previous_ns != NONE, fields["previous_id"], 0).astype(np.uint64)
    return Stamps(sequence, sent_ns, previous_ns, previous_id)


def _put_time(field: npt.NDArray[Any], time_ns: Ints) -> None:
    field["seconds"] = (time_ns // SECOND) & 0xFFFFFFFF
    field["ns"] = time_ns % SECOND


def _time_ns(seconds: Words, fraction: Words, ptp: npt.NDArray[np.bool_], near_ns: Ints) -> Ints:
    """Seconds and ns (PTP) or seconds and 2^-32 s (NTP) as a time near `near_ns`; NONE if there is none."""
    time_ns = seconds.astype(np.int64) * SECOND
    if ptp.all():
        time_ns += fraction.astype(np.int64)
    else:
        ntp_ns = (fraction * np.uint64(SECOND) + np.uint64(1 << 31)) >> np.uint64(32)
        time_ns += np.where(ptp, fraction, ntp_ns).astype(np.int64) - np.where(ptp, 0, FROM_1900_TO_1970 * SECOND)
    eras = (near_ns - time_ns + ERA // 2) // ERA
    if eras.any():
        time_ns += eras * ERA
    time_ns[ptp & (fraction >= SECOND)] = NONE
    return time_ns


def _gathered(
    packets: PacketBatch, rows: npt.NDArray[np.intp], start: int, end: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """These bytes of each row's payload, and a mask of the rows where all were captured."""
    gathered = np.zeros((len(rows), end - start), np.uint8)
    begin = packets.payload_offset[rows].astype(np.int64) + start
    whole = (begin + (end - start) <= packets.captured_length[rows]) & (packets.payload_length[rows] >= end)
    source = packets.source[rows]
    for number, block in enumerate(packets.blocks):
        here = np.flatnonzero(whole & (source == number))
        if len(here):
            first = (packets.offset[rows[here]] - np.uint64(block.offset)).astype(np.int64) + begin[here]
            gathered[here] = block.data[first[:, None] + np.arange(end - start)]
    return gathered, np.asarray(whole & (source < len(packets.blocks)))
