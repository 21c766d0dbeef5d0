"""Which collectors are alive: each has a lease, in a key-value store of JetStream, and renews it before it ends.

What a lease promises: its holder was alive, and could write to the database, at most `lease_s` ago. It says who should
work (protocol/sharing.py), and never who may write: that is for the fence in the database. So nobody waits for the
broker's clock, for a majority of its servers, or for a process that is paused: a lease ends for everyone who has not
heard of it for `lease_s`, by a clock of their own that is never set. A newcomer listens that long before it joins. On a
host so busy that renewals are late again and again, a lease lasts longer: PATIENCE times the gap that every second one
exceeds, which each renewal tells. Otherwise collectors without time would spend it on taking each other's work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import Final

from wirelag.errors import MissingExtraError
from wirelag.transport import Unreachable, pauses
from wirelag.transport.nats_line import Line

try:
    from nats.aio.msg import Msg
    from nats.js.api import KeyValueConfig
    from nats.js.client import JetStreamContext
    from nats.js.errors import BucketNotFoundError
except ImportError:
    raise MissingExtraError("NATS") from None

BUCKET: Final = "WIRELAG_MEMBERS"
RENEWALS: Final = 5  # within a lease
PATIENCE: Final = 4
_GAPS: Final = 50  # renewals whose gaps count
_MOST_S: Final = 60.0  # a lease lasts no longer, unless it is set so
_KEPT_S: Final = 60.0  # how long the broker shows a lease that has ended
_DELETED: Final = {"KV-Operation": "DEL"}


class Members:
    """The collectors that are alive, as seen from here; `me` is one word of a subject."""

    def __init__(self, line: Line, me: str, lease_s: float, replicas: int = 1) -> None:
        self.me, self.lease_s = me, lease_s
        self._line, self._replicas = line, replicas
        self._heard_s: dict[str, tuple[float, float]] = {}  # when, and how long that lasts
        self._renewed_s: deque[float] = deque(maxlen=_GAPS)
        self._listens_s: float | None = None  # since when

    @property
    def alive(self) -> frozenset[str]:
        """Those whose lease has not ended; none before this one has listened for as long as a lease lasts."""
        now_s = time.monotonic()
        if self._listens_s is None or now_s - self._listens_s < self.lease_s:
            return frozenset()
        return frozenset(name for name, (heard_s, lasts_s) in self._heard_s.items() if now_s - heard_s < lasts_s)

    async def listen(self) -> None:
        """Hear of leases, across reconnections, without end."""
        tries = pauses()
        while not self._line.closed:
            try:
                context = await self._line.stream()
                await self._line.unless_lost(self._ensure(context))
                lost = await self._line.subscribe(f"$KV.{BUCKET}.*", self._hear)
                self._listens_s, tries = time.monotonic(), pauses()
                await lost.wait()
            except Unreachable:
                pass
            self._listens_s = None
            self._heard_s.clear()
            await asyncio.sleep(next(tries))

    async def _ensure(self, context: JetStreamContext) -> None:
        try:
            await context.key_value(BUCKET)
        except BucketNotFoundError:
            made = KeyValueConfig(BUCKET, ttl=max(_KEPT_S, self.lease_s), replicas=self._replicas)
            await context.create_key_value(made)

    async def _hear(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        if message.headers and "KV-Operation" in message.headers:
            self._heard_s.pop(name, None)
        else:
            with suppress(ValueError):
                self._heard_s[name] = time.monotonic(), max(self.lease_s, min(float(message.data), _MOST_S))

    async def renew(self) -> None:
        """Renew the lease of this collector; a failure is noticed by everyone alike."""
        if self._listens_s is not None:
            self._renewed_s.append(time.monotonic())
            gaps = sorted(later - sooner for sooner, later in pairwise(self._renewed_s)) or [0.0]
            with suppress(Unreachable):
                await self._line.say(f"$KV.{BUCKET}.{self.me}", b"%.3f" % (PATIENCE * gaps[len(gaps) // 2]))

    async def leave(self) -> None:
        """End the lease at once."""
        with suppress(Unreachable):
            await self._line.say(f"$KV.{BUCKET}.{self.me}", b"", _DELETED)
