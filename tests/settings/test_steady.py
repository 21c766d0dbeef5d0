"""Files that are read again while they change."""

from collections.abc import Callable, Iterator

import pytest

from wirelag import settings
from wirelag.errors import WirelagError
from wirelag.settings import MOST_READS, steady


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "APART_S", 0)


def reader(found: Iterator[int | str]) -> Callable[[], int]:
    """Texts are errors."""

    def read() -> int:
        one = next(found)
        if isinstance(one, str):
            raise WirelagError(one)
        return one

    return read


def test_two_reads_in_a_row_must_be_alike() -> None:
    assert steady(reader(iter([1, 2, 3, 3, 4, 4]))) == 3
    assert steady(reader(iter([1, "half a line", 1, 2, 2]))) == 2
    with pytest.raises(WirelagError, match="wrong"):
        steady(reader(iter([1, "half a line", "wrong", "wrong", 5, 5])))
    with pytest.raises(WirelagError, match=f"change all the time; they were read {MOST_READS} times"):
        steady(reader(iter(range(1000))))
