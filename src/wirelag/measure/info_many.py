"""What many captures hold: a task surveys some of them, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wirelag.errors import WirelagError
from wirelag.measure.fleet import FileRead, Fleet, captures_of, find_copies, run_pieces
from wirelag.measure.info import InfoResult, Looking, Surveyed, apart_of, result_of
from wirelag.measure.pieces import Piece, bundles, one_by_one
from wirelag.packets.filters import Filter

if TYPE_CHECKING:
    from wirelag.capture.source import PathOrFile


@dataclass
class InfoPart:
    """What a task returns."""

    found: list[Surveyed] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    apart: str | None = None  # why two captures are no two points (`apart_of`)
    files: list[FileRead] = field(default_factory=list)


def survey(planned: Sequence[Piece], how: Looking) -> bytes:
    """A task: survey some captures."""
    from wirelag.scale.finished import packed

    part = InfoPart()
    for read in (read for piece in planned for read in piece.reads):
        try:
            part.found.append(how.survey(read.path, read.name))
        except WirelagError as error:
            part.errors[read.name] = str(error)
    part.apart = apart_of(part.found)
    for one in part.found:
        one.sighting = None  # it was needed here alone
    return packed(part)


def info_on(fleet: Fleet, sources: Sequence[PathOrFile], *, filter: Filter | str | None, tunnels: bool) -> InfoResult:
    """The result over all captures, which tasks read."""
    files = captures_of(sources)
    how = Looking(len(files), Filter.of(filter), tunnels)
    with fleet:
        looks = fleet.look_at(files, tunnels, split=False)
        planned = one_by_one(looks)
        # Two captures may be two points of the same traffic: one task compares them.
        plan = bundles(planned, fleet.length_for(looks)) if len(files) != 2 else [tuple(planned)]
        parts: list[InfoPart] = []
        lost = run_pieces(fleet, "info", survey, plan, how, take=parts.append)
        found = {one.name: one for part in parts for one in part.found}
        errors = {name: line for part in parts for name, line in part.errors.items()}
        errors |= {one.name: one.error for one in lost if one.error}
        read = [one for one in looks if one.name in found]
        copies = find_copies(fleet, read, Filter.of(filter), tunnels)
    in_order = [found[name] for _, name in files if name in found]
    failed = [errors[name] for _, name in files if name in errors]
    return result_of(in_order, failed, how, copies, next((part.apart for part in parts), None))
