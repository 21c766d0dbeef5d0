"""Partitions at a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from tests.support import fleet
from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, recent
from tests.support.waiting import PATIENCE_S
from wirelag.protocol.messages import encode
from wirelag.protocol.sharing import PARTS
from wirelag.transport import Acknowledge, Address
from wirelag.transport.http import RUN_HEADER
from wirelag.transport.nats_line import STORED, hears
from wirelag.transport.nats_pull import MOST, pull
from wirelag.transport.nats_streams import TELL_HEADER
from wirelag.transport.parts import PARTED, STREAM, Parts

MESSAGE = encode(next(iter(pair(recent(1, 100, 3), RDA)[0].messages(0, 1))))
WHERE = "wirelag.part.7.synopsis.A"


class Given:
    """An inbox with these messages."""

    scheme = "given"

    def __init__(self, messages: list[bytes]) -> None:
        self._messages, self.stored = messages, list[bool | None]()

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        async def acknowledge(is_stored: bool | None = True) -> None:
            self.stored.append(is_stored)

        for data in self._messages:
            yield data, acknowledge


def test_a_message_is_acknowledged_once_every_owner_has_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message about no segment goes to all partitions. Without owners, and with a broker that loses it, it is not."""
    monkeypatch.setattr("wirelag.transport.parts._STORED_S", 0.1)

    async def run(nats: str) -> None:
        parts, given, again = Parts(Address(nats), "me"), Given([MESSAGE] * 2), Given([MESSAGE] * 2)
        await parts.ensure()
        await parts.forward(given)  # type: ignore[arg-type]  # an inbox that ends
        stream = await parts.line.stream()
        info = await stream.stream_info(STREAM)
        assert (info.state.messages, given.stored) == (2 * PARTS, [None, None])  # it drops no repetition of its own
        await stream.purge_stream(STREAM)
        monkeypatch.setattr("wirelag.transport.parts._STORED_S", PATIENCE_S)
        other = Parts(Address(nats), "other")
        await parts.open(range(PARTS // 2))
        await other.open(range(PARTS // 2, PARTS))
        forwarding = asyncio.create_task(parts.forward(again))  # type: ignore[arg-type]
        for owner in (parts.messages(), other.messages()):
            for left in range(PARTS, 0, -1):
                assert len(again.stored) < 2, left
                came, acknowledge = await anext(owner)
                assert came == MESSAGE
                await acknowledge()
        await forwarding
        assert again.stored == [True, True]
        assert parts.counts["forwarded"] == 3 * PARTS  # what it owns itself it keeps
        await parts.close()
        await other.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))


def test_where_no_word_came_the_broker_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full stream: without its acknowledgement each message would be waited for in vain."""
    monkeypatch.setattr("wirelag.transport.parts._STORED_S", 0.1)

    async def run(nats: str) -> None:
        parts, given = Parts(Address(nats), "me"), Given([MESSAGE])
        stream = await parts.line.stream()
        await stream.add_stream(PARTED.evolve(max_bytes=1000))
        for _ in range(2):
            await parts.forward(given)  # type: ignore[arg-type]
        assert (given.stored, parts.counts["broker failed"]) == ([None, False], 1)
        await stream.update_stream(PARTED)
        await parts.forward(given)  # type: ignore[arg-type]
        assert given.stored[2:] == [None]  # it takes it, and nobody stores it
        await parts.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))


def test_what_is_stored_at_once_is_told_at_once(tmp_path: Path) -> None:
    """To collectors that take it so; older ones, whose names begin otherwise, are told of each message."""

    async def run(nats: str) -> None:
        parts, told = Parts(Address(nats), "me"), list[str]()

        async def hear(message: Msg) -> None:
            told.append(message.data.decode())

        await parts.open([7])
        await parts.line.subscribe(hears(STORED, "*"), hear)
        stream, names = await parts.line.stream(), ["+new-1", "+new-2", "old-1", "old-2", "+new-3"]
        for name in names:
            await stream.publish(WHERE, MESSAGE, headers={RUN_HEADER: "other", TELL_HEADER: name})
        owner = parts.messages()
        came = [await anext(owner) for _ in names]
        await asyncio.gather(
            *(acknowledge(is_stored=name != "+new-3") for name, (_, acknowledge) in zip(names, came, strict=True))
        )
        while len(told) < 3:
            await asyncio.sleep(0.01)
        assert sorted(told) == ["+new-1 +new-2", "old-1", "old-2"]
        assert (await stream.stream_info(STREAM)).state.messages == 1  # the one that could not be stored
        await parts.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))


def test_a_consumer_gives_all_and_no_more_than_can_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come when it has said that there are none, too, and those that come on another connection."""
    monkeypatch.setattr("wirelag.transport.nats_pull._QUESTION", b'{"batch": %d, "expires": 100000000}' % MOST)

    async def run(nats: str) -> None:
        parts, taken, room, lost = Parts(Address(nats), "me"), list[bytes](), asyncio.Semaphore(3), list[None]()
        await parts.ensure()
        stream = await parts.line.stream()
        consumer = ConsumerConfig(durable_name="part7", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10 * MOST)
        await stream.add_consumer(STREAM, consumer)
        for number in range(2 * MOST + 5):
            await stream.publish(WHERE, b"%d" % number)

        async def take(message: Msg) -> None:
            await room.acquire()
            taken.append(message.data)
            await message.ack()

        pulling = asyncio.create_task(
            pull(parts.line, STREAM, "part7", take, parts.line.client, lambda: lost.append(None))
        )
        while len(taken) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # the question has ended
        assert (await stream.consumer_info(STREAM, "part7")).num_ack_pending == MOST - 3
        for _ in range(3 * MOST):
            room.release()
        while len(taken) < 2 * MOST + 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await stream.publish(WHERE, b"late")
        while len(taken) < 2 * MOST + 6:
            await asyncio.sleep(0.01)
        assert not lost
        await (await parts.line.client()).close()
        await (await parts.line.stream()).publish(WHERE, b"on another")
        while len(taken) < 2 * MOST + 7:
            await asyncio.sleep(0.01)
        assert taken == [*(b"%d" % number for number in range(2 * MOST + 5)), b"late", b"on another"]
        assert len(lost) == 1
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        await parts.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))


def test_an_ask_goes_to_wherever_its_agent_listens(tmp_path: Path) -> None:
    """Without the broker if that is here; the last of two replies to an agent that ends ends it."""

    class Heard:
        def __init__(self) -> None:
            self.asks = list[bytes]()

        async def ask(self, point: str, data: bytes) -> None:
            assert point == "A"
            self.asks.append(data)

    async def run(nats: str) -> None:
        (here, mine), (there, theirs) = ((Parts(Address(nats), name), Heard()) for name in ("here", "there"))
        await here.ensure()
        async with here.asks_for(mine, "A"):  # type: ignore[arg-type]
            async with here.asks_for(mine, "A"):  # type: ignore[arg-type]
                await here.ask("A", b"1")
            await here.ask("A", b"2")
            assert mine.asks == [b"1", b"2"]  # at once
        async with there.asks_for(theirs, "A"):  # type: ignore[arg-type]
            await here.ask("A", b"3")
            while theirs.asks != [b"3"]:
                await asyncio.sleep(0.01)
        assert mine.asks == [b"1", b"2"]
        await here.close()
        await there.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))
