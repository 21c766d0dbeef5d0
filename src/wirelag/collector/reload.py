"""What a running collector takes over from changed settings (SIGHUP): tokens, certificate, segments, retention.

Law: settings that cannot be read, or are wrong, change nothing, and the log says why. What needs a restart is named.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Final

from wirelag.collector.settings import Settings
from wirelag.errors import WirelagError

NAMES: Final = {  # of what is taken over; all else needs a restart
    "tokens": "tokens",
    "ends": "segments",
    "retention": "retain",
    "certificate": "certificate",
    "key": "key",
    "client_ca": "client_ca",
}
_OTHERS: Final = {"given"}  # not settings


class Reload:
    """Reads settings again, and hands them to `take`."""

    def __init__(
        self, settings: Settings, read: Callable[[], Settings], take: Callable[[Settings], Awaitable[None]]
    ) -> None:
        self._now, self._read, self._take = settings, read, take
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Reload in the background; a reload that is under way goes first."""
        before = self._task
        self._task = asyncio.create_task(self._after(before))

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            new = await asyncio.to_thread(self._read)
            _check(new)
            await self._take(new)
        except WirelagError as error:
            _say(f"SIGHUP: {error}; the previous settings stay")
            return
        changed = [one.name for one in fields(Settings) if getattr(new, one.name) != getattr(self._now, one.name)]
        taken = [NAMES[name] for name in changed if name in NAMES]
        later = [name for name in changed if name not in NAMES and name not in _OTHERS]
        if gone := [one.segment for one in self._now.ends if one not in new.ends]:
            later.append(f"the removal of {', '.join(gone)}")
        self._now = new
        _say(
            f"SIGHUP: settings were read again, certificate included; changed: {', '.join(taken) or 'nothing'}"
            + (f"; restart to change {', '.join(later)}" if later else "")
        )


def _check(new: Settings) -> None:
    """Raise a WirelagError if the certificate cannot be used, before anything is changed."""
    if new.certificate is not None:
        renew(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), new)


def renew(context: ssl.SSLContext, settings: Settings) -> None:
    """Use the certificate of the settings from now on."""
    assert settings.certificate is not None
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error
        raise WirelagError(f"{settings.certificate}: no certificate that fits {settings.key} ({reason})") from None
    if settings.client_ca is not None:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error
            raise WirelagError(f"{settings.client_ca}: cannot be used as client_ca ({reason})") from None
        context.verify_mode = ssl.CERT_REQUIRED


def _say(line: str) -> None:
    print(f"wirelag: {line}", file=sys.stderr, flush=True)
