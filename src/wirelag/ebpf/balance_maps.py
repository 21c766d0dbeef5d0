"""The maps that the balancer's program (bpf/balance.bpf.c) and user space share: writing and reading.

Law: neither side ever waits for the other. There are three Maglev tables: the unused one is filled, then one word
switches to it; the third is that of before weights began to move. A backend's MAC address is one word, too, with
marks that say how it is reached: of its two tunnels the unused one is written first.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.capture import ktime
from wirelag.ebpf.bpf import Map
from wirelag.ebpf.service import Backend, Counts, Reading, Service, Table, Via, Way
from wirelag.errors import WirelagError

ABI: Final = 6  # version of everything pinned; another one is not taken over
NO_BACKEND: Final = 0xFFFF
GROUP: Final = 8
TAKEN: Final = 1  # a slot of the connection table that is being filled
SEEN_SHIFT: Final = 24
PACE_SHIFT: Final = 3  # new connections are limited in each 2^3 of these units
DOWN: Final = 1 << 48  # beside a backend's MAC address
OTHER_TUNNEL: Final = 1 << 49  # the second of its tunnels is in use
VIAS: Final[Mapping[Via, int]] = {"l2": 0, "ipip": 1 << 50, "gue": 1 << 51}
UNCONFIRMED: Final = 4  # places for unconfirmed connections, for each of a confirmed one
TABLES: Final = 3
STABLE_NS: Final = 10_000_000_000  # a Maglev table in use for this long is what connections were opened with
SETTLED_NS: Final = 4_000_000_000  # a connection heard for this long makes room for no other
LONGEST: Final = (1 << 31) - 1  # limit in these units: times of connections are compared modulo 2^32
MOST_PORTS: Final = 8
NAME_BYTES: Final = 64
ADDRESS_BYTES: Final = 48
PROTOCOLS: Final = {"tcp": 6, "udp": 17}
GUE_PORT: Final = 6080
MEASURES: Final = {"nothing": 0, "auto": 1, "modes": 2}  # the constant `measures` of the program
MAPS: Final = ("settings", "maglev", "backends", "tallies", "faults", "groups", "connections", "openings", "paces")
MAPPED: Final = ("settings", "maglev", "backends", "groups", "connections", "openings")
FAULTS: Final = (
    *("table_full", "unserved", "orphaned", "busy", "fragments", "malformed"),
    *("unknown", "limited", "pushed_out", "too_long", "unsent"),
)

# The program's own structures.
SETTINGS: Final = np.dtype(
    [
        *(("abi", "<u4"), ("active", "<u4"), ("vip_high", "<u8"), ("vip_low", "<u8"), ("seed", "<u8")),
        ("table_seed", "<u8"),
        *(("ports", "<u2", MOST_PORTS), ("mac", "u1", 6), ("protocol", "u1"), ("any_port", "u1")),
        *(("table_size", "<u4"), ("group_mask", "<u4"), ("idle", "<u4"), ("closing", "<u4")),
        *(("settled", "<u4"), ("opening_mask", "<u4"), ("most_new", "<u4")),
        *(("previous", "<u4"), ("changed", "<u4"), ("kept", "<u4")),
        *(("mtu", "<u4"), ("gue_port", "<u2"), ("spare2", "<u2")),
        *(("epoch_ns", "<i8"), ("gap_ns", "<i8"), ("fewest", "<u4"), ("literal", "u1"), ("spare", "u1", 3)),
    ]
)
TUNNEL: Final = np.dtype([("to_high", "<u8"), ("to_low", "<u8"), ("from_high", "<u8"), ("from_low", "<u8")])
BACKEND: Final = np.dtype(
    [("mac", "<u8"), ("name", f"S{NAME_BYTES}"), ("address", f"S{ADDRESS_BYTES}"), ("tunnels", TUNNEL, 2)]
)
CONNECTION: Final = np.dtype(
    [
        *(("busy", "<u4"), ("seen", "<u4"), ("backend", "<u2"), ("closed", "u1"), ("method", "u1"), ("since", "<u4")),
        *(("next", "<u4"), ("acked", "<u4")),
        ("flow", "u1", 256),
    ]
)
OPENING: Final = np.dtype([("keys", "<u8", GROUP), ("words", "<u8", GROUP), ("shown", "<u8", GROUP)])
MARKED: Final = 1 << 16  # in a word: it began with a SYN
MARKS: Final = 0x7FFFF  # in a word: all that is not time
BYTES_EACH: Final = 8 + CONNECTION.itemsize + UNCONFIRMED * OPENING.itemsize // GROUP  # of memory, per connection
# packets, bytes, opened, requests, repeated, sum_ns, count, abstained
TALLY_WORDS: Final = 8


class Balancer:
    """Backends, table and counters of a program with these maps. Implements the protocol of service.py."""

    def __init__(
        self,
        maps: Mapping[str, Map],
        mac: bytes,
        description: str,
        alive: Callable[[], bool] = lambda: True,
        end: Callable[[bool], None] = lambda leave: None,
    ) -> None:
        """`mac`: MAC address of its interface; `alive`: whether that still exists; `end`: what to do on close."""
        self.description, self._alive, self._end = description, alive, end
        self.maps = {name: maps[name] for name in MAPS}
        self._mac = np.frombuffer(mac, np.uint8)
        self._settings = maps["settings"].memory().view(SETTINGS)[0:1]
        self._backends = maps["backends"].memory().view(BACKEND)
        self._keys = maps["groups"].memory().view("<u8")
        self._connections = maps["connections"].memory().view(CONNECTION)
        self._openings = maps["openings"].memory().view(OPENING)
        self._maglev = maps["maglev"].memory().view("<u2")[::4]
        self._before = {number: self._tally(number) for number in self._slots().values()}
        used = set(self._connections["backend"][self._keys > TAKEN].tolist())  # by connections of those that are gone
        free = [number for number in range(len(self._backends)) if number not in self._before]
        self._free = sorted(free, key=lambda number: number in used)

    # ---- backends and the table ----

    def backends(self) -> tuple[Backend, ...]:
        """The known backends; after a takeover, those from before."""
        return tuple(map(_backend, self._backends[list(self._slots().values())]))

    def table(self) -> Table | None:
        """The table in use; None if there is none yet."""
        half = self._entries(int(self._settings["active"][0]))
        return None if half[0] == NO_BACKEND else half.astype(np.int32)

    def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
        """Set the backends that may get packets; return their slots. A name keeps its slot; others get nothing."""
        for one in backends:
            if len(one.name.encode()) > NAME_BYTES or len(one.way.mac) != 6 or not any(one.way.mac):
                raise WirelagError(f"backend {one.name}: a name has at most {NAME_BYTES} bytes, a MAC address 6, not 0")
        if len(backends) > len(self._backends):
            raise WirelagError(f"{len(backends)} backends, but only {len(self._backends)} fit; allow more")
        slots = self._slots()
        for name in slots.keys() - {one.name for one in backends}:
            self._forget(slots.pop(name))
        for one in backends:
            if one.name not in slots:
                # The slot free for longest: a CPU may still be handling a packet for its previous owner.
                slots[one.name] = number = self._free.pop(0)
                self._clear(number)
                self._before[number] = self._tally(number)
                self._backends["name"][number] = one.name.encode()
            self._backends["address"][slots[one.name]] = one.address.encode()
            word = int.from_bytes(one.way.mac, "little") | (DOWN if one.down else 0) | VIAS[one.via]
            self._backends["mac"][slots[one.name]] = word | self._tunnel(slots[one.name], one)
        return {one.name: slots[one.name] for one in backends}

    def _tunnel(self, number: int, one: Backend) -> int:
        """Write its tunnel; return the mark of the one to use. A tunnel in use is not changed."""
        if one.via == "l2":
            return 0
        used = int(self._backends["mac"][number]) & OTHER_TUNNEL
        tunnels = self._backends["tunnels"][number]
        wanted = np.array((*halves(one.address), *halves(one.way.source)), TUNNEL)
        if tunnels[1 if used else 0] == wanted:
            return used
        tunnels[0 if used else 1] = wanted
        return OTHER_TUNNEL ^ used

    def set_table(self, table: Table, now_ns: int | None = None) -> None:
        """Set, atomically, where new connections go. `now_ns`: on the clock of packets."""
        known = self._backends["mac"] != 0
        if len(table) != self._settings["table_size"][0] or not known[np.unique(table)].all():
            raise ValueError("a table must have the configured size and only slots of backends")
        here = self._settings
        now = _units(ktime.now_ns() if now_ns is None else now_ns)
        active, previous = int(here["active"][0]), int(here["previous"][0])
        first = not here["mac"].any()  # before it there is nothing
        # While weights move from step to step, the table of before they began is kept, but not for ever.
        stable = _since(now, here["changed"][0]) >= STABLE_NS >> SEEN_SHIFT
        if first or stable or _since(now, here["kept"][0]) > here["idle"][0]:
            here["previous"], here["kept"], previous = active, now, active
        unused = active if first else next(i for i in range(TABLES) if i not in (active, previous))
        self._entries(unused)[:] = table
        here["changed"] = now
        here["active"] = unused
        # From here on packets are handled; before the first table all of them pass.
        here["mac"][0] = self._mac

    def _entries(self, which: int) -> npt.NDArray[np.uint16]:
        size = len(self._maglev) // TABLES
        return self._maglev[which * size : (which + 1) * size]

    def _slots(self) -> dict[str, int]:
        return {self._backends["name"][i].decode(): int(i) for i in np.flatnonzero(self._backends["mac"])}

    def _forget(self, number: int) -> None:
        """Remove a backend. Its connections keep its slot, which has no MAC address: the program sends them elsewhere.

        They are not changed here: meanwhile the program may have given such a place to a new connection.
        """
        self._backends["mac"][number] = 0
        self._backends["name"][number] = b""
        del self._before[number]
        self._free.append(number)

    def _clear(self, number: int) -> None:
        """Take a free slot from what still refers to it, so that its next owner inherits nothing."""
        of_it = (self._keys > TAKEN) & (self._connections["backend"] == number)
        self._connections["backend"][of_it] = NO_BACKEND
        slots = self._openings["words"].view("<u2")[:, ::4]
        slots[(self._openings["keys"] > TAKEN) & (slots == number)] = NO_BACKEND
        for which in set(range(TABLES)) - {int(self._settings["active"][0])}:
            entries = self._entries(which)
            entries[entries == number] = NO_BACKEND

    # ---- reading ----

    def read(self, now_ns: int | None = None) -> Reading:
        """Counts since the last reading. A CPU may be between two counters: the next reading has the rest."""
        if not self._alive():
            raise WirelagError(f"{self.description}: the interface is gone; start again when it is back")
        open_now, closing = self._connections_of(ktime.now_ns() if now_ns is None else now_ns)
        found = {}
        for name, number in self._slots().items():
            now = self._tally(number)
            counts = _counts(now - self._before[number])
            self._before[number] = now
            found[name] = replace(counts, connections=int(open_now[number]), closing=int(closing[number]))
        return Reading(time.time_ns(), found, self._faults())

    def peek(self) -> dict[str, Counts]:
        """The counts of a reading that goes on, without the connections, which take a walk over their table."""
        return {name: _counts(self._tally(number) - self._before[number]) for name, number in self._slots().items()}

    def _tally(self, number: int) -> npt.NDArray[np.uint64]:
        words = np.frombuffer(self.maps["tallies"].lookup(number) or b"", np.uint64)
        added: npt.NDArray[np.uint64] = words.reshape(-1, TALLY_WORDS).sum(axis=0, dtype=np.uint64)
        return added

    def _faults(self) -> dict[str, int]:
        values = [self.maps["faults"].lookup(i) or b"" for i in range(len(FAULTS))]
        return {name: int(np.frombuffer(value, np.uint64).sum()) for name, value in zip(FAULTS, values, strict=True)}

    def _connections_of(self, now_ns: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Connections of each backend that are not over (as the program sees it): open ones; opening or closing ones.

        Fields are read in place: the whole table would be a copy of 35 MB or more.
        """
        every = self._connections
        now = _units(now_ns)
        # A packet may have come since: its time is later than ours, and modulo 2^32 that looks like an age of many
        # days.
        age = (now - every["seen"]).astype(np.int32)
        closed = every["closed"] != 0
        limit = np.where(closed, self._settings["closing"], self._settings["idle"]).astype(np.int32)
        held = (self._keys > TAKEN) & (age <= limit)
        count = [np.bincount(every["backend"][held & which], minlength=NO_BACKEND + 1) for which in (~closed, closed)]
        return count[0], count[1] + self._opening(now_ns)

    def _opening(self, now_ns: int) -> npt.NDArray[np.intp]:
        """Connections of each backend whose SYN came lately, and nothing else yet."""
        words = self._openings["words"][(self._openings["keys"] > TAKEN) & (self._openings["words"] & MARKED != 0)]
        age_ns = (np.uint64(now_ns << 16 & (1 << 64) - 1) - (words & ~np.uint64(MARKS))).astype(np.int64) >> 16
        late = words[age_ns >> SEEN_SHIFT <= int(self._settings["closing"][0])]
        return np.bincount((late & 0xFFFF).astype(np.intp), minlength=NO_BACKEND + 1)

    def close(self, leave: bool) -> None:
        """End; with `leave`, traffic keeps flowing through the balancer, else all of it passes again."""
        self._end(leave)


