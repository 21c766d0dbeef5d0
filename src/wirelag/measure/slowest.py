"""The slowest samples of a result: where their packets are, for whoever wants to look at them; and every exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from wirelag.capture.packet_rows import ExchangeRows
    from wirelag.packets.frames import Frames
    from wirelag.synopses.request_response import Exchanges
    from wirelag.synopses.slowest import Slowest


class Slow(NamedTuple):
    """One sample: its delay, when it began, its packets, and a display filter for each capture that has some."""

    delay_ns: int
    time_ns: int
    frames: tuple[tuple[str, int], ...]  # capture, and number there
    filters: Mapping[str, str]
    leg: str = ""  # of a round trip

    def to_dict(self) -> dict[str, Any]:
        """As JSON; times in seconds."""
        return {
            "delay": self.delay_ns / 1e9,
            **({"leg": self.leg} if self.leg else {}),
            "time": self.time_ns / 1e9,
            "frames": [{"capture": capture, "number": number} for capture, number in self.frames],
            "filter": dict(self.filters),
        }


def listed(found: Slowest) -> list[Slow]:
    """The slowest samples whose packets are in files."""
    from wirelag.render.wireshark import display_filters
    from wirelag.synopses.samples import LEGS

    slow = []
    for one in found.samples:
        places = [found.first_frames.locate(one.first), found.last_frames.locate(one.last)]
        frames = tuple(dict.fromkeys(place for place in places if place is not None))
        if frames:
            filters = display_filters(frames, one.time_ns, one.ends)
            slow.append(Slow(one.delay_ns, one.time_ns, frames, filters, (*LEGS, "")[one.leg]))
    return slow


def slowest_exchanges(exchanges: Exchanges, frames: Frames, most: int) -> list[Slow]:
    """The slowest of these exchanges."""
    from wirelag.synopses.slowest import Slowest

    slowest = Slowest(most, frames)
    slowest.of_exchanges(exchanges)
    return listed(slowest)


def keep_exchanges(exchanges: Exchanges, frames: Frames, path: str | None) -> ExchangeRows | None:
    """Every exchange, in memory or, with a path, in a file."""
    from wirelag.capture.packet_rows import ExchangeRows
    from wirelag.capture.sample_file import PART_ROWS, RowFile

    rows = ExchangeRows(frames)
    if path is None:
        rows.add(exchanges.rows)
        return rows
    with RowFile(path, rows, "--exchanges") as file:
        for start in range(0, len(exchanges.rows), PART_ROWS):
            file.add(exchanges.rows[start : start + PART_ROWS])
    return None
