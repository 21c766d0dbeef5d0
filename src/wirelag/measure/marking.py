"""Loss and mean delay between two points from packets that are marked with alternating colours (RFC 9341)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.oneway import direction_of
from wirelag.measure.result import Result
from wirelag.units import Duration, duration_ns, format_duration, many, offset_ns

if TYPE_CHECKING:
    from wirelag.capture.source import Packets, PacketSource
    from wirelag.measure.points import Progress
    from wirelag.packets.addresses import Direction
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.twopoint.marking import Colours, Period, Times

FIELDS: Final = (*(f"dscp:{bit}" for bit in range(6)), "altmark")  # bits of the class, 0 the lowest; RFC 9343's option
LEAST_NS: Final = 10**6
POINTS: Final = ("upstream", "downstream")


@dataclass(repr=False, eq=False)
class MarkingResult(Result):
    """Loss and mean delay: of each period, and together."""

    command: ClassVar[str] = "marking"
    colour: str  # the bit that is the colour
    period_ns: int
    learned: bool  # whether the period was found in the capture
    periods: list[Period]
    packets: tuple[int, int]  # that were counted at each point
    skipped: dict[str, int]
    unmatched: tuple[int, int]  # periods that only one point saw
    subject: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Packets of all periods at the upstream point."""
        return sum(period.sent for period in self.periods)

    @property
    def received(self) -> int:
        """Packets of all periods at the downstream point."""
        return sum(period.received for period in self.periods)

    @property
    def exact(self) -> list[Period]:
        """Periods without loss: their means are exact."""
        return [period for period in self.periods if period.mean_ns is not None and not period.lost]

    @property
    def mean(self) -> float | None:
        """The mean delay of all packets of periods without loss, in seconds."""
        timed = sum(period.sent for period in self.exact)
        return sum((one.mean_ns or 0.0) * one.sent for one in self.exact) / timed / 1e9 if timed else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "quantity": "one_way",
            "field": self.colour,
            "period": self.period_ns / 1e9,
            "packets": dict(zip(POINTS, self.packets, strict=True)),
            "skipped": self.skipped,
            "sent": self.sent,
            "received": self.received,
            "lost": self.sent - self.received,
            "loss": (self.sent - self.received) / self.sent if self.sent else None,
            "mean": self.mean,
            "timed": sum(period.sent for period in self.exact),
            "unmatched": dict(zip(POINTS, self.unmatched, strict=True)),
            "periods": [self._period(period) for period in self.periods],
            "notes": self.notes,
            **({"partial": True} if self.partial else {}),
        }

    @staticmethod
    def _period(period: Period) -> dict[str, Any]:
        times = period.mean_ns, period.low_ns, period.high_ns
        mean, low, high = (None if ns is None else ns / 1e9 for ns in times)
        return {
            "start": period.start_ns / 1e9,
            "end": period.end_ns / 1e9,
            "colour": int(period.colour),
            "sent": period.sent,
            "received": period.received,
            "lost": period.lost,
            "mean": mean,
            "mean_low": low,
            "mean_high": high,
        }

    def rows(self) -> list[dict[str, Any]]:
        return [self._period(period) for period in self.periods]

    def parts(self) -> Iterable[dict[str, Any]]:
        return self.rows()

    def table(self) -> list[str]:
        from wirelag.render.marking import table

        return table(self)


