"""An agent whose meter runs in the kernel: lda, cut by the clock. What looks at single packets is unavailable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wirelag.agent.settings import Settings
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Interval
from wirelag.twopoint.spans import ALL, Cut

if TYPE_CHECKING:
    from wirelag.agent.config import Config, Measured
    from wirelag.ebpf.lda import KernelLda
    from wirelag.ebpf.source import KernelSource


SHORTEST_NS: Final = 100 * 10**6  # shortest interval: one is read while the next is filled


def check(settings: Settings, measured: tuple[Measured, ...]) -> None:
    """Raise a WirelagError if the kernel cannot do what is configured."""
    if settings["capture.then"] is not None and not settings["capture.in_kernel"]:
        raise settings.wrong("capture.then", "runs after a program in the kernel: add in_kernel (--in-kernel)")
    if not settings["capture.in_kernel"]:
        return
    terms = measured[0].terms
    if terms.estimator.name != "lda":
        raise settings.wrong("estimator.name", f"{terms.estimator.name} keeps packets: in the kernel there is only lda")
    if terms.delimiters is not None:
        raise settings.wrong("cut.at", "in the kernel intervals are cut by the clock: write clock (--cut clock)")
    if settings["interface"] is None:
        raise settings.wrong("read", "captures are not read inside the kernel: leave in_kernel (--in-kernel) out")
    if settings["interval"] < SHORTEST_NS or settings["interval"] < 2 * settings["grace"]:
        raise settings.wrong("interval", "is too short: in the kernel it must be 100 ms or more, and twice the grace")
    for name, given in {
        "by": terms.by is not None,
        "filter": settings["filter"] is not None,
        "capture.promiscuous": settings["capture.promiscuous"],
        "segments": len(measured) > 1,
        "segments.0.packets": measured[0].references_only,
    }.items():
        if given:
            raise settings.wrong(name, "is not supported in the kernel: leave in_kernel (--in-kernel) out")


class KernelMeter:
    """The kernel's meter in the form that an agent cuts; it has no classes, and gets no packets here."""

    def __init__(self, inside: KernelLda) -> None:
        self._inside = inside

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Do nothing: the kernel has seen them."""

    def cut(self, interval: Interval) -> Cut:
        """The cut of an interval."""
        return Cut(interval, {ALL: self._inside.cut(interval)})


def open_kernel(config: Config, tell: Callable[[str], None]) -> tuple[KernelSource, KernelMeter] | None:
    """Attach; return None and report why if that fails, unless another program must run after ours."""
    from wirelag.ebpf.dataplane import UnavailableError
    from wirelag.ebpf.lda import KernelLda
    from wirelag.ebpf.source import KernelSource

    measured = config.measured[0]
    assert config.interface is not None
    try:
        inside = KernelLda(
            measured.terms.estimator,  # type: ignore[arg-type]
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
        tell(f"{error}; measuring outside of the kernel instead")
        return None
    for note in inside.hooks.notes:
        tell(note)
    source = KernelSource(config.interface, statistics=inside.statistics, check=inside.hooks.check, close=inside.close)
    return source, KernelMeter(inside)
