"""Results of one-sided methods (rli), which the downstream point measures alone. No I/O.

Law: references stand in for messages of the upstream point. They carry its time, sequence numbers and clock error; so
an interval needs no message of that point, and if no reference came, it has sent nothing. The packets sent are unknown:
there is loss of references, but not of packets.
"""

from __future__ import annotations

from typing import Final

from wirelag.protocol.loss import unknown
from wirelag.protocol.messages import ClockReading, Message, Seen
from wirelag.protocol.results import Ends, Rank, Result, together
from wirelag.synopses.reference_summary import Heard, Interpolated

NO_LOSS: Final = "rli sees only what arrives: it knows the loss of references, not of packets"


def result_of(ends: Ends, message: Message) -> Result:
    """The result of a message of the downstream point."""
    found = {record["class"]: Interpolated.from_fields(record) for record in message.records}
    heard = found[None].heard or Heard()
    crossings = {key: one.crossing() for key, one in found.items()} if heard.references else {}
    upstream = ClockReading(heard.sender_ns is not None, heard.sender_ns or 0, "stated")
    return Result(
        ends.segment,
        message.interval,
        Rank.SETTLED if heard.references else Rank.UNSEEN,
        message.terms.estimator.name,
        crossings,
        {key: unknown(crossing, NO_LOSS) for key, crossing in crossings.items()},
        (Seen(heard.references, 0, message.seen.covered_ns) if heard.references else None, message.seen),
        together((upstream, message.clock)),
        True,
        _reason(ends, heard),
        (heard.references, heard.references_lost),
    )


def _reason(ends: Ends, heard: Heard) -> str | None:
    if heard.references:
        return None
    if heard.references_rejected:
        return f"none of {heard.references_rejected} references was credible: their times or numbers do not fit"
    return f"no reference came: {ends.upstream} sends none, or they get lost, or they go another way"
