"""One-way delay from files of synopses, cut at points that share no disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.groups import OTHER
from wirelag.measure.oneway import MeasuredPair, direction_of
from wirelag.measure.oneway_notes import explanations
from wirelag.measure.points import Relation

if TYPE_CHECKING:
    from wirelag.capture.synopsis_file import SynopsisFile
    from wirelag.clocks.fit import Clock
    from wirelag.estimators.rda import RdaSynopsis
    from wirelag.measure.oneway import OnewaySettings
    from wirelag.measure.points import ReadOptions
    from wirelag.packets.interval import Interval
    from wirelag.protocol.terms import Terms
    from wirelag.synopses.cache import Cached
    from wirelag.synopses.crossing import Crossing
    from wirelag.twopoint.spans import Cut, Pair, Span

UNCOVERED_NS = 10**9  # captures rarely start this far apart by accident

Numbers = npt.NDArray[np.uint64]
NONE: Final[Numbers] = np.empty(0, np.uint64)
Times = dict[tuple[int | None, str | None], "Cached"]  # by start of interval, and class


def are_synopses(points: Sequence[object]) -> bool:
    """Whether points are files of synopses; a mixture with captures is an error."""
    from wirelag.capture.synopsis_file import is_synopsis_file

    kinds = {isinstance(point, str | PathLike) and is_synopsis_file(fspath(point)) for point in points}
    if kinds == {True, False}:
        raise WirelagError("captures and files of synopses cannot be mixed: cut the captures first (`wirelag cut`)")
    return kinds == {True}


def measure_synopses(paths: list[str], settings: OnewaySettings, reading: ReadOptions) -> MeasuredPair:
    """Compare two files, with the replies of both points if there are any."""
    files, terms, pairs, keys = _read(paths)
    _already_decided(terms, settings, reading)
    cut_files = [file for file in files if file.about.kind == "synopses"]
    times = [_times(file, terms) for file in files if file.about.kind == "times"]
    spans, missing = _cross(terms, pairs, keys, times)
    warnings = [line for file in files for line in file.warnings]
    measured = _sum_up(
        f"{paths[0]} > {paths[1]}",
        spans,
        keys,
        settings.relation,
        cut_files,
        terms.estimator.name,
        terms.interval_ns is not None,
    )
    measured.by = "" if terms.by is None else terms.by.split("/")[0]
    # Bytes of all files, not only of what one point would send the other.
    measured.whole.wire_bytes = sum(file.bytes for file in files)
    if not measured.whole.used and terms.interval_ns is not None and terms.delimiters is None:
        raise WirelagError(
            f"{paths[0]} and {paths[1]} have no packet in common in any interval: if the clocks differ by more than "
            f"an interval, cut with `wirelag cut --offset`, or give `oneway` the captures"
        )
    measured.warnings += warnings
    if missing:
        measured.notes.append(
            f"{missing:,} packets were seen at one point only in their interval, and their buckets are left out. For "
            f"the exact mean run a second round: `wirelag oneway {paths[0]} {paths[1]} --ask ask.syn`, then at each "
            f"point `wirelag cut CAPTURE --answer ask.syn -o times.syn`, then `wirelag oneway {paths[0]} {paths[1]} "
            f"TIMES TIMES`"
        )
    return measured


def _already_decided(terms: Terms, settings: OnewaySettings, reading: ReadOptions) -> None:
    """A SettingError if something is asked for that was decided, otherwise, when the files were cut."""
    from wirelag.packets.filters import Filter
    from wirelag.units import format_duration

    def check(name: str, differs: bool, cut: str) -> None:
        if differs:
            raise SettingError(
                name, f"was decided by `wirelag cut`: these files {cut}; leave it out, or cut them again"
            )

    length_ns, by, method = terms.interval_ns, terms.by and terms.by.split("/")[0], settings.method.estimator
    cut = "are one interval" if length_ns is None else f"have intervals of {format_duration(length_ns)}"
    check("interval", settings.interval_ns not in (None, length_ns), cut)
    check("by", settings.groups.by not in (None, by), f"have classes by {by}" if by else "have no classes")
    check("estimator", method not in ("join", terms.estimator.name), f"are of {terms.estimator.name}")
    way = None if terms.direction is None else direction_of(terms.direction)
    check("direction", settings.direction not in (None, way), f"have packets {terms.direction or 'of any direction'}")
    check("filter", reading.filter != Filter(), f"have packets of: {terms.filter or 'all hosts and ports'}")
    check("tunnels", reading.tunnels and "inside tunnels" not in (terms.filter or ""), "have the outer packets")


def ask_points(paths: list[str], path: str) -> tuple[int, int]:
    """Write the questions of a second round; returns how many, and their bytes."""
    _, terms, pairs, keys = _read(paths)
    return _write_ask(path, terms, pairs, keys)


def _read(paths: list[str]) -> tuple[list[SynopsisFile], Terms, list[Pair], dict[int, str]]:
    """The files, their common terms, the intervals that both points cut, and the names of classes."""
    from wirelag.capture.synopsis_file import SynopsisFile
    from wirelag.protocol.terms import agree

    files = [SynopsisFile(path) for path in paths]
    terms = agree({file.path: file.about for file in files})
    cut_files = [file for file in files if file.about.kind == "synopses"]
    answers = [file for file in files if file.about.kind == "times"]
    for cut_file, answer in zip(cut_files, answers, strict=False):
        if answer.about.offset_ns != cut_file.about.offset_ns:
            raise WirelagError(f"{answer.path}: was made with another --offset than {cut_file.path}; write it again")
    if len(cut_files) != 2 or len(answers) not in (0, 2) or len(files) != len(cut_files) + len(answers):
        raise WirelagError(
            "needs two files of `wirelag cut`, then the replies of both points, if any, in the same order"
        )
    tags: dict[str, int] = {}
    ups, downs = (list(_cuts(file, terms, tags)) for file in cut_files)
    for file, cuts in zip(cut_files, (ups, downs), strict=True):
        if not file.whole and cuts:  # the time it covered was not written
            file.counted |= {"first_ns": cuts[0].interval.start_ns, "last_ns": cuts[-1].interval.end_ns - 1}
    keys: dict[int, str] = {tag: key for key, tag in tags.items()}
    pairs = _pairs(terms, ups, downs, cut_files)
    if not pairs:
        broken = "".join(f"; {line}" for file in files for line in file.warnings)
        raise WirelagError(f"{paths[0]} and {paths[1]} have no interval in common{broken}")
    return files, terms, pairs, keys


def _cuts(file: SynopsisFile, terms: Terms, tags: dict[str, int]) -> Iterator[Cut]:
    from wirelag.protocol.terms import cut_of

    for _, records in groupby(file, key=lambda record: (record.get("start_ns"), record.get("name"))):
        try:
            yield cut_of(terms.two_point, records, tags)
        except (KeyError, TypeError, ValueError) as error:
            raise WirelagError(f"{file.path}: a record contradicts the file's header ({error}); cut it again") from None


def _pairs(terms: Terms, ups: list[Cut], downs: list[Cut], files: list[SynopsisFile]) -> list[Pair]:
    from wirelag.estimators.lda import Lda
    from wirelag.twopoint.spans import Pair, paired_by_clock, paired_by_delimiters

    if terms.delimiters is not None and isinstance(terms.estimator, Lda):
        numbered = terms.delimiters.control_port is not None
        return paired_by_delimiters(ups, downs, terms.estimator.added, numbered)
    if terms.interval_ns is None:
        return [Pair(up.interval, up.synopses, down.synopses, True) for up, down in zip(ups, downs, strict=False)]
    # If a capture began or ended inside an interval, the other point may have seen more of it.
    first_ns = max((int(file.counted["first_ns"]) for file in files if "first_ns" in file.counted), default=0)
    last_ns = min((int(file.counted["last_ns"]) for file in files if "last_ns" in file.counted), default=2**63)
    return [
        replace(pair, open_ended=pair.interval.start_ns < first_ns or pair.interval.end_ns > last_ns + 1)
        for pair in paired_by_clock(ups, downs)
    ]


def _cross(terms: Terms, pairs: list[Pair], keys: dict[int, str], times: list[Times]) -> tuple[list[Span], int]:
    """Crossings of all pairs, and how many packets need a second round for their times."""
    from wirelag.estimators.rda import Rda
    from wirelag.packets.interval import Interval
    from wirelag.synopses.cache import Cached
    from wirelag.twopoint.spans import PATIENCE_NS, crossed, settled

    estimator = terms.two_point
    if not isinstance(estimator, Rda):
        nothing = estimator.meter("upstream").cut(Interval(0, 0))
        found = crossed(pairs, lambda _, __, up, down: estimator.cross(up, down), nothing, nothing)
        return list(settled(found, terms.interval_ns or 0)), 0
    rounds = _Rounds(terms, keys, times)
    empty = estimator.bind(Cached.empty(estimator.seed))
    spans = list(crossed(pairs, rounds.cross, empty, empty))
    if times:
        return list(settled(spans, terms.interval_ns or 0)), rounds.missing
    _find_straddling(spans, rounds.alone, max(PATIENCE_NS, terms.interval_ns or 0))
    return spans, rounds.missing


def _find_straddling(spans: list[Span], alone: dict[tuple[Interval, int], tuple[Numbers, Numbers]], near: int) -> None:
    """Count packets that were sent in one interval and seen in another, which are neither lost nor new.

    Law: their numbers tell which they are. Their delays stay unknown until both points send their times.
    """
    seen: dict[tuple[int, int], list[Span]] = {}  # by class and number of a packet that was seen downstream only
    found = [(span, tag, *alone[span.interval, tag]) for span in spans for tag in span.crossings]
    for span, tag, _, numbers in found:
        for number in numbers.tolist():
            seen.setdefault((tag, number), []).append(span)
    for span, tag, numbers, _ in found:
        for number in numbers.tolist():
            there = seen.get((tag, number), [])
            if there and abs(there[0].interval.start_ns - span.interval.start_ns) <= near:
                other = there.pop(0).crossings[tag]
                span.crossings[tag].late += round(1 / span.crossings[tag].details["share"])
                other.early += round(1 / other.details["share"])


class _Rounds:
    """Crossings of rda's buckets, exact where both points sent the times of packets that differ."""

    def __init__(self, terms: Terms, keys: dict[int, str], times: list[Times]) -> None:
        self._terms, self._keys, self._times = terms, keys, times
        self.missing = 0  # packets without times
        self.alone: dict[tuple[Interval, int], tuple[Numbers, Numbers]] = {}  # seen upstream only, downstream only

    def cross(self, interval: Interval, tag: int, up: RdaSynopsis, down: RdaSynopsis) -> Crossing:
        """The crossing of one interval and class."""
        from wirelag.estimators.rda import Rda, likely_difference
        from wirelag.protocol.terms import place
        from wirelag.twopoint.spans import ALL

        estimator = self._terms.estimator
        assert isinstance(estimator, Rda)
        if up.packets and down.packets and up.level != down.level:
            raise WirelagError(
                f"the points kept different shares of packets (1/{2**up.level} and 1/{2**down.level}): "
                f"cut both again with a larger --memory"
            )
        where = place(self._terms, interval.start_ns, self._keys.get(tag))
        mine, theirs = (told.get(where) for told in self._times) if self._times else (None, None)
        crossing, decoded = estimator.cross_bound(up, down, mine, theirs)
        if mine is not None and theirs is not None:
            _fit(decoded.upstream, mine, "first")
            _fit(decoded.downstream, theirs, "second")
        else:
            self.missing += len(decoded.numbers) if tag == ALL else 0
            self.alone[interval, tag] = (decoded.upstream, decoded.downstream) if decoded.complete else (NONE, NONE)
        if not decoded.complete:
            left = likely_difference(decoded.left, estimator.banks)
            crossing.details["likely_difference"] = len(decoded.numbers) + left
        return crossing


