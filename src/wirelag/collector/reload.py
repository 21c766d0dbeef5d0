"""What a running collector takes over from changed settings (SIGHUP), and what it leaves until it is restarted.

Law: settings that cannot be read, are wrong, or are still being written, change nothing, and the log says why. What
needs a restart is named.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from wirelag.collector.settings import Settings
from wirelag.errors import WirelagError
from wirelag.settings import steady

TAKEN: Final = {  # what is taken over, by the names in the file
    "tokens": "tokens",
    "ends": "segments",
    "retention": "retain",
    "certificate": "certificate",
    "key": "key",
    "client_ca": "client_ca",
    "slow_ns": "slow",
    "objectives": "slo",
    "sites": "sites",
    "limits": "limits",
    "most_named": "limits",
    "most_classes": "limits",
    "most_waiting": "limits",
}
LATER: Final = {  # what needs a restart
    "host": "listen",
    "port": "listen",
    "store": "store",
    "audit": "audit",
    "topology": "topology",
    "names": "names",
    "follow": "follow",
    "nats": "nats",
    "push": "push",
    "lease_ns": "share",
    "replicas": "nats",
}


class Reload:
    """Reads settings again, and hands them to `take`."""

    def __init__(
        self, settings: Settings, read: Callable[[], Settings], take: Callable[[Settings], Awaitable[None]]
    ) -> None:
        self._began = self._now = settings
        self._read, self._take = read, take
        self._task: asyncio.Task[None] | None = None
        self._waits = False

    def begin(self) -> None:
        """Reload in the background, after one that is under way; one that waits for that is enough."""
        if not self._waits:
            self._waits = True
            self._task = asyncio.create_task(self._after(self._task))

    async def done(self) -> None:
        """Wait for the reload that is under way."""
        if self._task is not None:
            await self._task

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        self._waits = False
        try:
            new, _ = await asyncio.to_thread(steady, lambda: _contents(self._read()))
            _whole(new)
            await self._take(new)
        except (WirelagError, OSError) as error:
            _say(f"SIGHUP: {error}; the previous settings stay")
            return
        taken, later = changed(self._now, new, TAKEN), changed(self._began, new, LATER)
        self._now = new
        _say(
            f"SIGHUP: settings were read again, certificate included; changed: {', '.join(taken) or 'nothing'}"
            + (f"; restart to change {', '.join(later)}" if later else "")
        )


def changed(before: Settings, after: Settings, names: Mapping[str, str]) -> list[str]:
    """The settings that differ, each once."""
    return list(dict.fromkeys(names[name] for name in names if getattr(before, name) != getattr(after, name)))


def _whole(settings: Settings) -> None:
    """Raise a WirelagError if the file of tokens ends in the middle of a line: half a line is another token."""
    if settings.token_file is not None and not Path(settings.token_file).read_bytes().endswith(b"\n"):
        raise WirelagError(f"{settings.token_file}: its last line has no end; write it whole, or end it with a newline")


def _contents(settings: Settings) -> tuple[Settings, list[bytes]]:
    """The settings, with what is in the files of certificates; a WirelagError if these cannot be used."""
    from wirelag.collector.certificates import made

    if settings.certificate is None:
        return settings, []
    made(settings)
    names = (settings.certificate, settings.key, settings.client_ca)
    try:
        return settings, [Path(name).read_bytes() for name in names if name is not None]
    except OSError as error:
        raise WirelagError(f"{error.filename}: cannot read ({error.strerror})") from None


def _say(line: str) -> None:
    print(f"wirelag: {line}", file=sys.stderr, flush=True)
