"""Packet batches: columns, one row per packet.

docs/reference/columns.md defines the columns; the kernel that fills them follows it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.errors import need_polars
from wirelag.packets.address import Address, to_address

if TYPE_CHECKING:
    import polars as pl

Array: TypeAlias = npt.NDArray[Any]

COLUMNS: Final = tuple(_kernels.columns())


def _places() -> dict[str, tuple[np.dtype[Any], int, int]]:
    """Dtype, width and offset of each column in a batch's memory."""
    places, offset = {}, 0
    for name, dtype, width in COLUMNS:
        places[name] = np.dtype(dtype), width, offset
        offset += np.dtype(dtype).itemsize * width * _kernels.BATCH_ROWS
    return places


_PLACES: Final = _places()


class Flag(enum.IntFlag):
    """Bits of the column `flags`."""

    IPV6 = 1 << 0
    REVERSE = 1 << 1
    FRAGMENT = 1 << 2
    LATER = 1 << 3
    SHORT = 1 << 4
    TIMESTAMPS = 1 << 5
    SACK = 1 << 6
    TUNNEL = 1 << 7
    INNER = 1 << 8
    VLAN = 1 << 9
    MPLS = 1 << 10
    PPPOE = 1 << 11
    PREFIX_CUT = 1 << 12
    UNSIZED = 1 << 13
    OPTIONS = 1 << 14


class Kind(enum.IntEnum):
    """Values of the column `kind`: what `message`, `transaction` and `seq` mean."""

    OTHER = 0
    TCP = 1
    UDP = 2
    ICMP = 3
    DNS = 4
    NTP = 5
    QUIC = 6
    ESP = 7
    WIREGUARD = 8
    STAMP = 9


class TcpFlag(enum.IntFlag):
    """Bits of the column `message` where `kind` is TCP."""

    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16
    URG = 32
    ECE = 64
    CWR = 128


class Block(NamedTuple):
    """A piece of a capture: its bytes from `offset` on. It keeps frames reachable."""

    name: str
    offset: int
    data: npt.NDArray[np.uint8]


