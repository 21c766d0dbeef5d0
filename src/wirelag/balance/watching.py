"""Readings of `wirelag balance` without steering, from packets that another balancer sends.

A packet is a backend's if it goes to its address, or to the service's address at its MAC address. Memory: the meters'
tables, 64 MiB in total, and 8 bytes per connection of an interval.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.ebpf.service import Counts, Reading, Service
from wirelag.estimators.drive import drive
from wirelag.estimators.pirate import Method, Pirate
from wirelag.packets.batch import PacketBatch, TcpFlag
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval

if TYPE_CHECKING:
    from wirelag.balance.settings import BackendSettings
    from wirelag.capture.live import Source
    from wirelag.estimators.pirate import PirateMeter

Array = npt.NDArray[Any]

MEMORY: Final = 64 << 20
LEAST_MEMORY: Final = 1 << 20
PROTOCOLS: Final = {"tcp": 6, "udp": 17}
ENDED: Final = TcpFlag.FIN | TcpFlag.RST


@dataclass(slots=True)
class _Seen:
    """Packets to one backend in the open interval."""

    meter: PirateMeter
    packets: int = 0
    bytes: int = 0
    opened: int = 0
    keys: list[Array] = field(default_factory=list)
    ended: list[Array] = field(default_factory=list)

    def observe(self, packets: PacketBatch) -> None:
        self.meter.observe(packets)
        self.packets += len(packets)
        self.bytes += int(packets.wire_length.sum(dtype=np.int64))
        tcp = packets.protocol == PROTOCOLS["tcp"]
        self.opened += int(np.count_nonzero(tcp & ((packets.message & (TcpFlag.SYN | TcpFlag.ACK)) == TcpFlag.SYN)))
        self.keys.append(np.unique(packets.flow_key))
        self.ended.append(np.unique(packets.flow_key[tcp & ((packets.message & ENDED) != 0)]))

    def cut(self, interval: Interval) -> Counts:
        rows = self.meter.cut(interval).rows
        answered = rows[rows["count"] > 0]
        talked = np.setdiff1d(_together(self.keys), _together(self.ended))
        counts = Counts(
            sum_ns=int(answered["sum_ns"].sum()),
            count=int(answered["count"].sum()),
            abstained=len(rows) - len(answered),
            requests=int(rows["requests"].sum()),
            connections=len(talked),
            opened=self.opened,
            packets=self.packets,
            bytes=self.bytes,
            repeated=int(rows["lost"].sum()),
        )
        self.packets = self.bytes = self.opened = 0
        self.keys.clear()
        self.ended.clear()
        return counts


class Watching:
    """Readings from packets. Connections are those seen in an interval that did not end in it."""

    def __init__(self, service: Service, method: Method) -> None:
        self._service, self._method = service, method
        self._to_service = _halves(service.address)
        self._backends: dict[str, tuple[tuple[np.uint64, np.uint64], np.uint64 | None]] = {}
        self._seen: dict[str, _Seen] = {}
        self._unknown = 0

    def list(self, backends: tuple[BackendSettings, ...], mac_of: Callable[[BackendSettings], bytes | None]) -> None:
        """Set the backends to distinguish."""
        self._backends = {one.name: (_halves(one.address), _word(mac_of(one))) for one in backends}
        memory = max(LEAST_MEMORY, MEMORY // max(1, len(backends)))
        fresh = {one.name: _Seen(Pirate(self._method, memory).meter("tap")) for one in backends}
        self._seen = {name: self._seen.get(name, one) for name, one in fresh.items()}

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add packets; those to other services are ignored."""
        wanted = packets.protocol == PROTOCOLS[self._service.protocol]
        if self._service.ports:
            wanted &= np.isin(packets.dst_port, np.array(self._service.ports, np.uint16))
        if not wanted.any():
            return
        packets = packets[np.flatnonzero(wanted)]
        to_service = _goes_to(packets, self._to_service)
        macs = _macs(packets)
        rest = to_service.copy()
        for name, (address, mac) in self._backends.items():
            mine = _goes_to(packets, address)
            if mac is not None:
                mine |= to_service & (macs == mac)
            rows = np.flatnonzero(mine)
            rest[rows] = False
            if len(rows):
                self._seen[name].observe(packets[rows])
        self._unknown += int(np.count_nonzero(rest))

    def cut(self, interval: Interval) -> Reading:
        """End an interval."""
        counts = {name: seen.cut(interval) for name, seen in self._seen.items()}
        return Reading(interval.end_ns, counts, {"unknown_backend": self._unknown})


class _Together:
    """Several services that see the same packets."""

    def __init__(self, services: Sequence[Watching]) -> None:
        self._services = services

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        for one in self._services:
            one.observe(packets, grouping)

    def cut(self, interval: Interval) -> list[Reading]:
        return [one.cut(interval) for one in self._services]


def readings_of(services: Sequence[Watching], source: Source, interval_ns: int) -> Iterator[list[Reading]]:
    """A reading of each service for each interval, as it ends."""
    from wirelag.capture.live import by_clock

    for _, readings in drive(_Together(services), by_clock(source, interval_ns)):
        dropped = {"dropped": source.statistics.dropped}
        yield [replace(one, counters={**one.counters, **dropped}) for one in readings]


def _goes_to(packets: PacketBatch, address: tuple[np.uint64, np.uint64]) -> npt.NDArray[np.bool_]:
    return np.asarray((packets.dst[:, 0] == address[0]) & (packets.dst[:, 1] == address[1]))


def _halves(text: str) -> tuple[np.uint64, np.uint64]:
    address = ipaddress.ip_address(text)
    if address.version == 4:
        return np.uint64(0), np.uint64(0xFFFF << 32 | int(address))
    return np.uint64(int(address) >> 64), np.uint64(int(address) & (1 << 64) - 1)


def _word(mac: bytes | None) -> np.uint64 | None:
    return None if mac is None else np.uint64(int.from_bytes(mac, "big"))


def _macs(packets: PacketBatch) -> npt.NDArray[np.uint64]:
    """The destination MAC address of frames: their first six bytes on Ethernet."""
    found = np.zeros(len(packets), np.uint64)
    places = np.arange(6, dtype=np.uint64)
    shifts = np.uint64(8) * places[::-1]
    for source in np.unique(packets.source):
        rows = np.flatnonzero((packets.source == source) & (packets.captured_length >= 6))
        block = packets.blocks[int(source)]
        starts = packets.offset[rows] - np.uint64(block.offset)
        found[rows] = (block.data[starts[:, None] + places].astype(np.uint64) << shifts).sum(axis=1, dtype=np.uint64)
    return found


def _together(keys: list[Array]) -> Array:
    return np.unique(np.concatenate([np.empty(0, np.uint64), *keys]))