def marking(
    upstream: PacketSource,
    downstream: PacketSource,
    *,
    field: str = "dscp:0",
    period: Duration | None = None,
    offset: Duration | None = None,
    direction: str | None = None,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    duration: Duration | None = None,
    force: bool = False,
    in_kernel: bool = False,
    progress: Progress = iter,
) -> MarkingResult:
    """Measure loss and mean delay between two points, from a colour that packets carry (RFC 9341).

    `field` is the bit that is the colour: "dscp:0" is the lowest of the class, "altmark" that of IPv6's option (RFC
    9343), "altmark:7" of the monitored flow 7 alone. `period` is how long a colour lasts; by default it is found in
    the upstream capture. `offset` is what the downstream clock is ahead; clocks must agree within half a period.
    `direction` ("SRC>DST") and `filter` choose the packets that are marked. `duration` is how long to listen at two
    interfaces of this host; the period must be known then. `in_kernel` counts them inside the kernel (eBPF). `force`
    measures even if both are one capture.
    """
    name, _, flow = field.partition(":") if field.startswith("altmark:") else (field, "", "")
    if name not in FIELDS or (flow and not flow.isdecimal()):
        raise SettingError("field", f"{field!r} is not one of {', '.join(FIELDS)}, altmark:FLOW")
    ahead_ns, way = 0 if offset is None else offset_ns(offset, "offset"), direction_of(direction)
    given = None if period is None else duration_ns(period, "period")
    if given is not None and given < LEAST_NS:
        raise SettingError("period", "must be at least 1 ms")
    from concurrent.futures import ThreadPoolExecutor

    from wirelag.capture.source import open_packets
    from wirelag.twopoint.marking import MarkingMeter, PeriodFinder, match

    length_ns = None if duration is None else duration_ns(duration, "duration")
    if length_ns is not None and given is None:
        raise SettingError("period", "is missing: at an interface it cannot be found before packets are counted")
    if in_kernel:
        return _in_kernel((upstream, downstream), field, given, ahead_ns, way, filter, tunnels, length_ns)
    points = [
        open_packets(source, filter=filter, tunnels=tunnels, duration_ns=length_ns) for source in (upstream, downstream)
    ]
    one_capture = _one_capture(points, force)
    period_ns = given
    if period_ns is None:
        finder = PeriodFinder()
        for times, colours in _marked(open_packets(upstream, filter=filter, tunnels=tunnels), field, way, progress):
            finder.observe(times, colours)
        period_ns = finder.period_ns
        if period_ns is None:
            raise WirelagError(
                f"{', '.join(points[0].names)}: the colour {field} changes fewer than 3 times; name the bit with "
                "--field, or choose the marked packets with --direction"
            )
    meters = MarkingMeter(period_ns), MarkingMeter(period_ns)

    def count(packets: Packets, meter: MarkingMeter, progress: Progress) -> None:
        for times, colours in _marked(packets, field, way, progress):
            meter.observe(times, colours)

    if length_ns is None:
        for packets, meter in zip(points, meters, strict=True):
            count(packets, meter, progress)
    else:
        with ThreadPoolExecutor(2) as both:  # at the same time
            list(both.map(count, points, meters, (iter, iter)))
    found = [meter.blocks for meter in meters]
    periods, *unmatched = match(found[0], found[1], period_ns, ahead_ns)
    result = MarkingResult(
        field,
        period_ns,
        given is None,
        periods,
        (sum(block.packets for block in found[0]), sum(block.packets for block in found[1])),
        _together([packets.statistics.skipped for packets in points]),
        (unmatched[0], unmatched[1]),
        subject=" > ".join(", ".join(packets.names) for packets in points),
        warnings=[line for packets in points for line in packets.warnings],
    )
    result.notes = [*one_capture, *_notes(result)]
    return result


def _one_capture(points: Sequence[Packets], force: bool) -> list[str]:
    """A WirelagError if both points are one capture; with `force`, a line that says so."""
    from wirelag.capture.files import Capture
    from wirelag.measure.copies import find_copies

    files = [file for packets in points if isinstance(packets, Capture) for file in packets.files]
    found = find_copies(files) if len(files) == len(POINTS) else None
    if found is None or not found.same_times:
        return []
    told = f"{found.one} and {found.other} show the same packets at the same times"
    if not force:
        raise WirelagError(f"{told}: is it one capture twice? Name captures of two points, or use --force")
    return [f"{told}: there is nothing between them (--force)"]