def _fit(wanted: npt.NDArray[np.uint64], told: Cached, which: str) -> None:
    """Check that replies are about the packets asked for; those of another capture are not."""
    from wirelag import _kernels

    if not np.isin(wanted, _kernels.number_copies(told.ids)).all():
        raise WirelagError(
            f"the {which} file of replies does not match the questions to the {which} point: name replies in the order "
            f"of the points, each from the capture that its synopses were cut from, with the same options"
        )


def _times(file: SynopsisFile, terms: Terms) -> Times:
    from wirelag.protocol.terms import place
    from wirelag.synopses.cache import Cached

    told: Times = {}
    for record in file:
        try:
            where = place(terms, record["start_ns"], record["class"])
            told[where] = Cached.from_fields(record, terms.estimator.seed)
        except (KeyError, TypeError, ValueError) as error:
            raise WirelagError(f"{file.path}: a record is not a reply ({error}); write it again") from None
    return told


def _write_ask(path: str, terms: Terms, pairs: list[Pair], keys: dict[int, str]) -> tuple[int, int]:
    from wirelag.capture.synopsis_file import SynopsisWriter
    from wirelag.estimators.rda import Rda
    from wirelag.protocol.terms import About, asked

    if not isinstance(terms.estimator, Rda):
        raise WirelagError(f"{terms.estimator.name} needs no second round: leave --ask out")
    with SynopsisWriter(path, About("ask", terms)) as writer:
        for pair in pairs:
            for record in asked(pair, terms.estimator, keys):
                writer.write(record)
    return writer.records, writer.bytes


