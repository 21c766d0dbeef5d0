"""The upkeep of the store: what is old is deleted, what is damaged rescued, and what fails told once.

`prune` and `check` run in threads of their own, all else in the collector's worker.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Final

from wirelag.collector.health import Health
from wirelag.collector.store import Store

RESCUE_S: Final = 60.0  # between two rescues of a damaged store
PAUSES: Final = 10  # how many times longer than an attempt that failed it waits for the next one, up to RESCUE_S
ALERTED: Final = ("store failed", "store check failed", "store rescued", "damaged in the store")  # by their increase


class Upkeep:
    """Of one store; what happens is counted."""

    def __init__(self, store: Store, health: Health, counted: Counter[str]) -> None:
        self._store, self._health, self._counted = store, health, counted
        self._doubt: Exception | None = None  # an error that may mean damage
        self._rescue_s = 0.0  # not before
        self._unrescued = ""  # why the last attempt failed,
        self._unchecked = ""  # and the last check
        counted.update(dict.fromkeys(ALERTED, 0))  # Prometheus sees no increase of what was not there before
        if store.rescued is not None:
            self._counted["store rescued"] += 1
            _say(store.rescued)

    def doubt(self, error: Exception) -> None:
        """Note an error, from any thread: if it means damage, the worker rescues the store.

        One that does not, as of a full disk, must not take the place of one that does: damage stays.
        """
        if self._doubt is None or not self._store.is_damage(self._doubt):
            self._doubt = error

    def failed(self, error: Exception) -> bool:
        """Note that nothing could be written; rescue the store if it is damaged, and return whether that was done."""
        self._counted["store failed"] += 1
        self.doubt(error)
        if self.rescue():
            return True
        problem = f"{self._store.path}: cannot write ({error}); agents keep their messages"
        self._health.note("store", problem, "")
        return False

    def works(self) -> None:
        """Note that it was written."""
        self._health.note("store", None, f"{self._store.path}: can be written again")

    def rescue(self) -> bool:
        """Go on with what can be read, if an error means damage; not all the time."""
        error, began_s = self._doubt, time.monotonic()
        if error is None or began_s < self._rescue_s:
            return False
        try:
            self._health.long_work = True
            done = self._store.rescue(error)
        except Exception as problem:
            now_s = time.monotonic()
            self._rescue_s = now_s + min(RESCUE_S, PAUSES * (now_s - began_s))
            if self._unrescued != (why := str(problem)):
                self._unrescued = why
                _say(f"{self._store.path}: cannot be rescued now ({why})")
            return False
        finally:
            self._health.works()
            self._health.long_work = False
        if done is None:
            if self._doubt is error:  # the check may have found damage meanwhile
                self._doubt = None
            return False
        self._doubt = None
        self._rescue_s, self._unrescued = began_s + RESCUE_S, ""
        self._counted["store rescued"] += 1
        _say(done)
        return True

    def check(self) -> bool:
        """Look for damage in all of the store, also in parts that are never read: the worker then rescues it.

        Returns False if it could not be checked, as without file descriptors.
        """
        try:
            self._store.check()
        except self._store.errors as error:
            self._counted["store check failed"] += 1
            self.doubt(error)
            damaged, why = self._store.is_damage(error), str(error)
            if damaged or self._unchecked != why:
                _say(f"{self._store.path}: the check of all pages failed ({why})")
            self._unchecked = why
            return damaged
        self._unchecked = ""
        self._counted["store checked"] += 1
        return True

    def prune(self, now_ns: int) -> None:
        """Delete what is past its retention, and what does not fit; not while the store may be damaged."""
        if self._doubt is not None:
            return
        path, note = self._store.path, self._health.note
        try:
            done = self._store.prune(now_ns)
        except self._store.errors as error:
            self._counted["pruning failed"] += 1
            self.doubt(error)
            note("pruning", f"{path}: cannot delete what is old ({error})", "")
            return
        self._counted["messages deleted for room"] += done.messages
        self._counted["results deleted for room"] += done.results
        waited = f"{done.messages:,} messages that waited for their other half"
        gone = " and ".join(
            ([waited] if done.messages else []) + ([f"{done.results:,} results"] if done.results else [])
        )
        full = f"{path}: is full: {gone} were deleted before their time; raise retain.size" if gone else None
        note("room", full, f"{path}: has room again")
        leapt = None if done.problem is None else f"{path}: {done.problem}"
        note("pruning", leapt, f"{path}: what is old is deleted again")


def _say(line: str) -> None:
    print(f"wirelag: {line}", file=sys.stderr, flush=True)
