"""Who owns a partition: everyone names the same, all have the same share, and few move."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelag.protocol.sharing import PARTS, owners, part_of, parts_of

names = st.lists(st.text("abcdefgh0123-", min_size=1, max_size=8), min_size=1, max_size=30, unique=True)


@given(names, st.randoms())
def test_all_have_the_same_share_and_order_does_not_matter(alive: list[str], rng: object) -> None:
    found = owners(alive)
    rng.shuffle(alive)  # type: ignore[attr-defined]
    assert owners(alive) == found
    assert found.keys() == set(range(PARTS))
    shares = Counter(found.values())
    assert max(shares.values()) - min(shares[name] for name in alive) <= 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_a_newcomer_moves_little_more_than_its_share(count: int) -> None:
    """A plain remainder of a division would move nearly all."""
    moved = 0
    for seed in range(20):
        alive = [f"{seed}-{i}" for i in range(count)]
        before, after = owners(alive), owners([*alive, f"{seed}-new"])
        moved += sum(before[part] != after[part] for part in range(PARTS))
    assert moved / 20 <= 2 * PARTS / (count + 1)


def test_nobody_alive_owns_nothing() -> None:
    assert owners([]) == {}


def test_a_message_goes_where_its_segment_is() -> None:
    assert parts_of("A>B", "A", False) == parts_of("A>B", "B", False) == [part_of("A>B")]
    assert parts_of(None, "A", False) == list(range(PARTS))
    assert parts_of(None, "A", True) == [part_of("A")]
    spread = Counter(part_of(f"A{i}>B{i}") for i in range(2400))
    assert min(spread.values()) > 50
