"""Response latency of many captures: what a task measures, and how parts become one result.

It is divided between pieces, which have a meter of their own on one machine, too (`response_pieces`).
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
from wirelag.measure.pieces import Piece, bundles, joined, pieces
from wirelag.measure.response import ResponseResult, response_of
from wirelag.measure.response_heard import ResponseSettings, hear_piece, need_clients
from wirelag.measure.response_method import Heard, HeardInPieces
from wirelag.measure.response_pieces import ALIVE_NS
from wirelag.packets.filters import Filter
from wirelag.packets.frames import Frames
from wirelag.packets.interval import Interval
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.source import PacketSource


@dataclass
class ResponsePart:
    """What a task returns."""

    heard: list[tuple[Interval, Heard]] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    files: list[FileRead] = field(default_factory=list)


def hear(planned: Sequence[Piece], settings: ResponseSettings, wanted: Filter, tunnels: bool) -> bytes:
    """A task: hear some pieces, each with a meter of its own."""
    from wirelag.scale.finished import packed

    part = ResponsePart()
    for piece in planned:
        reading = Reading(piece, wanted, tunnels)
        part.heard.append(hear_piece(reading.batches(lambda _: None), settings, part.frames))
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
        while True:
            plan = bundles(planned, length)
            parts: list[ResponsePart] = []
            read = run_pieces(
                fleet, "response", hear, plan, settings, wanted, tunnels,
                take=parts.append, first=first, check=lambda found: twice.extend(refused(found, force)),
            )  # fmt: skip
            packets = ReadElsewhere(files, read, wanted, tunnels)
            again = joined(planned, [packets.keys_of(piece) for piece in planned], ALIVE_NS)
            if len(again) == len(planned):
                break
            planned, first = again, []
    when, heard, frames = _together(parts, packets)
    need_clients(heard, packets, settings.servers)
    result = response_of(when, heard, frames, packets, settings)
    result.warnings += twice[:1]
    result.errors = [one.problem for one in looks if one.problem] + packets.errors
    told = f"divided into {many(len(plan), 'task')}, never within a capture; a rotated set is read by one, which hands "
    result.notes.append(f"{told}what is open on from file to file")
    return result


def _together(parts: Sequence[ResponsePart], packets: ReadElsewhere) -> tuple[Interval, Heard, Frames]:
    """What all tasks heard, as if one had: packets have their numbers in whole captures."""
    frames, numbers, total = Frames(), packets.numbers(), HeardInPieces()
    for part in parts:
        for when, heard in part.heard:
            rows = heard.exchanges.rows.copy()
            for name in ("begin_frame", "last_frame"):
                rows[name] = frames.renumbered(rows[name], part.frames, numbers)
            total.add(when, replace(heard, exchanges=replace(heard.exchanges, rows=rows)))
    return *total.together(), frames