class PacketBatch:
    """Columns of equal length, one row per packet, in the order of the capture."""

    __slots__ = (
        "_changed", "_chosen", "_memory", "_rows", "_whole", "ack", "blocks",
        "captured_length", "dst", "dst_port", "flags", "flow_key", "ip_id", "kind", "lasts", "message",
        "number", "offset", "packet_id", "payload_length", "payload_offset", "port", "protocol", "seq", "source", "src",
        "src_port", "time_ns", "traffic_class", "transaction", "tsecr", "tsval", "window", "wire_length",
    )  # fmt: skip

    time_ns: npt.NDArray[np.int64]
    number: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.uint64]
    src: npt.NDArray[np.uint64]
    dst: npt.NDArray[np.uint64]
    flow_key: npt.NDArray[np.uint64]
    packet_id: npt.NDArray[np.uint64]
    transaction: npt.NDArray[np.uint64]
    wire_length: npt.NDArray[np.uint32]
    captured_length: npt.NDArray[np.uint32]
    payload_length: npt.NDArray[np.uint32]
    seq: npt.NDArray[np.uint32]
    ack: npt.NDArray[np.uint32]
    tsval: npt.NDArray[np.uint32]
    tsecr: npt.NDArray[np.uint32]
    src_port: npt.NDArray[np.uint16]
    dst_port: npt.NDArray[np.uint16]
    window: npt.NDArray[np.uint16]
    ip_id: npt.NDArray[np.uint16]
    flags: npt.NDArray[np.uint16]
    payload_offset: npt.NDArray[np.uint16]
    source: npt.NDArray[np.uint16]
    protocol: npt.NDArray[np.uint8]
    traffic_class: npt.NDArray[np.uint8]
    kind: npt.NDArray[np.uint8]
    message: npt.NDArray[np.uint8]
    port: npt.NDArray[np.uint32]  # not a column: where an interface saw each packet, if asked for (capture/live.py)
    blocks: tuple[Block, ...]
    lasts: bool  # whether nothing else will ever be written to its columns
    _memory: npt.NDArray[np.uint8] | None  # of a batch that the kernel wrote
    _rows: int
    _whole: PacketBatch | None  # of a batch that is part of another
    _chosen: slice | Array
    _changed: bool  # has a column that the whole does not have

    def __init__(self, columns: dict[str, Array], blocks: tuple[Block, ...] = (), lasts: bool = False) -> None:
        for name, column in columns.items():
            setattr(self, name, column)
        self.blocks, self.lasts = blocks, lasts
        self._memory = self._whole = None
        self._changed = False

    @classmethod
    def in_memory(cls, memory: npt.NDArray[np.uint8], rows: int, blocks: tuple[Block, ...] = ()) -> PacketBatch:
        """A view of the first `rows` rows that the kernel wrote to this memory."""
        batch = cls({}, blocks)
        batch._memory, batch._rows = memory, rows
        return batch

    def __getattr__(self, name: str) -> Array:
        """Make a column on first use: most readers need only a few."""
        if name not in _PLACES:
            raise AttributeError(name)
        column: Array
        if self._memory is not None:
            dtype, width, offset = _PLACES[name]
            shape = (self._rows, width) if width > 1 else (self._rows,)
            column = np.ndarray(shape, dtype, self._memory, offset)
        elif self._whole is not None:
            column = getattr(self._whole, name)[self._chosen]
        else:
            raise AttributeError(name)
        setattr(self, name, column)
        return column

    @classmethod
    def empty(cls) -> PacketBatch:
        """A batch without rows."""
        return cls.in_memory(np.empty(_kernels.BATCH_BYTES, np.uint8), 0)

    def __len__(self) -> int:
        return len(self.time_ns) if self._memory is None else self._rows

    def __repr__(self) -> str:
        return f"<PacketBatch of {len(self)} packets>"

    def __getitem__(self, rows: slice | Array) -> PacketBatch:
        """Select rows: a slice is a view; a mask or an array of row numbers is a copy."""
        if isinstance(rows, slice) and rows.step is None:
            return self if rows.indices(len(self))[:2] == (0, len(self)) else self.choose(rows)
        return PacketBatch({name: getattr(self, name)[rows] for name in self._columns()}, self.blocks)

    def choose(self, rows: slice | Array) -> PacketBatch:
        """Select rows, each column when it is first used; until the result is dropped, all of this batch is kept."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            rows = slice(start, max(start, stop))
        batch = PacketBatch({}, self.blocks)
        batch._whole, batch._chosen = self, rows
        if self._whole is not None and not self._changed and isinstance(rows, slice):
            # A part of a part is a part of the whole: a batch that is cut into a thousand is not a thousand deep.
            batch._whole, batch._chosen = self._whole, _part(self._chosen, rows)
        return batch

    def _columns(self) -> list[str]:
        """The columns of this batch: all, or those given to a batch made by hand."""
        return [name for name, _, _ in COLUMNS if hasattr(self, name)]

    @staticmethod
    def concatenate(batches: Sequence[PacketBatch]) -> PacketBatch:
        """One batch with the rows of all batches, in order; frames stay reachable."""
        if not batches:
            return PacketBatch.empty()
        columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name, _, _ in COLUMNS}
        blocks: list[Block] = []
        start = 0
        for batch in batches:
            columns["source"][start : start + len(batch)] += np.uint16(len(blocks))
            start += len(batch)
            blocks += batch.blocks
        return PacketBatch(columns, tuple(blocks))

    @staticmethod
    def without_frames(batches: Sequence[PacketBatch]) -> PacketBatch:
        """One batch with copies of all rows, in order; it knows the names of captures, but none of their bytes."""
        names: dict[str, int] = {}
        sources = []
        for batch in batches:
            places = [names.setdefault(block.name, len(names)) for block in batch.blocks] or [0]
            sources.append(np.array(places, np.uint16)[batch.source if batch.blocks else np.zeros(len(batch), np.intp)])
        columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in batches[0]._columns()}
        blocks = tuple(Block(name, 0, np.empty(0, np.uint8)) for name in names)
        return PacketBatch(columns | {"source": np.concatenate(sources)}, blocks)

    def at_times(self, times_ns: npt.NDArray[np.int64]) -> PacketBatch:
        """The same packets with other times."""
        batch = self.choose(slice(None))
        batch.time_ns, batch._changed = times_ns, True
        return batch

    def has(self, flag: Flag) -> npt.NDArray[np.bool_]:
        """Rows with this flag."""
        return np.asarray((self.flags & np.uint16(flag)) != 0)

    def of_kind(self, kind: Kind) -> npt.NDArray[np.bool_]:
        """Rows of this kind."""
        return np.asarray(self.kind == np.uint8(kind))

    @property
    def dscp(self) -> npt.NDArray[np.uint8]:
        """Differentiated services code point."""
        return self.traffic_class >> np.uint8(2)

    def address(self, column: npt.NDArray[np.uint64], row: int) -> Address:
        """One address of the column `src` or `dst`."""
        return to_address(int(column[row, 0]), int(column[row, 1]))

    def frame(self, row: int) -> bytes:
        """The captured bytes of one packet, for fields without a column."""
        block = self.blocks[int(self.source[row])]
        start = int(self.offset[row]) - block.offset
        return block.data[start : start + int(self.captured_length[row])].tobytes()

    def to_polars(self) -> pl.DataFrame:
        """A data frame with one column each; addresses as text; time as a UTC datetime beside the integer ns."""
        need_polars("A data frame")
        import polars as pl

        texts = {name: _address_texts(getattr(self, name)) for name in ("src", "dst")}
        frame = pl.DataFrame({name: texts.get(name, getattr(self, name)) for name, _, _ in COLUMNS if name != "source"})
        return frame.with_columns(pl.from_epoch("time_ns", time_unit="ns").dt.replace_time_zone("UTC").alias("time"))


def _part(chosen: slice | Array, rows: slice) -> slice | Array:
    """The rows of a part, by their places in the whole."""
    if isinstance(chosen, slice):
        return slice(chosen.start + rows.start, chosen.start + rows.stop)
    return chosen[rows]


def _address_texts(column: npt.NDArray[np.uint64]) -> Array:
    distinct, rows = np.unique(column, axis=0, return_inverse=True)
    return np.array([str(to_address(int(high), int(low))) for high, low in distinct], dtype=object)[rows.reshape(-1)]
