"""Balancers in the kernel (bpf/balance.bpf.c, one for each service): loading, pinning, takeover.

Law: link and maps are pinned in bpffs, so packets keep flowing if the process dies. The next process with the same
services and sizes finds all connections, the last tables and the names of backends there, and replaces the old programs
with its own atomically. One process controls them at a time. Without pins everything ends with the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.ebpf import balance_pins as pinning
from wirelag.ebpf.balance_maps import (
    GROUP,
    GUE_PORT,
    MEASURES,
    NO_BACKEND,
    PROTOCOLS,
    TABLES,
    UNCONFIRMED,
    Balancer,
    halves,
    prepare,
    wanted_settings,
)
from wirelag.ebpf.bpf import Link, Map, Program
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.service import Measured, Service
from wirelag.errors import WirelagError

DETACHED_S: Final = 1.0  # after which no program that has ended is still attached


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A service to balance. `connections`: slots, rounded up to a power of two.

    `most_new`: connections per second that are remembered; `secret`: the same for balancers side by side; `method`:
    how latency is measured. Connections that another method measured are kept, and measured anew. `mtu`: of packets in
    tunnels, if not that of the interface.
    """

    name: str = "service"
    service: Service
    table_size: int
    connections: int
    most_backends: int
    idle_ns: int
    closing_ns: int = 5_000_000_000
    epoch_ns: int = 500_000_000
    fewest: int = 4
    most_new: int | None = None
    secret: str = ""
    method: Measured = "auto"
    mtu: int | None = None
    gue_port: int = GUE_PORT

    @property
    def groups(self) -> int:
        """Groups of slots."""
        return 1 << max(0, (self.connections - 1).bit_length() - 3)

    @property
    def sizes(self) -> dict[str, int]:
        """Entries by map."""
        if self.most_backends >= NO_BACKEND:
            raise WirelagError(f"{self.most_backends} backends are too many: the limit is {NO_BACKEND - 1}")
        return {
            "maglev": TABLES * self.table_size,
            "backends": self.most_backends,
            "tallies": self.most_backends,
            "groups": self.groups,
            "connections": GROUP * self.groups,
            "openings": UNCONFIRMED * self.groups,
        }

    def settings(self, mtu: int) -> npt.NDArray[np.void]:
        """Settings of its program."""
        return wanted_settings(
            self.service,
            self.table_size,
            self.groups,
            self.idle_ns,
            self.closing_ns,
            self.epoch_ns,
            self.fewest,
            self.most_new,
            self.secret,
            self.mtu or mtu,
            self.gue_port,
        )


@dataclass(frozen=True, slots=True)
class Balancers:
    """The balancers of one interface, in the order of their services."""

    services: tuple[Balancer, ...]
    description: str
    gone: tuple[str, ...]  # services that were balanced before, and are not any more

    def close(self, leave: bool) -> None:
        """End; with `leave`, traffic keeps flowing through them, else all of it passes again."""
        self.services[0].close(leave)


def open_balancer(service: Service, interface: str, *, pins: str | None, **wanted: Any) -> Balancer:
    """The balancer of a single service; see Wanted."""
    return open_balancers([Wanted(service=service, **wanted)], interface, pins).services[0]


def open_balancers(wanted: Sequence[Wanted], interface: str, pins: str | None) -> Balancers:
    """Load and pin them, or take over what is pinned there.

    Without `pins` all is new, and ends when it is closed or its process ends in any way.
    """
    folder = Path(pins) if pins else None
    with ExitStack() as held:
        if folder:
            held.callback(os.close, pinning.lock(folder))
            held.callback(pinning.leave, folder)
        index, mac, mtu = _interface(interface)
        known, link = pinning.pinned_link(folder, index) if folder else (False, None)
        if link is not None:
            held.callback(link.close)
        settings = [one.settings(mtu) for one in wanted]
        found = [
            pinning.pinned_maps(folder, one.name, one.sizes, made) if folder and known else {}
            for one, made in zip(wanted, settings, strict=True)
        ]
        for one_map in [each for maps in found for each in maps.values()]:
            held.callback(one_map.close)
        planes = [_loaded(one, old, held) for one, old in zip(wanted, found, strict=True)]
        new = [one.name for one, old in zip(wanted, found, strict=True) if not old]
        for plane, made, old in zip(planes, settings, found, strict=True):
            try:
                prepare(plane.maps, made, mac, new=not old)
            except OSError as error:
                where = folder or interface
                text = f"{where}: its maps cannot be shared ({error.strerror}): use smaller sizes"
                raise WirelagError(text) from None
        front = _front(wanted, planes, held)
        root = planes[0].programs["wl_balance"] if front is None else front.programs["wl_services"]
        words = "taken over" if known else ""
        try:
            if folder:
                for one, plane in zip(wanted, planes, strict=True):
                    if one.name in new:
                        pinning.pin_maps(folder, one.name, plane.maps)
                if front is not None:
                    (folder / pinning.NEW_PROGRAMS).unlink(missing_ok=True)
                    front.maps["programs"].pin(folder / pinning.NEW_PROGRAMS)
            if link is None:
                link = _attached(root, interface)
                held.callback(link.close)
                words = f"{link.mode}, {words}" if known else link.mode
                if folder:  # last: if it exists, everything does
                    (folder / "link").unlink(missing_ok=True)  # left by an interface that is gone
                    link.pin(folder / "link")
            else:
                link.update(root)
        except BaseException as error:
            _take_back(folder, known, new)
            if isinstance(error, OSError):
                raise WirelagError(f"{folder or interface}: cannot install our program ({error.strerror})") from None
            raise
        gone = _tidied(folder, [one.name for one in wanted], front) if folder else ()
        kept = held.pop_all()

    def end(leave: bool) -> None:
        if folder and not leave:
            pinning.unpin(folder)
        kept.close()

    pinned = f"pinned in {folder}" if folder else "not pinned: it ends with this process"
    text = f"XDP at {interface} ({words}), {pinned}"
    alive = link.alive
    services = tuple(Balancer(plane.maps, mac, text, alive, end) for plane in planes)
    return Balancers(services, text, gone)


