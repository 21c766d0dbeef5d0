"""What a capture holds, and which commands can measure it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import WirelagError
from wirelag.measure.result import Result

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.capture.source import PathOrFile
    from wirelag.measure.points import Progress
    from wirelag.measure.survey import Survey
    from wirelag.packets.filters import Filter

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
) -> InfoResult:
    """Show what is in captures, and which commands can measure them and why: they are tried on the first packets.

    A capture that cannot be read is an error; if others can be read, `errors` lists it instead. `cores` may work on it
    (default: all); no result depends on how many.
    """
    from wirelag.capture.ahead import cores_of
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.capture.source import each_of, list_files
    from wirelag.measure.survey import Survey, common_share
    from wirelag.measure.trial import Trial, try_commands, unrelated
    from wirelag.measure.verdicts import tunnelled, verdicts
    from wirelag.packets.batch import PacketId
    from wirelag.twopoint.sketch import Sighting

    names = dict(list_files([one for source in sources for one in each_of(source)]))
    paths = list(names)
    several = len(paths) > 1
    total, statistics, trial = Survey(), CaptureStatistics(), Trial()
    result, surveys, sightings, captures = InfoResult({}, []), [], [], []
    for path in paths:
        survey, sighting = Survey(with_ids=several), Sighting()
        observers = [survey.observe, *[sighting.observe] * (len(paths) == 2)]
        try:
            capture = Capture(
                [path],
                names=names,
                filter=filter,
                tunnels=tunnels,
                packet_id=PacketId() if several else None,
                cores=cores_of(cores),
            )
            tried = try_commands(capture, observers, progress)
        except WirelagError as error:
            result.errors.append(str(error))
            continue
        result.warnings += capture.warnings
        result.files.append(_of_file(capture, survey))
        surveys.append(survey)
        captures.append(capture)
        sightings.append(sighting)
        trial.add(tried)
        statistics = statistics + capture.statistics
        total.merge(survey)
    if not result.files:
        raise WirelagError("\n".join(result.errors))
    ids = [survey.ids for survey in surveys]
    common = max((common_share(a, b) for i, a in enumerate(ids) for b in ids[:i]), default=None)
    apart = None
    if len(sightings) == 2:
        apart = unrelated(sightings[0], sightings[1], (result.files[0]["file"], result.files[1]["file"]))
    copies = None
    if len(captures) > 1:
        from wirelag.measure.copies import find_copies

        copies = find_copies([file for capture in captures for file in capture.files])
    inside = None
    if not tunnels and tunnelled(total) and not (trial.delays and trial.timed):
        from wirelag.measure.hints import inside_tunnels

        inside = inside_tunnels(captures)
    found = verdicts(total, trial, common, apart, copies, inside)
    commands = [{"command": v.command, "applies": v.applies, "sure": v.sure, "why": v.why} for v in found]
    result.facts = _facts(statistics, total) | {"commands": commands}
    if several:
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
