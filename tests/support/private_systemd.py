"""A private systemd in namespaces: units run as on a host, and all that they write disappears with it.

Its files are an overlay on the machine's, its network is a loopback, its control group is below ours. The units'
/opt/wirelag consists of this Python, its packages and our sources.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lab.processes import owner_name
from tests.support import needs
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S, until

SYSTEMD = Path("/lib/systemd/systemd")
SOURCES = ROOT / "src"
PROGRAM = """#!/bin/sh
LD_LIBRARY_PATH=/opt/wirelag/base/lib exec /opt/wirelag/base/bin/python3 -c "import sys
sys.path[:0] = ['/opt/wirelag/src', '/opt/wirelag/site']
import wirelag
wirelag.__path__.append('/opt/wirelag/site/wirelag')
from wirelag.cli import main
main()" "$@"
"""
# Without the machine's services: only ours, and those that systemd needs.
EMPTY = ("sysinit.target", "basic.target", "network-online.target", "time-sync.target")
MASKED = (
    "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket",
    "systemd-journald.service", "systemd-udevd.service", "dbus.socket", "dbus.service", "tmp.mount",
)  # fmt: skip
TARGET = "wirelag-test.target"
SCRIPT = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev; mount -t tmpfs tmpfs run
rm -rf etc/systemd/system; mkdir -p etc/systemd/system opt/wirelag/base opt/wirelag/site opt/wirelag/src old
for wants in lib/systemd/system/*.target.wants; do rm -rf "$wants"; done
cp -a "$2/." .
chown -R 0:0 etc/wirelag
mount --bind "$3" opt/wirelag/base; mount --bind "$4" opt/wirelag/site; mount --bind "$5" opt/wirelag/src
mount -t tmpfs tmpfs tmp
ip link set lo up
pivot_root . old
umount -l old
mount --make-rshared /
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
  /lib/systemd/systemd --system --unit=wirelag-test.target --log-target=null --default-standard-output=null
"""


def lacking() -> str:
    """Why no systemd can run here; empty if it can."""
    if os.geteuid():
        return needs.ROOT
    if absent := needs.absent("unshare", "nsenter", "ip", "pivot_root"):
        return absent
    if not SYSTEMD.exists():
        return needs.program("systemd")
    if _groups() is None:
        return needs.needs("control groups of version 2")
    can = ["unshare", "--mount", "--pid", "--fork", "--net", "--cgroup", "mount", "-t", "proc", "proc", "/proc"]
    return "" if subprocess.run(can, capture_output=True, check=False).returncode == 0 else needs.needs("namespaces")


class Booted:
    """The running systemd; `folder` holds the units' output."""

    def __init__(self, init: int) -> None:
        self._init = init

    def run(self, *command: str) -> str:
        """Run a command inside; return its output."""
        enter = ["nsenter", f"--target={self._init}", "--mount", "--pid", "--net", "--wd"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.stdout + done.stderr

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def said(self, unit: str) -> str:
        """A unit's standard error."""
        return self.run("cat", f"/tmp/{unit}.txt")

    def python(self, code: str) -> str:
        """Run this Python in the units' network."""
        command = ["nsenter", f"--target={self._init}", "--net", sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

    def until(self, holds: Callable[[], bool], units: Iterable[str]) -> None:
        """Wait for it."""
        until(holds, lambda: "\n".join(self.said(unit) for unit in units), 0.1)


@contextlib.contextmanager
def booted(folder: Path, units: dict[str, Path], files: dict[str, tuple[str, int]]) -> Iterator[Booted]:
    """`units`: name and what to start; `files`: path, content and mode."""
    seed = folder / "seed"
    system = seed / "etc" / "systemd" / "system"
    wants = system / f"{TARGET}.wants"
    wants.mkdir(parents=True)
    for name in (*EMPTY, TARGET):
        (system / name).write_text("[Unit]\nDefaultDependencies=no\n")
    for name in MASKED:
        (system / name).symlink_to("/dev/null")
    for name, source in units.items():
        shutil.copy(source, system)
        more = system / f"{source.name}.d"
        more.mkdir(exist_ok=True)
        (more / "said.conf").write_text("[Service]\nStandardError=append:/tmp/%n.txt\n")
        (wants / name).symlink_to(f"../{source.name}")
    for path, (text, mode) in files.items():
        file = seed / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    program = seed / "opt" / "wirelag" / "bin" / "wirelag"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (folder / "layer").mkdir()
    with _group() as group:
        arguments = [str(folder / "layer"), str(seed), sys.base_prefix, sysconfig.get_path("purelib"), str(SOURCES)]
        # Join the group first: it is then the root of a new namespace.
        enter = f'echo $$ > {group}/cgroup.procs; exec unshare --mount --pid --fork --net --uts --cgroup "$@"'
        shell = ["sh", "-c", enter, "enter", "sh", "-c", SCRIPT, "boot", *arguments]
        with (folder / "boot.txt").open("wb") as said:
            process = subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        init = _child(process, folder)
        try:
            yield Booted(init)
        finally:
            os.kill(init, signal.SIGKILL)
            process.wait(PATIENCE_S)


def _child(process: "subprocess.Popen[bytes]", folder: Path) -> int:
    """The first process inside, once it is systemd and answers."""
    said = folder / "boot.txt"

    def found() -> int | None:
        assert process.poll() is None, said.read_text()
        with contextlib.suppress(OSError, ValueError):
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if (
                Path(f"/proc/{child}/comm").read_text() == "systemd\n"
                and Path("/proc", child, "root", "run/systemd/private").exists()
            ):
                return int(child)
        return None

    return until(found, said.read_text) or 0


def _groups() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


@contextlib.contextmanager
def _group() -> Iterator[Path]:
    """A control group that is removed with its children."""
    root = _groups()
    assert root is not None
    group = root / f"lab-{owner_name()}"
    group.mkdir()
    try:
        yield group
    finally:
        until(lambda: "populated 1" not in (group / "cgroup.events").read_text(), f"an empty {group}")
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)
