"""Round trips to a STAMP reflector, and what they tell of the two clocks (RFC 8762).

A request leaves at t1 and arrives at t2, the reply leaves at t3 and arrives at t4; t2 and t3 are on the other clock.
The round trip is (t4 - t1) - (t3 - t2): no clock but the sender's matters, for as long as both run equally fast. If
the other clock is ahead by d, no packet is faster than light: t2 - t1 - d > 0 and t4 - t3 + d > 0, so that d lies
between -min(t4 - t3) and min(t2 - t1), for certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.result import Result
from wirelag.packets.stamp_session import least_bytes
from wirelag.units import Duration, duration_ns, format_duration, within

if TYPE_CHECKING:
    from wirelag.transport.stamp import Sent

QUANTILES: Final = ("0.5", "0.9", "0.99")
FEWEST: Final = 10  # replies, to tell how sure a mean is
LEAST_EVERY_NS: Final = 10**6


@dataclass(repr=False, eq=False)
class StampResult(Result):
    """Round trips, loss in each direction, and bounds of the other clock's offset; times in seconds."""

    command: ClassVar[str] = "stamp"
    target: str
    sent: int
    trips: list[float]  # in the order of requests
    forward: list[float]  # t2 - t1
    backward: list[float]  # t4 - t3
    lost_forward: int | None  # None: the reflector does not count
    duplicates: int = 0
    strange: int = 0
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Requests without a reply."""
        return self.sent - len(self.trips)

    @property
    def offset(self) -> tuple[float, float] | None:
        """Bounds of what the reflector's clock is ahead."""
        return (-min(self.backward), min(self.forward)) if self.trips else None

    def _one_way(self, means: Sequence[float], sign: int) -> dict[str, Any] | None:
        """A mean one-way delay: between its bounds, whatever the offset is."""
        if self.offset is None:
            return None
        mean = sum(means) / len(means)
        bounds = sorted(mean - sign * end for end in self.offset)
        return {"low": bounds[0], "high": bounds[1]}

    def to_dict(self) -> dict[str, Any]:
        trips = sorted(self.trips)
        mean = sum(trips) / len(trips) if trips else None
        return {
            "command": self.command,
            "quantity": "round_trip",
            "target": self.target,
            "sent": self.sent,
            "received": len(trips),
            "lost": self.lost,
            "lost_forward": self.lost_forward,
            "lost_backward": None if self.lost_forward is None else self.lost - self.lost_forward,
            "duplicated": self.duplicates,
            "samples": len(trips),
            "mean": mean,
            "min": trips[0] if trips else None,
            "max": trips[-1] if trips else None,
            "quantiles": {
                q: trips[min(len(trips) - 1, int(float(q) * len(trips)))] if trips else None for q in QUANTILES
            },
            "ci95": {} if (bounds := mean_bounds(self.trips)) is None else {"mean": list(bounds)},
            "offset": None if self.offset is None else dict(zip(("low", "high"), self.offset, strict=True)),
            "forward": self._one_way(self.forward, 1),
            "backward": self._one_way(self.backward, -1),
            "notes": self.notes,
        }

    def rows(self) -> list[dict[str, Any]]:
        plain = self.to_dict()
        row = {"key": self.target} | {name: plain[name] for name in ("sent", "received", "lost", "mean", "min", "max")}
        row |= {f"p{float(q) * 100:g}": value for q, value in plain["quantiles"].items()}
        row |= dict(zip(("mean_low", "mean_high"), plain["ci95"].get("mean", (None, None)), strict=True))
        for name in ("offset", "forward", "backward"):
            row |= {f"{name}_{end}": (plain[name] or {}).get(end) for end in ("low", "high")}
        return [row]

    def parts(self) -> Iterable[dict[str, Any]]:
        return [{name: value for name, value in self.to_dict().items() if name != "command"}]

    def table(self) -> list[str]:
        from wirelag.render.stamp import table

        return table(self)


def mean_bounds(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of a mean of values in order of time; None: too few, or too much alike one after another.

    Neighbours are alike, since queues drain slowly: with a correlation r of neighbours, n values tell as much as
    n (1 - r) / (1 + r) independent ones.
    """
    n = len(values)
    if n < FEWEST:
        return None
    mean = math.fsum(values) / n
    around = [value - mean for value in values]
    variance = math.fsum(one * one for one in around) / (n - 1)
    if variance == 0:
        return mean, mean
    likeness = max(0.0, math.fsum(a * b for a, b in pairwise(around)) / (n - 1) / variance)
    told = n * (1 - likeness) / (1 + likeness)
    if told < FEWEST / 2:
        return None
    half = 1.96 * math.sqrt(variance / told)
    return max(min(values), mean - half), mean + half


def stamp(
    host: str,
    port: int = 862,
    *,
    count: int = 100,
    every: Duration = "100ms",
    wait: Duration = "1s",
    length: int = 0,
    session: int = 1,
    key: bytes | None = None,
) -> StampResult:
    """Ask a STAMP reflector, or one of TWAMP Light, `count` times; with a key, in authenticated mode.

    `length` is that of UDP's payload; 0: as short as the standard allows.
    """
    within(count, 1, 1_000_000, "count")
    if length:
        within(length, least_bytes(key), 1472, "length")
    within(session, 0, 0xFFFF, "session")
    every_ns, wait_ns = duration_ns(every, "every"), duration_ns(wait, "wait")
    if every_ns < LEAST_EVERY_NS:
        raise SettingError("every", "must be at least 1 ms")
    from wirelag.transport.stamp import ask

    got = ask(host, port, count, every_ns / 1e9, wait_ns / 1e9, length, session, key)
    if got.refused and not got.exchanges:
        raise WirelagError(
            f"{host} port {port}: nothing answers there ({got.refused}); start a reflector, name its port, or let its "
            f"packets pass"
        )
    return result_of(got, f"{host} port {port}")


def result_of(got: Sent, target: str) -> StampResult:
    """The figures of a session."""
    forward = [(one.reply.received_ns - one.reply.sent_ns) / 1e9 for one in got.exchanges]
    backward = [(one.came_ns - one.reply.replied_ns) / 1e9 for one in got.exchanges]
    trips = [there + back for there, back in zip(forward, backward, strict=True)]
    result = StampResult(target, got.requests, trips, forward, backward, _lost_forward(got))
    result.duplicates, result.strange = got.duplicates, got.strange
    if result.lost and result.lost_forward is None:
        result.notes.append(
            "the reflector repeats sequence numbers, or began anew: which way packets were lost is not known"
        )
    if result.strange:
        result.notes.append(f"{result.strange:,} packets were no replies to this session")
    if result.offset is not None:
        low, high = result.offset
        if low > high:
            result.notes.append("the clocks changed against each other: their offset has no bounds")
        else:
            said = " to ".join(format_duration(end * 1e9) for end in (low, high))
            result.notes.append(f"the reflector's clock is ahead by {said}, since no packet arrives before it is sent")
    return result


def _lost_forward(got: Sent) -> int | None:
    """Requests that did not arrive, as the reflector's own numbers tell.

    None if it has none, or began anew: it was restarted, or had too many sessions.
    """
    if len(got.exchanges) == got.requests:
        return 0
    gaps = [one.reply.request - one.reply.sequence for one in got.exchanges]
    if not gaps or not any(gaps):
        return None
    found = max(0, max(gaps) - min(0, *gaps))
    return found if found <= got.requests - len(got.exchanges) else None
