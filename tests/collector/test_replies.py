"""Readers that ask for long replies and do not read them."""

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Scope

from wirelag.collector import replies
from wirelag.collector.connections import Visitor, Visitors
from wirelag.collector.replies import METRICS, MOST, OF_ONE, PIECE, Replies

LONG = bytes(range(256)) * (5 * PIECE // 256) + b"end"


async def app(scope: Scope, receive: Any, send: Any) -> None:
    await Response(LONG)(scope, receive, send)


class Reader:
    """A client of an address; it reads when told to."""

    def __init__(self, guarded: Replies, address: str, path: str = "/api/v1/reports") -> None:
        self.came: list[Message] = []
        self.reads = asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": path, "client": (address, 1), "headers": []}
        self.task = asyncio.create_task(guarded(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        """As the server does: wait until what was sent before is read."""
        if any(one.get("body") for one in self.came):
            await self.reads.wait()
        self.came.append(message)

    @property
    def status(self) -> int | None:
        return self.came[0]["status"] if self.came else None


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_replies_that_are_not_read_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one address have half of the places; who waits too long gets 503, and places become free."""
    monkeypatch.setattr(replies, "TURN_S", 0.05)

    async def work() -> None:
        counted: Counter[str] = Counter()
        guarded = Replies(app, counted)
        greedy = [Reader(guarded, "192.0.2.1") for _ in range(3 * MOST)]
        await turns()
        assert sum(one.status == 200 for one in greedy) == OF_ONE
        assert all(len(one.came) == 2 and len(one.came[1]["body"]) == PIECE for one in greedy if one.came)
        other = Reader(guarded, "192.0.2.2")
        await turns()
        assert other.status == 200
        other.reads.set()
        await other.task
        assert b"".join(one.get("body", b"") for one in other.came) == LONG
        late = [one for one in greedy if one.status != 200]
        await asyncio.gather(*(one.task for one in late))
        assert {one.status for one in late} == {503}
        assert counted["replies refused"] == len(late)
        for one in greedy:
            one.reads.set()
        await asyncio.gather(*(one.task for one in greedy))
        again = Reader(guarded, "192.0.2.1")
        again.reads.set()
        await again.task
        assert again.status == 200

    asyncio.run(work())


def test_few_replies_are_made_at_once() -> None:
    """Making one takes much memory, and the processor: the next is made when the first piece has left."""
    most = now = 0

    async def slow(scope: Scope, receive: Any, send: Any) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await turns()
        now -= 1
        await app(scope, receive, send)

    async def work() -> None:
        guarded = Replies(slow, Counter())
        readers = [Reader(guarded, f"192.0.2.{i}") for i in range(MOST)]
        while not all(one.came for one in readers):
            await asyncio.sleep(0)
        assert most == replies.MADE
        for one in readers:
            one.reads.set()
        await asyncio.gather(*(one.task for one in readers))

    asyncio.run(work())


def test_metrics_are_made_in_turn_apart_from_the_api() -> None:
    """As found: 250 requests of a token of scope metrics at once, and messages of agents waited for half a minute."""

    async def work() -> None:
        guarded = Replies(Replies(app, Counter()), Counter(), METRICS)
        greedy = [Reader(guarded, "192.0.2.1", "/metrics") for _ in range(3 * MOST)]
        page = Reader(guarded, "192.0.2.1")
        await turns()
        assert sum(one.status == 200 for one in greedy) == OF_ONE
        assert page.status == 200
        for one in (*greedy, page):
            one.task.cancel()

    asyncio.run(work())


def test_a_reply_that_is_never_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "REPLY_S", 0.02)

    async def work() -> None:
        counted: Counter[str] = Counter()
        slow = Reader(Replies(app, counted), "192.0.2.1")
        await slow.task
        assert slow.came[-1]["more_body"]
        assert counted["replies not read"] == 1
        page = Reader(Replies(app, counted), "192.0.2.1", "/")
        await page.task
        assert len(page.came[1]["body"]) == len(LONG)

    asyncio.run(work())


def test_readers_of_one_address_leave_room_for_agents() -> None:
    """A token that only reads keeps as many connections of an address as a stranger, not all there are."""
    visitors = Visitors(100, 20, 5, Counter())
    taken = 0
    with ExitStack() as lines:
        for port in range(60):
            visitor = Visitor()
            visitor.visitors, visitor.since_s = visitors, 0
            visitor.peer, visitor.address = ("192.0.2.1", port), "192.0.2.1"
            lines.enter_context(visitor)
            assert visitors.come(visitor)
            taken += visitors.known(visitor.peer, None, reads=True)
    assert taken == 20
