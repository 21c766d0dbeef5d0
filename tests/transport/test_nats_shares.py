"""What one point may have at a broker: a flood of one does not stand before the messages of others."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

from tests.support.transport_peers import (
    PASSWORD,
    broker,
    free_port,
    message,
    run,
    send_patiently,
    soon,
    taking,
)
from wirelag.protocol.messages import encode, peek
from wirelag.transport import Address, Unreachable, sender
from wirelag.transport.nats import NatsInbox
from wirelag.transport.nats_streams import MESSAGES, STREAM
from wirelag.transport.quotas import BURST_S, Limits, Quotas

HEADERS = (  # of E's messages: what a broker says itself, and what the library cannot parse
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0\r\nStatus: 409\r\n\r\n",
    b"NATS/1.0 \xff\xfe\xff\r\n\r\n",
    b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
    b"NATS/1.0",
)
OLDER = StreamConfig(  # as releases before this limit made it
    name=STREAM, subjects=MESSAGES.subjects, retention=RetentionPolicy.WORK_QUEUE, discard=DiscardPolicy.NEW,
)  # fmt: skip


def at_a_broker(folder: Path, work: Callable[[Address, Client], Awaitable[None]]) -> None:
    async def with_a_client() -> None:
        port = free_port()
        with broker(folder, port):
            client = await nats.connect(f"nats://127.0.0.1:{port}", user="wirelag", password=PASSWORD)
            await work(Address(f"nats://127.0.0.1:{port}", f"wirelag:{PASSWORD}"), client)
            await client.close()

    run(with_a_client())


async def flood(client: Client, count: int) -> None:
    """Status messages of E, without a name and without waiting for the broker."""
    for number in range(count):
        await client.publish("wirelag.status.E", encode(message(number, "E")))
    await client.flush()


def test_a_flood_of_one_point_does_not_stand_before_others(tmp_path: Path) -> None:
    """As found: 30 s of it, and others waited for an hour. E gets no more in than its share, and keeps the rest."""
    most = 30

    async def work(address: Address, client: Client) -> None:
        stream = client.jetstream()
        assert (MESSAGES.max_msgs_per_subject, MESSAGES.discard_new_per_subject) == (1024, True)
        await stream.add_stream(MESSAGES.evolve(max_msgs_per_subject=most))
        evil, good = sender(address, "E"), sender(address, "B")
        await flood(client, most + 30)
        assert (await stream.stream_info(STREAM)).state.messages == most
        with pytest.raises(Unreachable, match="maximum messages per subject exceeded"):
            await evil.send(encode(message(1, "E")), "status-1")
        sending = asyncio.create_task(good.send(encode(message(1, "B")), "status-1"))
        while (await stream.stream_info(STREAM)).state.messages == most:
            await asyncio.sleep(0.01)
        # None of E's has its turn: they wait at the broker, each for its own, and B's passes.
        inbox = NatsInbox(address, quotas=Quotas(Limits(messages=1, bytes=1)))
        inbox._quotas.came("E", 1000)
        came = inbox.messages()
        data, acknowledge = await soon(anext(came))
        assert peek(data).point == "B"
        await acknowledge()
        await soon(sending)
        assert inbox.counts["waited for its turn"] == most  # once each
        await asyncio.gather(evil.close(), good.close(), inbox.close())

    at_a_broker(tmp_path, work)


def test_no_header_of_a_message_passes_for_the_broker_s_own_words(tmp_path: Path) -> None:
    """As found: twenty of them, and no message of any point was read any more."""

    async def work(address: Address, client: Client) -> None:
        await client.jetstream().add_stream(MESSAGES)
        for number, headers in enumerate(HEADERS):
            data, sizes = encode(message(number, "E")), (len(headers), len(headers) + len(encode(message(number, "E"))))
            await client._send_command(b"HPUB wirelag.status.E %d %d\r\n%s%s\r\n" % (*sizes, headers, data))
        await client.flush()
        good, inbox, taken = sender(address, "B"), NatsInbox(address), list[int]()
        await soon(
            asyncio.gather(
                good.send(encode(message(len(HEADERS), "B")), "status-1"), taking(inbox, taken, len(HEADERS) + 1)
            )
        )
        assert taken == list(range(len(HEADERS) + 1))
        assert not +inbox.counts
        assert "B" in inbox._runs._points  # our own header is read
        await asyncio.gather(good.close(), inbox.close())

    at_a_broker(tmp_path, work)


def test_a_stream_that_was_made_without_a_limit_gets_one_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it has few messages: a limit deletes what is beyond it. One that its owner has set stays."""
    monkeypatch.setattr("wirelag.transport.nats_streams._MOST_OF_SUBJECT", 20)

    async def work(address: Address, client: Client) -> None:
        stream, many = client.jetstream(), 30

        async def limit() -> int | None:
            return (await stream.stream_info(STREAM)).config.max_msgs_per_subject

        await stream.add_stream(OLDER)
        await flood(client, many)
        inbox, taken = NatsInbox(address), list[int]()
        await soon(taking(inbox, taken, many))
        assert sorted(taken) == list(range(many))
        assert await limit() == -1
        await inbox.close()
        way, inbox = sender(address, "B"), NatsInbox(address)
        sending = send_patiently(way, encode(message(many, "B")), "status-1")
        await soon(asyncio.gather(sending, taking(inbox, taken, many + 1)))
        assert await limit() == 20
        await stream.update_stream(MESSAGES.evolve(max_msgs_per_subject=5000))
        await asyncio.gather(way.close(), inbox.close())
        way, inbox = sender(address, "B"), NatsInbox(address)
        sending = send_patiently(way, encode(message(many + 1, "B")), "status-2")
        await soon(asyncio.gather(sending, taking(inbox, taken, many + 2)))
        assert await limit() == 5000
        await asyncio.gather(way.close(), inbox.close())

    at_a_broker(tmp_path, work)


def test_what_waits_at_a_broker_comes_back_one_by_one() -> None:
    """Each gets a turn of its own, also behind what waits already, and what has waited goes first."""
    now_s = 1000.0
    quotas = Quotas(Limits(messages=8, bytes=1 << 20, time=0.25), lambda: now_s)
    for _ in range(int(8 * BURST_S) + 1):
        assert quotas.turn_s("A", 1, has_waited=False) == 0
    waits_s = [quotas.turn_s("A", 1, has_waited=False) for _ in range(5)]
    assert waits_s == [0.125, 0.25, 0.375, 0.5, 0.625]
    assert quotas.turn_s("B", 1, has_waited=False) == 0
    now_s += 0.125
    assert quotas.turn_s("A", 1, has_waited=False) == 0.625  # it has come just now
    assert quotas.turn_s("A", 1, has_waited=True) == 0
    now_s += 60
    assert quotas.turn_s("A", 1, has_waited=False) == 0
