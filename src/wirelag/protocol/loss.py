"""Loss between two points of which either may have missed packets.

Law: silence is unseen, not loss. An interval that a point covered in part has no loss, and where packets in flight at
its end cannot be told from lost ones, it has none either. A packet is lost if it was seen upstream, and not downstream
in this interval or in one that began within a second of its end.

What a capture dropped is never loss. Upstream saw s packets and dropped u, downstream dropped d. A share s/(s+u) of
what downstream dropped was seen upstream, so of A packets seen upstream alone lost = A - d s/(s+u). Which packets were
dropped is chance: a variance of d s u/(s+u)^2, and lost u/(s+u) for what is said of all that were sent. A method that
only counts packets knows the difference of all, (s + u) - (received + d), of which the same share was seen upstream.
The kernel counts what a capture dropped of all traffic; of that a segment, or a class, has the share p that it has of
what was captured, and the number is chance, too: a variance of d (1 - p), and u (1 - p) where packets are only counted.

Drops are counted when the counter is read, a little late: some may belong to the interval before or behind, as many as
the drops of neighbours differ, and the 95% interval reaches that much farther. So a single interval may come out with
less than nothing: its numbers stay as they are, since only then is the sum over many intervals right, and are cut off
at nothing where somebody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wirelag.protocol.messages import Seen
from wirelag.stats.distribution import Z95
from wirelag.synopses.crossing import Crossing


@dataclass(frozen=True, slots=True)
class Loss:
    """Packets seen upstream that never arrived, and the 95% interval; None with a reason where nobody can say."""

    lost: float | None
    low: float
    high: float
    reason: str | None = None


def unknown(crossing: Crossing, reason: str) -> Loss:
    """Loss that nobody can tell: at most all that only upstream saw."""
    return Loss(None, 0.0, float(crossing.sent if crossing.lost is None else crossing.lost), reason)


def loss_of(crossing: Crossing, whole: Crossing, seen: Sequence[Seen], moved: Sequence[float]) -> Loss:
    """The loss of a class by the law above; upstream first in all of these.

    Of what either point dropped the class has its share of the `whole`. `moved` is how many drops may be another
    interval's.
    """
    sent, received = crossing.sent, crossing.received
    if sent and received and not crossing.used and not len(crossing.tail):
        return unknown(crossing, "the points have no packet in common: another clock, other traffic or other ids")
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
        lost = (sent + up - received - down) * seen_too
        variance = max(0.0, lost) * (1 - seen_too) + chance_up * seen_too**2
        may_move = (moved_up + moved_down) * seen_too
    else:
        lost = crossing.lost - down * seen_too
        variance = (down * seen_too + max(0.0, lost)) * (1 - seen_too)
        may_move = moved_down * seen_too
    bound = Z95 * math.sqrt(variance + chance_down * seen_too**2) + may_move
    return Loss(lost, lost - bound, lost + bound)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
