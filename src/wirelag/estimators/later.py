"""Work that a meter leaves to a thread of its own, and goes on with the next packets.

Law: it is done in the order in which it was left, all of it before `finish` or `end` returns. After an error nothing
more is done, and the next call raises it. Memory: `MOST` pieces of work wait. A thread without work ends after a
second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

MOST: Final = 2
IDLE_S: Final = 1.0


class Later:
    """Calls that another thread makes later. It keeps no function: a meter that it knew would outlive its use."""

    def __init__(self) -> None:
        self._left: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._at_work = self._ends = False
        self._problem: BaseException | None = None

    def leave(self, work: Callable[..., None], *what: object) -> None:
        """Call a function with these arguments, later; wait while too many calls are left."""
        with self._change:
            self._change.wait_for(lambda: len(self._left) < MOST)
            self._raise()
            self._left.append((work, what))
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wirelag later", daemon=True)
                self._thread.start()

    def finish(self, but: int = 0) -> None:
        """Wait until all calls are done, or all but this number."""
        with self._change:
            self._change.wait_for(lambda: len(self._left) + self._at_work <= but)
            self._raise()

    def end(self) -> None:
        """The same, and end the thread; another one begins with the next call."""
        with self._change:
            thread, self._ends = self._thread, True
            self._change.notify_all()
        if thread is not None:
            thread.join()
        self._ends = False
        self._raise()

    def _raise(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._left or self._ends, IDLE_S)
                if not self._left:
                    self._thread = None
                    return
                (work, what), self._at_work = self._left.popleft(), True
                self._change.notify_all()
            try:
                if self._problem is None:
                    work(*what)
            except BaseException as error:
                self._problem = error
            del work, what  # memory of packets is reused once nothing refers to it
            with self._change:
                self._at_work = False
                self._change.notify_all()
