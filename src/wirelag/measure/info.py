"""What a capture holds, and which commands can measure it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import WirelagError
from wirelag.measure.result import Result

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureFile, CaptureStatistics
    from wirelag.capture.source import PathOrFile
    from wirelag.measure.copies import Copies
    from wirelag.measure.points import Progress
    from wirelag.measure.survey import Survey
    from wirelag.measure.trial import Trial
    from wirelag.packets.filters import Filter
    from wirelag.twopoint.sketch import Sighting

LONG_BYTES: Final = 4 << 20  # from so many on, commands are tried while others read the capture
TRIED_BYTES: Final = 256 << 20  # a shorter capture is read by one core less while commands are tried
TURN_S: Final = 1e-4  # Python is for one thread at a time; who reads needs it for a moment, and waits no longer
LINKS: Final = {
    0: "NULL", 1: "Ethernet", 9: "PPP", 12: "raw IP", 14: "raw IP", 50: "PPP in HDLC", 51: "PPPoE", 101: "raw IP",
    104: "Cisco HDLC", 105: "802.11", 108: "LOOP", 113: "Linux cooked (SLL)", 127: "802.11 with radiotap",
    204: "PPP with direction", 228: "IPv4", 229: "IPv6", 239: "NFLOG", 276: "Linux cooked (SLL2)",
}  # fmt: skip


@dataclass(repr=False, eq=False)
class InfoResult(Result):
    """What captures hold, each and together, and what can be measured."""

    command: ClassVar[str] = "info"
    facts: dict[str, Any]
    files: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # captures that could not be read at all

    @property
    def commands(self) -> list[dict[str, Any]]:
        """Which commands apply, and why."""
        return list(self.facts["commands"])

    def to_dict(self) -> dict[str, Any]:
        several = "files" in self.facts
        return (self.facts if several else self.files[0] | self.facts) | ({"partial": True} if self.partial else {})

    def rows(self) -> list[dict[str, Any]]:
        names = ("file", "format", "packets", "bytes", "first", "last", "conversations")
        return [{name: facts.get(name) for name in names} for facts in self.files]

    def parts(self) -> Iterable[dict[str, Any]]:
        return self.files

    def table(self) -> list[str]:
        from wirelag.render.info import table

        return table(self.facts, self.files)


def info(
    *sources: PathOrFile | Sequence[PathOrFile],
    filter: Filter | str | None = None,
    tunnels: bool = False,
    cores: int | None = None,
    progress: Progress = iter,
    on: Any = None,
) -> InfoResult:
    """Show what is in captures, and which commands can measure them and why: they are tried on the first packets.

    A capture that cannot be read is an error; if others can be read, `errors` lists it instead. `cores` may work on it
    (default: all); no result depends on how many. `on` works on it elsewhere, as in `rtt`.
    """
    from wirelag.capture.ahead import cores_of
    from wirelag.capture.source import each_of, list_files

    every = [one for source in sources for one in each_of(source)]
    if on is not None:
        from wirelag.measure.fleet import Fleet
        from wirelag.measure.info_many import info_on

        return info_on(Fleet.of(on), every, filter=filter, tunnels=tunnels)
    files = list_files(every)
    found: list[Surveyed] = []
    errors = []
    for path, name in files:
        how = Looking(len(files), filter, tunnels, cores_of(cores))
        try:
            found.append(how.survey(path, name, progress))
        except WirelagError as error:
            errors.append(str(error))
    copies = None
    if len(found) > 1:
        from wirelag.measure.copies import by_time, find_copies

        files_read = [file for one in found for file in how.capture(one.path, one.name).files]
        copies = find_copies(by_time(files_read, [one.statistics.first_ns for one in found]))
    return result_of(found, errors, how, copies, apart_of(found))


def apart_of(found: Sequence[Surveyed]) -> str | None:
    """Why `oneway` cannot measure between two captures; empty if it can, None if there are not two."""
    from wirelag.measure.trial import unrelated

    sightings = [one.sighting for one in found if one.sighting is not None]
    return unrelated(sightings[0], sightings[1], (found[0].name, found[1].name)) if len(sightings) == 2 else None


class Surveyed:
    """What one capture holds."""

    def __init__(self, path: str, capture: Capture, survey: Survey, trial: Trial, sighting: Sighting | None) -> None:
        self.path, self.name = path, capture.names[0]
        self.facts, self.warnings, self.statistics = _of_file(capture, survey), capture.warnings, capture.statistics
        self.survey, self.trial, self.sighting = survey, trial, sighting


class Looking:
    """How captures are read: one of how many, with which filter."""

    def __init__(self, captures: int, filter: Filter | str | None, tunnels: bool, cores: int = 1) -> None:
        self.captures, self.filter, self.tunnels, self.cores = captures, filter, tunnels, cores

    def capture(self, path: str, name: str, cores: int | None = None) -> Capture:
        """A capture, to be read."""
        from wirelag.capture.files import Capture
        from wirelag.packets.packet_id import PacketId

        return Capture(
            [path],
            names={path: name},
            filter=self.filter,
            tunnels=self.tunnels,
            packet_id=PacketId() if self.captures > 1 else None,
            cores=cores or self.cores,
        )

    def survey(self, path: str, name: str, progress: Progress = iter) -> Surveyed:
        """Read one capture."""
        from wirelag.capture.files import one_file
        from wirelag.measure.survey import Survey

        capture = self.capture(path, name)
        file = one_file(capture) if self.captures == 1 else None
        if file is not None and self.cores > 1 and os.path.getsize(file.path) >= LONG_BYTES:
            trial, survey = self._at_once(path, name, file, progress)
            return Surveyed(path, capture, survey, trial, None)
        from wirelag.measure.trial import try_commands

        survey, sighting = Survey(with_ids=self.captures > 1), None
        if self.captures == 2:
            from wirelag.twopoint.sketch import Sighting

            sighting = Sighting()
        observers = [survey.observe, *([sighting.observe] if sighting else [])]
        trial = try_commands(capture, observers, progress, only_first=file is not None)
        if file is not None and not trial.whole:
            survey = Survey.of_file(file, self.cores, progress)
        return Surveyed(path, capture, survey, trial, sighting)

    def _at_once(self, path: str, name: str, file: CaptureFile, progress: Progress) -> tuple[Trial, Survey]:
        """The same for a long capture: one thread tries commands on the first packets while others read all."""
        from wirelag.estimators.later import Later
        from wirelag.measure.survey import Survey

        trials: list[Trial] = []

        def try_first() -> None:
            from wirelag.measure.trial import try_commands  # needs numpy, which others do not wait for

            capture = self.capture(path, name, cores=1)  # the others are busy
            trials.append(try_commands(capture, [], iter, only_first=True))

        beside, turn_s = Later(), sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        beside.leave(try_first)
        try:
            alone = os.path.getsize(file.path) <= TRIED_BYTES
            survey = Survey.of_file(file, self.cores - alone, progress)
        finally:
            sys.setswitchinterval(turn_s)
            beside.end()
        return trials[0], survey


def result_of(
    found: Sequence[Surveyed], errors: list[str], how: Looking, copies: Copies | None, apart: str | None
) -> InfoResult:
    """The result over all captures that could be read."""
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.measure.survey import Survey, common_share
    from wirelag.measure.trial import Trial
    from wirelag.measure.verdicts import tunnelled, verdicts

    if not found:
        raise WirelagError("\n".join(errors))
    total, statistics, trial = Survey(), CaptureStatistics(), Trial()
    result = InfoResult({}, [one.facts for one in found], errors=errors)
    for one in found:
        result.warnings += one.warnings
        trial.add(one.trial)
        statistics = statistics + one.statistics
        total.merge(one.survey)
    ids = [one.survey.ids for one in found]
    common = max((common_share(a, b) for i, a in enumerate(ids) for b in ids[:i]), default=None)
    inside = None
    if not how.tunnels and tunnelled(total) and not (trial.delays and trial.timed):
        from wirelag.measure.hints import inside_tunnels

        inside = inside_tunnels(how.capture(one.path, one.name) for one in found)
    told = verdicts(total, trial, common, apart, copies, inside)
    commands = [{"command": v.command, "applies": v.applies, "sure": v.sure, "why": v.why} for v in told]
    result.facts = _facts(statistics, total) | {"commands": commands}
    if how.captures > 1:
        result.facts["files"] = result.files
    return result


def _of_file(capture: Capture, survey: Survey) -> dict[str, Any]:
    file = capture.files[0]
    about = {"file": file.name, "format": capture.statistics.format, "compression": file.compression or None}
    return about | _facts(capture.statistics, survey) | {"warnings": capture.warnings}


def _facts(statistics: CaptureStatistics, survey: Survey) -> dict[str, Any]:
    """The counts, as the JSON holds them."""
    from wirelag.packets.batch import Flag, Kind

    seen, tcp = survey.conversations, survey.kinds[Kind.TCP]
    both = seen.count(seen.both_ways)
    return {
        "packets": statistics.packets,
        "bytes": statistics.wire_bytes,
        "first": None if statistics.first_ns is None else statistics.first_ns / 1e9,
        "last": None if statistics.last_ns is None else statistics.last_ns / 1e9,
        "time_resolution": statistics.resolution_ns / 1e9,
        "backwards": statistics.backwards,
        "snaplen": statistics.snaplen,
        "snapped": statistics.snapped,
        "filtered": statistics.filtered,
        "skipped": statistics.skipped,
        "links": [{"type": t, "name": LINKS.get(t), "packets": n} for t, n in statistics.links.items()],
        "kinds": {kind.name.lower(): n for kind, n in survey.kinds.items() if n},
        "flags": {str(flag.name).lower(): n for flag, n in survey.flags.items() if n and flag is not Flag.REVERSE},
        "tcp_timestamps": survey.flags[Flag.TIMESTAMPS] / tcp if tcp else None,
        "conversations": seen.count(),
        "directions": {"both": both, "one": seen.count() - both, "client_only": seen.count(seen.client_only)},
    }
