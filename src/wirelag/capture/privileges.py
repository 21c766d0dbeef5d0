"""Dropping all privileges once everything that needs them is open, so that no packet can exploit them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import struct
import sys
from typing import Final

NOBODY: Final = 65534
PERFMON, ADMIN = 38, 21  # numbers of capabilities; the second includes the first
_CAPABILITY_VERSION: Final = 0x20080522
_DROP_BOUND, _NO_NEW_PRIVILEGES, _AMBIENT, _CLEAR_ALL = 24, 38, 47, 4
_MOST_CAPABILITIES: Final = 64


def may_trace() -> bool:
    """Whether the process has CAP_PERFMON: with it, the verifier allows pointer arithmetic."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        held = next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
    return bool(held & (1 << PERFMON | 1 << ADMIN))


def drop_privileges(stay: bool = False) -> None:
    """Continue as the user who called sudo, or as nobody, without capabilities. Call it before threads start.

    Law: what is open stays open; nothing that needs a privilege can be opened any more. Modules may still be imported:
    if that user cannot read them, root stays root, but without capabilities. `stay`: stay root in any case, to write
    files that belong to root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_MOST_CAPABILITIES):  # the bounding set, too, where CAP_SETPCAP allows it
        libc.prctl(_DROP_BOUND, number, 0, 0, 0)
    if os.geteuid() == 0 and not stay:
        _leave_root()
    libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")


def all_may_read(path: str) -> bool:
    """Whether any user may read this file, and so any that the process continues as may read it again."""
    place = os.path.realpath(path)
    folders = [place := os.path.dirname(place) for _ in range(place.count("/"))]
    return bool(os.stat(path).st_mode & 0o004) and all(os.stat(folder).st_mode & 0o001 for folder in folders)


def _leave_root() -> None:
    user, group = _whom()
    groups, imported_from = os.getgroups(), [path for path in sys.path if os.path.exists(path)]
    try:
        os.setgroups([])
        os.setresgid(group, group, 0)
        os.setresuid(user, user, 0)
    except PermissionError:  # root that may not change its user, as in some containers
        return
    if all(os.access(path, os.R_OK) for path in imported_from):
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    else:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


def _whom() -> tuple[int, int]:
    """The user and the group to continue as."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if user.isdigit() and group.isdigit() and int(user):
        return int(user), int(group)
    with contextlib.suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        return nobody.pw_uid, nobody.pw_gid
    return NOBODY, NOBODY
