"""What a consumer of a stream gives, as it comes.

Law: a consumer is asked for many messages at once, so that none costs a question of its own, and asked again once all
of these were taken: no more than MOST of them wait here. It is asked again, too, when the broker says that none came
for _FOR_S, or says nothing: one that has started again may have forgotten who waits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.msg import Msg

from wirelag.transport import LONGEST_PAUSE_S, Unreachable, pauses
from wirelag.transport.nats_stalls import Stall

if TYPE_CHECKING:
    from wirelag.transport.nats_line import Line

MOST: Final = 64
_FOR_S: Final = 5.0
_QUESTION: Final = json.dumps({"batch": MOST, "expires": int(_FOR_S * 1e9)}).encode()
_NONE: Final = ("404", "408")  # the broker's words for it

Take = Callable[[Msg], Awaitable[None]]


async def pull(
    line: Line,
    stream: str,
    name: str,
    take: Take,
    prepare: Callable[[], Awaitable[object]],
    failed: Callable[[], object],
    stall: Stall | None = None,
) -> None:
    """Give `take` the messages of a consumer, one after the other, across reconnections, without end.

    `prepare` comes first on each connection; `failed` is told of each that ends.
    """
    tries = pauses()
    while not line.closed:
        began_s = time.monotonic()
        try:
            await prepare()
            await _until_lost(line, stream, name, take, stall)
        except Unreachable:
            failed()
        if time.monotonic() - began_s > LONGEST_PAUSE_S:
            tries = pauses()
        await asyncio.sleep(next(tries))


async def _until_lost(line: Line, stream: str, name: str, take: Take, stall: Stall | None) -> None:
    given, is_taking, ended, said = 0, False, asyncio.Event(), ""

    async def heard(message: Msg) -> None:
        nonlocal given, is_taking, said
        if not message.reply:  # the broker's own words
            said = (message.headers or {}).get("Status", "")
            ended.set()
            return
        is_taking = True
        try:
            await take(message)
        finally:
            is_taking, given = False, given + 1
            if given == MOST:
                ended.set()

    client = await line.client()
    where = client.new_inbox()
    subscription = await line.unless_lost(client.subscribe(where, cb=heard))
    try:
        while said in ("", *_NONE):
            given, said = 0, ""
            ended.clear()
            await line.say(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", _QUESTION, reply=where)
            while not await line.unless_lost(_within(2 * _FOR_S, ended)) and (is_taking or subscription.pending_msgs):
                pass
            if stall is not None:
                await stall.watch(given > 0)
        raise line.unreachable(f"{name} of {stream} gives nothing now, status {said}")
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
