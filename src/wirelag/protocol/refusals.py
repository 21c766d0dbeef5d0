"""Messages that a collector takes no further, by their terms or by how many segments they are about. No I/O."""

from __future__ import annotations

from typing import Final

from wirelag.protocol.messages import Message

MOST_SHARED: Final = 64  # segments that a message without a segment may be about,
MOST_RESULTS: Final = 4096  # and classes of all of these


def refusal(message: Message) -> str | None:
    """Why a message cannot be about an interval; None if it can."""
    length_ns, interval = message.terms.interval_ns, message.interval
    if message.type == "ask":
        return "not for a collector"
    if message.terms.delimiters is not None:
        if not message.terms.estimator.can.delimited or interval.length_ns <= 0:
            return "no interval between packets"
    elif not length_ns or interval.length_ns != length_ns or interval.start_ns % length_ns:
        return "no interval of a clock"
    return None


def refusal_of(message: Message, segments: int) -> str | None:
    """The same for a message about this number of segments."""
    if segments > MOST_SHARED or (segments > 1 and segments * len(message.records) > MOST_RESULTS):
        return "of too many segments"
    return None if segments else "of no segment"
