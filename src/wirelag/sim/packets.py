"""Simulated packets as columns, one row per packet, at the first vantage point that each one passes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BARE: Final = 255  # the kind of a bare acknowledgement


@dataclass(frozen=True)
class Packets:
    """Rows of packets. Sequence numbers count from 0 in each direction; frames add the initial ones."""

    time_ns: npt.NDArray[np.int64]  # at the vantage point, from the start of the simulation
    sent_ns: npt.NDArray[np.int64]  # when its host sent it
    connection: npt.NDArray[np.int32]
    sender: npt.NDArray[np.uint8]  # CLIENT or SERVER
    kind: npt.NDArray[np.uint8]  # kind of its flight
    flags: npt.NDArray[np.uint8]  # TCP flags
    seq: npt.NDArray[np.uint32]
    ack: npt.NDArray[np.uint32]
    trigger: npt.NDArray[np.uint32]  # end of the segment that triggered the acknowledgement
    sack_start: npt.NDArray[np.uint32]
    sack_end: npt.NDArray[np.uint32]  # 0: no SACK option
    length: npt.NDArray[np.uint16]  # payload bytes
    ticks: npt.NDArray[np.uint32]  # TSval
    echo: npt.NDArray[np.uint32]  # TSecr
    turn: npt.NDArray[np.uint8]
    lost: npt.NDArray[np.bool_]  # lost after the vantage point
    again_ns: npt.NDArray[np.uint32]  # an exact copy follows after this time; 0: none
    copy: npt.NDArray[np.bool_]  # is that copy
    ip_id: npt.NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "Packets":
        """The packets of these rows, in this order."""
        return Packets(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def end(self) -> npt.NDArray[np.uint32]:
        """Sequence number after the packet; SYN, FIN and DNS messages take one."""
        return self.seq + np.where(self.consumes & (self.length == 0), 1, self.length).astype(np.uint32)

    @property
    def consumes(self) -> npt.NDArray[np.bool_]:
        """Whether it is not a bare acknowledgement."""
        return np.not_equal(self.kind, BARE)


def concatenate(parts: Sequence[Packets]) -> Packets:
    """All packets of all parts."""
    return Packets(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Packets)))


class Gathered:
    """Packets of many parts, column by column. Room that is not used yet costs no memory."""

    def __init__(self, room: int) -> None:
        """Expect some number of packets; more are welcome."""
        self._room, self._count = room, 0
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def add(self, part: Packets) -> None:
        """Append packets."""
        count = self._count + len(part)
        for field in fields(Packets):
            values = getattr(part, field.name)
            column = self._columns.get(field.name, values[:0])
            if count > len(column):
                larger = np.empty(max(count, self._room, 2 * len(column)), values.dtype)
                larger[: self._count] = column[: self._count]
                self._columns[field.name] = column = larger
            column[self._count : count] = values
        self._count = count

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns by name, and with them the memory."""
        return {name: self._columns.pop(name)[: self._count] for name in list(self._columns)}
