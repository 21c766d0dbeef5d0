"""Captures that hold the same packets: a capture and its compressed copy, or two points of the same traffic.

Read as one, each packet would count twice: as a retransmission, or as a response that came at once.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.capture.source import Packets

LARGEST_SHARE: Final = 0.2  # of packets in common, that different captures do not have
FEWEST: Final = 20  # packets that tell
BATCHES: Final = 4  # of each capture that are looked at
MOST_PAIRS: Final = 16  # captures of which every two are compared; of more, neighbours in time


def refuse_copies(packets: Packets) -> None:
    """A WirelagError if two of several captures begin with the same packets."""
    from wirelag.capture.files import Capture
    from wirelag.measure.survey import Survey, common_share
    from wirelag.packets.batch import PacketId

    if not isinstance(packets, Capture) or len(packets.files) < 2:
        return
    seen = []
    for file in packets.files:
        survey = Survey(with_ids=True)
        capture = Capture([file.path], names={file.path: file.name}, packet_id=PacketId(), tunnels=file.tunnels)
        for i, batch in enumerate(capture):
            survey.observe(batch)
            if i + 1 == BATCHES:
                break
        seen.append((file.name, survey.ids))
    pairs = combinations(seen, 2) if len(seen) <= MOST_PAIRS else pairwise(seen)
    for (one, ids), (other, others) in pairs:
        share = common_share(ids, others) if min(len(ids), len(others)) >= FEWEST else 0.0
        if share > LARGEST_SHARE:
            raise WirelagError(
                f"{one} and {other} hold the same packets ({share:.0%} of those compared), which would count twice: "
                f"name one of them, measure between two points with `wirelag oneway`, or use --force"
            )
