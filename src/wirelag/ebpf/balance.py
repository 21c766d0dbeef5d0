"""The balancer in the kernel (bpf/balance.bpf.c): loading, pinning, takeover, control and reading.

Law: link and maps are pinned in bpffs, so packets keep flowing if the process dies. The next process with the same
service and sizes finds all connections, the last table and the names of its backends there, and replaces the old
program with its own atomically. One process controls it at a time. Without pins everything ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wirelag.ebpf import bpf
from wirelag.ebpf.balance_maps import (
    ABI,
    GROUP,
    MAPS,
    MEASURES,
    NO_BACKEND,
    SETTINGS,
    TABLES,
    UNCONFIRMED,
    Balancer,
    prepare,
    wanted_settings,
)
from wirelag.ebpf.bpf import Link, Map
from wirelag.ebpf.dataplane import Dataplane, shapes
from wirelag.ebpf.service import Measured, Service
from wirelag.errors import WirelagError


def open_balancer(
    service: Service,
    interface: str,
    *,
    table_size: int,
    connections: int,
    most_backends: int,
    idle_ns: int,
    pins: str | None,
    closing_ns: int = 5_000_000_000,
    epoch_ns: int = 500_000_000,
    fewest: int = 4,
    most_new: int | None = None,
    secret: str = "",
    method: Measured = "auto",
) -> Balancer:
    """Load and pin it, or take over what is pinned there. `connections`: slots, rounded up to a power of two.

    `most_new`: connections per second that are remembered; `secret`: the same for balancers side by side; `method`:
    how latency is measured. Connections that another method measured are kept, and measured anew.

    Without `pins` it is new, and ends when it is closed or its process ends in any way.
    """
    if most_backends >= NO_BACKEND:
        raise WirelagError(f"{most_backends} backends are too many: the limit is {NO_BACKEND - 1}")
    groups = 1 << max(0, (connections - 1).bit_length() - 3)
    sizes = {
        "maglev": TABLES * table_size,
        "backends": most_backends,
        "tallies": most_backends,
        "groups": groups,
        "connections": GROUP * groups,
        "openings": UNCONFIRMED * groups,
    }
    folder = Path(pins) if pins else None
    with contextlib.ExitStack() as held:
        if folder:
            held.callback(os.close, _lock(folder))
            held.callback(_remove_empty, folder)
        index, mac = _interface(interface)
        wanted = wanted_settings(service, table_size, groups, idle_ns, closing_ns, epoch_ns, fewest, most_new, secret)
        old, link = _pinned(folder, sizes, wanted, index) if folder else ({}, None)
        for one in old.values():
            held.callback(one.close)
        if link is not None:
            held.callback(link.close)
        constants = {"measures": MEASURES[method]}
        plane = held.enter_context(
            Dataplane("balance", sizes=sizes if not old else {}, shared=old, constants=constants)
        )
        try:
            prepare(plane.maps, wanted, mac, new=not old)
        except OSError as error:
            where = folder or interface
            raise WirelagError(f"{where}: its maps cannot be shared ({error.strerror}): use smaller sizes") from None
        words = "taken over" if old else ""
        if link is None:
            link = (
                _attached(plane, interface)
                if folder is None
                else _attached_and_pinned(plane, folder, interface, not old)
            )
            held.callback(link.close)
            words = f"{link.mode}, {words}" if old else link.mode
        else:
            try:
                link.update(plane.programs["wl_balance"])
            except OSError as error:
                raise WirelagError(f"{interface}: cannot install our program ({error.strerror})") from None
        kept = held.pop_all()

    def end(leave: bool) -> None:
        if folder and not leave:
            _unpin(folder)
        kept.close()

    pinned = f"pinned in {folder}" if folder else "not pinned: it ends with this process"
    return Balancer(plane.maps, mac, f"XDP at {interface} ({words}), {pinned}", link.alive, end)


def problems(interface: str, pins: str | None) -> list[str]:
    """Why a balancer cannot run here, as far as known without trying."""
    found = []
    try:
        _interface(interface)
    except WirelagError as error:
        found.append(str(error))
    try:
        if pins:
            _need_bpffs(Path(pins))
    except WirelagError as error:
        found.append(str(error))
    return found


def remove_balancer(pins: str) -> bool:
    """Remove what is pinned there, of any version and wherever attached; return whether there was anything."""
    folder = Path(pins)
    with contextlib.ExitStack() as held:
        held.callback(os.close, _lock(folder))
        held.callback(_remove_empty, folder)
        found = any((folder / name).exists() for name in ("link", *MAPS))
        try:
            _unpin(folder)
        except OSError as error:
            raise WirelagError(f"{folder}: cannot remove what is there ({error.strerror}): run as root") from None
    return found


def _interface(name: str) -> tuple[int, bytes]:
    """The index and the MAC address of an interface."""
    with socket.socket() as any_socket:
        try:
            index = socket.if_nametoindex(name)
            answer = fcntl.ioctl(any_socket, 0x8927, struct.pack("16s16x", name.encode()))  # SIOCGIFHWADDR
        except OSError:
            raise WirelagError(f"{name}: there is no such interface; `ip link` lists them") from None
    mac = answer[18:24]
    if not any(mac):
        raise WirelagError(f"{name}: has no MAC address, so it cannot forward frames")
    return index, mac


# ---- pins ----


def _need_bpffs(folder: Path) -> None:
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except PermissionError:
        raise WirelagError(f"{folder}: permission denied: run as root") from None
    if not _is_bpffs(there):
        out = "mount it (mount -t bpf bpf /sys/fs/bpf), or set pins = false: the balancer then ends with its process"
        raise WirelagError(f"{folder}: pins must be in bpffs: {out}")


def _lock(folder: Path) -> int:
    """Lock the folder for one process; only in bpffs, so that nothing else is ever removed from it."""
    _need_bpffs(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise WirelagError(f"{folder}: cannot pin there ({error.strerror}): run as root, or change its owner") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise WirelagError(f"{folder}: another process steers this balancer; stop it first") from None
    return lock


def _is_bpffs(path: Path) -> bool:
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, kind = line.partition(" - ")
        if place.split()[2] == number and kind.split()[0] == "bpf":
            return True
    return False


def _pinned(
    folder: Path, sizes: dict[str, int], wanted: npt.NDArray[np.void], index: int
) -> tuple[dict[str, Map], Link | None]:
    """What can be taken over, unless it does not fit; no link if its interface is gone.

    A start that failed before its link was pinned is removed. Nothing else is changed.
    """
    if not (folder / "link").exists():
        _unpin(folder)
        return {}, None
    out = "; --remove ends that one and its connections"
    with contextlib.ExitStack() as opened:
        try:
            link = Link.pinned(folder / "link")
            opened.callback(link.close)
            maps = {}
            for name in MAPS:
                maps[name] = Map.pinned(folder / name)
                opened.callback(maps[name].close)
            # struct bpf_link_info: type, id, program, padding, the interface
            (at,) = struct.unpack_from("<I", bpf.info(link.fd, 64), 16)
            problem = _misfit(maps, sizes, wanted)
        except OSError as error:
            raise WirelagError(f"{folder}: cannot take over what is pinned there ({error.strerror}){out}") from None
        if problem:
            raise WirelagError(f"{folder}: the balancer there {problem}{out}")
        if at not in (0, index):
            raise WirelagError(f"{folder}: the balancer there is at another interface{out}")
        opened.pop_all()
    if not at:
        link.close()
    return maps, link if at else None


def _misfit(maps: dict[str, Map], sizes: dict[str, int], wanted: npt.NDArray[np.void]) -> str:
    """Why these maps do not fit; empty if they do."""
    for name, shape in shapes("balance").items():
        if name in maps:
            one = maps[name]
            if (one.kind, one.key_size, one.value_size) != (shape.kind, shape.key_size, shape.value_size):
                return "is of another version of wirelag"
            if name not in sizes and one.entries != shape.entries:
                return "is of another version of wirelag"
    found = maps["settings"].memory().view(SETTINGS)
    if found["abi"][0] != ABI:
        return "is of another version of wirelag"
    for name, size in sizes.items():
        if maps[name].entries != size:
            return f"has {maps[name].entries} {name}, not {size}"
    if any((found[name] != wanted[name]).any() for name in ("vip_high", "vip_low", "ports", "protocol", "any_port")):
        return "has another service"
    if found["table_seed"][0] != wanted["table_seed"][0]:
        return "has another table.secret"
    return ""


def _attached(plane: Dataplane, interface: str) -> Link:
    """Attach the program to its interface."""
    try:
        return plane.programs["wl_balance"].attach_xdp(interface)
    except OSError as error:
        if error.errno == errno.EBUSY:
            out = f"stop or --remove that balancer, if it is one; `ip link set {interface} xdp off` detaches others"
            raise WirelagError(f"{interface}: another XDP program is attached there: {out}") from None
        raise WirelagError(f"{interface}: cannot attach ({error.strerror})") from None


def _attached_and_pinned(plane: Dataplane, folder: Path, interface: str, new: bool) -> Link:
    """Attach and pin. The link is pinned last: if it exists, everything does."""
    try:
        for name in MAPS if new else ():
            plane.maps[name].pin(folder / name)
        link = _attached(plane, interface)
        (folder / "link").unlink(missing_ok=True)  # left by an interface that is gone
        link.pin(folder / "link")
    except BaseException as error:
        if new:
            _unpin(folder)
        if isinstance(error, OSError):
            raise WirelagError(f"{folder}: cannot pin there ({error.strerror})") from None
        raise
    return link


def _unpin(folder: Path) -> None:
    """Remove our pins."""
    for name in ("link", *MAPS):  # the link first: packets pass before anything else is removed
        (folder / name).unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
