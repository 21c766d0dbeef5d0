"""Work left to another thread: in order, complete, and its errors are not lost."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.estimators.later import IDLE_S, MOST, Later
from wirelag.sim import Scenario, simulate


def test_work_is_done_in_order_and_finish_waits_for_all() -> None:
    done: list[int] = []
    later = Later()
    for i in range(500):
        later.leave(done.append, i)
        if i % 100 == 99:
            later.finish()
            assert done == list(range(i + 1))
    later.end()


def test_only_few_wait() -> None:
    begun, may_go, done = threading.Event(), threading.Event(), []

    def work(number: int) -> None:
        begun.set()
        may_go.wait()
        done.append(number)

    later = Later()
    left = threading.Thread(target=lambda: [later.leave(work, i) for i in range(MOST + 3)])
    left.start()
    begun.wait()
    assert left.is_alive()
    assert done == []
    may_go.set()
    left.join()
    later.end()
    assert done == list(range(MOST + 3))


def test_an_error_ends_the_work_and_is_raised() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("broken")
        done.append(number)

    later = Later()
    later.leave(work, 0)
    later.leave(work, 1)
    with pytest.raises(ValueError, match="broken"):
        later.finish()
    with pytest.raises(ValueError, match="broken"):
        later.end()
    assert done == [0]


def test_a_thread_without_work_ends_and_another_takes_its_place() -> None:
    done: list[threading.Thread] = []
    later = Later()

    def work() -> None:
        done.append(threading.current_thread())

    later.leave(work)
    later.finish()
    done[0].join(timeout=100 * IDLE_S)
    assert not done[0].is_alive()
    before = threading.active_count()
    for _ in range(3):
        later.leave(work)
        later.end()
        assert threading.active_count() == before
    assert len(set(done)) == 4
    later.end()  # nothing runs


@pytest.mark.parametrize("question", [wirelag.rtt, wirelag.response])
def test_a_meter_does_not_outlive_its_use(question: Callable[[Path], object], tmp_path: Path) -> None:
    """Repeated questions in one process kept the tables of all meters until Python looked for garbage."""
    path = tmp_path / "small.pcap"
    write_simulation(simulate(Scenario(packets=500)), path)
    gc.collect()
    gc.disable()
    try:
        before = meters()
        question(path)
        assert meters() == before
    finally:
        gc.enable()


def meters() -> int:
    return sum(type(one).__name__ in ("MatchMeter", "ResponseMeter", "PairsMeter") for one in gc.get_objects())
