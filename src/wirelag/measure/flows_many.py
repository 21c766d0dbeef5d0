"""Delay of every flow, on another machine: one task reads everything.

All packets pass one queue, whose state every delay depends on: the question is not divided. It runs where captures are
near, and its answer comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wirelag.errors import WirelagError
from wirelag.measure.fleet import Fleet, captures_of
from wirelag.measure.flows import FlowsResult, FlowsSettings, measure_flows

if TYPE_CHECKING:
    from wirelag.capture.source import PathOrFile
    from wirelag.measure.points import ReadOptions


def measure(
    paths: Sequence[str], upstream: str | None, settings: FlowsSettings, reading: ReadOptions, stamps: Sequence[str]
) -> bytes:
    """A task: the whole question, or why it has no answer."""
    from wirelag.scale.finished import packed

    try:
        return packed(measure_flows(paths if len(paths) > 1 else paths[0], upstream, settings, reading))
    except WirelagError as error:
        return packed(str(error))


def flows_on(
    fleet: Fleet,
    source: PathOrFile | Sequence[PathOrFile],
    upstream: PathOrFile | None,
    settings: FlowsSettings,
    reading: ReadOptions,
) -> FlowsResult:
    """The result, which a task found."""
    from wirelag.capture.remote import stamp_of
    from wirelag.scale.engine import Failure, Task

    files, above = captures_of(source), captures_of(upstream) if upstream is not None else []
    stamps = tuple(stamp_of(path) for path, _ in (*files, *above))
    size = sum(int(stamp.split()[0]) for stamp in stamps if stamp and stamp.split()[0].isdigit())
    reading = replace(reading, progress=iter, cores=1)
    arguments = tuple(path for path, _ in files), above[0][0] if above else None, settings, reading, stamps
    with fleet:
        (found,) = fleet.run([Task("flows", measure, arguments, size)], None)
    if isinstance(found, Failure):
        raise WirelagError(found.why)
    if isinstance(found, str):
        raise WirelagError(found)
    assert isinstance(found, FlowsResult)
    found.coverage.append("one task read everything: all packets pass one queue")
    return found
