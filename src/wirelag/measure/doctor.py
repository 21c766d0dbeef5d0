"""What of wirelag works on this machine, and the line that mends what does not.

Each check tries the thing itself: it opens a capture socket, it loads a program into the kernel. Nothing stays open, no
packet is captured, and nothing is changed.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal

from wirelag.errors import WirelagError
from wirelag.measure.result import Result

State = Literal["yes", "limited", "no"]
EXTRAS: Final = {  # the packages of an extra, and what it is for
    "tables": (("polars",), "Parquet files and data frames"),
    "live": (("nats", "prometheus_client", "starlette", "uvicorn"), "agents, collector and Prometheus"),
    "scale": (("dask", "fsspec"), "--on: all cores, clusters, buckets"),
    "postgres": (("psycopg",), "collect --store postgresql://"),
}
DEBIAN: Final = "/usr/lib/wirelag/"
BPFFS: Final = "/sys/fs/bpf"
JIT: Final = "/proc/sys/net/core/bpf_jit_enable"


@dataclass(frozen=True)
class Check:
    """One thing that was tried: whether it works, what was found, what it is for, and the line that mends it."""

    name: str
    state: State
    found: str
    needed_for: str
    fix: str = ""


@dataclass(repr=False, eq=False)
class DoctorResult(Result):
    """Every check, in the order in which things build on each other."""

    command: ClassVar[str] = "doctor"
    checks: list[Check]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"command": self.command, "checks": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.checks]

    def parts(self) -> Iterable[dict[str, Any]]:
        return self.rows()

    def table(self) -> list[str]:
        from wirelag.render.doctor import table

        return table(self.checks)


def doctor() -> DoctorResult:
    """Try everything on this machine."""
    return DoctorResult(list(_checks()))


def _checks() -> Iterator[Check]:
    yield _captures()
    for extra, (packages, purpose) in EXTRAS.items():
        yield _extra(extra, packages, purpose)
    yield _live_capture()
    yield from _kernel()
    yield _bpffs()
    yield _clock()
    yield _cards()


def _captures() -> Check:
    name, purpose = "captures", "info, rtt, response, oneway, flows"
    try:
        import numpy

        import wirelag._kernels  # noqa: F401
    except ImportError as error:
        return Check(name, "no", str(error), purpose, f"{sys.executable} -m pip install --force-reinstall wirelag")
    return Check(name, "yes", f"Python {platform.python_version()}, numpy {numpy.__version__}", purpose)


def _extra(extra: str, packages: tuple[str, ...], purpose: str) -> Check:
    from importlib import import_module

    missing = []
    for one in packages:
        try:
            import_module(one)
        except ImportError:
            missing.append(one)
    if not missing:
        return Check(f"extra {extra}", "yes", ", ".join(packages), purpose)
    fix = f"{sys.executable} -m pip install 'wirelag[{extra}]'"
    if __file__.startswith(DEBIAN):
        fix = f"pipx install 'wirelag[{extra}]' (the Debian package cannot be added to)"
    return Check(f"extra {extra}", "no", f"not installed: {', '.join(missing)}", purpose, fix)


def _live_capture() -> Check:
    import socket

    name, purpose = "live capture", "watch, agent"
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        program = os.path.join(sysconfig.get_path("scripts"), "wirelag")  # where sudo does not look
        fix = f"sudo {program if os.path.exists(program) else 'wirelag'} watch eth0 rtt; or the units in deploy/"
        return Check(name, "no", "not permitted: needs CAP_NET_RAW", purpose, fix)
    except (AttributeError, OSError) as error:
        return Check(name, "no", f"no packet sockets ({error})", purpose, "use Linux, with AF_PACKET in its kernel")
    return Check(name, "yes", "packet sockets can be opened", purpose)


def _kernel() -> Iterator[Check]:
    """Whether eBPF programs are there, and accepted; each is tried only if what it builds on is there."""
    from wirelag.ebpf.dataplane import OLDEST_EGRESS, Dataplane, UnavailableError, kernel, shipped

    name, purpose = "eBPF", "balance; --in-kernel of watch and agent"
    try:
        shipped("headers")
    except UnavailableError as error:
        again = f"{sys.executable} -m pip install --force-reinstall --no-binary wirelag wirelag"
        fix = f"{_as_root('apt-get install clang')} && {again}"
        yield Check(name, "no", str(error).split(":")[0] + ": built without clang", purpose, fix)
        return
    try:
        with Dataplane("headers"):
            pass
    except WirelagError as error:
        found, _, fix = str(error).removeprefix("headers: ").partition(": ")
        yield Check(name, "no", found, purpose, fix)
        return
    release = f"Linux {platform.release()}"
    if kernel() < OLDEST_EGRESS:
        least = ".".join(map(str, OLDEST_EGRESS))
        found = f"{release}: outgoing packets cannot be measured in the kernel"
        yield Check(name, "limited", found, purpose, f"use Linux {least} or newer, or --direction in")
    else:
        yield Check(name, "yes", f"{release}: the verifier accepts our programs", purpose)
    if _read(JIT) == "0":
        fix = _as_root("sysctl -w net.core.bpf_jit_enable=1")
        yield Check("eBPF compiler", "limited", "programs are interpreted, and slow", purpose, fix)


def _bpffs() -> Check:
    mounted = any(line.split()[1:3] == [BPFFS, "bpf"] for line in _read("/proc/self/mounts").splitlines())
    purpose = "balance, so that it survives a restart"
    if mounted:
        return Check("bpffs", "yes", f"mounted at {BPFFS}", purpose)
    return Check("bpffs", "no", f"not mounted at {BPFFS}", purpose, _as_root(f"mount -t bpf bpf {BPFFS}"))


def _clock() -> Check:
    from wirelag.capture.host_clock import HostClock
    from wirelag.units import format_duration

    clock = HostClock()
    clock.ask()
    found, purpose = clock.steady(), "agent: one-way delay between hosts"
    error = f"within {format_duration(found.error_ns)}, says {found.source}" if found.source else "nothing keeps it"
    if found.synchronised:
        return Check("clock", "yes", error, purpose)
    return Check("clock", "limited", f"not synchronised ({error})", purpose, _as_root("apt-get install chrony"))


def _cards() -> Check:
    import socket

    from wirelag.capture.card_clock import card_of

    def stamps(interface: str) -> bool:
        try:
            card_of(asking, interface)
        except WirelagError:
            return False
        return True

    name, purpose = "timestamps of cards", "--clock hardware of watch and agent"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        able = [one for _, one in socket.if_nameindex() if stamps(one)]
    if able:
        return Check(name, "yes", ", ".join(able), purpose)
    return Check(name, "limited", "no card does; the kernel's timestamps are used", purpose)


def _as_root(command: str) -> str:
    return command if os.geteuid() == 0 else f"sudo {command}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
