"""Read ahead: one thread decodes the next batches while another measures.

Law: the batches are the same, in the same order; an error comes after the batches before it. Memory: `MOST` batches
more. A consumer that stops early ends the thread with the batch that it is reading.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from wirelag.units import within

T = TypeVar("T")

MOST: Final = 4  # batches ahead


def cores_of(cores: int | None) -> int:
    """The cores that may work: as many as this process has, unless fewer are asked for."""
    return len(os.sched_getaffinity(0)) if cores is None else within(cores, 1, 1024, "cores")


def ahead(items: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What the iterator yields that this function returns; it runs in a thread of its own."""
    import threading

    shelf: deque[T] = deque()
    change = threading.Condition()
    ended, left, problem = False, False, None

    def read() -> None:
        nonlocal ended, problem
        found = items()
        try:
            for item in found:
                with change:
                    shelf.append(item)
                    del item  # memory is reused once nothing refers to it
                    change.notify()
                    change.wait_for(lambda: left or len(shelf) < MOST)
                    if left:
                        break
        except BaseException as error:
            problem = error
        finally:
            found.close()  # type: ignore[attr-defined]
            with change:
                ended = True
                change.notify()

    thread = threading.Thread(target=read, name="wirelag read", daemon=True)
    thread.start()
    try:
        while True:
            with change:
                change.wait_for(lambda: shelf or ended)
                if not shelf:
                    break
                item = shelf.popleft()
                change.notify()
            yield item
            del item
        if problem is not None:
            raise problem
    finally:
        with change:
            left = True
            change.notify()
        thread.join()
