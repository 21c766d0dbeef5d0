"""Receivers of metrics that do not answer as they should."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from wirelag.collector import push
from wirelag.collector.metrics import Metrics
from wirelag.collector.push import Push, settled_since
from wirelag.collector.receivers import Receivers
from wirelag.transport import Address
from wirelag.transport.notices import Notices


def test_a_receiver_whose_reply_never_ends_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: a header that comes letter by letter stopped both receivers, and the collector did not end."""
    monkeypatch.setattr(push, "ANSWER_S", 0.1)
    said, counted, other, dripping = list[str](), Counter[str](), asyncio.Event(), asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dripping.set()
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.01)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        if counted["remote write failed"] > 1:
            other.set()

    async def work() -> None:
        servers = [await asyncio.start_server(how, "127.0.0.1", 0) for how in (drip, answer)]
        slow, good = (f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}/" for one in servers)
        for answer_s, happened in ((0.1, other), (1000.0, dripping)):  # the second ends with the collector alone
            monkeypatch.setattr(push, "ANSWER_S", answer_s)
            dripping.clear()
            to = Receivers(Address(slow), Address(good), every_ns=10**7)
            made = Push(to, Metrics(), lambda: ([], {}, 0, {}, [], []), "here", settled_since())
            pushing = asyncio.create_task(made.run(counted, Notices(put=said.append)))
            await asyncio.wait_for(happened.wait(), 30)
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
        for one in servers:
            one.close()
        while len(asyncio.all_tasks()) > 1:  # connections that end
            await asyncio.sleep(0)

    asyncio.run(work())  # it waits for threads that still send
    assert any("cannot send metrics (its reply does not end)" in line for line in said)
