"""Packets after a simulated queue with references among them, and RLI's results."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from wirelag.estimators.rli import Rli
from wirelag.packets.batch import COLUMNS, Block, Kind, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.stamp import PAYLOAD_BYTES, PORT, PTP, STANDARD_BYTES, payloads
from wirelag.sim.queue import QueueSimulation
from wirelag.synopses.flows import Flows

EVERYTHING = Interval(0, 1 << 62)
RATE = 250_000_000
KNOWN = Rli(bytes_per_s=RATE, noise_ns=0, memory=16 << 20)
STREAM = 0xABCDEF  # the key of the reference stream
MARK = 46
MARKED = replace(KNOWN, mark=MARK)


def seen(sim: QueueSimulation, padded: bool = False) -> PacketBatch:
    """The packets that arrive, as captured; references are plain STAMP, or have our padding with the packet before."""
    r = sim.receiver()
    columns = {name: np.zeros((len(r), width) if width > 1 else len(r), dtype) for name, dtype, width in COLUMNS}
    reference = r.is_reference == 1
    columns["time_ns"] = r.time_ns.copy()
    columns["flow_key"] = np.where(reference, np.uint64(STREAM), r.key)
    columns["packet_id"] = r.number.astype(np.uint64)
    columns["wire_length"] = r.size.copy()
    columns["kind"][reference] = Kind.STAMP
    columns["message"][reference] = PTP
    columns["seq"][reference] = r.number[reference]
    columns["dst_port"][reference] = PORT
    columns["payload_length"][reference] = STANDARD_BYTES
    set_sent(columns["transaction"], np.flatnonzero(reference), r.sent_ns[reference])
    if not padded:
        return PacketBatch(columns)
    before = sim.reference_behind[r.number[reference]].astype(np.uint64)
    data = payloads(columns["seq"][reference], r.sent_ns[reference], r.previous_sent_ns[reference], before).reshape(-1)
    columns["payload_length"][reference] = columns["captured_length"][reference] = PAYLOAD_BYTES
    columns["offset"][reference] = PAYLOAD_BYTES * np.arange(reference.sum())
    return PacketBatch(columns, (Block("", 0, data),))


def shaped(sim: QueueSimulation, burst: int) -> QueueSimulation:
    """The same packets through a token bucket of this depth instead of a link, and 20 us on a wire; none is dropped."""
    sizes = np.append(sim.bursts.size, np.full(len(sim.reference_sent_ns), sim.scenario.references.size))  # type: ignore[union-attr]
    came_ns = np.append(sim.bursts.time_ns, sim.reference_sent_ns)
    order = np.argsort(came_ns, kind="stable")
    left_ns, work_ns, before_ns = np.empty_like(came_ns), 0.0, 0
    burst_ns = burst * 1e9 / sim.scenario.bytes_per_s
    for row, now_ns, size in zip(order.tolist(), came_ns[order].tolist(), sizes[order].tolist(), strict=True):
        work_ns = max(0.0, work_ns - (now_ns - before_ns)) + size * 1e9 / sim.scenario.bytes_per_s
        before_ns, left_ns[row] = now_ns, now_ns + round(max(0.0, work_ns - burst_ns)) + 20_000
    packets = len(sim.bursts)
    return replace(sim, left_ns=left_ns[:packets], reference_left_ns=left_ns[packets:])


def set_sent(column: npt.NDArray[np.uint64], rows: npt.NDArray[np.intp], sent_ns: npt.NDArray[np.int64]) -> None:
    column[rows] = (sent_ns // 10**9).astype(np.uint64) << np.uint64(32) | (sent_ns % 10**9).astype(np.uint64)


def measured(estimator: Rli, *batches: PacketBatch) -> Flows:
    meter = estimator.meter("downstream")
    for batch in batches:
        meter.observe(batch)
    return meter.cut(EVERYTHING)


def references(packets: PacketBatch) -> npt.NDArray[np.intp]:
    return np.flatnonzero(packets.kind == Kind.STAMP)


def inserted(
    packets: PacketBatch, rows: npt.NDArray[np.intp], behind: npt.NDArray[np.intp], **changed: object
) -> PacketBatch:
    """Insert copies of rows, with other values, after other rows and at their times."""
    copies = packets[rows]
    copies.time_ns = packets.time_ns[behind].copy()
    for name, values in changed.items():
        getattr(copies, name)[...] = values
    order = np.argsort(np.append(np.arange(len(packets)), behind), kind="stable")
    return PacketBatch(
        {name: np.concatenate((getattr(packets, name), getattr(copies, name)))[order] for name, _, _ in COLUMNS}
    )


def marked(packets: PacketBatch, length: int = PAYLOAD_BYTES, captured: int = PAYLOAD_BYTES) -> PacketBatch:
    """References on another port, with a mark, as decoded UDP packets of these lengths."""
    rows = references(packets)
    packets.protocol[rows], packets.dst_port[rows], packets.kind[rows] = 17, 5000, Kind.UDP
    packets.traffic_class[rows] = MARK << 2 | 1  # the lower bits are not part of the mark
    packets.payload_length[rows], packets.captured_length[rows] = length, captured
    for name in ("seq", "transaction", "message"):
        getattr(packets, name)[rows] = 0
    return packets
