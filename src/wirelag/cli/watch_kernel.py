"""`wirelag watch --in-kernel`: the same answers, from meters that run inside the kernel."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from wirelag.cli.watch_measures import Responses, RoundTrips
    from wirelag.ebpf.source import KernelSource

    Measure = RoundTrips | Responses


@dataclass(frozen=True, slots=True)
class InKernel:
    """What is asked of the kernel."""

    quantity: str
    interface: str
    interval_ns: int
    direction: str
    tunnels: bool
    then: str | None
    memory: int  # of fridges, or of the table of flows
    method: str | None
    servers: tuple[str, ...]
    by: str | None
    most_groups: int


def open_inside(in_kernel: bool, refused: dict[str, bool], asked: InKernel) -> tuple[KernelSource, Measure] | None:
    """Measure inside the kernel from now on; None, and a line that says why, where it cannot be.

    `refused` are options that packets would be needed for. With another program
    to run after ours there is no other way.
    """
    from wirelag.ebpf.dataplane import UnavailableError

    if not in_kernel:
        raise typer.BadParameter("is for --in-kernel", param_hint="--then")
    _refuse(refused)
    try:
        return _response(asked) if asked.quantity == "response" else _rtt(asked)
    except UnavailableError as error:
        if asked.then is not None or asked.interface not in (name for _, name in socket.if_nameindex()):
            raise
        _warn(f"{error}; measuring outside of the kernel instead")
        return None


def _warn(*lines: str) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def _refuse(given: dict[str, bool]) -> None:
    for flag, wanted in given.items():
        if wanted:
            raise typer.BadParameter("needs the packets themselves: leave it out, or --in-kernel", param_hint=flag)


def _rtt(wanted: InKernel) -> tuple[KernelSource, Measure]:
    from wirelag.cli.watch_measures import RoundTrips
    from wirelag.ebpf.fridge import KernelFridge
    from wirelag.ebpf.source import KernelSource
    from wirelag.estimators.fridge import Fridge

    _refuse({"--by": wanted.by is not None})
    meter = KernelFridge(
        Fridge(memory=2 * wanted.memory),  # of which half would be for fridges that are drained
        wanted.interface,
        wanted.interval_ns,
        tunnels=wanted.tunnels,
        direction=wanted.direction,  # type: ignore[arg-type]
        then=wanted.then,
    )
    source = KernelSource(
        wanted.interface,
        statistics=meter.statistics,
        check=meter.hooks.check,
        close=meter.close,
    )
    _warn(*meter.hooks.notes)
    return source, RoundTrips(meter, "fridge", None)


def _response(wanted: InKernel) -> tuple[KernelSource, Measure]:
    from wirelag.cli.response import servers_of
    from wirelag.cli.watch_measures import Responses
    from wirelag.ebpf.pirate import STEMS, KernelPirate
    from wirelag.ebpf.source import KernelSource
    from wirelag.estimators.pirate import Pirate

    method = wanted.method or "auto"
    if method not in STEMS:
        raise typer.BadParameter("in the kernel it is auto or modes", param_hint="--method")
    if wanted.direction == "out":
        raise typer.BadParameter("in the kernel responses are told by what comes in", param_hint="--direction")
    servers = servers_of(list(wanted.servers))
    pirate = Pirate(method, wanted.memory)  # type: ignore[arg-type]
    meter = KernelPirate(pirate, wanted.interface, servers=servers, tunnels=wanted.tunnels, then=wanted.then)
    source = KernelSource(
        wanted.interface,
        statistics=meter.statistics,
        check=meter.check,
        collect=meter.collect,
        close=meter.close,
    )
    _warn(*meter.notes)
    return source, Responses(pirate, method, servers, wanted.by, wanted.most_groups, meter)
