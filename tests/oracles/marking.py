"""Alternate marking packet by packet, from RFC 9341 and the rule of docs/reference/marking.md."""

from collections.abc import Iterable
from fractions import Fraction


def blocks(packets: Iterable[tuple[int, bool]], period_ns: int) -> list[tuple[bool, list[int]]]:
    """The times of the packets of each period, with its colour."""
    found: list[tuple[bool, list[int]]] = []
    for when, colour in packets:
        of_colour = [times for one, times in found[-2:] if one == colour]
        is_open = bool(found) and found[-1][0] == colour
        half = Fraction(period_ns, 2)
        is_late = bool(of_colour) and when - max(of_colour[-1]) <= half and abs(when - found[-1][1][0]) <= half
        if not is_open and not is_late:
            found.append((colour, [when]))
        else:
            of_colour[-1].append(when)
    return found
