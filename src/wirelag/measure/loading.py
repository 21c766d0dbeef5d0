"""Modules that an answer will need, loaded by a thread while packets are read: reading leaves Python's lock alone.

Law: nothing but time depends on it: whoever needs a module imports it, and waits if the thread is at it. A thread that
listens at an interface would keep its privileges, so there none is begun.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from wirelag.capture.ahead import cores_of

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.packets.batch import PacketBatch

    Progress = Callable[[Packets], Iterable[PacketBatch]]

TURN_S = 1e-4  # how long a thread may keep the one that reads waiting for Python's lock, which it needs for a moment


def for_rtt(shown: Progress, cores: int | None, by: str | None, interval: str | None, page: str | None) -> Progress:
    """The same batches; meanwhile what groups, intervals and a page need is loaded."""
    modules = [
        *(("numpy", "wirelag.measure.group_order") if by else ()),
        *(("wirelag.stats.in_order",) if interval else ()),
        *(("wirelag.render.html.page", "wirelag.render.rtt", "shlex") if page else ()),
    ]
    return meanwhile(shown, modules, cores_of(cores))


def meanwhile(shown: Progress, modules: Sequence[str], cores: int) -> Progress:
    """The same batches; once they are asked for, these modules are loaded, if there is a core for it."""

    def begin(capture: Packets) -> Iterable[PacketBatch]:
        from wirelag.capture.source import Listening

        if modules and cores > 1 and not isinstance(capture, Listening):
            sys.setswitchinterval(TURN_S)
            threading.Thread(target=_load, args=(modules,), name="wirelag loading", daemon=True).start()
        return shown(capture)

    return begin


def _load(modules: Sequence[str]) -> None:
    with suppress(ImportError):  # whoever needs it will say so
        for name in modules:
            import_module(name)
