"""`wirelag oneway` from files of synopses, which were cut at places that share no disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from wirelag.cli.oneway import Measured, Relation
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.caches import Cached
    from wirelag.clocks import Clock
    from wirelag.crossing import Crossing
    from wirelag.crossings import Cut, Pair, Span
    from wirelag.exchange import Terms
    from wirelag.io.synopsis_file import SynopsisFile

Times = dict[tuple[int | None, str | None], "Cached"]  # by the beginning of the interval and class


def measure_synopses(paths: list[str], relation: Relation, ask: str | None) -> tuple[str, Measured] | None:
    """What two files say about each other; with `ask`, write what must be asked instead."""
    from wirelag.exchange import agree
    from wirelag.io.synopsis_file import SynopsisFile

    files = [SynopsisFile(path) for path in paths]
    terms = agree({file.path: file.about for file in files})
    cut_files = [file for file in files if file.about.kind == "synopses"]
    answers = [file for file in files if file.about.kind == "times"]
    if len(cut_files) != 2 or len(answers) not in (0, 2) or len(files) != len(cut_files) + len(answers):
        raise WirelagError("wants two files of `wirelag cut`, and then the answers of both in the same order, if any")
    tags: dict[str, int] = {}
    ups, downs = (list(_cuts(file, terms, tags)) for file in cut_files)
    keys: dict[int, str] = {tag: key for key, tag in tags.items()}
    pairs = _pairs(terms, ups, downs, cut_files)
    if not pairs:
        broken = "".join(f"; {line}" for file in files for line in file.warnings)
        raise WirelagError(f"{paths[0]} and {paths[1]} have no interval in common{broken}")
    if ask is not None:
        _write_ask(ask, terms, pairs, keys)
        return None
    times = [_times(file, terms) for file in answers]
    spans, missing = _cross(terms, pairs, keys, times)
    warnings = [line for file in files for line in file.warnings]
    measured = _sum_up(f"{paths[0]} > {paths[1]}", spans, keys, relation, cut_files)
    if not measured.whole.used and terms.interval_ns is not None and terms.delimiters is None:
        raise WirelagError(
            f"{paths[0]} and {paths[1]} have no packet in common in any interval: where the clocks differ by more than "
            f"an interval, say by how much when cutting (`wirelag cut --offset`), or give `oneway` the captures"
        )
    measured.warnings += warnings
    if missing:
        measured.notes.append(
            f"{missing:,} packets were seen at one point alone, and buckets with them are left out. For the exact mean "
            f"a second round: `wirelag oneway {paths[0]} {paths[1]} --ask ask.syn`, then at each point `wirelag cut "
            f"CAPTURE --answer ask.syn -o times.syn`, then `wirelag oneway {paths[0]} {paths[1]} TIMES TIMES`"
        )
    return terms.estimator.name, measured


def _cuts(file: SynopsisFile, terms: Terms, tags: dict[str, int]) -> Iterator[Cut]:
    from wirelag.exchange import cut_of

    for _, records in groupby(file, key=lambda record: (record["start_ns"], record["name"])):
        try:
            yield cut_of(terms.estimator, records, tags)
        except (KeyError, TypeError, ValueError) as error:
            raise WirelagError(f"{file.path}: a record does not fit what the file says of itself ({error})") from None


def _pairs(terms: Terms, ups: list[Cut], downs: list[Cut], files: list[SynopsisFile]) -> list[Pair]:
    from wirelag.crossings import Pair, paired_by_clock, paired_by_delimiters
    from wirelag.estimators.lda import Lda

    if terms.delimiters is not None and isinstance(terms.estimator, Lda):
        return paired_by_delimiters(ups, downs, terms.estimator.added)
    if terms.interval_ns is None:
        return [Pair(up.interval, up.synopses, down.synopses) for up, down in zip(ups, downs, strict=False)]
    # Where a capture began or ended inside an interval, the other point may have seen more of it.
    first_ns = max((int(file.counted["first_ns"]) for file in files if "first_ns" in file.counted), default=0)
    last_ns = min((int(file.counted["last_ns"]) for file in files if "last_ns" in file.counted), default=2**63)
    return [
        replace(pair, open_ended=pair.interval.start_ns < first_ns or pair.interval.end_ns > last_ns + 1)
        for pair in paired_by_clock(ups, downs)
    ]


def _cross(terms: Terms, pairs: list[Pair], keys: dict[int, str], times: list[Times]) -> tuple[list[Span], int]:
    """Crossings of all pairs, and how many packets have times that only a second round would tell."""
    from wirelag.crossings import ALL, Span, settled
    from wirelag.estimators.rda import Rda, likely_difference
    from wirelag.exchange import place

    estimator = terms.estimator
    missing = 0
    spans = []
    for pair in pairs:
        found: dict[int, Crossing] = {}
        for tag in sorted({*pair.up} & {*pair.down}):
            if isinstance(estimator, Rda):
                where = place(terms, pair.interval.start_ns, keys.get(tag))
                if pair.up[tag].level != pair.down[tag].level:
                    raise WirelagError(
                        f"the points kept different shares of their packets (1/{2 ** pair.up[tag].level} and "
                        f"1/{2 ** pair.down[tag].level}): cut both again with a larger --memory"
                    )
                mine, theirs = (told.get(where) for told in times) if times else (None, None)
                crossing, decoded = estimator.cross_bound(pair.up[tag], pair.down[tag], mine, theirs)
                told = mine is not None and theirs is not None
                missing += 0 if told or tag != ALL else len(decoded.numbers)
                if not decoded.complete:
                    crossing.details["likely_difference"] = likely_difference(decoded.left, estimator.banks)
            else:
                crossing = estimator.cross(pair.up[tag], pair.down[tag])
            found[tag] = crossing
        if ALL in found:
            spans.append(Span(pair.interval, found, pair.open_ended, pair.lost_delimiters))
    if times:
        spans = list(settled(spans, terms.interval_ns or 0))
    return spans, missing


def _times(file: SynopsisFile, terms: Terms) -> Times:
    from wirelag.caches import Cached
    from wirelag.exchange import place

    told: Times = {}
    for record in file:
        told[place(terms, record["start_ns"], record["class"])] = Cached.from_fields(record, terms.estimator.seed)
    return told


def _write_ask(path: str, terms: Terms, pairs: list[Pair], keys: dict[int, str]) -> None:
    from wirelag.estimators.rda import Rda
    from wirelag.exchange import About, asked
    from wirelag.io.synopsis_file import SynopsisWriter

    if not isinstance(terms.estimator, Rda):
        raise WirelagError(f"{terms.estimator.name} needs no second round: --ask is for rda")
    with SynopsisWriter(path, About("ask", terms)) as writer:
        for pair in pairs:
            for record in asked(pair, terms.estimator, keys):
                writer.write(record)
    print(f"wrote {path}: {writer.records} questions, {writer.bytes:,} bytes; answer them at each point with")
    print(f"  wirelag cut CAPTURE --answer {path} -o TIMES.syn")


def _sum_up(
    name: str, spans: list[Span], keys: dict[int, str], relation: Relation, files: list[SynopsisFile]
) -> Measured:
    from wirelag.cli.oneway import explanations
    from wirelag.clocks import Clock, fit
    from wirelag.crossings import total
    from wirelag.tails import Tail

    closed = [span for span in spans if not span.open_ended] or spans
    sample = Tail.empty()
    for span in closed:
        sample = sample.followed_by(span.whole.tail)
    if isinstance(relation, int):
        clock: Clock = Clock.given(relation)
    elif relation == "auto":
        nothing = np.empty(0, np.int64)
        order = np.argsort(sample.sent_ns, kind="stable")
        sent_ns = sample.sent_ns[order]
        clock = fit(sent_ns, sent_ns + sample.delays_ns[order], nothing, nothing)
    else:
        clock = Clock()
    if clock.corrects:
        for span in closed:
            middle_ns = np.array([(span.interval.start_ns + span.interval.end_ns) // 2])
            for crossing in span.crossings.values():
                received_ns = middle_ns + round(crossing.mean_ns or 0)
                crossing.shifted(int((clock.correct(received_ns) - received_ns)[0]))
    measured = Measured(name, closed, total(closed), clock, keys, list(clock.notes))
    measured.packets = sum(int(file.counted.get("packets", 0)) for file in files)
    if len(closed) < len(spans):
        measured.notes.append(
            f"{len(spans) - len(closed)} intervals at the edges of the captures are left out: "
            f"nobody can say that both points saw all of them"
        )
    measured.notes += explanations(measured)
    return measured
