"""Shares of one core for a process, by a control group of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from lab.processes import owner_lives, owner_name

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "lab-"
PERIOD_US = 20_000
HEAVIEST = {"cpu.weight": 10_000, "cpu.shares": 262_144}  # by version


@contextlib.contextmanager
def cpu_quota(pid: int, shares: Sequence[float], each_s: float = 1.0) -> Iterator[None]:
    """Limit the process to these shares of a core in turn, again and again; its group is removed at the end.

    No quota binds a process of a real-time scheduler: it loses its privilege. Instead its group has the largest weight,
    so that the quota limits it, not the others on a busy machine.
    """
    root = _root()
    sweep_quotas()
    _hand_on_cpu(root)
    group = root / f"{PREFIX}{owner_name()}"
    group.mkdir(exist_ok=True)
    for name, weight in HEAVIEST.items():
        if (group / name).exists():
            (group / name).write_text(str(weight))
    _limit(group, shares[0])
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    (group / "cgroup.procs").write_text(str(pid))
    over = threading.Event()
    changes = threading.Thread(target=_change, args=(group, shares, each_s, over))
    changes.start()
    try:
        yield
    finally:
        over.set()
        changes.join()
        with contextlib.suppress(ProcessLookupError):
            (root / "cgroup.procs").write_text(str(pid))
        _remove(group)


def sweep_quotas() -> None:
    """Remove the groups of processes that are gone."""
    for old in _root().glob(f"{PREFIX}*"):
        if not owner_lives(old.name.removeprefix(PREFIX)):
            _remove(old)


def _change(group: Path, shares: Sequence[float], each_s: float, over: threading.Event) -> None:
    """Apply each share in its turn until it is over."""
    following = cycle((*shares[1:], shares[0]))
    while len(shares) > 1 and not over.wait(each_s):
        _limit(group, next(following))


def _limit(group: Path, share: float) -> None:
    quota_us = str(int(PERIOD_US * share))
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(quota_us)


def _root() -> Path:
    return GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS


def _hand_on_cpu(root: Path) -> None:
    """Groups of version 2 have only the controllers that the parent group enables, which systemd may not have done."""
    handed_on = root / "cgroup.subtree_control"
    if handed_on.exists() and "cpu" not in handed_on.read_text().split():
        handed_on.write_text("+cpu")


def _remove(group: Path) -> None:
    """Remove a group; one that is still in use stays, for the next sweep."""
    with contextlib.suppress(OSError):
        group.rmdir()
