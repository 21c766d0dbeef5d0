"""Parts as messages: the synopses of an interval of a segment, with its classes. No I/O."""

from __future__ import annotations

from dataclasses import replace

from wirelag.agent.cutting import CutPart
from wirelag.agent.history import History
from wirelag.protocol.messages import MOST_BYTES, Message, encode
from wirelag.protocol.terms import records_of
from wirelag.synopses.reference_summary import by_class, interpolated
from wirelag.twopoint.spans import ALL, Cut


def composed(part: CutPart, message: Message, past: History) -> Message:
    """The message with the records of a part; `past` knows how much rda sends of it."""
    part = _summed(part) if part.measured.terms.estimator.can.one_sided else part
    cut = past.bound(part) if part.measured.terms.estimator.can.second_round else part.cut
    records = list(records_of(cut, part.keys))
    records[0]["overflow"] = part.overflow
    if part.idle:
        records[0]["idle"] = True
    if part.ahead_ns is not None:
        records[0] |= dict(zip(("ahead_low_ns", "ahead_high_ns"), part.ahead_ns, strict=True))
    if part.closed_by is not None:
        records[0]["closed_by"] = part.closed_by
    return replace(message, records=tuple(records))


def encoded(part: CutPart, message: Message, past: History) -> tuple[bytes, str]:
    """A part as a message's bytes, and its key; classes are left out where they are too many for one message."""
    whole = composed(part, message, past)
    data = encode(whole)
    if len(data) > MOST_BYTES:
        whole = replace(whole, records=(whole.records[0] | {"overflow": True},))
        data = encode(whole)
    return data, whole.key


def _summed(part: CutPart) -> CutPart:
    """The part with its flows summed up for sending: everything, and classes."""
    flows, grouping = part.cut.synopses[ALL], part.measured.grouping()
    classes, more = ([], False) if grouping is None else by_class(flows, grouping)
    synopses = {ALL: interpolated(flows)} | {i: one for i, (_, one) in enumerate(classes, 1)}
    keys = {i: name for i, (name, _) in enumerate(classes, 1)}
    return replace(part, cut=Cut(part.cut.interval, synopses), keys=keys, overflow=more)
