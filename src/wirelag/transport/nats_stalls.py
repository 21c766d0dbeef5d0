"""Consumers that give nothing although their streams have messages: another broker of the cluster is to lead them.

A broker of a cluster may fall behind in a stream for good after it was killed or paused (nats-server 2.9.10, after
`stream store EOF`). A consumer that it leads then sees no messages, and waits for ever: its stream is whole elsewhere.
Law: who reads looks only if nothing came for SILENT_S, and a consumer that is asked for nothing wrong loses nothing.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wirelag.transport.nats_line import Line

SILENT_S: Final = 10.0


class Stall:
    """The silence of one consumer."""

    def __init__(self, line: Line, stream: str, name: str) -> None:
        self._line, self._stream, self._name = line, stream, name
        self._since_s = time.monotonic()

    async def watch(self, came: bool) -> None:
        """Call it after each request for messages: whether some came."""
        if came or time.monotonic() - self._since_s < SILENT_S:
            self._since_s = time.monotonic() if came else self._since_s
            return
        if await self._is_stalled():
            what = f"consumer {self._name} of stream {self._stream}"
            print(f"wirelag: {what}: its broker has lost sight of the messages; another takes over", file=sys.stderr)
            await self._line.ask(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{self._stream}.{self._name}")
        self._since_s = time.monotonic()

    async def _is_stalled(self) -> bool:
        """Whether the stream holds messages for it that it does not see, and none was read during the check."""
        context = await self._line.stream()
        before = await self._line.unless_lost(context.consumer_info(self._stream, self._name))
        only = before.config.filter_subject or ">"
        stream = await self._line.unless_lost(context.stream_info(self._stream, subjects_filter=only))
        after = await self._line.unless_lost(context.consumer_info(self._stream, self._name))
        there = sum((stream.state.subjects or {}).values())
        known = (after.num_pending or 0) + (after.num_ack_pending or 0)
        return there > known and before.delivered == after.delivered and before.ack_floor == after.ack_floor
