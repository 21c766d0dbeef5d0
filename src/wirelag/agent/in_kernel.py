"""An agent whose meter runs inside the kernel, cut by the clock. Settings that need single packets are refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from wirelag.estimators.catalogue import between_points
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Interval
from wirelag.settings import Settings
from wirelag.twopoint.spans import ALL, Cut

if TYPE_CHECKING:
    from wirelag.agent.config import Config, Measured
    from wirelag.ebpf.source import KernelSource


SHORTEST_NS: Final = 100 * 10**6  # shortest interval: one is read while the next fills


def check(settings: Settings, measured: tuple[Measured, ...]) -> None:
    """Raise a WirelagError if the kernel cannot do what is configured."""
    if settings["capture.then"] is not None and not settings["capture.in_kernel"]:
        raise settings.wrong("capture.then", "needs in_kernel (--in-kernel)")
    if not settings["capture.in_kernel"]:
        return
    terms = measured[0].terms
    if not terms.estimator.can.in_kernel:
        known = ", ".join(between_points(in_kernel=True))
        raise settings.wrong("estimator.name", f"{terms.estimator.name} cannot run in the kernel; known: {known}")
    if terms.delimiters is not None:
        raise settings.wrong("cut.at", "the kernel cuts intervals by the clock: write clock (--cut clock)")
    if settings["interface"] is None:
        raise settings.wrong("read", "the kernel reads no captures: leave in_kernel (--in-kernel) out")
    if settings["interval"] < SHORTEST_NS or settings["interval"] < 2 * settings["grace"]:
        raise settings.wrong("interval", "is too short: the kernel needs at least 100 ms, and twice the grace")
    for name, given in {
        "by": terms.by is not None,
        "filter": settings["filter"] is not None,
        "capture.promiscuous": settings["capture.promiscuous"],
        "capture.clock": settings["capture.clock"] != "kernel",
        "segments": len(measured) > 1,
        "segments.0.packets": measured[0].references_only,
    }.items():
        if given:
            raise settings.wrong(name, "is not available in the kernel: leave in_kernel (--in-kernel) out")


class KernelMeter:
    """The kernel's meter in the form that an agent cuts; it has no classes, and gets no packets here."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Do nothing: the kernel sees the packets."""

    def cut(self, interval: Interval) -> Cut:
        """The cut of an interval."""
        return Cut(interval, {ALL: self._inside.cut(interval)})


def open_kernel(config: Config, tell: Callable[[str], None]) -> tuple[KernelSource, KernelMeter] | None:
    """Attach. On failure report why and return None; raise if another program must run after wirelag's."""
    from wirelag.ebpf.dataplane import UnavailableError
    from wirelag.ebpf.source import KernelSource

    measured = config.measured[0]
    assert config.interface is not None
    try:
        inside = _program(measured.terms.estimator.name)(
            measured.terms.estimator,
            config.interface,
            config.interval_ns,
            packet_id=measured.terms.packet_id,
            tunnels=config.tunnels,
            course=measured.way,
            then=config.then,
        )
    except UnavailableError as error:
        if config.then is not None:
            raise
        tell(f"{error}; measuring outside the kernel instead")
        return None
    for note in inside.hooks.notes:
        tell(note)
    source = KernelSource(config.interface, statistics=inside.statistics, check=inside.hooks.check, close=inside.close)
    return source, KernelMeter(inside)


def _program(name: str) -> Any:
    """The meter of a method in the kernel: it has the same stem in ebpf/."""
    return getattr(import_module(f"wirelag.ebpf.{name}"), f"Kernel{name.capitalize()}")
