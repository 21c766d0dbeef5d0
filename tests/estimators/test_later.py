"""Work left to another thread: in order, complete, and its errors are not lost."""

import threading

import pytest

from wirelag.estimators.later import IDLE_S, MOST, Later


def test_work_is_done_in_order_and_finish_waits_for_all() -> None:
    done: list[int] = []
    later = Later(done.append)
    for i in range(500):
        later.leave(i)
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

    later = Later(work)
    left = threading.Thread(target=lambda: [later.leave(i) for i in range(MOST + 3)])
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

    later = Later(work)
    later.leave(0)
    later.leave(1)
    with pytest.raises(ValueError, match="broken"):
        later.finish()
    with pytest.raises(ValueError, match="broken"):
        later.end()
    assert done == [0]


def test_a_thread_without_work_ends_and_another_takes_its_place() -> None:
    done: list[threading.Thread] = []
    later = Later(lambda: done.append(threading.current_thread()))
    later.leave()
    later.finish()
    done[0].join(timeout=100 * IDLE_S)
    assert not done[0].is_alive()
    before = threading.active_count()
    for _ in range(3):
        later.leave()
        later.end()
        assert threading.active_count() == before
    assert len(set(done)) == 4
    later.end()  # nothing runs