def _in_kernel(
    sources: tuple[PacketSource, PacketSource],
    field: str,
    period_ns: int | None,
    ahead_ns: int,
    way: Direction | None,
    filter: Filter | str | None,
    tunnels: bool,
    length_ns: int | None,
) -> MarkingResult:
    """The same, counted inside the kernel."""
    from wirelag.capture.source import is_interface
    from wirelag.measure.marking_kernel import count
    from wirelag.packets.filters import Filter
    from wirelag.twopoint.marking import match

    first, second = (one if isinstance(one, str) and is_interface(one) else None for one in sources)
    if first is None or second is None or length_ns is None or period_ns is None:
        raise SettingError("in_kernel", "counts at two interfaces, for a time: give --duration and --period")
    if not field.startswith("dscp:"):
        raise SettingError("field", "the kernel knows the bits of the DSCP only; leave --in-kernel out")
    if Filter.of(filter) != Filter():
        raise SettingError("in_kernel", "takes no filter: choose packets with --direction")
    points = count((first, second), int(field[-1]), period_ns, way, tunnels, length_ns)
    found = points[0].blocks, points[1].blocks
    periods, *unmatched = match(*found, period_ns, ahead_ns)
    missed = sum(one.inside.statistics().dropped for one in points)
    result = MarkingResult(
        field,
        period_ns,
        False,
        periods,
        (sum(block.packets for block in found[0]), sum(block.packets for block in found[1])),
        _together([one.inside.hooks.skipped() for one in points]),
        (unmatched[0], unmatched[1]),
        subject=f"{first} > {second}",
        warnings=[f"{many(missed, 'packet')} were not counted: the kernel had no memory left"] if missed else [],
    )
    result.notes = [*_notes(result), "counted inside the kernel"]
    return result


def _marked(packets: Packets, field: str, way: Direction | None, progress: Progress) -> Iterator[tuple[Times, Colours]]:
    """Times and colours of the packets that are asked for."""
    import numpy as np

    batches: Iterable[PacketBatch] = progress(packets)
    for batch in batches:
        part = batch if way is None else batch[way.rows(batch)]
        if field.startswith("altmark"):
            yield _optional(part, field.partition(":")[2])
        else:
            yield part.time_ns, (part.dscp >> np.uint8(field[-1]) & np.uint8(1)).astype(np.bool_)


def _optional(batch: PacketBatch, flow: str) -> tuple[Times, Colours]:
    """Times and colours of packets with the option of IPv6: of one monitored flow, or of all."""
    import numpy as np

    from wirelag.packets.batch import Flag
    from wirelag.packets.options import mark

    rows, colours = [], []
    for row in np.flatnonzero(batch.has(Flag.OPTIONS)).tolist():
        found = mark(batch, row)
        if found is not None and (not flow or found.flow == int(flow)):
            rows.append(row)
            colours.append(found.colour)
    return batch.time_ns[np.array(rows, np.intp)], np.array(colours, np.bool_)


def _together(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    from collections import Counter

    return dict(sum((Counter(one) for one in counts), Counter()))


def _notes(result: MarkingResult) -> list[str]:
    """What the figures rest on."""
    notes = []
    if result.learned:
        notes.append(f"the colour changes every {format_duration(result.period_ns)}, as found in the upstream capture")
    exact, periods = result.exact, result.periods
    if not periods:
        notes.append("no period was seen whole at both points: check --offset, --direction and --period")
    elif len(exact) < len(periods):
        notes.append(
            f"the mean is of the {len(exact):,} of {many(len(periods), 'period')} without loss; others have bounds "
            "that hold whatever packets were lost"
        )
    more = sum(period.lost < 0 for period in periods)
    if more:
        notes.append(
            f"{many(more, 'period')} received more than was sent: packets were duplicated, or joined on the way"
        )
    for where, count in zip(POINTS, result.unmatched, strict=True):
        if count:
            notes.append(f"{many(count, 'period')} at the {where} point had no counterpart, and are not counted")
    counts = " and ".join(f"{many(n, 'packet')} {where}" for n, where in zip(result.packets, POINTS, strict=True))
    notes.append(f"{counts}; the first and the last period of each capture are left out")
    notes.append("delays include what the clocks differ by (--offset)")
    return notes
