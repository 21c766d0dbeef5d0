"""What packets tell themselves of a path, at one point: traces of IOAM, and loss bits of QUIC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError
from wirelag.measure.result import Result
from wirelag.units import one_of, within

if TYPE_CHECKING:
    from wirelag.capture.source import PacketSource
    from wirelag.measure.points import Progress
    from wirelag.packets.filters import Filter

NOTHING: Final = "no packet carries a trace of IOAM (an option of IPv6), and none a short header of QUIC"
LONGEST: Final = 1 << 16


@dataclass(repr=False, eq=False)
class TelemetryResult(Result):
    """Delays of hops from traces, and loss from bits: each as the JSON has it."""

    command: ClassVar[str] = "telemetry"
    packets: int
    skipped: dict[str, int]
    ioam: dict[str, Any]
    quic: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    subject: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "packets": self.packets,
            "skipped": self.skipped,
            "ioam": self.ioam,
            "quic": self.quic,
            "notes": self.notes,
            **({"partial": True} if self.partial else {}),
        }

    def rows(self) -> list[dict[str, Any]]:
        from wirelag.render.rows import COLUMNS

        return [dict.fromkeys(COLUMNS[self.command]) | one for one in self.parts()]

    def parts(self) -> Iterable[dict[str, Any]]:
        hops = [
            {"scope": "hop", "key": f"{one['from']} > {one['to']}", "namespace": one["namespace"], **_delays(one)}
            for one in self.ioam["hops"]
        ]
        nodes = [
            {"scope": "node", "key": one["node"], "namespace": one["namespace"], **_delays(one["inside"])}
            for one in self.ioam["nodes"]
            if one["inside"]
        ]
        return [*hops, *nodes, *({"scope": "quic", **_losses(one)} for one in self.quic["flows"])]

    def table(self) -> list[str]:
        from wirelag.render.telemetry import table

        return table(self)


def _delays(one: dict[str, Any]) -> dict[str, Any]:
    low, high = one["ci95"].get("mean", (None, None))
    plain = {name: one[name] for name in ("samples", "mean", "adds", "min", "max")}
    quantiles = {f"p{float(q) * 100:g}": value for q, value in one["quantiles"].items()}
    return plain | quantiles | {"mean_low": low, "mean_high": high}


def _losses(one: dict[str, Any]) -> dict[str, Any]:
    plain = {name: one[name] for name in ("key", "packets", "lost", "marked", "upstream", "downstream", "end_to_end")}
    for place in ("upstream", "downstream", "end_to_end"):
        plain[f"{place}_low"], plain[f"{place}_high"] = one["ci95"].get(place, (None, None))
    return plain


def telemetry(
    *captures: PacketSource,
    timestamps: str = "auto",
    every_port: bool = False,
    block: int | None = None,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    force: bool = False,
    progress: Progress = iter,
) -> TelemetryResult:
    """Read what packets tell of their path: delays of hops (IOAM, RFC 9197), and loss (QUIC's loss bits, RFC 9506).

    `timestamps` is the form of IOAM's: "posix" (microseconds), "ptp" (nanoseconds) or "ntp"; by default the fractions
    tell. `every_port` takes all UDP packets as QUIC; by default those of port 443 and 4433, and of flows that showed
    a long header. `block` is how many packets have the same Q; by default the capture tells. `force` reads
    captures that hold the same packets as one.
    """
    from wirelag.measure.ioam import FORMS, Traces

    one_of(timestamps, FORMS, "timestamps")
    if block is not None and within(block, 16, LONGEST, "block").bit_count() > 1:
        raise SettingError("block", "must be a power of two, such as 64")
    from wirelag.capture.source import each_of, open_packets
    from wirelag.measure.copies import refuse_copies
    from wirelag.measure.loss_bits import QuicLoss

    packets = open_packets(
        captures[0] if len(captures) == 1 else [one for source in captures for one in each_of(source)],  # type: ignore[arg-type]
        filter=filter,
        tunnels=tunnels,
    )
    twice = refuse_copies(packets, force)
    traces, quic = Traces(timestamps), QuicLoss(every_port, block)
    count = 0
    for batch in progress(packets):
        count += len(batch)
        traces.observe(batch)
        quic.observe(batch)
    told = quic.to_dict()
    result = TelemetryResult(count, packets.statistics.skipped, traces.to_dict(), told)
    result.subject, result.warnings = ", ".join(packets.names), packets.warnings
    result.notes = [*twice, *([*traces.notes(), *quic.notes()] or [NOTHING])]
    return result
