"""One-way delay on other machines: a task for each pair of points.

Two points are aligned and compared as a whole, so a pair is not divided: its task reads both captures. With more than
two points there is a task for each segment, and one from the first point to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wirelag.errors import WirelagError
from wirelag.measure.each_packet import EachPacket
from wirelag.measure.fleet import Fleet, captures_of
from wirelag.measure.oneway import OnewayResult, OnewaySettings, measure_pair, of_pairs
from wirelag.measure.points import CapturePoint, PointPair, ReadOptions
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.source import PathOrFile

Files = tuple[tuple[str, str], ...]


def measure(up: Files, down: Files, settings: OnewaySettings, reading: ReadOptions, stamps: Sequence[str]) -> bytes:
    """A task: measure between two points; a text says why there is no answer."""
    from wirelag.scale.finished import packed

    ends = [CapturePoint(dict(point), reading) for point in (up, down)]
    method = settings.method
    each = EachPacket.of(method, settings.groups.slowest, False)
    pair = PointPair(ends[0], ends[1], method.packet_id(), method.seed, settings.interval_ns is not None)
    try:
        measured = measure_pair(
            pair,
            method,
            direction=settings.direction,
            relation=settings.relation,
            interval_ns=settings.interval_ns,
            groups=settings.groups,
            each=each,
        )
    except WirelagError as error:
        return packed(str(error))
    return packed((measured, each.listed()))


def oneway_on(
    fleet: Fleet,
    points: Sequence[PathOrFile | list[PathOrFile]],
    settings: OnewaySettings,
    reading: ReadOptions,
) -> OnewayResult:
    """The result over all points, which tasks read."""
    from wirelag.capture.remote import stamp_of
    from wirelag.scale.engine import Failure, Task

    if len(points) < 2:
        raise WirelagError("one-way delay needs two points: name a second capture of the same traffic")
    stops = [tuple(captures_of(point)) for point in points]
    pairs = [(stops[0], stops[-1]), *(pairwise(stops) if len(stops) > 2 else [])]
    reading = replace(reading, progress=iter, cores=1)
    with fleet:
        tasks = []
        for up, down in pairs:
            stamps = tuple(stamp_of(path) for path, _ in (*up, *down))
            size = sum(int(stamp.split()[0]) for stamp in stamps if stamp and stamp.split()[0].isdigit())
            tasks.append(Task("oneway", measure, (up, down, settings, reading, stamps), size))
        found = []
        for task in fleet.run(tasks, None):
            if isinstance(task, Failure | str):
                raise WirelagError(task if isinstance(task, str) else task.why)
            found.append(task)
    names = [" and ".join(name for _, name in stop) for stop in stops]
    result = of_pairs([measured for measured, _ in found], (names[0], names[-1]), settings)
    result.slowest = found[0][1]
    told = f"divided into {many(len(tasks), 'task')}, one for each pair of points: a pair is aligned as a whole"
    result.notes.append(told)
    return result
