"""What carries packets to backends, as the controller's loop sees it; the kernel's program is one such thing.

Law: a connection stays with its backend as long as that is listed, whatever becomes of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Service:
    """What clients connect to: an address and its ports; no port: all of them."""

    address: str
    ports: tuple[int, ...]
    protocol: Literal["tcp", "udp"] = "tcp"


@dataclass(frozen=True, slots=True)
class Backend:
    """A server, and where frames for it go."""

    name: str
    address: str  # its own, not the service's
    mac: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """What a backend got and how late it answered. Latencies are sums: a mean of means would be another number."""

    sum_ns: int = 0
    count: int = 0  # of latencies in the sum
    abstained: int = 0  # epochs whose packets do not tell a latency
    requests: int = 0
    connections: int = 0  # open at the end
    opened: int = 0
    packets: int = 0
    bytes: int = 0
    repeated: int = 0  # requests and SYNs that clients sent again
    closing: int = 0  # not open: clients have sent all, and may still be answered

    def __add__(self, later: Counts) -> Counts:
        """Both intervals, one after the other."""
        return Counts(
            self.sum_ns + later.sum_ns,
            self.count + later.count,
            self.abstained + later.abstained,
            self.requests + later.requests,
            later.connections,
            self.opened + later.opened,
            self.packets + later.packets,
            self.bytes + later.bytes,
            self.repeated + later.repeated,
            later.closing,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What happened since the last one, by the name of the backend."""

    time_ns: int
    backends: Mapping[str, Counts]
    counters: Mapping[str, int]  # what failed or found no room, since the start


class Dataplane(Protocol):
    """Packets to backends by a table of slots."""

    @property
    def description(self) -> str:
        """What it is and where, in a line."""

    def backends(self) -> tuple[Backend, ...]:
        """Those that it knows; after a takeover those of before."""

    def table(self) -> Table | None:
        """The table in use; None where there was none yet."""

    def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
        """All that may get packets, with the slot of each. A name keeps its slot; who is not listed gets nothing."""

    def set_table(self, table: Table) -> None:
        """Where new connections go from now on, all at once."""

    def read(self) -> Reading:
        """What happened since the last reading."""

    def close(self, leave: bool) -> None:
        """End; with `leave` traffic flows on as it does."""
