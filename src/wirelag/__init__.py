"""wirelag: how late is the network? Measured from packets you already have.

    import wirelag

    result = wirelag.rtt("capture.pcap", by="server", interval="10s")
    print(result)
    print(result.quantile(0.99), result.ci95["mean"])

One function for each question: `rtt`, `response`, `oneway`, `flows`, `marking`, `telemetry`, `path`, `plan`, `info`,
`compare`. Each takes captures and returns a `Result`; `to_dict()` is the JSON of the command with the same name.
`overview` is the command `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirelag.capture.files import Capture, Order
    from wirelag.capture.source import PathOrFile
    from wirelag.errors import SettingError, WirelagError
    from wirelag.estimators.finecomb import Finecomb
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.join import Join
    from wirelag.estimators.lda import Lda
    from wirelag.estimators.match import Match
    from wirelag.estimators.pairs import Pairs
    from wirelag.estimators.pirate import Pirate
    from wirelag.estimators.protocol import Estimator, Meter
    from wirelag.estimators.rda import Rda
    from wirelag.estimators.rli import Rli
    from wirelag.measure.compare import compare
    from wirelag.measure.fleet import Fleet
    from wirelag.measure.flows import flows
    from wirelag.measure.info import info
    from wirelag.measure.loop import run
    from wirelag.measure.marking import marking
    from wirelag.measure.oneway import oneway
    from wirelag.measure.overview import overview
    from wirelag.measure.path import path
    from wirelag.measure.plan import plan
    from wirelag.measure.response import response
    from wirelag.measure.result import Entry, Result
    from wirelag.measure.rtt import rtt
    from wirelag.measure.telemetry import telemetry
    from wirelag.packets.batch import Flag, Kind, PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.packets.packet_id import PacketId
    from wirelag.report import Report
    from wirelag.sim.scenario import Scenario
    from wirelag.sim.simulation import simulate

__version__ = "0.1.0"

_HOMES = {
    "compare": "measure.compare",
    "flows": "measure.flows",
    "info": "measure.info",
    "marking": "measure.marking",
    "oneway": "measure.oneway",
    "overview": "measure.overview",
    "path": "measure.path",
    "plan": "measure.plan",
    "response": "measure.response",
    "rtt": "measure.rtt",
    "run": "measure.loop",
    "simulate": "sim.simulation",
    "telemetry": "measure.telemetry",
    "Entry": "measure.result",
    "Estimator": "estimators.protocol",
    "Filter": "packets.filters",
    "Finecomb": "estimators.finecomb",
    "Flag": "packets.batch",
    "Fleet": "measure.fleet",
    "Fridge": "estimators.fridge",
    "Join": "estimators.join",
    "Kind": "packets.batch",
    "Lda": "estimators.lda",
    "Match": "estimators.match",
    "Meter": "estimators.protocol",
    "PacketBatch": "packets.batch",
    "PacketId": "packets.packet_id",
    "Pairs": "estimators.pairs",
    "Pirate": "estimators.pirate",
    "Rda": "estimators.rda",
    "Report": "report",
    "Result": "measure.result",
    "Rli": "estimators.rli",
    "Scenario": "sim.scenario",
    "SettingError": "errors",
    "WirelagError": "errors",
}

__all__ = [
    "Entry",
    "Estimator",
    "Filter",
    "Finecomb",
    "Flag",
    "Fleet",
    "Fridge",
    "Join",
    "Kind",
    "Lda",
    "Match",
    "Meter",
    "PacketBatch",
    "PacketId",
    "Pairs",
    "Pirate",
    "Rda",
    "Report",
    "Result",
    "Rli",
    "Scenario",
    "SettingError",
    "WirelagError",
    "compare",
    "flows",
    "info",
    "marking",
    "oneway",
    "overview",
    "path",
    "plan",
    "read",
    "response",
    "rtt",
    "run",
    "simulate",
    "telemetry",
]


def read(
    *sources: PathOrFile,
    filter: Filter | str | None = None,
    packet_id: PacketId | None = None,
    tunnels: bool = False,
    follow: bool = False,
    order: Order = "time",
) -> Capture:
    """Open captures (pcap or pcapng; plain, gzip, zstd or xz; `-` is standard input) as one source of packet batches.

    `sources` are paths, globs or open files. `filter` keeps some packets only. `packet_id` says what packet ids are
    made of (by default, everything that no hop changes). `tunnels` follows GRE, IP-in-IP, VXLAN, Geneve and GTP-U to
    the innermost packet. `follow` continues to read while the file grows. Several captures are merged by time, or,
    with `order="given"`, follow one another.
    """
    from wirelag.capture.files import Capture
    from wirelag.capture.source import each_of, list_files
    from wirelag.packets.packet_id import PacketId
    from wirelag.units import one_of

    one_of(order, ("time", "given"), "order")
    files = list_files([one for source in sources for one in each_of(source)])
    return Capture(
        [path for path, _ in files],
        names=dict(files),
        filter=filter,
        packet_id=packet_id or PacketId(),
        tunnels=tunnels,
        follow=follow,
        order=order,
    )


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line starts without numpy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"wirelag.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'wirelag' has no attribute {name!r}")


def __dir__() -> Sequence[str]:
    return sorted([*globals(), *__all__])
