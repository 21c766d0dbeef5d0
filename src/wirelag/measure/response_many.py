"""Response latency of many captures: what a task measures, and how parts become one result.

It is divided between captures that do not continue one another; a rotated set is one task, whose meter hands its open
requests on from file to file. Who is a client is judged in each task from its own packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wirelag.measure.copies import refused
from wirelag.measure.fleet import (
    FileRead,
    Fleet,
    ReadElsewhere,
    Reading,
    absolute,
    captures_of,
    copy_tasks,
    readable,
    run_pieces,
)
from wirelag.measure.pieces import Piece, bundles, pieces
from wirelag.measure.response import ResponseResult, response_of
from wirelag.measure.response_heard import Hearing, ResponseSettings, need_clients
from wirelag.measure.response_method import Heard
from wirelag.packets.filters import Filter
from wirelag.packets.frames import Frames
from wirelag.packets.interval import Interval
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.source import PacketSource

TOLD_APART = (
    "who is a client is judged in each task from its own packets: where neither a SYN nor the ports tell, --server "
    "decides it everywhere"
)


@dataclass
class ResponsePart:
    """What a task returns."""

    heard: list[tuple[Interval, Heard]] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    files: list[FileRead] = field(default_factory=list)


def hear(planned: Sequence[Piece], settings: ResponseSettings, wanted: Filter, tunnels: bool) -> bytes:
    """A task: hear some pieces, each with a meter of its own."""
    from wirelag.measure.loop import cut
    from wirelag.scale.finished import packed

    part = ResponsePart()
    for piece in planned:
        reading = Reading(piece, wanted, tunnels)
        batches = reading.batches(lambda _: None)
        ((when, (heard,)),) = cut(Hearing(settings, part.frames), {"tap": batches})
        part.heard.append((when, heard))
        part.files += reading.files
    return packed(part)


def response_on(
    fleet: Fleet,
    source: PacketSource,
    settings: ResponseSettings,
    *,
    filter: Filter | str | None,
    tunnels: bool,
    force: bool,
) -> ResponseResult:
    """The result over all captures, which tasks read."""
    files, wanted = captures_of(source), Filter.of(filter)
    with fleet:
        looks = fleet.look_at(files, tunnels, split=False)
        good, length = readable(looks), fleet.length_for(looks)
        first, twice = copy_tasks(good, wanted, tunnels), list[str]()
        wanted, settings = absolute(wanted, good), replace(settings, cores=1)
        planned = pieces(good, length, split=False)
        plan = bundles(planned, length)
        parts: list[ResponsePart] = []
        read = run_pieces(
            fleet, "response", hear, plan, settings, wanted, tunnels,
            take=parts.append, first=first, check=lambda found: twice.extend(refused(found, force)),
        )  # fmt: skip
    packets = ReadElsewhere(files, read, wanted, tunnels)
    when, heard, frames = _together(parts, packets)
    need_clients(heard, packets, settings.servers)
    result = response_of(when, heard, frames, packets, settings)
    result.warnings += [*packets.apart(planned), *twice[:1]]
    result.errors = [one.problem for one in looks if one.problem] + packets.errors
    told = f"divided into {many(len(plan), 'task')}, never within a capture; a rotated set is read by one, which hands "
    result.notes.append(f"{told}what is open on from file to file")
    if len(plan) > 1 and not settings.servers:
        result.notes.append(TOLD_APART)
    return result


def _together(parts: Sequence[ResponsePart], packets: ReadElsewhere) -> tuple[Interval, Heard, Frames]:
    """What all tasks heard, as if one had: packets have their numbers in whole captures."""
    import numpy as np

    from wirelag.synopses.epochs import EPOCH, Epochs
    from wirelag.synopses.request_response import EXCHANGE, Exchanges

    frames, numbers = Frames(), packets.numbers()
    total, when = Heard(Epochs(np.empty(0, EPOCH)), Exchanges(np.empty(0, EXCHANGE))), Interval(0, 0)
    for part in parts:
        for seen, heard in part.heard:
            rows = heard.exchanges.rows.copy()
            for name in ("begin_frame", "last_frame"):
                rows[name] = frames.renumbered(rows[name], part.frames, numbers)
            total.epochs = total.epochs + heard.epochs
            total.exchanges = total.exchanges + replace(heard.exchanges, rows=rows)
            for count in ("from_clients", "from_servers", "left_out", "guessed"):
                setattr(total, count, getattr(total, count) + getattr(heard, count))
            if seen.length_ns:
                first = seen if not when.length_ns else when
                when = Interval(min(first.start_ns, seen.start_ns), max(first.end_ns, seen.end_ns))
    return when, total, frames
