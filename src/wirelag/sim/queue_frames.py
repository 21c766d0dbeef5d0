"""Packets of a queue as frames: TCP over IPv4, and STAMP reference packets; and their truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.stamp import NONE, PAYLOAD_BYTES, PORT, payloads
from wirelag.sim.addresses import address_text, client_ipv4, server_ipv4
from wirelag.sim.frames import Frames, build_frames
from wirelag.sim.packets import Packets
from wirelag.sim.queue import QueueSimulation
from wirelag.sim.traffic import CLIENT, DATA, SERVER, Connections
from wirelag.sim.truth import START_NS, crossings

if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]

BATCH: Final = 65_536
HEADERS: Final = 40  # IPv4 and TCP without options
ACK: Final = 16
SERVERS: Final = 20
PORTS: Final = 50_000  # client ports, one per flow
FIRST_PORT, SERVER_PORT, STAMP_SOURCE_PORT = 10_000, 5_001, 50_862
STAMP_SENDER, STAMP_RECEIVER = 0xC6120001, 0xC6120002  # 198.18.0.1, 198.18.0.2
LINK_TYPE: Final = 1  # Ethernet
MACS: Final = (b"\x02\x00\x00\x00\x00\x01", b"\x02\x00\x00\x00\x00\x02")  # the client's side, the server's side
HOPS, HOPS_BEHIND = 60, 57  # before the queue, and behind it
PROTOCOL_UDP: Final = 17
REFERENCE: Final = np.dtype(
    [
        *(("mac_dst", "V6"), ("mac_src", "V6"), ("ethertype", ">u2")),
        *(("version", "u1"), ("class", "u1"), ("ip_length", ">u2"), ("ip_id", ">u2"), ("fragment", ">u2")),
        *(("hops", "u1"), ("protocol", "u1"), ("ip_sum", "<u2"), ("src", ">u4"), ("dst", ">u4")),
        *(("src_port", ">u2"), ("dst_port", ">u2"), ("udp_length", ">u2"), ("sum", "<u2")),
        ("payload", "u1", PAYLOAD_BYTES),
    ]
)


def upstream_frames(simulation: QueueSimulation, snaplen: int = 128, references: bool = False) -> Iterator[Frames]:
    """The capture of a point before the queue, without or with the references."""
    rows = np.arange(len(simulation.bursts))
    sent_ns = simulation.reference_sent_ns if references else np.zeros(0, np.int64)
    yield from _frames(simulation, simulation.bursts.time_ns, rows, sent_ns, np.arange(len(sent_ns)), snaplen, False)


def downstream_frames(simulation: QueueSimulation, snaplen: int = 128) -> Iterator[Frames]:
    """The capture of a point after the queue: all packets that were not dropped."""
    rows = np.flatnonzero(simulation.left_ns != NONE)
    references = np.flatnonzero(simulation.reference_left_ns != NONE)
    left_ns, reference_ns = simulation.left_ns[rows], simulation.reference_left_ns[references]
    yield from _frames(simulation, left_ns, rows, reference_ns, references, snaplen, True)


def packet_truth(simulation: QueueSimulation) -> pl.DataFrame:
    """One row per regular packet, as between any two points, and the key that `wirelag flows` gives its flow."""
    packets = len(simulation.bursts)
    sent = np.append(simulation.bursts.time_ns, simulation.reference_sent_ns)
    left = np.append(simulation.left_ns, simulation.reference_left_ns)
    lost = left == NONE
    arrived = np.flatnonzero(~lost)
    truth = crossings(
        forward=np.ones(len(sent), np.bool_),
        sent=sent,
        arrival=np.where(lost, sent, left),
        lost=lost,
        kept=np.arange(len(sent)) < packets,
        up_row=np.arange(packets),
        down_row=arrived[np.argsort(left[arrived], kind="stable")],
    )
    return truth.with_columns(flow=_flow_keys(_connections(simulation.bursts.flows)).gather(simulation.bursts.flow))


def _flow_keys(connections: Connections) -> pl.Series:
    import polars as pl

    client, server, ipv6 = connections.client, connections.server, connections.ipv6
    ends = pl.DataFrame(
        {
            "client": address_text(client_ipv4(client), CLIENT, client, ipv6),
            "client_port": connections.client_port,
            "server": address_text(server_ipv4(server), SERVER, server, ipv6),
            "server_port": connections.server_port,
        }
    )
    return ends.select(pl.format("{}:{} > {}:{} tcp", *ends.columns)).to_series()


def _connections(flows: int) -> Connections:
    """A TCP connection for each flow; only its endpoints matter."""
    flow = np.arange(flows)
    no, never = np.zeros(flows, np.int64), np.zeros(flows, np.bool_)
    return Connections(
        start_ns=no,
        client=flow // PORTS,
        server=flow % SERVERS,
        client_port=FIRST_PORT + flow % PORTS,
        server_port=no + SERVER_PORT,
        near_ns=no,
        far_ns=no,
        ipv6=never,
        timestamps=never,
        dns=never,
        dead=never,
        again=never,
    )


def _frames(
    simulation: QueueSimulation,
    time_ns: Ints,
    rows: Ints,
    reference_ns: Ints,
    references: Ints,
    snaplen: int,
    crossed: bool,
) -> Iterator[Frames]:
    """Both kinds in order of time; at equal times the regular packet is first."""
    traffic = _Traffic(simulation)
    injection = simulation.scenario.references
    if len(references) and injection and injection.size != PAYLOAD_BYTES + 28:
        raise ValueError(f"a reference packet must have {PAYLOAD_BYTES + 28} bytes, not {injection.size}")
    times = np.append(time_ns, reference_ns)
    order = np.argsort(times, kind="stable")
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        regular, marked = part < len(rows), part >= len(rows)
        at_ns = START_NS + times[part]
        packets = traffic.frames(rows[part[regular]], at_ns[regular], snaplen, crossed)
        others = traffic.reference_frames(references[part[marked] - len(rows)], at_ns[marked], snaplen, crossed)
        yield _merged(at_ns, regular, packets, others)


class _Traffic:
    """The regular packets as rows of TCP connections, one per flow."""

    def __init__(self, simulation: QueueSimulation) -> None:
        bursts = simulation.bursts
        self.simulation, self.seed = simulation, simulation.scenario.seed
        self.connections = _connections(bursts.flows)
        # Each packet's position in its flow, and the payload bytes before it.
        order = np.argsort(bursts.flow, kind="stable")
        grouped = bursts.flow[order]
        first = np.searchsorted(grouped, grouped)
        payload = bursts.size[order].astype(np.int64) - HEADERS
        before = np.cumsum(payload) - payload
        self.place, self.seq = np.empty(len(order), np.uint16), np.empty(len(order), np.uint32)
        self.place[order] = np.arange(len(order)) - first
        self.seq[order] = 1 + before - before[first]

    def frames(self, rows: Ints, time_ns: Ints, snaplen: int, crossed: bool) -> Frames:
        bursts, count = self.simulation.bursts, len(rows)
        zero = np.zeros(count, np.int64)
        small, number, no = zero.astype(np.uint8), zero.astype(np.uint32), zero.astype(np.bool_)
        packets = Packets(
            time_ns=time_ns,
            sent_ns=time_ns,
            connection=bursts.flow[rows].astype(np.int32),
            sender=small,
            kind=small + np.uint8(DATA),
            flags=small + np.uint8(ACK),
            seq=self.seq[rows],
            ack=number + np.uint32(1),
            trigger=number,
            sack_start=number,
            sack_end=number,
            length=(bursts.size[rows] - HEADERS).astype(np.uint16),
            ticks=number,
            echo=number,
            turn=small,
            lost=no,
            again_ns=number,
            copy=no,
            ip_id=self.place[rows],
        )
        return build_frames(packets, self.connections, np.arange(count), time_ns, no | crossed, snaplen, self.seed)

    def reference_frames(self, numbers: Ints, time_ns: Ints, snaplen: int, crossed: bool) -> Frames:
        simulation = self.simulation
        if not len(numbers):
            return Frames(time_ns, np.zeros(0, np.uint8), time_ns, time_ns, time_ns)
        behind = simulation.reference_behind[numbers]
        previous_ns = np.where(behind >= 0, START_NS + simulation.bursts.time_ns[behind], NONE)
        sent_ns = START_NS + simulation.reference_sent_ns[numbers]
        records = np.zeros(len(numbers), REFERENCE)
        records["payload"] = payloads(numbers.astype(np.uint32), sent_ns, previous_ns, self._ids(behind))
        records["mac_src"], records["mac_dst"] = np.void(MACS[0]), np.void(MACS[1])
        records["ethertype"], records["version"], records["protocol"] = 0x0800, 0x45, PROTOCOL_UDP
        records["hops"] = HOPS_BEHIND if crossed else HOPS
        records["ip_length"] = REFERENCE.itemsize - 14
        records["ip_id"] = numbers & 0xFFFF
        records["fragment"] = 0x4000
        records["src"], records["dst"] = STAMP_SENDER, STAMP_RECEIVER
        records["src_port"], records["dst_port"] = STAMP_SOURCE_PORT, PORT
        records["udp_length"] = REFERENCE.itemsize - 34
        _fill_checksums(records)
        wire = np.full(len(numbers), REFERENCE.itemsize)
        captured = np.minimum(wire, snaplen)
        pieces = records.view(np.uint8).reshape(-1, REFERENCE.itemsize)[:, :snaplen]
        return Frames(time_ns, np.ascontiguousarray(pieces).reshape(-1), np.cumsum(captured) - captured, captured, wire)

    def _ids(self, rows: Ints) -> npt.NDArray[np.uint64]:
        """Packet ids as the decoder computes them; 0 if there is no packet."""
        ids = np.zeros(len(rows), np.uint64)
        there = np.flatnonzero(rows >= 0)
        frames = self.frames(rows[there], np.zeros(len(there), np.int64), 128, False)
        data = frames.buffer.tobytes()
        places = zip(frames.offset.tolist(), frames.captured.tolist(), frames.wire.tolist(), strict=True)
        for i, (begin, size, wire) in zip(there.tolist(), places, strict=True):
            decoded = _kernels.decode_frame(data[begin : begin + size], wire, LINK_TYPE)
            assert isinstance(decoded, dict)
            ids[i] = decoded["packet_id"]
        return ids


def _fill_checksums(records: npt.NDArray[Any]) -> None:
    """Set the checksums of IPv4 and UDP. The sum does not depend on byte order if all words have the same."""
    numbers = int.from_bytes((REFERENCE.itemsize - 34).to_bytes(2, "big"), "little") + (PROTOCOL_UDP << 8)
    records["ip_sum"] = ~_folded(_words(records, 14, 34))
    sums = ~_folded(_words(records, 26, REFERENCE.itemsize) + np.uint32(numbers))
    records["sum"] = np.where(sums == 0, 0xFFFF, sums)


def _words(records: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[np.uint32]:
    """Sum of the 16-bit words of every record from `start` to `stop`."""
    size = records.dtype.itemsize
    words = np.ndarray((len(records), (stop - start) // 2), "<u2", records.data, start, (size, 2))
    sums: npt.NDArray[np.uint32] = words.sum(axis=1, dtype=np.uint32)
    return sums


def _folded(total: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    total = (total & 0xFFFF) + (total >> 16)
    return ((total & 0xFFFF) + (total >> 16)).astype(np.uint16)


def _merged(time_ns: Ints, regular: npt.NDArray[np.bool_], packets: Frames, references: Frames) -> Frames:
    """Frames of two buffers, merged into one."""
    offset, captured, wire = (np.empty(len(time_ns), np.int64) for _ in range(3))
    offset[regular], offset[~regular] = packets.offset, references.offset + len(packets.buffer)
    captured[regular], captured[~regular] = packets.captured, references.captured
    wire[regular], wire[~regular] = packets.wire, references.wire
    return Frames(time_ns, np.append(packets.buffer, references.buffer), offset, captured, wire)
