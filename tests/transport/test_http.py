"""Messages over HTTPS: without a token, too large, too slow, too many."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from tests.support.transport_peers import (
    POINT,
    TOKEN,
    fails,
    https,
    make_certificate,
    message,
    run,
    soon,
    taking,
)
from tests.support.waiting import PATIENCE_S
from wirelag.protocol.messages import Opened, decode, encode
from wirelag.transport import Address, Unreachable, sender
from wirelag.transport.http import FRAME, MEDIA_TYPE
from wirelag.transport.http_asks import Asks, AsksReply
from wirelag.transport.http_inbox import Caller, HttpInbox
from wirelag.transport.outbox import Outbox
from wirelag.transport.quotas import Quotas
from wirelag.transport.spool import Spool


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_token_and_certificate_are_required(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    ca = str(certificate[0])

    async def work() -> None:
        inbox = HttpInbox({TOKEN: None, "of-another": "another"}, patience_s=PATIENCE_S)
        async with https(inbox, certificate) as url:
            taker = asyncio.create_task(taking(inbox, [], 1))
            assert "does not accept the token (the token is missing or wrong)" in await fails(
                sender(Address(url, None, ca=ca), POINT)
            )
            assert "does not accept the token (the token is missing or wrong)" in await fails(
                sender(Address(url, TOKEN + "x", ca=ca), POINT)
            )
            assert "does not accept the token (the token belongs to another point, another)" in await fails(
                sender(Address(url, "of-another", ca=ca), POINT)
            )
            assert inbox.counts["unauthorised"] == 3
            unknown = await fails(sender(Address(url, TOKEN), POINT))
            assert "Unreachable: " in unknown
            assert "certificate is not trusted" in unknown
            assert "--ca" in unknown
            other_name = url.replace("127.0.0.1", "localhost")
            wrong_name = await fails(sender(Address(other_name, TOKEN, ca=ca), POINT))
            assert "certificate is not trusted" in wrong_name
            assert "use the collector's name from its certificate" in wrong_name
            unknown = await fails(sender(Address(url.replace("127.0.0.1", "nobody.invalid"), TOKEN), POINT))
            assert "unknown host" in unknown
            plain = url.replace("https", "http")
            assert "Unreachable: " in await fails(sender(Address(plain, TOKEN), POINT))
            trusting = sender(Address(url, TOKEN, insecure=True), POINT)
            await soon(trusting.send(encode(message(1)), message(1).key))
            await soon(taker)
            await trusting.close()
        assert "cannot be reached (Connection refused)" in await fails(sender(Address(url, TOKEN, ca=ca), POINT))

    run(work())


async def raw(url: str, request: bytes) -> bytes:
    """The server's response to these bytes, until it is long enough or the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(request)
    said = await soon(reader.readuntil(b"\r\n\r\n"))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return bytes(said)


def head(length: object, *more: str, token: str = TOKEN) -> bytes:
    lines = ["POST /v1/messages HTTP/1.1", "Host: a", f"Authorization: Bearer {token}", f"Content-Type: {MEDIA_TYPE}"]
    lines += [f"Content-Length: {length}"] if length is not None else []
    return "\r\n".join([*lines, *more, "", ""]).encode()


