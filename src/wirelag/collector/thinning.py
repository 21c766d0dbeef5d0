"""Rows added up to as many as a screen can show.

Law: groups are aligned to the epoch, so a group is the same whenever it is asked for. What they say is what minutes and
hours say: sums of their parts (tally.py), settled if all of these are.
"""

from __future__ import annotations

from itertools import groupby

from wirelag.collector.block import Block
from wirelag.collector.store import Row, rows_in
from wirelag.protocol.results import Rank


def thinned(block: Block, segment: str, key: str | None, length_ns: int, most: int) -> list[Row]:
    """The rows of a block, or sums of neighbours: at most `most`, if their lengths are about `length_ns`."""
    starts = block.starts_ns
    if len(starts) <= most:
        return rows_in(block, segment, key, length_ns)
    places = (starts[-1] - starts[0]) // length_ns + 1
    step_ns = length_ns * -(-places // max(1, most - 1))  # one more, since the first group may begin before the rows
    groups = [(starts[0], places * length_ns, 0, len(starts))]
    if most > 1:
        found = ((number, list(some)) for number, some in groupby(range(len(starts)), lambda i: starts[i] // step_ns))
        groups = [(number * step_ns, step_ns, some[0], some[-1] + 1) for number, some in found]
    return [
        Row(segment, key, start_ns, long_ns, Rank(min(block.ranks[first:end])), block.sum(first, end))
        for start_ns, long_ns, first, end in groups
    ]
