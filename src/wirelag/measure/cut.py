"""A file of synopses, one for each interval at one point, to compare with another point's in `oneway`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.copies import refuse_copies
from wirelag.measure.groups import Groups
from wirelag.measure.methods import Method
from wirelag.measure.oneway import direction_of
from wirelag.measure.points import ReadOptions
from wirelag.packets.filters import ports_text

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Grouping
    from wirelag.protocol.terms import Terms


@dataclass
class CutFile:
    """A file of synopses, or of replies."""

    path: str
    records: int
    bytes: int
    packets: int = 0  # packets read
    questions: int = 0  # questions asked
    warnings: list[str] = field(default_factory=list)


def terms_of(
    method: Method, interval_ns: int | None, groups: Groups, direction: str | None, reading: ReadOptions
) -> Terms:
    """What both points must agree on."""
    from wirelag.protocol.terms import Terms

    if not method.make().can.live:
        raise SettingError("estimator", "join needs every packet: give `oneway` both captures")
    direction_of(direction)
    estimator, grouping = method.make(), groups.grouping()
    by = f"{grouping.by}/{groups.ipv4_prefix}/{groups.ipv6_prefix}/{groups.most}" if grouping else None
    delimiters = method.delimiters(estimator, interval_ns, method.packets_per_interval)
    return Terms(estimator, method.packet_id(), interval_ns, delimiters, by, direction, _filter_text(reading))


def cut_captures(
    captures: Sequence[str], output: str, terms: Terms, reading: ReadOptions, ahead_ns: int = 0, force: bool = False
) -> CutFile:
    """Write a synopsis of each interval; `ahead_ns` is how far this point's clock is ahead.

    Captures that hold the same packets are refused, unless `force` is set.
    """
    from wirelag.capture.synopsis_file import SynopsisWriter
    from wirelag.protocol.terms import About, records_of
    from wirelag.twopoint.spans import Cut, cuts

    capture, grouping, seen = _capture(captures, terms, reading), _grouping(terms.by), _Seen()
    twice = refuse_copies(capture, force)
    of: Any = terms.two_point
    batches = seen.watch(_selected(reading.progress(capture), terms.direction, ahead_ns))
    with SynopsisWriter(output, About("synopses", terms, tuple(captures), ahead_ns)) as writer:
        for part in cuts(of, "upstream", batches, terms.interval_ns, terms.delimiters, grouping):
            kept = part
            if terms.estimator.can.second_round:  # buckets are fixed now: this point cannot talk to the other one
                kept = Cut(part.interval, {tag: of.bind(cached) for tag, cached in part.synopses.items()})
            for record in records_of(kept, grouping.keys if grouping else {}):
                writer.write(record)
        overflow = bool(grouping and len(grouping.keys) > grouping.most)
        both_ways = seen.both_ways and terms.direction is None
        writer.counted |= {"packets": capture.statistics.packets, "overflow": overflow, "both_ways": both_ways}
        writer.counted |= seen.span()
    written = CutFile(output, writer.records, writer.bytes, seen.packets, warnings=[*capture.warnings, *twice])
    if both_ways:
        written.warnings.append(
            "packets travel both ways here, and oneway needs those of one direction: choose with --direction 'SRC>DST'"
        )
    if seen.cut_payloads:
        written.warnings.append(
            f"{seen.cut_payloads:,} packets have less payload captured than --prefix {terms.packet_id.prefix}: the "
            f"other point may compute another id; use the same, shorter --prefix at both"
        )
    return written


def reply(captures: Sequence[str], output: str, questions: str, reading: ReadOptions, ahead_ns: int = 0) -> CutFile:
    """Write the times of packets that only one point saw: the capture is read and cut again in the same way."""
    from wirelag.capture.synopsis_file import SynopsisFile, SynopsisWriter
    from wirelag.protocol.terms import About, answered, place
    from wirelag.twopoint.spans import cuts

    file = SynopsisFile(questions)
    if file.about.kind != "ask":
        raise WirelagError(f"{questions}: no questions; write them with `wirelag oneway A.syn B.syn --ask {questions}`")
    terms = file.about.terms
    if _filter_text(reading) != terms.filter:
        filters = terms.filter or "none"
        raise WirelagError(f"{questions}: was cut with other filters ({filters}); give --answer the same")
    try:
        asked = {place(terms, record["start_ns"], record["class"]): record for record in file}
    except KeyError as error:
        raise WirelagError(f"{questions}: a record is not a question ({error})") from None
    capture, grouping = _capture(captures, terms, reading), _grouping(terms.by)
    batches = _selected(reading.progress(capture), terms.direction, ahead_ns)
    with SynopsisWriter(output, About("times", terms, tuple(captures), ahead_ns)) as writer:
        for part in cuts(terms.two_point, "upstream", batches, terms.interval_ns, terms.delimiters, grouping):
            for tag, cached in part.synopses.items():
                key = grouping.keys.get(tag) if grouping else None
                question = asked.get(place(terms, part.interval.start_ns, key))
                if question is not None:
                    writer.write(answered(cached, question))
    warnings = [*capture.warnings, *file.warnings]
    return CutFile(output, writer.records, writer.bytes, questions=len(asked), warnings=warnings)


def _capture(captures: Sequence[str], terms: Terms, reading: ReadOptions) -> Capture:
    from wirelag.capture.files import Capture

    return Capture(captures, filter=reading.filter, packet_id=terms.packet_id, tunnels=reading.tunnels)


def _filter_text(reading: ReadOptions) -> str | None:
    """The packets selected, without times, which differ between points."""
    wanted = reading.filter
    parts = {"nets": " ".join(sorted(map(str, wanted.nets))), "ports": ports_text(wanted.ports)}
    parts["protocols"] = " ".join(sorted(map(str, wanted.protocols)))
    parts["expression"] = wanted.expression
    words = [f"{name} {text}" for name, text in parts.items() if text]
    return "; ".join([*words, *(["inside tunnels"] if reading.tunnels else [])]) or None


def _selected(batches: Iterable[PacketBatch], direction: str | None, ahead_ns: int) -> Iterator[PacketBatch]:
    """Packets of the wanted direction, on the clock of the other points."""
    way = direction_of(direction)
    for batch in batches:
        kept = batch if way is None else batch[way.rows(batch)]
        yield kept.at_times(kept.time_ns - ahead_ns) if ahead_ns else kept


def _grouping(by: str | None) -> Grouping | None:
    """The grouping as the terms hold it: the word, prefix lengths, and the limit."""
    from wirelag.packets.grouping import Grouping

    if by is None:
        return None
    kind, ipv4_prefix, ipv6_prefix, most = by.split("/")
    return Grouping(kind, int(ipv4_prefix), int(ipv6_prefix), int(most))  # type: ignore[arg-type]


class _Seen:
    """Counts packets on their way through: how many, when, and whether both ways."""

    def __init__(self) -> None:
        self.packets = 0
        self.cut_payloads = 0
        self.both_ways = False
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def watch(self, batches: Iterable[PacketBatch]) -> Iterator[PacketBatch]:
        """Count packets, and pass them on."""
        import numpy as np

        from wirelag.packets.batch import Flag

        for batch in batches:
            if not len(batch):
                continue
            self.packets += len(batch)
            self.cut_payloads += int(batch.has(Flag.PREFIX_CUT).sum())
            first_ns, last_ns = int(batch.time_ns.min()), int(batch.time_ns.max())
            self._first_ns = first_ns if self._first_ns is None else min(self._first_ns, first_ns)
            self._last_ns = last_ns if self._last_ns is None else max(self._last_ns, last_ns)
            if not self.both_ways:
                reverse = batch.has(Flag.REVERSE)
                self.both_ways = bool(np.isin(batch.flow_key[reverse], batch.flow_key[~reverse]).any())
            yield batch

    def span(self) -> dict[str, int]:
        """The first and the last time."""
        if self._first_ns is None or self._last_ns is None:
            return {}
        return {"first_ns": self._first_ns, "last_ns": self._last_ns}