def test_large_or_slow_requests_are_rejected() -> None:
    async def work() -> None:
        inbox = HttpInbox({TOKEN: None}, patience_s=2 * PATIENCE_S)  # no quick answer while it waits for more
        async with https(inbox) as url:
            assert b" 413 " in await raw(url, head(100 << 20))  # no body was sent
            assert b" 401 " in await raw(url, head(100 << 20, token="guess"))
            assert b" 411 " in await raw(url, head(None, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n")
            assert b" 400 " in await raw(url, head("9" * 5000))
            assert b" 400 " in await raw(url, head(10) + b"ten bytes.")
            assert b" 415 " in await raw(url, head(10).replace(MEDIA_TYPE.encode(), b"text/plain") + b"ten bytes.")
            assert b" 503 " in await raw(url, head(12) + b"WLAG\x09\0\0\0....")  # another version: keep it
            inbox._patience_s = 0.3
            assert b" 408 " in await raw(url, head(1000) + b"ten bytes.")
            assert inbox.held == 0
            expected = {"too large": 1, "unauthorised": 1, "garbage": 3, "slow": 1, "of an unknown version": 1}
            assert dict(inbox.counts) == expected

    run(work())


def test_a_message_that_is_never_accepted_is_not_repeated_endlessly(tmp_path: Path) -> None:
    async def work() -> None:
        inbox, told = HttpInbox({TOKEN: None}, most=2000), list[str]()
        async with https(inbox) as url:
            taker = asyncio.create_task(taking(inbox, [], 1))
            way, spool = sender(Address(url, TOKEN), POINT), Spool(tmp_path)
            outbox = Outbox(way, spool, told.append)
            running = asyncio.create_task(outbox.run())
            await outbox.put(b"garbage", "garbage-1")
            await outbox.put(bytes(3000), "garbage-2")
            await outbox.put(bytes(17 << 20), "garbage-3")
            await outbox.put(encode(message(1)), message(1).key)
            await soon(outbox.drained())
            await soon(taker)
            assert (outbox.refused, outbox.sent) == (3, 1)
            assert sorted(told) == [  # several are under way at once
                f"{url}: a message of {17 << 20} bytes is too large (at most {16 << 20})",
                f"{url}: refuses a message: it has 3000 bytes, more than the limit of 2000",
                f"{url}: refuses a message: it is not a wirelag message",
            ]
            running.cancel()
            await way.close()
            spool.close()

    run(work())


def test_a_connection_is_known_by_its_last_token_while_tokens_stay_the_same() -> None:
    async def work() -> None:
        inbox, caller, replies = HttpInbox({TOKEN: POINT}), Caller(None, None), list[Response]()
        admitted = list[str | None]()
        inbox._admit = lambda caller, point: not admitted.append(point)

        def direct(token: str) -> bool:
            return inbox.direct(caller, token, "", "", Opened(encode(message(1))), replies.append)

        assert [direct(token) for token in (TOKEN, TOKEN[:-1], "", TOKEN)] == [True, False, False, True]
        assert admitted == [POINT]
        inbox.use({TOKEN + "x": POINT})
        assert not direct(TOKEN)
        assert direct(TOKEN + "x")
        inbox.use({TOKEN + "x": "another"})
        assert not direct(TOKEN + "x")
        waiting = [one async for one in first(inbox.messages(), 3)]
        await waiting[1][1]()
        held = [len(one.data) for one in inbox._patient]
        assert held == [
            len(waiting[0][0]),
            0,
            len(waiting[2][0]),
        ]  # what is stored takes no memory behind one that waits
        await waiting[0][1]()
        await waiting[0][1](False)  # its fate is told once
        await waiting[2][1](False)
        assert [one.status_code for one in replies] == [204, 204, 503]
        assert inbox.held == 0

    run(work())


async def first(messages: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(messages)


def test_a_collector_that_reads_nothing_holds_little() -> None:
    """Twenty agents and no reader: most are rejected, and none of their messages is acknowledged."""

    async def work() -> None:
        inbox = HttpInbox({TOKEN: None}, most_held=10_000, patience_s=1)
        async with https(inbox) as url:
            ways = [sender(Address(url, TOKEN), POINT) for _ in range(20)]
            done = await asyncio.gather(
                *(way.send(encode(message(i)), message(i).key) for i, way in enumerate(ways)), return_exceptions=True
            )
            assert all(isinstance(each, Unreachable) for each in done)
            assert inbox.counts["busy"] + inbox.counts["slow"] == inbox.counts.total() == 20
            assert inbox.counts["busy"] > 10  # the limit on held messages alone rejects as many
            assert inbox.held == 0
            inbox._patience_s = PATIENCE_S
            taken: list[int] = []
            taker = asyncio.create_task(taking(inbox, taken, 1))  # messages whose sender has left are not delivered
            await ways[0].send(encode(message(50)), message(50).key)
            await soon(taker)
            assert taken == [50]
            await asyncio.gather(*(way.close() for way in ways))

    run(work())


@pytest.mark.parametrize("point", [POINT, None])
def test_a_point_beyond_its_quota_keeps_its_message(point: str | None) -> None:
    """With a token of its own, or one for everything."""

    async def work() -> None:
        quotas = Quotas()
        quotas.spent(POINT, 1000)
        inbox = HttpInbox({TOKEN: point}, quotas=quotas)
        async with https(inbox) as url:
            way = sender(Address(url, TOKEN), POINT)
            with pytest.raises(Unreachable, match="status 429"):
                await way.send(encode(message(0)), message(0).key)
            assert inbox.counts == {"over quota": 1}
            assert inbox.held == 0
            await way.close()

    run(work())


def test_unfetched_asks_are_bounded() -> None:
    async def work() -> None:
        inbox = HttpInbox(None)
        async with https(inbox) as url:
            for number in range(300):
                await inbox.ask(POINT, encode(message(number)))
            assert inbox.counts["asks dropped"] == 44
            way = sender(Address(url), POINT)
            assert decode(await soon(anext(way.asks()))).sent_ns == 44
            await way.close()

    run(work())


def test_asks_are_repeated_until_answered() -> None:
    async def work() -> None:
        inbox, taken = HttpInbox(None), list[int]()
        async with https(inbox) as url:
            taker = asyncio.create_task(taking(inbox, taken, 2))
            for number in (1, 2, 3):
                await inbox.ask(POINT, encode(message(number)))
            way = sender(Address(url), POINT)
            asks = way.asks()
            assert [decode(await soon(anext(asks))).sent_ns for _ in range(2)] == [1, 2]
            await way.send(encode(message(7)), message(7).key)
            assert [number for number, _ in inbox._asks[POINT].waiting] == [2, 3]  # the second is not answered yet
            assert decode(await soon(anext(asks))).sent_ns == 3
            await way.close()
            again = sender(Address(url), POINT)  # it does not know the first sender
            others = again.asks()
            assert [decode(await soon(anext(others))).sent_ns for _ in range(2)] == [2, 3]
            await again.send(encode(message(8)), message(8).key)
            assert [number for number, _ in inbox._asks[POINT].waiting] == [3]
            await inbox.ask(POINT, encode(message(9)))
            assert decode(await soon(anext(others))).sent_ns == 9
            await again.close()
            await soon(taker)

    run(work())


def test_asks_come_in_order_whatever_way_the_server_lends() -> None:
    """It lends none, or one that is blocked now and then: then the reply waits until its client has read."""

    async def asked(blocked: list[bool] | None) -> tuple[list[int], int]:
        asks, sent, at_once, ended = Asks(), list[bytes](), list[bytes](), asyncio.Event()

        def part(data: bytes) -> bool:
            if blocked.pop(0):  # type: ignore[union-attr]
                return False
            sent.append(data.partition(b"\r\n")[2].removesuffix(b"\r\n"))
            at_once.append(data)
            return True

        async def receive() -> dict[str, Any]:
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(said: Any) -> None:
            await asyncio.sleep(0)
            sent.extend([said["body"]] if said.get("body") else [])

        reply = AsksReply(asks, lambda: False, nullcontext(), {}, MEDIA_TYPE)
        state = {"part": lambda data: part(b"%x\r\n%b\r\n" % (len(data), data))} if blocked is not None else {}
        scope = {"type": "http", "method": "GET", "http_version": "1.1", "state": state}
        asks.add(1, b"first")
        running = asyncio.create_task(reply(scope, receive, send))
        for number in range(2, 20):
            asks.add(number, b"x" * number)
            for _ in range(number % 4):
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        ended.set()
        await running
        return [FRAME.unpack_from(one)[1] for one in sent], len(at_once)

    numbers = list(range(1, 20))
    assert asyncio.run(asked(None)) == (numbers, 0)
    found, at_once = asyncio.run(asked([False] * 20))
    assert found == numbers
    assert at_once > 5
    assert asyncio.run(asked([i % 3 == 0 for i in range(40)]))[0] == numbers


def test_asks_of_another_point_are_not_delivered() -> None:
    async def work() -> None:
        inbox = HttpInbox({TOKEN: "another"})
        async with https(inbox) as url:
            await inbox.ask(POINT, encode(message(1)))
            request = f"GET /v1/asks/edge%201?after= HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            assert b" 403 " in await raw(url, request.encode())

    run(work())


def test_a_token_that_was_removed_gets_no_more_asks() -> None:
    """Not even on the response that never ends, which began before."""

    async def work() -> None:
        inbox = HttpInbox({TOKEN: POINT})
        async with https(inbox) as url:
            way = sender(Address(url, TOKEN), POINT)
            asks = way.asks()
            await inbox.ask(POINT, encode(message(1)))
            assert decode(await soon(anext(asks))).sent_ns == 1
            waiting = asyncio.ensure_future(anext(asks))
            inbox.use({"another-token-of-this-point": POINT})
            await inbox.ask(POINT, encode(message(2)))
            while not inbox.counts["unauthorised"]:
                await asyncio.sleep(0)
            assert not waiting.done()
            inbox.use({TOKEN: POINT})
            assert decode(await soon(waiting)).sent_ns == 2
            await way.close()

    run(work())


def open_lines(port: int) -> list[socket.socket]:
    """Open connections of this process to a port."""
    found = []
    for one in gc.get_objects():
        if isinstance(one, socket.socket) and one.family == socket.AF_INET and one.fileno() >= 0:
            with suppress(OSError):
                found += [one] if one.getpeername()[1] == port else []
    return found


@pytest.mark.parametrize("secure", [False, True])
def test_a_cancelled_sender_leaves_no_connection_open(secure: bool, certificate: tuple[Path, Path]) -> None:
    """While it waits for an ask, and between two of them."""

    async def work() -> None:
        inbox = HttpInbox({TOKEN: None})
        async with https(inbox, certificate if secure else None) as url:
            address = Address(url, TOKEN, ca=str(certificate[0]))
            port = int(url.rpartition(":")[2])
            for asked in (False, True):
                way = sender(address, POINT)
                asks = way.asks()
                if asked:
                    await inbox.ask(POINT, encode(message(1)))
                    await soon(anext(asks))
                waiting = asyncio.create_task(anext(asks))  # type: ignore[arg-type]
                while POINT not in inbox._asks:
                    await asyncio.sleep(0.001)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await way.close()
                while open_lines(port):  # the waiting thread ends
                    await asyncio.sleep(0.001)
            refused = sender(Address(url, TOKEN) if secure else Address(url.replace("http", "https"), TOKEN), POINT)
            with pytest.raises(Unreachable):
                await refused.send(encode(message(2)), message(2).key)
            assert not open_lines(port)
            await refused.close()

    run(work())
