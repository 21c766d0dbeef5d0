"""Mounts private to one process: its own bpffs, whatever the machine has or lacks.

Law: they disappear with the process, even after kill -9, so there is nothing to remove. Network namespaces are still
visible to all, and swept.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from functools import cache
from pathlib import Path

from lab.network import NAMESPACES

BPFFS = Path("/sys/fs/bpf")
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 0x1000, 0x4000, 0x40000, 0x100000  # <sys/mount.h>


@cache
def private_bpffs() -> Path:
    """An empty bpffs for this thread and everything it starts from now on; repeated calls return the same one.

    Threads already running stay outside, and no longer follow changes of the working folder: call it early.
    """
    _share(NAMESPACES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, f"no mount namespace of its own: {os.strerror(number)}")
    _mount("none", Path("/sys"), "", MS_REC | MS_PRIVATE)
    _mount("bpf", BPFFS, "bpf", 0, "mode=0700")
    return BPFFS


def _share(folder: Path) -> None:
    """Make later mounts in this folder visible in all mount namespaces, as `ip netns add` does, but in time."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _mount("none", folder, "", MS_REC | MS_SHARED)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is not a mount yet
                raise
            _mount(str(folder), folder, "", MS_REC | MS_BIND)
            _mount("none", folder, "", MS_REC | MS_SHARED)
    finally:
        os.close(lock)


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() for word in (source, str(target), kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount at {target}: {os.strerror(number)}")
