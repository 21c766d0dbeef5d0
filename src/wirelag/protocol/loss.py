"""Loss between two points, either of which may have missed packets.

Law: what a point did not observe is unseen, not lost. An interval that a point covered only in part has no loss figure;
nor has one where packets in flight at its end cannot be told from lost ones. A packet is lost if it was seen upstream,
and not downstream in this interval or in one that began within a second of its end.

Packets that a capture dropped never count as loss. Upstream saw s packets and dropped u, downstream dropped d. A share
s/(s+u) of what downstream dropped was seen upstream, so of A packets seen only upstream, lost = A - d s/(s+u). Which
packets were dropped is random: a variance of d s u/(s+u)^2, plus lost u/(s+u) for estimates over all packets sent. A
method that only counts packets has the difference of all, (s + u) - (received + d), of which the same share was seen
upstream. The kernel counts drops over all traffic; a segment or a class has the share p of them that it has of the
captured packets, and the number is random too: a variance of d (1 - p), and u (1 - p) where packets are only counted.

Drops are counted when the counter is read, a little late: some may belong to the previous or next interval. Their
number is bounded by the difference between neighbouring drop counts, and the 95% interval is widened by it. So the loss
of a single interval may come out negative. It is stored as it is, because only then the sum over many intervals is
right, and is clipped at 0 when displayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wirelag.protocol.messages import Seen
from wirelag.stats.distribution import Z95
from wirelag.synopses.crossing import Crossing

APART: Final = "the points have no packet in common: another clock, other traffic or other ids"
APART_SHARE: Final = 0.9  # of each point's packets, that the other one did not see


@dataclass(frozen=True, slots=True)
class Loss:
    """Packets seen upstream that never arrived, and the 95% interval; None with a reason if unknown."""

    lost: float | None
    low: float
    high: float
    reason: str | None = None


def unknown(crossing: Crossing, reason: str) -> Loss:
    """Unknown loss: at most all packets that only upstream saw."""
    return Loss(None, 0.0, float(crossing.sent if crossing.lost is None else crossing.lost), reason)


def loss_of(crossing: Crossing, whole: Crossing, seen: Sequence[Seen], moved: Sequence[float]) -> Loss:
    """The loss of a class by the law above; upstream first in all sequences.

    The class has a share of each point's drops equal to its share of the `whole`. `moved` is the number of drops that
    may belong to another interval.
    """
    sent, received = crossing.sent, crossing.received
    if sent and received and (_strangers(crossing) or not (crossing.used or len(crossing.tail))):
        return unknown(crossing, APART)
    if crossing.lost is None:
        return unknown(crossing, crossing.reason or "the difference did not decode")
    shares = (_ratio(sent, whole.sent), _ratio(received, whole.received))
    up, down = (point.unseen * share for point, share in zip(seen, shares, strict=True))
    moved_up, moved_down = (count * share for count, share in zip(moved, shares, strict=True))
    if not any((up, down, moved_up, moved_down)):
        return Loss(crossing.lost, crossing.lost, crossing.lost)
    seen_too = _ratio(sent, sent + up)
    chance_up, chance_down = (
        dropped * (1 - share * _ratio(point.packets, max(point.packets, point.captured)))
        for dropped, share, point in zip((up, down), shares, seen, strict=True)
    )
    if crossing.net_loss:
        lost = (crossing.missing + up - down) * seen_too
        variance = max(0.0, lost) * (1 - seen_too) + chance_up * seen_too**2
        may_move = (moved_up + moved_down) * seen_too
    else:
        lost = crossing.lost - down * seen_too
        variance = (down * seen_too + max(0.0, lost)) * (1 - seen_too)
        may_move = moved_down * seen_too
    bound = Z95 * math.sqrt(variance + chance_down * seen_too**2) + may_move
    return Loss(lost, lost - bound, lost + bound)


def _strangers(crossing: Crossing) -> bool:
    """Whether hardly any packet was seen by both points: then a few may be in common by chance, by a wrong clock."""
    if crossing.only_upstream is None or crossing.only_downstream is None:
        return False
    alone = crossing.only_upstream - crossing.late, crossing.only_downstream - crossing.early
    return all(own > APART_SHARE * of for own, of in zip(alone, (crossing.sent, crossing.received), strict=True))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
