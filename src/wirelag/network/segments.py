"""Segments: units of measurement, and their names.

A path is cut at every router that can measure. Between two cuts lies a link, or a virtual link over routers that cannot
measure; at each cut lies the inside of a router. All are directed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from wirelag.errors import WirelagError

Kind = Literal["link", "virtual", "inside"]
EDGE: Final = ""  # the port to the outside, where traffic enters or leaves the network
ANY: Final = "*"  # any port

_INSIDE: Final = re.compile(r"([^][>]+)\[([^][>]*)>([^][>]*)\]")
_BETWEEN: Final = re.compile(r"([^][>]+)(>>?)([^][>]+)")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A link `A>B`, a virtual link `A>>D`, or the inside of a router, `B[A>C]`.

    `at` is where a link begins, or the router measured inside. `before` and `after` are the routers that its ports lead
    to; a link has only `after`, where it ends.
    """

    kind: Kind
    at: str
    before: str
    after: str

    @classmethod
    def link(cls, source: str, target: str) -> Segment:
        """From the egress of a router to the ingress of its neighbour."""
        return cls("link", source, EDGE, target)

    @classmethod
    def virtual(cls, source: str, target: str) -> Segment:
        """All shortest paths of two or more hops with no measuring router in between."""
        return cls("virtual", source, EDGE, target)

    @classmethod
    def inside(cls, router: str, before: str = EDGE, after: str = EDGE) -> Segment:
        """From the port towards one router to the port towards another; EDGE is the port to the outside."""
        return cls("inside", router, before, after)

    def __str__(self) -> str:
        if self.kind == "inside":
            return f"{self.at}[{self.before}>{self.after}]"
        return f"{self.at}{'>' if self.kind == 'link' else '>>'}{self.after}"


def parse_segment(text: str) -> Segment:
    """The segment of this name: the inverse of `str`."""
    if found := _INSIDE.fullmatch(text):
        return Segment.inside(*found.groups())
    if found := _BETWEEN.fullmatch(text):
        source, arrow, target = found.groups()
        return Segment.link(source, target) if arrow == ">" else Segment.virtual(source, target)
    raise WirelagError(f"{text!r} is not a segment: a link is A>B, a virtual link A>>D, the inside of a router B[A>C]")


def segments_of(path: Sequence[str], upgraded: Container[str]) -> list[Segment]:
    """The segments of a path in order, if the routers in `upgraded` can measure.

    The two ends cut as well: at a router that cannot measure inside, a server beside it sends and receives.
    """
    last = len(path) - 1
    cuts = [i for i, router in enumerate(path) if i in (0, last) or router in upgraded]
    found: list[Segment] = []

    def inside(i: int) -> None:
        if path[i] in upgraded:
            before = path[i - 1] if i else EDGE
            found.append(Segment.inside(path[i], before, path[i + 1] if i < last else EDGE))

    for i, j in pairwise(cuts):
        inside(i)
        between = Segment.link if j == i + 1 else Segment.virtual
        found.append(between(path[i], path[j]))
    if path:
        inside(last)
    return found
