"""Rows added up for a screen: nothing is lost or counted twice, and groups stay where they are."""

from dataclasses import asdict

import numpy as np
import pytest

from tests.support.stored_results import START_NS, result
from wirelag.collector.block import Block
from wirelag.collector.store import SECOND_NS, Row
from wirelag.collector.tally import Tally
from wirelag.collector.thinning import thinned
from wirelag.protocol.results import Rank


def rows(count: int) -> list[Row]:
    rng = np.random.default_rng(3)
    starts = [START_NS + i * SECOND_NS for i in range(count)]
    tallies = [Tally.of(result(rng.exponential(1e6, 40) - 1e5, start_ns), None) for start_ns in starts]
    ranks = [Rank.SETTLED] * (count - 1) + [Rank.FIRST]
    return [
        Row("A>B", None, start, SECOND_NS, rank, one) for start, rank, one in zip(starts, ranks, tallies, strict=True)
    ]


def thin(single: list[Row], most: int) -> list[Row]:
    block = Block.of((row.start_ns, row.rank, row.tally) for row in single)
    return thinned(block, "A>B", None, SECOND_NS, most)


def plain(tally: Tally) -> dict[str, object]:
    found = asdict(tally)
    return found | {"bins": tally.bins.tolist(), "weights": tally.weights.tolist()}


def test_a_copy_to_which_more_is_added_leaves_the_other_as_it_was() -> None:
    first, second = (row.tally for row in rows(2))
    before = plain(first)
    whole, copy = Tally(), first.copied()
    assert plain(copy) == before
    for part in (first, second):
        whole.add(part)
    copy.add(second)
    assert plain(copy) == plain(whole)
    assert plain(first) == before


@pytest.mark.parametrize("most", [1, 2, 7, 50, 99, 100, 101])
def test_a_screen_gets_no_more_rows_than_it_can_show_and_all_packets(most: int) -> None:
    single = rows(100)
    found = thin(single, most)
    assert len(found) <= most
    assert sum(row.tally.sent for row in found) == sum(row.tally.sent for row in single)
    assert sum(row.tally.moments.sum_ns for row in found) == sum(row.tally.moments.sum_ns for row in single)
    assert [row.rank for row in found] == [Rank.SETTLED] * (len(found) - 1) + [Rank.FIRST]
    ends = [START_NS, *(row.start_ns + row.length_ns for row in found)]
    assert all(row.start_ns <= end for row, end in zip(found, ends, strict=False))
    assert ends[-1] >= single[-1].start_ns + SECOND_NS


def test_groups_stay_where_they_are_when_time_goes_on() -> None:
    single = rows(120)
    before, after = thin(single[:100], 11), thin(single[5:105], 11)
    whole = {row.start_ns: plain(row.tally) for row in before[1:-1]}
    assert len(whole) > 5
    assert whole.items() <= {row.start_ns: plain(row.tally) for row in after}.items()
