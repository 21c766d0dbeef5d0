"""Conversations for the tests of `pairs`: packets as they pass a point, and the results of kernel and twin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracles import pairs as naive
from wirelag import _kernels
from wirelag.packets.batch import COLUMNS, Flag, Kind, PacketBatch
from wirelag.synopses.request_response import EXCHANGE

SILENCE_NS = 5_000_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
Row = dict[str, Any]


def batch_of(rows: Sequence[Row]) -> PacketBatch:
    columns = {name: np.zeros((len(rows), width) if width > 1 else len(rows), dtype) for name, dtype, width in COLUMNS}
    columns["number"][:] = np.arange(1, len(rows) + 1)
    for i, row in enumerate(rows):
        for name in columns.keys() & row.keys():
            columns[name][i] = row[name]
    return PacketBatch(columns)


def ends_of(packets: PacketBatch) -> npt.NDArray[np.uint64]:
    ends = np.empty((len(packets), 5), np.uint64)
    _kernels.fill_endpoints(packets.src, packets.dst, packets.src_port, packets.dst_port, packets.protocol, ends)
    return ends


def taken(kernel: _kernels.Pairs) -> list[naive.Exchange]:
    room = np.zeros((kernel.records, _kernels.EXCHANGE_WORDS), np.uint64)
    assert kernel.take(room) == len(room)
    rows = room.view(EXCHANGE).reshape(-1)
    return [
        naive.Exchange._make((*row[:-1], (*ends,)))
        for row, ends in zip(rows.tolist(), rows["ends"].tolist(), strict=True)
    ]


def hold_equal(
    parts: Sequence[tuple[PacketBatch, npt.NDArray[np.uint8]]], memory: int = 1 << 20, silence_ns: int = SILENCE_NS
) -> naive.Pairs:
    """Both take the parts; a cut follows every second part and the end."""
    kernel, twin = _kernels.Pairs(memory, silence_ns), naive.Pairs(memory, silence_ns)
    found: list[naive.Exchange] = []
    for i, (packets, from_client) in enumerate(parts):
        ends = ends_of(packets)
        kernel.observe(packets, from_client, ends, packets.number)
        twin.observe(packets, from_client.tolist(), map(tuple, ends.tolist()))
        if i % 2 or i == len(parts) - 1:
            now_ns = int(packets.time_ns.max()) + (silence_ns + 1) * (i % 4 != 1) if len(packets) else 0
            kernel.cut(now_ns)
            twin.cut(now_ns)
        found += taken(kernel)
        assert found == twin.exchanges
        told = kernel.counts()
        assert told == {name: twin.counts[name] for name in told}
        assert sum(told.values()) == twin.counts.total()
    kernel.finish()
    twin.finish()
    assert found + taken(kernel) == twin.exchanges
    assert kernel.counts() == {name: twin.counts[name] for name in kernel.counts()}
    return twin


class Talk:
    """Packets of one connection as they pass the point; round trips take 2 ms to the client and 6 ms to the server."""

    def __init__(self, key: int = 9, start_ns: int = 10**9, kind: Kind = Kind.TCP, first: int = 2**32 - 700) -> None:
        self.key, self.now_ns, self.kind = key, start_ns, kind
        self.next = {True: first, False: first // 3}  # by whether the client sends
        self.rows: list[Row] = []

    def send(self, after_ns: int, from_client: bool, size: int = 0, message: int = ACK, **changes: int) -> None:
        self.now_ns += after_ns
        row: Row = {
            "time_ns": self.now_ns, "flow_key": self.key, "flags": 0 if from_client else Flag.REVERSE,
            "kind": self.kind, "protocol": 6 if self.kind == Kind.TCP else 17, "payload_length": size,
            "message": message, "seq": self.next[from_client] % 2**32, "ack": self.next[not from_client] % 2**32,
            "src": (0, 1 if from_client else 2), "dst": (0, 2 if from_client else 1),
            "src_port": 5000 if from_client else 80, "dst_port": 80 if from_client else 5000,
            "from_client": from_client,
        }  # fmt: skip
        self.rows.append(row | changes)
        if "seq" not in changes:
            self.next[from_client] += size + (message & SYN > 0) + (message & FIN > 0)

    def shake_hands(self) -> None:
        self.send(0, True, message=SYN)
        self.send(6_000_000, False, message=SYN | ACK)
        self.send(2_000_000, True)
