"""What a balancer leaves in bpffs: the link, the programs of its services, and the maps of each.

    FOLDER/link                      the interface's program
    FOLDER/programs                  those of the services, if there are several
    FOLDER/services/NAME/settings    and the other maps of the service

Law: one process at a time holds the folder. Nothing is removed that is not ours, and nothing outside of bpffs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.ebpf import bpf
from wirelag.ebpf.balance_maps import ABI, MAPS, SETTINGS
from wirelag.ebpf.bpf import Link, Map
from wirelag.ebpf.dataplane import shapes
from wirelag.errors import WirelagError

SERVICES, PROGRAMS, NEW_PROGRAMS = "services", "programs", "programs-new"
OUT: Final = "; --remove ends that one and its connections"


def need_bpffs(folder: Path) -> None:
    """Raise a WirelagError if the folder is not, or would not be, in bpffs."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except PermissionError:
        raise WirelagError(f"{folder}: permission denied: run as root") from None
    if not _is_bpffs(there):
        out = "mount it (mount -t bpf bpf /sys/fs/bpf), or set pins = false: the balancer then ends with its process"
        raise WirelagError(f"{folder}: pins must be in bpffs: {out}")


def lock(folder: Path) -> int:
    """Lock the folder for one process; only in bpffs, so that nothing else is ever removed from it."""
    need_bpffs(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise WirelagError(f"{folder}: cannot pin there ({error.strerror}): run as root, or change its owner") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise WirelagError(f"{folder}: another process steers this balancer; stop it first") from None
    return held


def _is_bpffs(path: Path) -> bool:
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, kind = line.partition(" - ")
        if place.split()[2] == number and kind.split()[0] == "bpf":
            return True
    return False


# ---- finding ----


def pinned_link(folder: Path, index: int) -> tuple[bool, Link | None]:
    """Whether a balancer is pinned there, and its link; no link if its interface is gone.

    A start that failed before its link was pinned is removed. Nothing else is changed.
    """
    if not (folder / "link").exists():
        unpin(folder)
        return False, None
    with contextlib.ExitStack() as opened:
        try:
            link = Link.pinned(folder / "link")
            opened.callback(link.close)
            # struct bpf_link_info: type, id, program, padding, the interface
            (at,) = struct.unpack_from("<I", bpf.info(link.fd, 64), 16)
        except OSError as error:
            raise WirelagError(f"{folder}: cannot take over what is pinned there ({error.strerror}){OUT}") from None
        if any((folder / name).exists() for name in MAPS):
            raise WirelagError(f"{folder}: the balancer there is of another version of wirelag{OUT}")
        if at not in (0, index):
            raise WirelagError(f"{folder}: the balancer there is at another interface{OUT}")
        if not at:
            return True, None
        opened.pop_all()
    return True, link


def pinned_maps(folder: Path, name: str, sizes: dict[str, int], wanted: npt.NDArray[np.void]) -> dict[str, Map]:
    """The maps of a service, unless they do not fit; empty if it is new."""
    place = folder / SERVICES / name
    if not place.exists():
        return {}
    with contextlib.ExitStack() as opened:
        maps = {}
        try:
            for one in MAPS:
                maps[one] = Map.pinned(place / one)
                opened.callback(maps[one].close)
            problem = _misfit(maps, sizes, wanted)
        except OSError as error:
            raise WirelagError(f"{place}: cannot take over what is pinned there ({error.strerror}){OUT}") from None
        if problem:
            raise WirelagError(f"{place}: the balancer there {problem}{OUT}")
        opened.pop_all()
    return maps


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


# ---- pinning ----


def pin_maps(folder: Path, name: str, maps: dict[str, Map]) -> None:
    """Pin the maps of a new service."""
    place = folder / SERVICES / name
    place.mkdir(parents=True, exist_ok=True)
    for one in MAPS:
        maps[one].pin(place / one)


def unpin_service(folder: Path, name: str) -> None:
    """Remove the maps of a service."""
    place = folder / SERVICES / name
    for one in MAPS:
        (place / one).unlink(missing_ok=True)
    _remove_empty(place)


def pinned_services(folder: Path) -> list[str]:
    """The names of services whose maps are pinned."""
    place = folder / SERVICES
    return sorted(one.name for one in place.iterdir()) if place.is_dir() else []


def unpin(folder: Path) -> bool:
    """Remove our pins, of any version; return whether there was anything."""
    found = False
    for name in ("link", *MAPS, PROGRAMS, NEW_PROGRAMS):  # the link first: packets pass before anything else is removed
        found = found or (folder / name).exists()
        (folder / name).unlink(missing_ok=True)
    for name in pinned_services(folder):
        found = True
        unpin_service(folder, name)
    _remove_empty(folder / SERVICES)
    return found


def leave(folder: Path) -> None:
    """Remove a folder in which nothing is pinned."""
    _remove_empty(folder / SERVICES)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
