"""The right to read a broker's streams: one collector at a time has it, by an entry that expires (JetStream key-value).

Law: two collectors would each get a part of the messages, and pair none. Who has the lease renews it; who ended or lost
the broker for LEASE_S loses it. A collector that starts again with the same store has the same name, and need not wait.
"""

from __future__ import annotations

import time
from typing import Final

from nats.js.api import KeyValueConfig
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

BUCKET: Final = "WIRELAG_LEASE"
KEY: Final = "collector"
LEASE_S: Final = 20.0
RENEW_S: Final = 5.0


class Lease:
    """Held by asking again and again: `hold` is cheap while there is nothing to renew."""

    def __init__(self, name: str, together: bool = False) -> None:
        """`together`: collectors that share the work have one name, and the lease together."""
        self._name, self._together = name.encode(), together
        self._revision: int | None = None
        self._renewed = 0.0

    async def hold(self, context: JetStreamContext) -> str | None:
        """Take or renew it; returns who else has it, or None."""
        if self._revision is not None and time.monotonic() - self._renewed < RENEW_S:
            return None
        bucket, self._renewed = await _bucket(context), time.monotonic()
        try:
            entry = await bucket.get(KEY)
        except KeyNotFoundError:
            entry = None
        try:
            if entry is None:
                self._revision = await bucket.create(KEY, self._name)
            elif entry.value == self._name:
                self._revision = await bucket.update(KEY, self._name, last=entry.revision)
            else:
                self._revision = None
                return (entry.value or b"").decode(errors="replace")[:200]
        except KeyWrongLastSequenceError:  # another took it just now
            if self._together and (await bucket.get(KEY)).value == self._name:
                self._revision = 0
                return None
            self._revision = None
            return "another collector"
        return None

    async def release(self, context: JetStreamContext) -> None:
        """Let another collector have it at once."""
        if self._revision is not None and not self._together:
            await (await _bucket(context)).delete(KEY, last=self._revision)
            self._revision = None


async def _bucket(context: JetStreamContext) -> KeyValue:
    try:
        return await context.key_value(BUCKET)
    except BucketNotFoundError:
        return await context.create_key_value(KeyValueConfig(BUCKET, ttl=LEASE_S))
