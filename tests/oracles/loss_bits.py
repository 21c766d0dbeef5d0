"""The square wave of QUIC packet by packet, from RFC 9506 and the rule of docs/reference/telemetry.md."""

from collections.abc import Sequence

Block = tuple[int, int]


def blocks(packets: Sequence[tuple[bool, bool]]) -> list[Block]:
    """Packets of each block that was seen whole, and how many of them have L."""
    found: list[list[bool]] = []
    value: bool | None = None
    mine: list[bool] = []
    others: list[bool] = []
    lead = 0
    for square, mark in packets:
        value = square if value is None else value
        if square == value:
            mine.append(mark)
            lead = max(0, lead - 1)
            if lead == 0:
                mine += others
                others = []
        else:
            others.append(mark)
            lead += 1
            if lead == 8:
                found.append(mine)
                value, mine, others, lead = square, others, [], 0
    return [(len(block), sum(block)) for block in found[1:]]


def lost(lengths: Sequence[int], sent: int) -> int:
    """Packets that are missing in blocks of this length; a run of more than one lost what was between them."""
    total = 0
    for length in lengths:
        seen = 1
        while length - 8 > seen * sent:
            seen += 1
        total += (2 * seen - 1) * sent - length
    return total
