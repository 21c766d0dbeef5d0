"""Transport with real servers, brokers and certificates: kills, full disks, impostors."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

from tests.support.places import ROOT
from tests.support.transport_peers import (
    PASSWORD,
    POINT,
    TOKEN,
    Start,
    broker,
    every_transport,
    fails,
    free_port,
    make_certificate,
    message,
    over_https,
    over_nats,
    program,
    run,
    send_patiently,
    soon,
    taking,
)
from tests.support.waiting import PATIENCE_S
from wirelag.errors import WirelagError
from wirelag.protocol.messages import decode, encode
from wirelag.transport import Address, Refused, Unreachable, sender
from wirelag.transport.http import HttpSender
from wirelag.transport.http_inbox import HttpInbox
from wirelag.transport.nats import NatsInbox, NatsSender, named, subject
from wirelag.transport.nats_line import token
from wirelag.transport.nats_streams import ASKS, MESSAGES, STREAM
from wirelag.transport.outbox import Outbox
from wirelag.transport.spool import Spool


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


# ---- HTTPS and NATS ----


@every_transport
def test_messages_arrive_in_order(start: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    async def work() -> None:
        async with start(tmp_path, certificate) as (connect, inbox):
            way, taken = connect(), list[int]()
            taker = asyncio.create_task(taking(inbox, taken, 30))
            for number in range(30):
                await send_patiently(way, encode(message(number)), message(number).key)
            await soon(taker)
            assert taken == list(range(30))
            await way.close()

    run(work())


@every_transport
def test_unacknowledged_messages_come_again(start: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Over HTTPS the agent sends it again after a timeout."""

    async def work() -> None:
        async with start(tmp_path, certificate) as (connect, inbox):
            if isinstance(inbox, HttpInbox):
                inbox._patience_s = 0.2
            elif isinstance(inbox, NatsInbox):
                inbox._again_s = 0.5
            way, came = connect(), inbox.messages()
            sending = asyncio.create_task(send_patiently(way, encode(message(1)), message(1).key))
            first, _ = await soon(anext(came))
            if isinstance(inbox, HttpInbox):
                inbox._patience_s = PATIENCE_S  # we may be slow
            again, acknowledge = await soon(anext(came))
            assert first == again == encode(message(1))
            await acknowledge()
            await soon(sending)
            await way.close()

    run(work())


