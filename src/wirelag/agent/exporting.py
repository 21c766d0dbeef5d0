"""Intervals of segments as this point knows them, in the form in which they are exported as flows (IPFIX). No I/O.

Law: what this point measures alone (rli, the inside of a router, segments to reflectors) has its delays and its loss.
Of a segment with another agent at its other end, it has the packets that it saw: delays need both ends, and are the
collector's to send.
"""

from __future__ import annotations

from typing import Any

from wirelag.agent.cutting import CutPart
from wirelag.packets.interval import Interval
from wirelag.protocol.inside import result_of
from wirelag.protocol.messages import Message
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.reference_summary import interpolated
from wirelag.twopoint.spans import ALL

Told = tuple[str, dict[str, Any]]


def of_part(part: CutPart, point: str) -> Told:
    """A part that this point has cut; one without a segment has the name of the point."""
    interval, seen = part.cut.interval, part.seen
    if part.measured.terms.estimator.can.one_sided:
        return part.measured.segment or point, _told(interval, interpolated(part.cut.synopses[ALL]).crossing(), None)
    return part.measured.segment or point, _told(interval, Crossing(seen.packets, seen.packets), None)


def of_message(message: Message) -> Told:
    """A result that this point has settled itself."""
    result = result_of(message)
    return result.segment, _told(result.interval, result.crossings[None], result.losses[None].lost)


def _told(interval: Interval, crossing: Crossing, lost: float | None) -> dict[str, Any]:
    """As the collector's API has it."""
    report = crossing.report("")
    return {
        "start": interval.start_ns / 1e9,
        "end": interval.end_ns / 1e9,
        "received": crossing.received,
        "lost": None if lost is None else max(0.0, lost),
        "used": report.samples,
        "mean": report.mean,
        "min": report.min,
        "max": report.max,
        "ci95": report.ci95,
    }
