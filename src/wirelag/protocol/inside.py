"""Results that one point has settled by itself: insides of routers, and segments whose other end only reflects.

Law: a `crossing` is the result of one interval of one segment, by class, with its loss and what each end saw. Both ends
of an inside have one clock, which needs no synchronisation: a delay has no clock error. Only the router itself may say
it: the segment of a point B is `B[...]`. Of a segment to a reflector (STAMP) only its other end may, with the bound of
the clocks' difference that two-way times set; the round trip is a class of its own. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import MOST_TEXT, OUT_SEEN, STAMP, ClockReading, Message, Record, Seen
from wirelag.protocol.results import Rank, Result
from wirelag.protocol.terms import Terms
from wirelag.synopses.crossing_summary import from_fields, to_fields

ONE_CLOCK: Final = ClockReading(True, 0, "none")
ROUND_TRIP: Final = "round trip"  # the class of a segment to a reflector


def is_inside(segment: str | None, point: str) -> bool:
    """Whether a segment is inside the router of this point.

    >>> is_inside("B[A>C]", "B"), is_inside("B[A>C]", "A"), is_inside("B>C", "B")
    (True, False, False)
    """
    return segment is not None and segment.startswith(f"{point}[") and segment.endswith("]")


def message_of(result: Result, point: str, terms: Terms, sent_ns: int) -> Message:
    """The message about a result; both ends have sent, or there is no result."""
    up, down = result.seen
    assert up is not None
    assert down is not None
    interval = result.interval
    place = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": interval.name}
    records: list[Record] = []
    for key, crossing in result.crossings.items():
        loss = result.losses[key]
        about = {"lost": loss.lost, "lost_low": loss.low, "lost_high": loss.high, "lost_why": _short(loss.reason)}
        record = place | {"class": key} | to_fields(crossing) | about
        records.append(record | {"why": _short(crossing.reason)})
    if records:
        records[0] |= dict(zip(OUT_SEEN, asdict(down).values(), strict=True))
        records[0] |= {"by": STAMP} if result.estimator == STAMP else {}
    clock = result.clock or ONE_CLOCK
    return Message("crossing", point, result.segment, interval, terms, clock, up, tuple(records), sent_ns)


def result_of(message: Message) -> Result:
    """The inverse of `message_of`."""
    crossings = {record["class"]: from_fields(record) for record in message.records}
    losses = {record["class"]: _loss(record) for record in message.records}
    down = next(record for record in message.records if record["class"] is None)
    return Result(
        message.segment or "",
        message.interval,
        Rank.SETTLED,
        down.get("by", message.terms.estimator.name),
        crossings,
        losses,
        (message.seen, Seen(*(down[name] for name in OUT_SEEN))),
        message.clock,
        True,
    )


def _loss(record: Mapping[str, Any]) -> Loss:
    lost = record["lost"]
    return Loss(
        None if lost is None else float(lost), float(record["lost_low"]), float(record["lost_high"]), record["lost_why"]
    )


def _short(reason: str | None) -> str | None:
    return None if reason is None else reason[:MOST_TEXT]
