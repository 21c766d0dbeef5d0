"""Traces of IOAM in options of IPv6 (RFC 9197, RFC 9486): what each node on the path wrote into a packet.

A trace has the same fields for each node, as its trace type says: a bit each. The last node's are first, both in
pre-allocated traces, which are filled from their end, and in incremental ones. A field of ones means: not known.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

PRE_ALLOCATED, INCREMENTAL = 0, 1
HEAD: Final = 10  # bytes before the list of nodes: reserved, type of option, namespace, lengths, trace type
SNAPSHOT: Final = 22  # the bit of a field of variable length
WIDE: Final = (8, 9, 10)  # bits whose fields have 8 bytes
OVERFLOW: Final = 0x400  # the flag that some node found no room
UNKNOWN: Final = 0xFFFFFFFF
NODE, TIME, FRACTION, TRANSIT, QUEUE, WIDE_NODE = 0, 2, 3, 4, 6, 8
MOST_NODES: Final = 64


class Node(NamedTuple):
    """What one node wrote; None: not given."""

    number: int | None
    seconds: int | None
    fraction: int | None  # of a second, in the unit of the namespace
    transit_ns: int | None  # time in the node
    queue: int | None  # what waited there, in units of the node's own


class Trace(NamedTuple):
    """The nodes of a trace, in the order of the path."""

    namespace: int
    overflow: bool
    nodes: tuple[Node, ...]


@lru_cache(64)
def _places(kind: int) -> tuple[dict[int, int], int]:
    """Where each field of a node is, by its bit, and how many bytes they have together."""
    found, at = {}, 0
    for bit in range(SNAPSHOT):
        if kind >> 23 - bit & 1:
            found[bit] = at
            at += 8 if bit in WIDE else 4
    return found, at


def trace(data: bytes) -> Trace | None:
    """The trace that an option holds; None: it holds something else of IOAM, or makes no sense."""
    if len(data) < HEAD or data[1] not in (PRE_ALLOCATED, INCREMENTAL):
        return None
    namespace, lengths = int.from_bytes(data[2:4]), int.from_bytes(data[4:6])
    kind = int.from_bytes(data[6:9])
    places, size = _places(kind)
    start = HEAD + (4 * (lengths & 0x7F) if data[1] == PRE_ALLOCATED else 0)
    if (lengths >> 11) * 4 != size or not size or start > len(data):
        return None
    nodes: list[Node] = []
    while start + size <= len(data) and len(nodes) < MOST_NODES:
        nodes.append(_node(data[start : start + size], places))
        start += size
        if kind >> 23 - SNAPSHOT & 1:
            if start + 4 > len(data):
                return None
            start += 4 + 4 * data[start]
    if start != len(data):
        return None
    return Trace(namespace, bool(lengths & OVERFLOW), tuple(reversed(nodes)))


def _node(data: bytes, places: dict[int, int]) -> Node:
    def word(bit: int) -> int | None:
        if bit not in places:
            return None
        value = int.from_bytes(data[places[bit] : places[bit] + 4])
        return None if value == UNKNOWN else value

    number: int | None = None
    if NODE in places:
        number = int.from_bytes(data[places[NODE] + 1 : places[NODE] + 4])
        number = None if number == 0xFFFFFF else number
    if number is None and WIDE_NODE in places:
        number = int.from_bytes(data[places[WIDE_NODE] + 1 : places[WIDE_NODE] + 8])
        number = None if number == (1 << 56) - 1 else number
    transit = word(TRANSIT)
    if transit is not None and transit >> 31:  # too long to be told
        transit = None
    return Node(number, word(TIME), word(FRACTION), transit, word(QUEUE))