def wanted_settings(
    service: Service,
    table_size: int,
    groups: int,
    idle_ns: int,
    closing_ns: int,
    epoch_ns: int,
    fewest: int,
    most_new: int | None = None,
    secret: str = "",
    mtu: int = 1500,
    gue_port: int = GUE_PORT,
) -> npt.NDArray[np.void]:
    """Settings of a new program; `groups` is a power of two, `most_new` per second, `mtu` for tunnels."""
    if len(service.ports) > MOST_PORTS:
        raise WirelagError(f"{len(service.ports)} ports: at most {MOST_PORTS} can be served; name none to serve all")
    s = np.zeros(1, SETTINGS)
    s["abi"], s["seed"] = ABI, int.from_bytes(os.urandom(8), "little")
    s["vip_high"], s["vip_low"] = halves(service.address)
    s["ports"][0] = np.resize(service.ports or (0,), MOST_PORTS)
    s["protocol"], s["any_port"] = PROTOCOLS[service.protocol], not service.ports
    s["table_size"], s["group_mask"] = table_size, groups - 1
    s["idle"], s["closing"] = (min(max(1, ns >> SEEN_SHIFT), LONGEST) for ns in (idle_ns, closing_ns))
    s["epoch_ns"], s["fewest"] = epoch_ns, fewest
    s["table_seed"] = int.from_bytes(hashlib.blake2b(secret.encode(), digest_size=8).digest(), "little")
    s["settled"], s["opening_mask"] = SETTLED_NS >> SEEN_SHIFT, UNCONFIRMED * groups - 1
    per_second = GROUP * groups // 8 if most_new is None else most_new
    s["mtu"], s["gue_port"] = mtu, gue_port
    s["most_new"] = max(1, (per_second << SEEN_SHIFT + PACE_SHIFT) // 10**9)
    return s


def prepare(maps: Mapping[str, Map], wanted: npt.NDArray[np.void], mac: bytes, new: bool) -> None:
    """Apply the settings; a program in use keeps its seed, table and connections."""
    for name in MAPPED:  # anything that may fail does so before the first packet
        maps[name].memory()
    here = maps["settings"].memory().view(SETTINGS)
    if new:
        maps["maglev"].memory().view("<u2")[::4] = NO_BACKEND
        here[0] = wanted[0]
    for name in ("idle", "closing", "epoch_ns", "fewest", "most_new", "mtu", "gue_port"):
        here[name] = wanted[name]
    if here["mac"].any():  # the interface may have a new one
        here["mac"][0] = np.frombuffer(mac, np.uint8)


def halves(text: str) -> tuple[int, int]:
    """An address as the program has it; one of IPv4 is mapped."""
    address = ipaddress.ip_address(text)
    number = int(address) | (0xFFFF << 32 if address.version == 4 else 0)
    return number >> 64, number & (1 << 64) - 1


def _backend(one: np.void) -> Backend:
    """A backend as it is in its map."""
    word = int(one["mac"])
    tunnel = one["tunnels"][1 if word & OTHER_TUNNEL else 0]
    source = int(tunnel["from_high"]) << 64 | int(tunnel["from_low"])
    mapped = source >> 32 == 0xFFFF
    text = str(ipaddress.IPv4Address(source & 0xFFFFFFFF) if mapped else ipaddress.IPv6Address(source))
    via: Via = next((name for name, mark in VIAS.items() if word & mark), "l2")
    way = Way(word.to_bytes(8, "little")[:6], text if via != "l2" else "")
    return Backend(one["name"].decode(), one["address"].decode(), way, bool(word & DOWN), via)


def _counts(tally: npt.NDArray[np.uint64]) -> Counts:
    packets, size, opened, requests, repeated, sum_ns, count, abstained = tally.tolist()
    return Counts(sum_ns, count, abstained, requests, 0, opened, packets, size, repeated)


def _units(now_ns: int) -> np.uint32:
    """A time as connections have it."""
    return np.uint32((now_ns >> SEEN_SHIFT) & 0xFFFFFFFF)


def _since(now: np.uint32, then: np.uint32) -> int:
    return (int(now) - int(then)) & 0xFFFFFFFF
