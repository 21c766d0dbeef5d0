"""Reading ahead: the same items in the same order, errors in their place, and no thread that is left behind."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated_captures import write_simulation
from wirelag.capture.ahead import MOST, ahead, cores_of
from wirelag.capture.files import Capture
from wirelag.errors import SettingError
from wirelag.sim import Scenario, simulate


def counting(count: int, produced: list[int], error: Exception | None = None) -> Iterator[int]:
    for i in range(count):
        produced.append(i)
        yield i
    if error is not None:
        raise error


def test_items_come_in_order_and_an_error_after_them() -> None:
    assert list(ahead(lambda: counting(1_000, []))) == list(range(1_000))
    assert list(ahead(lambda: counting(0, []))) == []
    broken = ahead(lambda: counting(10, [], ValueError("broken")))
    assert [next(broken) for _ in range(10)] == list(range(10))
    with pytest.raises(ValueError, match="broken"):
        next(broken)


def test_it_reads_only_so_far_ahead_and_ends_with_its_consumer() -> None:
    before, produced = threading.active_count(), []
    items = ahead(lambda: counting(1_000, produced))
    assert next(items) == 0
    assert len(produced) <= MOST + 2
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(produced) <= MOST + 2


def test_counts_are_those_of_the_batches_that_were_taken(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    write_simulation(simulate(Scenario(packets=60_000)), path)
    captures = [Capture([str(path)], cores=cores) for cores in (1, 2)]
    each = [
        [(len(batch), batch.time_ns.sum(), capture.statistics.packets) for batch in capture] for capture in captures
    ]
    assert each[0] == each[1]
    assert len(each[0]) > MOST
    assert captures[0].statistics == captures[1].statistics


def test_cores_that_cannot_be_are_refused() -> None:
    assert cores_of(3) == 3
    assert cores_of(None) >= 1
    with pytest.raises(SettingError, match="cores"):
        cores_of(0)
