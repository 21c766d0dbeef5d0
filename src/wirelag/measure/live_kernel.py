"""Live questions of one point, from meters inside the kernel."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wirelag.errors import SettingError
from wirelag.measure.live import LiveMeasure, Responses, RoundTrips
from wirelag.measure.response_heard import ResponseSettings
from wirelag.packets.filters import Filter
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.ebpf.fridge import KernelFridge
    from wirelag.ebpf.source import KernelSource
    from wirelag.measure.groups import Groups


@dataclass(frozen=True, slots=True)
class InKernel:
    """The measurement that the kernel is to make."""

    interface: str
    interval_ns: int
    direction: str
    tunnels: bool
    then: str | None  # XDP program to run after wirelag's
    memory: int  # memory for fridges
    response: ResponseSettings | None  # None: round trips
    wanted: Filter = field(default_factory=Filter)  # of round trips
    groups: Groups | None = None  # of round trips


@dataclass
class Inside:
    """A source and its measurement inside the kernel."""

    source: KernelSource
    measure: LiveMeasure
    notes: list[str]


class KernelRoundTrips(RoundTrips):
    """Round trips that the kernel matches."""

    def __init__(self, meter: KernelFridge, groups: Groups | None) -> None:
        super().__init__(meter, "fridge", groups)
        self._kernel = meter

    def notes(self) -> list[str]:
        """Lines under the final table."""
        lost = self._kernel.in_no_group
        more = [f"{many(lost, 'sample')} in no group: they came faster than they could be read"] if lost else []
        return [*super().notes(), *more]


def open_inside(asked: InKernel) -> Inside | str:
    """Start to measure inside the kernel, or return why that is impossible where wirelag can measure outside instead.

    With an XDP program to run after wirelag's, it must be inside.
    """
    from wirelag.ebpf.dataplane import UnavailableError

    try:
        return _rtt(asked) if asked.response is None else _response(asked, asked.response)
    except UnavailableError as error:
        if asked.then is not None or asked.interface not in (name for _, name in socket.if_nameindex()):
            raise
        return f"{error}; measuring outside the kernel instead"


def _rtt(asked: InKernel) -> Inside:
    from wirelag.ebpf.fridge import KernelFridge
    from wirelag.ebpf.source import KernelSource
    from wirelag.estimators.fridge import Fridge

    meter = KernelFridge(
        Fridge(memory=2 * asked.memory),  # half of it would be for fridges being drained
        asked.interface,
        asked.interval_ns,
        tunnels=asked.tunnels,
        wanted=asked.wanted,
        grouped=asked.groups is not None,
        direction=asked.direction,  # type: ignore[arg-type]
        then=asked.then,
    )
    source = KernelSource(
        asked.interface,
        statistics=meter.statistics,
        check=meter.hooks.check,
        collect=meter.collect,
        close=meter.close,
    )
    return Inside(source, KernelRoundTrips(meter, asked.groups), list(meter.hooks.notes))


def _response(asked: InKernel, settings: ResponseSettings) -> Inside:
    from wirelag.ebpf.pirate import STEMS, KernelPirate
    from wirelag.ebpf.source import KernelSource

    if settings.method not in STEMS:
        raise SettingError("method", "the kernel supports auto and modes only")
    if asked.direction == "out":
        raise SettingError("direction", "the kernel times responses by incoming packets only; leave --direction out")
    meter = KernelPirate(
        settings.pirate(), asked.interface, servers=settings.servers, tunnels=asked.tunnels, then=asked.then
    )
    source = KernelSource(
        asked.interface, statistics=meter.statistics, check=meter.check, collect=meter.collect, close=meter.close
    )
    return Inside(source, Responses(settings, meter), list(meter.notes))