def _sum_up(
    name: str,
    spans: list[Span],
    keys: dict[int, str],
    relation: Relation,
    files: list[SynopsisFile],
    estimator: str,
    over_time: bool,
) -> MeasuredPair:
    from wirelag.clocks.fit import Clock, fit
    from wirelag.synopses.delay_sample import DelaySample
    from wirelag.twopoint.direction import clock_behind
    from wirelag.units import format_duration

    if all(file.counted.get("both_ways") for file in files):
        raise WirelagError(
            f"{name}: both files hold packets of both directions, whose delays cannot be told apart: cut both captures "
            "again with --direction 'SRC>DST'"
        )
    closed = [span for span in spans if not span.open_ended]
    if not closed and not all(file.whole for file in files):
        broken = "; ".join(line for file in files for line in file.warnings)
        raise WirelagError(f"too little is left to compare ({broken}); cut the captures again")
    closed = closed or spans
    sample = DelaySample.together([span.whole.tail for span in closed])
    if isinstance(relation, int):
        clock: Clock = Clock.given(relation)
    elif relation == "auto":
        nothing = np.empty(0, np.int64)
        order = np.argsort(sample.sent_ns, kind="stable")
        sent_ns = sample.sent_ns[order]
        clock = fit(sent_ns, sent_ns + sample.delays_ns[order], nothing, nothing)
    else:
        clock = Clock()
    differences = sample.delays_ns
    if relation == "auto" and len(differences) and not differences.any():
        raise WirelagError(
            f"{name}: the same packets at the same times: is it one capture twice? Name files of two points, or use "
            "--clock none if their clocks are too coarse to show a delay"
        )
    if clock.method.startswith("minimum") and clock.offset_ns < 0 and not clock_behind(differences):
        earlier = format_duration(-int(np.median(differences)))
        raise WirelagError(
            f"{name}: packets are seen in the second file first, by {earlier}: if packets travel both ways, cut both "
            f"files with --direction 'SRC>DST'; else swap the files, or give the clock offset (--offset)"
        )
    if clock.corrects:
        for span in closed:
            for crossing in span.crossings.values():
                crossing.on_clock(clock, (span.interval.start_ns + span.interval.end_ns) // 2)
    measured = MeasuredPair(name, clock, estimator, keys=keys, notes=list(clock.notes))
    measured.take(closed, over_time=over_time)
    measured.packets = sum(int(file.counted.get("packets", 0)) for file in files)
    if len(closed) < len(spans):
        measured.notes.append(
            f"{len(spans) - len(closed)} intervals at the edges of the captures are left out: "
            f"both points may not have seen all of them"
        )
    elif not over_time:
        measured.notes += _uncovered(files)
    if any(file.counted.get("overflow") for file in files):
        # Each point kept the classes that it saw first, and these differ.
        measured.only_common_classes({tag for tag in keys if keys[tag] != OTHER})
        measured.notes.append("more classes than --most-groups: only those that both points kept are shown")
    measured.notes += explanations(measured)
    return measured


def _uncovered(files: list[SynopsisFile]) -> list[str]:
    """Without intervals, packets in time that only one capture covers count as lost."""
    firsts = [int(file.counted["first_ns"]) for file in files if "first_ns" in file.counted]
    lasts = [int(file.counted["last_ns"]) for file in files if "last_ns" in file.counted]
    if len(firsts) < 2 or max(max(firsts) - min(firsts), max(lasts) - min(lasts)) < UNCOVERED_NS:
        return []
    return [
        "the captures do not begin and end together, so packets outside the common time count as lost or new: "
        "cut both with --interval to leave the edges out"
    ]
