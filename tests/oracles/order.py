"""Which packets were overtaken, in plain Python: the tests' oracle for `synopses/reordering.py`.

After RFC 4737, section 5: a packet is n-reordered, with n = 1, if the one that arrived just before it was sent after
it. It follows only `docs/reference/messages.md`, "Order".
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from tests.oracles.join import Packet


def overtaken(
    sent: Iterable[Packet], arrived: Sequence[Packet], chosen: Collection[int], start_ns: int
) -> tuple[int, int]:
    """Over the chosen ids: for how many it is known, and how many were overtaken.

    `sent` includes packets sent before the interval, `arrived` is that of the interval. Without copies.
    """
    sent_ns = dict(sent)
    checked = overtaken = 0
    for (before, _), (packet, _) in pairwise(arrived):
        if packet in chosen and max(sent_ns[before], sent_ns[packet]) >= start_ns:
            checked += 1
            overtaken += sent_ns[before] > sent_ns[packet]
    return checked, overtaken
