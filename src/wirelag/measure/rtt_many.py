"""Round trips of many captures: what a task measures, and how parts become one result.

Exact matching is divided at captures, and large captures at records. A fridge is one table that all packets share: it
is not divided, and one task reads all captures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wirelag.errors import SettingError
from wirelag.measure.copies import refused
from wirelag.measure.fleet import (
    FileRead,
    Fleet,
    ReadElsewhere,
    Reading,
    absolute,
    captures_of,
    copy_tasks,
    how_divided,
    readable,
    run_pieces,
)
from wirelag.measure.pieces import Piece, all_at_once, bundles, pieces
from wirelag.measure.rtt import RttResult, RttSettings, measured, told
from wirelag.measure.rtt_heard import Cut, Heard
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval

if TYPE_CHECKING:
    from wirelag.capture.source import PacketSource


@dataclass
class RttPart:
    """What a task returns."""

    heard: Heard
    cuts: list[tuple[Interval, bytes]] = field(default_factory=list)  # of intervals, each packed: few are open at once
    files: list[FileRead] = field(default_factory=list)
    warmed_ns: list[int] = field(default_factory=list)

    def merge(self, other: RttPart) -> None:
        """Add what another task returned."""
        self.heard.merge(other.heard)
        self.cuts += other.cuts
        self.warmed_ns += other.warmed_ns

    def together(self, settings: RttSettings) -> Iterator[Cut]:
        """The samples of each interval, of all parts; without intervals, one of all."""
        from wirelag.scale.finished import unpacked
        from wirelag.synopses.connections import Connections
        from wirelag.synopses.samples import Samples

        by_start: dict[int, list[tuple[Interval, bytes]]] = defaultdict(list)
        for when, cut in self.cuts:
            by_start[when.start_ns if settings.interval_ns else 0].append((when, cut))
        for start in sorted(by_start):
            samples, connections = Samples(), None
            for _, cut in by_start[start]:
                more, theirs = unpacked(cut)
                samples.merge(more)
                if theirs is not None:
                    connections = connections or Connections()
                    connections.merge(theirs)
            yield by_start[start][0][0], samples, connections


def hear(planned: Sequence[Piece], settings: RttSettings, wanted: Filter, tunnels: bool, charts: bool) -> bytes:
    """A task: measure some pieces, each with a meter of its own."""
    from wirelag.scale.finished import packed

    part = RttPart(Heard.fresh(settings, charts))
    for piece in planned:
        reading, meter = Reading(piece, wanted, tunnels), part.heard.meter(settings)
        warm_up = getattr(meter, "warm_up", meter.observe)
        for when, samples, connections in part.heard.cuts(meter, reading.batches(warm_up), settings):
            part.cuts.append((when, packed((samples, connections))))
        part.files += reading.files
        if reading.warmed_ns is not None:
            part.warmed_ns.append(reading.warmed_ns)
    return packed(part)


def rtt_on(
    fleet: Fleet,
    source: PacketSource,
    settings: RttSettings,
    *,
    filter: Filter | str | None,
    tunnels: bool,
    force: bool,
    charts: bool,
) -> RttResult:
    """The result over all captures, which tasks read."""
    files, wanted = captures_of(source), Filter.of(filter)
    divisible = settings.method == "match"
    with fleet:
        looks = fleet.look_at(files, tunnels, split=divisible)
        good, length = readable(looks), fleet.length_for(looks)
        first, twice = copy_tasks(good, wanted, tunnels), list[str]()
        wanted, settings = absolute(wanted, good), replace(settings, cores=1)
        while True:
            planned = pieces(good, length, split=True) if divisible else [all_at_once(good)]
            plan = bundles(planned, length)
            total = RttPart(Heard.fresh(settings, charts))
            read = run_pieces(
                fleet, "rtt", hear, plan, settings, wanted, tunnels, charts,
                take=total.merge, first=first, check=lambda found: twice.extend(refused(found, force)),
            )  # fmt: skip
            packets = ReadElsewhere(files, read, wanted, tunnels)
            if not (wrong := packets.unsplit):
                break
            first = []
            good = [replace(one, parts=()) if one.name in wrong else one for one in good]  # read in one piece
    total.heard.slowest.renumber(packets.numbers())
    result = told(measured(total.together(settings), total.heard, packets, settings), packets, settings)
    result.warnings += [*packets.apart(planned), *twice[:1]]
    result.errors = [one.problem for one in looks if one.problem] + packets.errors
    whole = "one task read everything: a fridge is one table that all packets share"
    result.notes.append(how_divided(len(plan), planned, total.warmed_ns) if divisible else whole)
    return result


def need_divisible(samples: object) -> None:
    """What needs every delay in order cannot be divided."""
    if samples is not False:
        raise SettingError("samples", "every delay, in order, is more than tasks return; measure without --on")
