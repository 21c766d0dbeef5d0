"""The same on live traffic from meters that run inside the kernel."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wirelag.errors import SettingError
from wirelag.measure.live import LiveMeasure, Responses, RoundTrips
from wirelag.measure.response import ResponseSettings

if TYPE_CHECKING:
    from wirelag.ebpf.source import KernelSource


@dataclass(frozen=True, slots=True)
class InKernel:
    """What is asked of the kernel."""

    interface: str
    interval_ns: int
    direction: str
    tunnels: bool
    then: str | None  # an XDP program to run after ours
    memory: int  # of fridges
    response: ResponseSettings | None  # None: round trips


@dataclass
class Inside:
    """A source and its measurement inside the kernel."""

    source: KernelSource
    measure: LiveMeasure
    notes: list[str]


def open_inside(asked: InKernel) -> Inside | str:
    """Measure inside the kernel from now on; or why that is not possible, where the same can be measured outside.

    With another program to run after ours there is no other way.
    """
    from wirelag.ebpf.dataplane import UnavailableError

    try:
        return _rtt(asked) if asked.response is None else _response(asked, asked.response)
    except UnavailableError as error:
        if asked.then is not None or asked.interface not in (name for _, name in socket.if_nameindex()):
            raise
        return f"{error}; measuring outside of the kernel instead"


def _rtt(asked: InKernel) -> Inside:
    from wirelag.ebpf.fridge import KernelFridge
    from wirelag.ebpf.source import KernelSource
    from wirelag.estimators.fridge import Fridge

    meter = KernelFridge(
        Fridge(memory=2 * asked.memory),  # of which half would be for fridges that are drained
        asked.interface,
        asked.interval_ns,
        tunnels=asked.tunnels,
        direction=asked.direction,  # type: ignore[arg-type]
        then=asked.then,
    )
    source = KernelSource(asked.interface, statistics=meter.statistics, check=meter.hooks.check, close=meter.close)
    return Inside(source, RoundTrips(meter, "fridge", None), list(meter.hooks.notes))


def _response(asked: InKernel, settings: ResponseSettings) -> Inside:
    from wirelag.ebpf.pirate import STEMS, KernelPirate
    from wirelag.ebpf.source import KernelSource

    if settings.method not in STEMS:
        raise SettingError("method", "in the kernel it is auto or modes")
    if asked.direction == "out":
        raise SettingError("direction", "in the kernel, responses are dated by packets that come in")
    meter = KernelPirate(
        settings.pirate(), asked.interface, servers=settings.servers, tunnels=asked.tunnels, then=asked.then
    )
    source = KernelSource(
        asked.interface, statistics=meter.statistics, check=meter.check, collect=meter.collect, close=meter.close
    )
    return Inside(source, Responses(settings, meter), list(meter.notes))
