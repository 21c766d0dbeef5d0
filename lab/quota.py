"""A share of one core for a process, by a control group of version 1 or 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lab.processes import owner_lives, owner_name

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "lab-"
PERIOD_US = 20_000


@contextlib.contextmanager
def cpu_quota(pid: int, share: float) -> Iterator[None]:
    """Limit the process to this share of a core; the group is removed when it has ended."""
    root = _root()
    sweep_quotas()
    _hand_on_cpu(root)
    group = root / f"{PREFIX}{owner_name()}"
    group.mkdir(exist_ok=True)
    quota_us = str(int(PERIOD_US * share))
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(quota_us)
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            (root / "cgroup.procs").write_text(str(pid))
        _remove(group)


def sweep_quotas() -> None:
    """Remove the groups of processes that are gone."""
    for old in _root().glob(f"{PREFIX}*"):
        if not owner_lives(old.name.removeprefix(PREFIX)):
            _remove(old)


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
