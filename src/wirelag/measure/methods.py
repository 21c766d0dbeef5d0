"""Two-point methods by name, with their sizes, for `oneway`, `cut` and agents.

A method includes the fields of packet ids and where intervals end: both points must choose alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import SettingError
from wirelag.units import one_of, parse_share, within

if TYPE_CHECKING:
    from wirelag.packets.intervals import Delimiters
    from wirelag.packets.packet_id import PacketId

ESTIMATORS: Final = ("join", "lda", "finecomb", "rda")
DEVIATIONS: Final = ("rows", "collapse")
CUTS: Final = ("packets", "clock")
GROUPS: Final = ("flow", "source", "destination", "prefix", "dscp")
MOST_BANKS: Final = 8
USUAL_LOSSES: Final = "0.1%,5%"
USUAL_PACKETS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Method:
    """An estimator and its sizes; sizes of other estimators are ignored."""

    estimator: str = "join"
    rows: int | None = None  # lda (all banks), finecomb
    loss: str | None = None  # lda, finecomb: loss rates to tune for, separated by commas
    packets_per_interval: int | None = None
    banks: int = 3  # rda
    no_check: bool = False
    buckets: int | None = None  # rda: in total; None: as many as needed
    rateless: bool = False
    deviation: str = "rows"
    tail: int = 2048  # packets sampled for quantiles
    memory: int = 512 << 20
    seed: int = 0
    cut: str | None = None  # None: as the estimator prefers
    control_port: int | None = None
    nat: bool = False
    prefix: int = 16

    def __post_init__(self) -> None:
        one_of(self.estimator, ESTIMATORS, "estimator")
        one_of(self.deviation, DEVIATIONS, "deviation")
        within(self.banks, 2, 4, "banks")
        within(self.tail, 1, 1 << 24, "tail")
        within(self.seed, 0, (1 << 64) - 1, "seed")
        within(self.memory, 1 << 10, 1 << 37, "memory")
        within(self.prefix, 0, 64, "prefix")
        for value, least, most, name in (
            (self.rows, 1 if self.estimator == "lda" else 2, 1 << 24, "rows"),
            (self.buckets, self.banks, 1 << 26, "buckets"),
            (self.packets_per_interval, 1, 1 << 40, "packets_per_interval"),
            (self.control_port, 1, 65535, "control_port"),
        ):
            if value is not None:
                within(value, least, most, name)
        if self.cut is not None:
            one_of(self.cut, CUTS, "cut")
        _shares(self.loss or USUAL_LOSSES)

    def packet_id(self) -> PacketId:
        """The fields of packet ids."""
        from wirelag.packets.packet_id import PacketId

        return PacketId(flow=not self.nat, prefix=self.prefix, seed=self.seed)

    def make(self, packets: int | None = None) -> Any:
        """The estimator, tuned for an interval with about this many packets."""
        packets = self.packets_per_interval or (packets if self.loss else None)
        deviation: Any = self.deviation
        if self.estimator == "join":
            from wirelag.estimators.join import Join

            return Join(self.memory, self.seed)
        if self.estimator == "rda":
            from wirelag.estimators.rda import Rda

            return Rda(
                self.banks,
                self.buckets,
                not self.no_check,
                self.rateless,
                deviation=deviation,
                tail=self.tail,
                memory=self.memory,
                seed=self.seed,
            )
        from wirelag.estimators.lda import Lda, tuned

        rows = self.rows or 1024
        if self.estimator == "lda":
            if rows == 1:  # one counter of all packets, which needs no packet ids
                return Lda(1, (0,), deviation, self.tail, self.seed)
            shifts = Lda().shifts
            if self.loss is not None or packets is not None:
                losses = _shares(self.loss or USUAL_LOSSES)
                shifts = tuned(packets or USUAL_PACKETS, losses, max(1, rows // len(losses)))
            return Lda(max(2, rows // len(shifts)), shifts, deviation, self.tail, self.seed)
        from wirelag.estimators.finecomb import Finecomb

        shift = tuned(packets or USUAL_PACKETS, _shares(self.loss)[-1:], rows)[0] if self.loss else 0
        return Finecomb(rows, shift, min(rows, 4096), deviation, self.tail, self.seed)

    def delimiters(self, estimator: Any, interval_ns: int | None, packets: int | None) -> Delimiters | None:
        """Which packets end intervals of about this many packets; None: the clock ends them."""
        from wirelag.packets.intervals import Delimiters

        if not estimator.can.delimited:
            if self.control_port is not None:
                raise SettingError("control_port", "only lda is cut at packets")
            if self.cut == "packets":
                raise SettingError("cut", "only lda is cut at packets; leave it out")
            return None
        if interval_ns is None and (self.cut is not None or self.control_port is not None):
            raise SettingError("cut", "needs intervals: --interval")
        if self.control_port is not None and self.cut == "clock":
            raise SettingError("control_port", "cuts at packets: leave --cut clock out")
        if interval_ns is None or self.cut == "clock":
            return None
        packets = self.packets_per_interval or packets
        return Delimiters(interval_ns, Delimiters.bits_for(packets) if packets else 10, self.seed, self.control_port)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(parse_share(part) for part in text.split(","))
    except ValueError as error:
        raise SettingError("loss", str(error)) from None
    if 1.0 in shares:
        raise SettingError("loss", "must be below 100%")
    if len(shares) > MOST_BANKS:
        raise SettingError("loss", f"has more than {MOST_BANKS} rates; give fewer")
    return shares
