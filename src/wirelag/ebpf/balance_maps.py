"""What the balancer's program (bpf/balance.bpf.c) and user space share: its maps, written and read.

Law: nothing here waits for packets, and no packet for anything here. The Maglev table has two halves; the one that is
not in use is filled, then one word says which is. A backend's MAC address is one word, too.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.capture import ktime
from wirelag.ebpf.bpf import Map
from wirelag.ebpf.service import Backend, Counts, Reading, Service, Table
from wirelag.errors import WirelagError

ABI: Final = 3  # of all that is pinned; another number, and it is not taken over
NO_BACKEND: Final = 0xFFFF
GROUP: Final = 8
TAKEN: Final = 1  # a slot of the connection table that is being filled
SEEN_SHIFT: Final = 24
LONGEST: Final = (1 << 31) - 1  # of these units: times of connections are compared on a circle
MOST_PORTS: Final = 8
NAME_BYTES: Final = 64
ADDRESS_BYTES: Final = 48
PROTOCOLS: Final = {"tcp": 6, "udp": 17}
MAPS: Final = ("settings", "maglev", "backends", "tallies", "faults", "groups", "connections")
MAPPED: Final = ("settings", "maglev", "backends", "groups", "connections")
FAULTS: Final = ("table_full", "unserved", "orphaned", "busy", "fragments", "malformed")

FLOW_FLAGS, WAITS = 30, 1  # in what `modes` keeps of a connection: a byte, and its bit: nothing came behind the SYN

# The program's own structures.
SETTINGS: Final = np.dtype(
    [
        *(("abi", "<u4"), ("active", "<u4"), ("vip_high", "<u8"), ("vip_low", "<u8"), ("seed", "<u8")),
        *(("ports", "<u2", MOST_PORTS), ("mac", "u1", 6), ("protocol", "u1"), ("any_port", "u1")),
        *(("table_size", "<u4"), ("group_mask", "<u4"), ("idle", "<u4"), ("closing", "<u4")),
        *(("epoch_ns", "<i8"), ("gap_ns", "<i8"), ("fewest", "<u4"), ("literal", "u1"), ("spare", "u1", 3)),
    ]
)
BACKEND: Final = np.dtype([("mac", "<u8"), ("name", f"S{NAME_BYTES}"), ("address", f"S{ADDRESS_BYTES}")])
CONNECTION: Final = np.dtype(
    [
        *(("busy", "<u4"), ("seen", "<u4"), ("backend", "<u2"), ("closed", "u1"), ("spare", "u1"), ("unused", "<u4")),
        ("flow", "u1", 144),
    ]
)
# packets, bytes, opened, requests, repeated, sum_ns, count, abstained
TALLY_WORDS: Final = 8


class Balancer:
    """Backends, table and counts of a program that has these maps. It meets the protocol of balance/dataplane.py."""

    def __init__(
        self,
        maps: Mapping[str, Map],
        mac: bytes,
        description: str,
        alive: Callable[[], bool] = lambda: True,
        end: Callable[[bool], None] = lambda leave: None,
    ) -> None:
        """`mac`: of its interface; `alive`: is that still there; `end`: what else is to be done at the end."""
        self.description, self._alive, self._end = description, alive, end
        self.maps = {name: maps[name] for name in MAPS}
        self._mac = np.frombuffer(mac, np.uint8)
        self._settings = maps["settings"].memory().view(SETTINGS)[0:1]
        self._backends = maps["backends"].memory().view(BACKEND)
        self._keys = maps["groups"].memory().view("<u8")
        self._connections = maps["connections"].memory().view(CONNECTION)
        self._maglev = maps["maglev"].memory().view("<u2")[::4]
        self._before = {number: self._tally(number) for number in self._slots().values()}
        self._free = [number for number in range(len(self._backends)) if number not in self._before]

    # ---- backends and the table ----

    def backends(self) -> tuple[Backend, ...]:
        """Those that it knows; after a takeover those of before."""
        known = self._backends[list(self._slots().values())]
        return tuple(
            Backend(one["name"].decode(), one["address"].decode(), int(one["mac"]).to_bytes(8, "little")[:6])
            for one in known
        )

    def table(self) -> Table | None:
        """The table in use; None where there was none yet."""
        half = self._half(int(self._settings["active"][0]))
        return None if half[0] == NO_BACKEND else half.astype(np.int32)

    def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
        """All that may get packets, with the slot of each. A name keeps its slot; who is not listed gets nothing."""
        for one in backends:
            if len(one.name.encode()) > NAME_BYTES or len(one.mac) != 6 or not any(one.mac):
                raise WirelagError(f"backend {one.name}: a name has at most {NAME_BYTES} bytes, a MAC address 6, not 0")
        if len(backends) > len(self._backends):
            raise WirelagError(f"{len(backends)} backends: there is room for {len(self._backends)}; ask for more")
        slots = self._slots()
        for name in slots.keys() - {one.name for one in backends}:
            self._forget(slots.pop(name))
        for one in backends:
            if one.name not in slots:
                # The one that was free for longest: a CPU may still be at a packet for who had it before.
                slots[one.name] = number = self._free.pop(0)
                self._before[number] = self._tally(number)
                self._backends["name"][number] = one.name.encode()
            self._backends["address"][slots[one.name]] = one.address.encode()
            self._backends["mac"][slots[one.name]] = int.from_bytes(one.mac, "little")
        return {one.name: slots[one.name] for one in backends}

    def set_table(self, table: Table) -> None:
        """Where new connections go from now on, all at once."""
        known = self._backends["mac"] != 0
        if len(table) != self._settings["table_size"][0] or not known[np.unique(table)].all():
            raise ValueError("a table has the size that was asked for, and only slots of backends")
        other = 1 - int(self._settings["active"][0])
        self._half(other)[:] = table
        self._settings["active"] = other
        # From here on packets are taken; before the first table all of them pass.
        self._settings["mac"][0] = self._mac

    def _half(self, which: int) -> npt.NDArray[np.uint16]:
        size = len(self._maglev) // 2
        return self._maglev[which * size : (which + 1) * size]

    def _slots(self) -> dict[str, int]:
        return {self._backends["name"][i].decode(): int(i) for i in np.flatnonzero(self._backends["mac"])}

    def _forget(self, number: int) -> None:
        """It is gone, and so are its connections: whoever gets its slot later does not inherit them."""
        self._backends["mac"][number] = 0
        self._backends["name"][number] = b""
        of_it = self._connections["backend"] == number
        self._connections["backend"][of_it] = NO_BACKEND
        del self._before[number]
        self._free.append(number)

    # ---- what happened ----

    def read(self, now_ns: int | None = None) -> Reading:
        """What happened since the last reading. A CPU may be between two counters: the next reading has the rest."""
        if not self._alive():
            raise WirelagError(f"{self.description}: the interface is gone; start again when it is back")
        open_now, closing = self._connections_of(ktime.now_ns() if now_ns is None else now_ns)
        found = {}
        for name, number in self._slots().items():
            now = self._tally(number)
            packets, size, opened, requests, repeated, sum_ns, count, abstained = (now - self._before[number]).tolist()
            self._before[number] = now
            found[name] = Counts(
                sum_ns=sum_ns,
                count=count,
                abstained=abstained,
                requests=requests,
                connections=int(open_now[number]),
                opened=opened,
                packets=packets,
                bytes=size,
                repeated=repeated,
                closing=int(closing[number]),
            )
        return Reading(time.time_ns(), found, self._faults())

    def _tally(self, number: int) -> npt.NDArray[np.uint64]:
        words = np.frombuffer(self.maps["tallies"].lookup(number) or b"", np.uint64)
        added: npt.NDArray[np.uint64] = words.reshape(-1, TALLY_WORDS).sum(axis=0, dtype=np.uint64)
        return added

    def _faults(self) -> dict[str, int]:
        values = [self.maps["faults"].lookup(i) or b"" for i in range(len(FAULTS))]
        return {name: int(np.frombuffer(value, np.uint64).sum()) for name, value in zip(FAULTS, values, strict=True)}

    def _connections_of(self, now_ns: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """How many each backend has that are not over (as the program sees it): open ones, and those that close.

        Fields are read where they are: the whole table would be a copy of a hundred megabytes.
        """
        every = self._connections
        now = np.uint32((now_ns >> SEEN_SHIFT) & 0xFFFFFFFF)
        # A packet may have come since: its time is later than ours, and modulo 2^32 that is an age of many days.
        age = (now - every["seen"]).astype(np.int32)
        closed = every["closed"] != 0
        soon = closed | (every["flow"][:, FLOW_FLAGS] & WAITS != 0)
        limit = np.where(soon, self._settings["closing"], self._settings["idle"]).astype(np.int32)
        held = (self._keys > TAKEN) & (age <= limit)
        count = [np.bincount(every["backend"][held & which], minlength=NO_BACKEND + 1) for which in (~closed, closed)]
        return count[0], count[1]

    def close(self, leave: bool) -> None:
        """End; with `leave` traffic flows on as it does, else all of it passes again."""
        self._end(leave)


def wanted_settings(
    service: Service, table_size: int, groups: int, idle_ns: int, closing_ns: int, epoch_ns: int, fewest: int
) -> npt.NDArray[np.void]:
    """Settings of a program that is new; `groups` is a power of two."""
    if len(service.ports) > MOST_PORTS:
        raise WirelagError(f"{len(service.ports)} ports: at most {MOST_PORTS} can be served, or all (none is named)")
    address = ipaddress.ip_address(service.address)
    number = int(address) | (0xFFFF << 32 if address.version == 4 else 0)
    s = np.zeros(1, SETTINGS)
    s["abi"], s["seed"] = ABI, int.from_bytes(os.urandom(8), "little")
    s["vip_high"], s["vip_low"] = number >> 64, number & (1 << 64) - 1
    s["ports"][0] = np.resize(service.ports or (0,), MOST_PORTS)
    s["protocol"], s["any_port"] = PROTOCOLS[service.protocol], not service.ports
    s["table_size"], s["group_mask"] = table_size, groups - 1
    s["idle"], s["closing"] = (min(max(1, ns >> SEEN_SHIFT), LONGEST) for ns in (idle_ns, closing_ns))
    s["epoch_ns"], s["fewest"] = epoch_ns, fewest
    return s


def prepare(maps: Mapping[str, Map], wanted: npt.NDArray[np.void], mac: bytes, new: bool) -> None:
    """Settings as they are wanted; what is in use keeps its seed, its table and its connections."""
    for name in MAPPED:  # whatever may fail, fails before a packet comes
        maps[name].memory()
    here = maps["settings"].memory().view(SETTINGS)
    if new:
        maps["maglev"].memory().view("<u2")[::4] = NO_BACKEND
        here[0] = wanted[0]
    for name in ("idle", "closing", "epoch_ns", "fewest"):
        here[name] = wanted[name]
    if here["mac"].any():  # the interface may have another by now
        here["mac"][0] = np.frombuffer(mac, np.uint8)
