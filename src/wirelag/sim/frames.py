"""From columns to the bytes of frames: Ethernet, IPv4 or IPv6, TCP with Linux's options, UDP with DNS.

A frame's layout follows from its packet. All frames of a layout are one structured array, so each header field is
written once for thousands of frames. Checksums cover the whole packet, however little of it is captured.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.sim.addresses import client_ipv4, ipv6_halves, server_ipv4
from wirelag.sim.packets import Packets
from wirelag.sim.scramble import scramble
from wirelag.sim.traffic import ANSWER, CLIENT, QUERY, SERVER, SYN, SYN_ACK, Bools, Connections, Ints

Records = npt.NDArray[Any]  # structured: the fields of a layout
Field = tuple[str, Any] | tuple[str, Any, int]

ETHERNET: Final[list[Field]] = [("mac_dst", "V6"), ("mac_src", "V6"), ("ethertype", ">u2")]
IPV4: Final[list[Field]] = [
    ("version", "u1"),
    ("class", "u1"),
    ("ip_length", ">u2"),
    ("ip_id", ">u2"),
    ("fragment", ">u2"),
    ("hops", "u1"),
    ("protocol", "u1"),
    ("ip_sum", "<u2"),
    ("src", ">u4"),
    ("dst", ">u4"),
]
IPV6: Final[list[Field]] = [
    ("version", "u1"),
    ("class", "u1"),
    ("flow", ">u2"),
    ("ip_length", ">u2"),
    ("protocol", "u1"),
    ("hops", "u1"),
    ("src_high", ">u8"),
    ("src", ">u8"),
    ("dst_high", ">u8"),
    ("dst", ">u8"),
]
PORTS: Final[list[Field]] = [("src_port", ">u2"), ("dst_port", ">u2")]
TCP: Final[list[Field]] = [
    *PORTS,
    ("seq", ">u4"),
    ("ack", ">u4"),
    ("offset", "u1"),
    ("flags", "u1"),
    ("receive", ">u2"),
    ("sum", "<u2"),
    ("urgent", ">u2"),
]
UDP: Final[list[Field]] = [*PORTS, ("udp_length", ">u2"), ("sum", "<u2")]

SEGMENT_SIZE: Final[list[Field]] = [("mss_option", ">u2"), ("mss", ">u2")]
TIMESTAMPS: Final[list[Field]] = [("ts_option", ">u2"), ("tsval", ">u4"), ("tsecr", ">u4")]
SACK: Final[list[Field]] = [("sack_option", ">u4"), ("sack_start", ">u4"), ("sack_end", ">u4")]
SCALE: Final[list[Field]] = [("scale_option", ">u4")]
PERMITTED: Final[list[Field]] = [("permitted_option", ">u2")]
PADDING: Final[list[Field]] = [("padding", ">u2")]
# The constant part of each option; NOP padding is where Linux puts it.
OPTION_VALUES: Final = {
    "mss_option": 0x0204,
    "permitted_option": 0x0402,
    "ts_option": 0x080A,
    "scale_option": 0x01030307,
    "padding": 0x0101,
    "sack_option": 0x0101050A,
}

QUESTION: Final[list[Field]] = [
    ("dns_id", ">u2"),
    ("dns_flags", ">u2"),
    ("questions", ">u2"),
    ("answers", ">u2"),
    ("others", ">u4"),
    ("name_length", "u1"),
    ("name", "u1", 12),
    ("domain", "V13"),
    ("question_type", ">u4"),
]
RECORD: Final[list[Field]] = [("pointer", ">u2"), ("type", ">u4"), ("ttl", ">u4"), ("size", ">u2"), ("address", ">u4")]

# Law: the first 64 payload bytes are a hash of (connection, side, sequence number), the others are 0.
PAYLOAD: Final[list[Field]] = [("payload", "u1", 64)]

LAYOUTS: Final[dict[str, list[Field]]] = {
    "syn_timestamps": [*TCP, *SEGMENT_SIZE, *PERMITTED, *TIMESTAMPS, *SCALE],
    "syn": [*TCP, *SEGMENT_SIZE, *PADDING, *PERMITTED, *SCALE],
    "timestamps": [*TCP, *PADDING, *TIMESTAMPS],
    "timestamps_sack": [*TCP, *PADDING, *TIMESTAMPS, *SACK],
    "plain": TCP,
    "sack": [*TCP, *SACK],
    "query": [*UDP, *QUESTION],
    "answer": [*UDP, *QUESTION, *RECORD],
}
LAYOUT_NAMES: Final = list(LAYOUTS)

MACS: Final = (b"\x02\x00\x00\x00\x00\x01", b"\x02\x00\x00\x00\x00\x02")  # the client's side, the server's side
HOPS: Final = 60  # at the first point; a second one is three hops further
HOPS_BETWEEN: Final = 3
SYN_RECEIVE, LATER_RECEIVE = 64_240, 501
PROTOCOL_TCP, PROTOCOL_UDP = 6, 17


@dataclass(frozen=True)
class Frames:
    """Frames in one buffer: frame i is `buffer[offset[i] : offset[i] + captured[i]]`."""

    time_ns: Ints
    buffer: npt.NDArray[np.uint8]
    offset: Ints
    captured: Ints
    wire: Ints


def build_frames(
    packets: Packets, connections: Connections, time_ns: Ints, crossed: Bools, snaplen: int, seed: int
) -> Frames:
    """Build the frames of some packets; `crossed` ones are further along the path."""
    ipv6 = connections.ipv6[packets.connection]
    layout = _layouts(packets, connections)
    groups: list[tuple[npt.NDArray[np.intp], Records]] = []
    wire = np.zeros(len(packets), np.int64)
    for number, name in enumerate(LAYOUT_NAMES):
        for version in (False, True):
            rows = np.flatnonzero((layout == number) & (ipv6 == version))
            if len(rows):
                part = packets.take(rows)
                records = _records(name, version, part, connections, crossed[rows], seed)
                wire[rows] = records.dtype.itemsize - 64 + part.length
                groups.append((rows, records))
    captured = np.minimum(wire, snaplen)
    offset = np.cumsum(captured) - captured
    buffer = np.zeros(int(captured.sum()), np.uint8)
    for rows, records in groups:
        _place(buffer, offset[rows], np.minimum(captured[rows], records.dtype.itemsize), records)
    return Frames(time_ns, buffer, offset, captured, wire)


def _layouts(packets: Packets, connections: Connections) -> Ints:
    timestamps = connections.timestamps[packets.connection]
    syn = (packets.kind == SYN) | (packets.kind == SYN_ACK)
    sack = packets.sack_end > 0
    number = {name: LAYOUT_NAMES.index(name) for name in LAYOUT_NAMES}
    with_timestamps = np.where(sack, number["timestamps_sack"], number["timestamps"])
    without = np.where(sack, number["sack"], number["plain"])
    return np.select(
        [packets.kind == QUERY, packets.kind == ANSWER, syn & timestamps, syn, timestamps],
        [number["query"], number["answer"], number["syn_timestamps"], number["syn"], with_timestamps],
        without,
    )


def _records(name: str, ipv6: bool, packets: Packets, connections: Connections, crossed: Bools, seed: int) -> Records:
    transport = LAYOUTS[name]
    header = [*ETHERNET, *(IPV6 if ipv6 else IPV4), *transport]
    records: Records = np.zeros(len(packets), np.dtype([*header, *PAYLOAD]))
    transport_size = np.dtype(transport).itemsize
    length = transport_size + packets.length.astype(np.int64)
    protocol = PROTOCOL_UDP if name in ("query", "answer") else PROTOCOL_TCP
    _fill_addresses(records, ipv6, packets, connections)
    _fill_ip(records, ipv6, packets, crossed, length, protocol)
    if protocol == PROTOCOL_UDP:
        _fill_dns(records, packets, name == "answer", length)
    else:
        _fill_tcp(records, packets, connections, transport_size, seed)
    fill_checksum(records, ipv6, length, protocol)
    return records


def _fill_addresses(records: Records, ipv6: bool, packets: Packets, connections: Connections) -> None:
    by_client = packets.sender == CLIENT
    client, server = connections.client[packets.connection], connections.server[packets.connection]
    ports = connections.client_port[packets.connection], connections.server_port[packets.connection]
    records["mac_src"] = np.array(MACS, "V6")[packets.sender]
    records["mac_dst"] = np.array(MACS, "V6")[1 - packets.sender]
    records["src_port"] = np.where(by_client, *ports)
    records["dst_port"] = np.where(by_client, *ports[::-1])
    if ipv6:
        ends = ipv6_halves(CLIENT, client), ipv6_halves(SERVER, server)
        records["src_high"] = np.where(by_client, ends[0][0], ends[1][0])
        records["dst_high"] = np.where(by_client, ends[1][0], ends[0][0])
        low = ends[0][1].astype(np.int64), ends[1][1].astype(np.int64)
    else:
        low = client_ipv4(client), server_ipv4(server)
    records["src"] = np.where(by_client, *low)
    records["dst"] = np.where(by_client, *low[::-1])


def _fill_ip(records: Records, ipv6: bool, packets: Packets, crossed: Bools, length: Ints, protocol: int) -> None:
    records["ethertype"] = 0x86DD if ipv6 else 0x0800
    records["version"] = 0x60 if ipv6 else 0x45
    records["protocol"] = protocol
    records["hops"] = HOPS - HOPS_BETWEEN * crossed
    records["ip_length"] = length if ipv6 else length + 20
    if not ipv6:
        records["ip_id"] = packets.ip_id
        records["fragment"] = 0x4000  # don't fragment
        fill_ip_checksum(records)


def _fill_tcp(records: Records, packets: Packets, connections: Connections, header_size: int, seed: int) -> None:
    names = records.dtype.names or ()
    own = _initial_sequence(packets, seed, packets.sender)
    other = _initial_sequence(packets, seed, 1 - packets.sender)
    records["seq"] = own + packets.seq
    records["ack"] = np.where(packets.kind == SYN, 0, other + packets.ack)
    records["offset"] = header_size // 4 << 4
    records["flags"] = packets.flags
    records["receive"] = SYN_RECEIVE if "mss" in names else LATER_RECEIVE
    for option in OPTION_VALUES.keys() & set(names):
        records[option] = OPTION_VALUES[option]
    if "mss" in names:
        records["mss"] = 1460 - 20 * connections.ipv6[packets.connection]
    if "tsval" in names:
        records["tsval"] = packets.ticks
        records["tsecr"] = packets.echo
    if "sack_start" in names:
        records["sack_start"] = other + packets.sack_start
        records["sack_end"] = other + packets.sack_end
    rows = np.flatnonzero(packets.length)
    if len(rows):
        mixed = scramble(packets.connection[rows], packets.sender[rows], packets.seq[rows])
        payload = scramble(mixed[:, None], np.arange(8)).view(np.uint8)
        payload[np.arange(64) >= packets.length[rows, None]] = 0
        records["payload"][rows] = payload


def _initial_sequence(packets: Packets, seed: int, side: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return scramble(packets.connection, side, seed).astype(np.uint32)


def _fill_dns(records: Records, packets: Packets, answer: bool, length: Ints) -> None:
    mixed = scramble(packets.connection)
    records["udp_length"] = length
    records["dns_id"] = mixed & np.uint64(0xFFFF)
    records["dns_flags"] = 0x8180 if answer else 0x0100
    records["questions"] = 1
    records["name_length"] = 12
    records["name"] = ((mixed[:, None] >> (np.arange(12, dtype=np.uint64) * np.uint64(4))) & np.uint64(15)) + ord("a")
    records["domain"] = np.void(b"\x07example\x03com\x00")
    records["question_type"] = 0x00010001  # A, IN
    if answer:
        records["answers"] = 1
        records["pointer"] = 0xC00C
        records["type"] = 0x00010001
        records["ttl"] = 300
        records["size"] = 4
        records["address"] = 0xC0000200 + (mixed & np.uint64(0xFF))


def fill_ip_checksum(records: Records) -> None:
    """Set the checksum of IPv4 headers after Ethernet."""
    records["ip_sum"] = ~_folded(_words(records, 14, 34))


def fill_checksum(records: Records, ipv6: bool, length: Ints, protocol: int) -> None:
    """Set the checksum of TCP or UDP; `length` is that of its header and payload."""
    # The pseudo header is the addresses, which stand right before the transport header, and two numbers. The sum does
    # not depend on byte order if all words have the same, so it is computed in little-endian throughout.
    numbers = (length.astype(">u2").view("<u2")).astype(np.uint32) + (protocol << 8)
    total = ~_folded(_words(records, 22 if ipv6 else 26, records.dtype.itemsize) + numbers)
    records["sum"] = np.where((total == 0) & (protocol == PROTOCOL_UDP), 0xFFFF, total)


def _words(records: Records, start: int, stop: int) -> npt.NDArray[np.uint32]:
    """Sum of the 16-bit words of every record from `start` to `stop`."""
    size = records.dtype.itemsize
    words = np.ndarray((len(records), (stop - start) // 2), "<u2", records.data, start, (size, 2))
    sums: npt.NDArray[np.uint32] = words.sum(axis=1, dtype=np.uint32)
    return sums


def _folded(total: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    total = (total & 0xFFFF) + (total >> 16)
    return ((total & 0xFFFF) + (total >> 16)).astype(np.uint16)


def _place(buffer: npt.NDArray[np.uint8], offset: Ints, size: Ints, records: Records) -> None:
    """Copy the first `size` bytes of every record to its offset, all records of one size at once."""
    for bytes_each in np.unique(size):
        rows = np.flatnonzero(size == bytes_each)
        kind = f"V{bytes_each}"
        source = np.ndarray(len(records), kind, records.data, strides=(records.dtype.itemsize,))
        places = np.ndarray(len(buffer) - int(bytes_each) + 1, kind, buffer.data, strides=(1,))
        places[offset[rows]] = source[rows]