@every_transport
def test_asks_reach_their_point_and_no_other(start: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    async def work() -> None:
        async with start(tmp_path, certificate) as (connect, inbox):
            way, taken = connect(), list[int]()
            taker = asyncio.create_task(taking(inbox, taken, 1))
            await send_patiently(way, encode(message(1)), message(1).key)
            await soon(taker)
            asks = way.asks()
            for number in range(5):
                await inbox.ask("somebody else", encode(message(100 + number)))
                await inbox.ask(POINT, encode(message(number)))
            assert [decode(await soon(anext(asks))).sent_ns for _ in range(5)] == list(range(5))
            waiting = asyncio.create_task(soon(anext(asks)))
            await inbox.ask(POINT, encode(message(9)))
            assert decode(await waiting).sent_ns == 9
            await way.close()

    run(work())


@every_transport
def test_an_ask_is_repeated_if_its_agent_died(start: Start, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    async def work() -> None:
        async with start(tmp_path, certificate) as (connect, inbox):
            taker = asyncio.create_task(taking(inbox, [], 1))
            first = connect()
            await send_patiently(first, encode(message(1)), message(1).key)
            await soon(taker)
            await inbox.ask(POINT, encode(message(7)))
            assert decode(await soon(anext(first.asks()))).sent_ns == 7
            await first.close()
            second = connect()
            assert decode(await soon(anext(second.asks()))).sent_ns == 7
            await second.close()

    run(work())


@every_transport
def test_a_sender_that_waits_for_asks_ends_at_once(
    start: Start, tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the wait itself is longer than the test's timeout."""
    for name in ("http.QUIET_S", "http_asks.QUIET_S", "http._TIMEOUT_S", "nats._POLL_S"):
        monkeypatch.setattr(f"wirelag.transport.{name}", 10 * PATIENCE_S)

    async def work() -> None:
        async with start(tmp_path, certificate) as (connect, inbox):
            taker = asyncio.create_task(taking(inbox, [], 2))
            way = connect()
            await send_patiently(way, encode(message(1)), message(1).key)

            async def wait() -> list[bytes]:
                return [ask async for ask in way.asks()]

            waiting = asyncio.create_task(wait())
            await send_patiently(way, encode(message(2)), message(2).key)
            await soon(taker)
            await way.close()
            assert await soon(waiting) == []

    run(work())


@pytest.mark.acceptance
@every_transport
def test_both_survive_repeated_kills(
    start: Start, tmp_path: Path, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """kill -9 of the receiver, five times while messages come: every message arrives, none counts twice."""
    port, log = free_port(), tmp_path / "taken"
    rng = random.Random(3)
    if start is over_https:
        address = Address(f"https://127.0.0.1:{port}", TOKEN, ca=str(certificate[0]))
    else:
        address = Address(f"tls://127.0.0.1:{port}", f"wirelag:{PASSWORD}", ca=str(certificate[0]))

    def killable() -> Any:
        if start is over_nats:
            return broker(tmp_path, port, certificate)
        words = (str(port), str(certificate[0]), str(certificate[1]), str(log))
        return program(sys.executable, "-m", "tests.support.transport_peers", *words, ready="ready")

    async def put(outbox: Outbox, last: int, count: int) -> int:
        for number in range(last, last + count):
            await outbox.put(encode(message(number)), message(number).key)
        return last + count

    async def work() -> None:
        way, spool = sender(address, POINT), Spool(tmp_path / "spool")
        outbox, last, taken = Outbox(way, spool), 0, list[int]()
        inbox = NatsInbox(address, again_s=1) if start is over_nats else None
        tasks = [asyncio.create_task(outbox.run())]
        if inbox is not None:
            tasks.append(asyncio.create_task(taking(inbox, taken, 10**9)))
        for _ in range(5):
            with killable() as process:
                wanted = outbox.sent + rng.randrange(1, 10)  # now: some are sent while others are put
                last = await put(outbox, last, 10)
                while outbox.sent < wanted:  # some have arrived, others are in flight
                    await asyncio.sleep(0)
                process.send_signal(signal.SIGKILL)
                process.wait()
            last = await put(outbox, last, 5)
        with killable():
            await soon(outbox.drained())
            if inbox is None:
                taken = [int(line) for line in log.read_text().split()]
            else:
                while len(set(taken)) < last:
                    await asyncio.sleep(0.01)
            assert sorted(set(taken)) == list(range(last))
            assert inbox is not None or len(taken) < last + 20  # a broker forgets recent acknowledgements
            assert (outbox.waiting, outbox.dropped, outbox.refused) == (0, 0, 0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await way.close()
            if inbox is not None:
                await inbox.close()
            spool.close()

    run(work())
    assert not caplog.records


# ---- addresses ----

ADDRESSES = {
    "http://192.0.2.1:8321": "plain text: write https://",
    "nats://nats.example:4222": "plain text: write tls://",
    "ftp://127.0.0.1": "not an address of a collector",
    "127.0.0.1:8321": "not an address of a collector",
    "https://": "not an address of a collector",
    "https://127.0.0.1:99999": "not a URL",
    "https://me:hidden@192.0.2.1": "secrets do not belong into an address",
    "https://192.0.2.1/?token=hidden": "secrets do not belong into an address",
}


@pytest.mark.parametrize(("url", "why"), ADDRESSES.items(), ids=ADDRESSES)
def test_unsafe_or_invalid_addresses(url: str, why: str) -> None:
    with pytest.raises(WirelagError, match=why) as error:
        Address(url)
    assert "hidden" not in str(error.value)


def test_plain_text_stays_within_the_host_by_default() -> None:
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "nats://127.0.0.1"):
        assert not Address(url).encrypted
    assert not Address("http://192.0.2.1:1", insecure=True).encrypted
    assert Address("tls://192.0.2.1").encrypted


def test_a_secret_is_not_shown() -> None:
    assert TOKEN not in repr(Address("https://127.0.0.1", TOKEN))


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_without_certificates(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WirelagError, match=r"ca\.pem: cannot be used as --ca"):
        HttpSender(Address("https://127.0.0.1", ca=str(path)), POINT)


def test_missing_settings_are_named() -> None:
    code = "import sys; sys.modules['nats'] = None; from wirelag.transport import *; sender(Address('tls://a'), 'a')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'wirelag[live]'" in done.stderr.splitlines()[-1]


@pytest.mark.every(2)
@pytest.mark.parametrize("package", ["uvicorn", "starlette", "prometheus_client"])
def test_a_collector_without_its_packages_says_what_to_install(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['collect']; from wirelag.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "wirelag: wirelag collect needs the extra live: pip install 'wirelag[live]'\n"


# ---- NATS ----


@pytest.mark.parametrize(
    ("point", "word"), [("a_b-1", "a_b-1"), ("a.b", "a=2Eb"), ("ä>*", "=C3=A4=3E=2A"), ("=", "=3D")]
)
def test_a_point_is_one_word_of_a_subject(point: str, word: str) -> None:
    assert token(point) == word
    assert subject("ask", point) == f"wirelag.ask.{word}"


def test_a_subject_that_is_no_name_forges_no_line_of_the_log() -> None:
    """Whoever may publish to any subject chooses its words: line ends, escapes, or thousands of letters."""
    assert named("K=C3=B6ln") == "Köln"
    for word in ("A=0Awirelag: forged", "A=1B[31m", "A=E2=80=AE", "A" * 5000):
        assert named(word).isprintable()
        assert len(named(word)) <= 200


def test_what_the_broker_loses_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data is gone, although it had acknowledged them: agents still have what no collector has stored."""
    monkeypatch.setattr("wirelag.transport.nats._STORED_S", 0.2)
    monkeypatch.setattr("wirelag.transport.outbox.LEAST_ASIDE_S", 0.05)
    monkeypatch.setattr("wirelag.transport.outbox.MOST_ASIDE_S", 0.1)

    async def work() -> None:
        port = free_port()
        address, spool = Address(f"nats://127.0.0.1:{port}", f"wirelag:{PASSWORD}"), Spool(tmp_path / "spool")
        way = sender(address, POINT)
        outbox = Outbox(way, spool)
        sending = asyncio.create_task(outbox.run())
        (tmp_path / "first").mkdir()
        with broker(tmp_path / "first", port):
            client = await nats.connect(f"nats://127.0.0.1:{port}", user="wirelag", password=PASSWORD)
            await client.jetstream().add_stream(MESSAGES)
            for number in range(5):
                await outbox.put(encode(message(number)), message(number).key)
            while (await client.jetstream().stream_info(STREAM)).state.messages < 5:
                await asyncio.sleep(0.01)
            await client.close()
        assert (outbox.sent, outbox.waiting) == (0, 5)
        (tmp_path / "second").mkdir()
        with broker(tmp_path / "second", port):
            inbox, taken = NatsInbox(address), list[int]()
            taker = asyncio.create_task(taking(inbox, taken, 10**9))
            await soon(outbox.drained())
            assert (sorted(set(taken)), outbox.sent, outbox.waiting) == ([0, 1, 2, 3, 4], 5, 0)
            for task in (taker, sending):
                task.cancel()
            await asyncio.gather(taker, sending, return_exceptions=True)
            await asyncio.gather(way.close(), inbox.close())
        spool.close()

    run(work())


def test_the_broker_s_certificate_is_checked(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    ca = str(certificate[0])

    async def work() -> None:
        port = free_port()
        url, right = f"tls://127.0.0.1:{port}", f"wirelag:{PASSWORD}"
        with broker(tmp_path, port, certificate):
            assert "certificate is not trusted" in await fails(sender(Address(url, right), POINT))
            assert "Authorization Violation" in await fails(sender(Address(url, f"me:{PASSWORD}x", ca=ca), POINT))
            assert "Authorization Violation" in await fails(sender(Address(url, None, ca=ca), POINT))
            assert "start the collector" in await fails(sender(Address(url, right, ca=ca), POINT))
        assert "Unreachable: " in await fails(sender(Address(url, right, ca=ca), POINT))

    run(work())


def test_no_secret_is_sent_to_a_broker_without_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """A man in the middle may claim that there is no TLS: the password must not be sent then."""

    async def work() -> None:
        heard = bytearray()

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1048576,"auth_required":true}\r\n')
            while data := await reader.read(1000):
                heard.extend(data)
                if b"PING" in data:
                    writer.write(b"PONG\r\n")
            writer.close()

        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for secret in (f"wirelag:{PASSWORD}", PASSWORD, None):
            way = sender(Address(f"tls://127.0.0.1:{port}", secret, ca=str(certificate[0])), POINT)
            assert "it does not speak TLS" in await fails(way)
        assert PASSWORD.encode() not in heard
        assert b"PUB" not in heard
        server.close()
        await server.wait_closed()

    run(work())


def test_an_agent_needs_only_the_documented_permissions(tmp_path: Path) -> None:
    """With them it can send and be asked; it cannot send as another point, nor block that point."""
    word, page = token(POINT), ROOT / "docs" / "reference" / "messages.md"
    listed = [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("  - publish to `")]
    rights = ", ".join(f'"{each.replace("POINT", word)}"' for each in listed)
    agent = f'permissions: {{ publish: [{rights}], subscribe: ["_INBOX.{word}.>"] }}'
    users = f'{{ user: wirelag, password: "{PASSWORD}" }}, {{ user: agent, password: "{PASSWORD}", {agent} }}'

    async def forge(url: str) -> None:
        """With its own permissions: a victim's message, under a name that would make the broker drop the real one."""
        client = await nats.connect(url, user="agent", password=PASSWORD, inbox_prefix=f"_INBOX.{word}")
        false = message(8, "victim")
        headers = {"Nats-Msg-Id": message(9, "victim").key}
        await client.jetstream().publish(subject("status", POINT), encode(false), headers=headers)
        await client.close()

    async def work() -> None:
        port = free_port()
        url = f"nats://127.0.0.1:{port}"
        with broker(tmp_path, port, more=f"authorization {{ users: [{users}] }}"):
            inbox = NatsInbox(Address(url, f"wirelag:{PASSWORD}"))
            taker = asyncio.create_task(taking(inbox, [], 1))
            way = sender(Address(url, f"agent:{PASSWORD}"), POINT)
            await soon(send_patiently(way, encode(message(1)), message(1).key))
            await soon(taker)
            await inbox.ask(POINT, encode(message(2)))
            asks = way.asks()
            assert decode(await soon(anext(asks))).sent_ns == 2
            await inbox.ask(POINT, encode(message(3)))
            assert decode(await soon(anext(asks))).sent_ns == 3
            await forge(url)
            took = asyncio.create_task(taking(inbox, taken := [], 1))
            honest = sender(Address(url, f"wirelag:{PASSWORD}"), "victim")
            await honest.send(encode(message(9, "victim")), message(9, "victim").key)
            await soon(took)
            assert taken == [9]
            assert inbox.counts["of another point"] == 1
            await honest.close()
            another = sender(Address(url, f"agent:{PASSWORD}"), "another")
            assert "permissions violation for publish" in await fails(another)
            await way.close()
            await inbox.close()

    run(work())


def test_a_message_that_the_broker_does_not_take_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        port = free_port()
        address = Address(f"nats://127.0.0.1:{port}", f"wirelag:{PASSWORD}")
        with broker(tmp_path, port, more="max_payload: 4096"):
            way = NatsSender(address, POINT)
            with pytest.raises(Refused, match=r"of 4000 bytes is too large .* \(at most 3584\); raise its max_payload"):
                await way.send(bytes(4000), "status-1")
            await way.close()

    run(work())


def test_when_the_broker_is_full_messages_stay_with_their_agent(tmp_path: Path) -> None:
    """An existing stream with other limits is used as it is."""

    async def work() -> None:
        port = free_port()
        address = Address(f"nats://127.0.0.1:{port}", f"wirelag:{PASSWORD}")
        with broker(tmp_path, port):
            client = await nats.connect(f"nats://127.0.0.1:{port}", user="wirelag", password=PASSWORD)
            await client.jetstream().add_stream(
                StreamConfig(
                    name=STREAM,
                    subjects=["wirelag.status.*"],
                    max_msgs=3,
                    retention=RetentionPolicy.WORK_QUEUE,
                    discard=DiscardPolicy.NEW,
                )
            )
            way, inbox, taken = sender(address, POINT), NatsInbox(address), list[int]()
            first = [asyncio.create_task(way.send(encode(message(i)), message(i).key)) for i in range(3)]
            while (await client.jetstream().stream_info(STREAM)).state.messages < 3:
                await asyncio.sleep(0.01)
            with pytest.raises(Unreachable, match="maximum messages exceeded"):
                await way.send(encode(message(3)), message(3).key)
            taker = asyncio.create_task(taking(inbox, taken, 4))
            await soon(asyncio.gather(*first, send_patiently(way, encode(message(3)), message(3).key)))
            await soon(taker)
            assert taken == [0, 1, 2, 3]
            left = (await client.jetstream().stream_info(STREAM)).state.messages
            assert left <= 1  # the last acknowledgement may be in flight
            assert (await client.jetstream().stream_info(ASKS)).config.max_age == 600
            await asyncio.gather(way.close(), inbox.close(), client.close())

    run(work())
