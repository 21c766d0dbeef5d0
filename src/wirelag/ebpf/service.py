"""The interface between the controller's loop and what forwards packets to backends, such as the kernel's program.

Law: a connection stays with its backend as long as that is listed, whatever happens to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int32]
Measured = Literal["auto", "modes"]  # methods that the kernel has
Via = Literal["l2", "ipip", "gue"]  # how packets reach a backend: its MAC address, or a tunnel to its address


@dataclass(frozen=True, slots=True)
class Service:
    """The service that clients connect to: an address and its ports; without ports, all of them."""

    address: str
    ports: tuple[int, ...]
    protocol: Literal["tcp", "udp"] = "tcp"


@dataclass(frozen=True, slots=True)
class Way:
    """The first step towards a backend: where frames go, and the outer source address if it is reached by a tunnel."""

    mac: bytes
    source: str = ""


@dataclass(frozen=True, slots=True)
class Backend:
    """A server, and how packets reach it."""

    name: str
    address: str  # its own address, not the service's
    way: Way
    down: bool = False  # it fails its health check
    via: Via = "l2"


@dataclass(frozen=True, slots=True)
class Counts:
    """Traffic and latencies of a backend. Latencies are sums: a mean of means would be another number."""

    sum_ns: int = 0
    count: int = 0  # latencies in the sum
    abstained: int = 0  # epochs whose packets reveal no latency
    requests: int = 0
    connections: int = 0  # open at the end
    opened: int = 0
    packets: int = 0
    bytes: int = 0
    repeated: int = 0  # requests and SYNs that clients repeated
    closing: int = 0  # not open, but responses may come: clients have sent everything, or only a SYN

    def __add__(self, later: Counts) -> Counts:
        """The sum of two successive intervals."""
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
    """Counts since the last reading, by name of the backend."""

    time_ns: int
    backends: Mapping[str, Counts]
    counters: Mapping[str, int]  # failures and overflows since the start


class Dataplane(Protocol):
    """Forwards packets to backends by a table of slots."""

    @property
    def description(self) -> str:
        """What it is and where, in one line."""

    def backends(self) -> tuple[Backend, ...]:
        """The known backends; after a takeover, those from before."""

    def table(self) -> Table | None:
        """The table in use; None if there is none yet."""

    def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
        """Set the backends that may get packets; return their slots. A name keeps its slot; others get nothing."""

    def set_table(self, table: Table) -> None:
        """Set, atomically, where new connections go."""

    def read(self) -> Reading:
        """Counts since the last reading."""

    def peek(self) -> Mapping[str, Counts]:
        """The same so far, without the connections that are open; the next reading has it, too."""

    def close(self, leave: bool) -> None:
        """End; with `leave`, traffic keeps flowing."""