def problems(interface: str, pins: str | None) -> list[str]:
    """Why a balancer cannot run here, as far as known without trying."""
    found = []
    try:
        _interface(interface)
    except WirelagError as error:
        found.append(str(error))
    try:
        if pins:
            pinning.need_bpffs(Path(pins))
    except WirelagError as error:
        found.append(str(error))
    return found


def remove_balancer(pins: str) -> bool:
    """Remove what is pinned there, of any version and wherever attached; return whether there was anything."""
    folder = Path(pins)
    with ExitStack() as held:
        held.callback(os.close, pinning.lock(folder))
        held.callback(pinning.leave, folder)
        try:
            return pinning.unpin(folder)
        except OSError as error:
            raise WirelagError(f"{folder}: cannot remove what is there ({error.strerror}): run as root") from None


def _interface(name: str) -> tuple[int, bytes, int]:
    """The index, the MAC address and the MTU of an interface."""
    with socket.socket() as any_socket:
        try:
            index = socket.if_nametoindex(name)
            answer = fcntl.ioctl(any_socket, 0x8927, struct.pack("16s16x", name.encode()))  # SIOCGIFHWADDR
            sizes = fcntl.ioctl(any_socket, 0x8921, struct.pack("16s16x", name.encode()))  # SIOCGIFMTU
        except OSError:
            raise WirelagError(f"{name}: there is no such interface; `ip link` lists them") from None
    mac = answer[18:24]
    if not any(mac):
        raise WirelagError(f"{name}: has no MAC address, so it cannot forward frames")
    return index, mac, struct.unpack_from("=i", sizes, 16)[0]


def _loaded(one: Wanted, old: dict[str, Map], held: ExitStack) -> Dataplane:
    """The program of a service, with its maps from before if there are any."""
    sizes, constants = one.sizes if not old else {}, {"measures": MEASURES[one.method]}
    return held.enter_context(Dataplane("balance", sizes=sizes, shared=old, constants=constants))


def _front(wanted: Sequence[Wanted], planes: Sequence[Dataplane], held: ExitStack) -> Dataplane | None:
    """The program that finds the service of a packet; none if there is only one."""
    if len(wanted) == 1:
        return None
    front = held.enter_context(Dataplane("services"))
    for number, (one, plane) in enumerate(zip(wanted, planes, strict=True)):
        front.maps["programs"].update(number, plane.programs["wl_balance"])
        high, low = halves(one.service.address)
        protocol = PROTOCOLS[one.service.protocol]
        keys = [(port, protocol) for port in one.service.ports or (0,)]
        if not any(other.service.address == one.service.address for other in wanted[:number]):
            keys.append((0, 0))  # what has no port
        for port, kind in keys:
            front.maps["services"].update(struct.pack("<QQII", high, low, port, kind), struct.pack("<I", number))
    return front


def _attached(program: Program, interface: str) -> Link:
    """Attach the program to its interface. A program that has just ended is detached by the kernel a little later."""
    until_s = time.monotonic() + DETACHED_S
    while True:
        try:
            return program.attach_xdp(interface)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise WirelagError(f"{interface}: cannot attach ({error.strerror})") from None
        if time.monotonic() > until_s:
            out = f"stop or --remove that balancer, if it is one; `ip link set {interface} xdp off` detaches others"
            raise WirelagError(f"{interface}: another XDP program is attached there: {out}")
        time.sleep(DETACHED_S / 100)


def _take_back(folder: Path | None, known: bool, new: Sequence[str]) -> None:
    """Remove what a start that fails has pinned; what was there before stays."""
    if folder is None:
        return
    if not known:
        pinning.unpin(folder)
        return
    for name in new:
        pinning.unpin_service(folder, name)
    (folder / pinning.NEW_PROGRAMS).unlink(missing_ok=True)


def _tidied(folder: Path, names: Sequence[str], front: Dataplane | None) -> tuple[str, ...]:
    """Remove the pins of what was replaced; return the services that are gone."""
    if front is not None:
        os.replace(folder / pinning.NEW_PROGRAMS, folder / pinning.PROGRAMS)
    else:
        for name in (pinning.PROGRAMS, pinning.NEW_PROGRAMS):
            (folder / name).unlink(missing_ok=True)
    gone = [name for name in pinning.pinned_services(folder) if name not in names]
    for name in gone:
        pinning.unpin_service(folder, name)
    return tuple(gone)
