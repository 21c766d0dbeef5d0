"""A collector that reads from a NATS broker: results as over HTTPS, one reader at a time, and what is kept there."""

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DiscardPolicy, StreamConfig

from tests.support import needs, transport_peers
from tests.support.agent_messages import SECOND_NS, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import RDA, Running, are_true, recent, send, settled
from tests.support.command import wirelag
from tests.support.transport_peers import PASSWORD, free_port, send_patiently
from tests.support.waiting import PATIENCE_S, until
from wirelag.estimators.lda import Lda
from wirelag.protocol.messages import encode, peek
from wirelag.transport import Address, Declined, sender
from wirelag.transport.nats import NatsInbox
from wirelag.transport.nats_line import Line
from wirelag.transport.nats_stalls import Stall


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    program = needs.find("nats-server")
    if program is None:
        pytest.skip(needs.program("nats-server"))
    port = free_port()
    log = tmp_path / "nats.log"
    server = subprocess.Popen(
        [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path / "js"), "-l", str(log)]
    )
    until(lambda: log.exists() and "Server is ready" in log.read_text(), "a broker")
    yield f"nats://127.0.0.1:{port}"
    server.terminate()
    server.wait(PATIENCE_S)


def test_the_same_over_nats(tmp_path: Path, broker: str) -> None:
    path = recent(4, 500, 9)
    with Running(tmp_path, "--segment", "A>B", "--nats", broker) as running:
        send(broker, pair(path, RDA), 5, settled(running, path, 4))
        assert are_true(running.reports(), path) == 4


def test_a_second_collector_reads_nothing_from_the_broker(tmp_path: Path, broker: str) -> None:
    """It waits, and says so; when the first one ends, it goes on."""
    estimator, start_ns = Lda(64, (0,), tail=64), time.time_ns() // SECOND_NS * SECOND_NS - 300 * SECOND_NS
    paths = [Travelled.made(3, 50, 10, start_ns=start_ns + i * 60 * SECOND_NS) for i in range(3)]
    (tmp_path / "second").mkdir()
    with Running(tmp_path, "--segment", "A>B", "--nats", broker) as first:
        send(broker, pair(paths[0], estimator), 3, settled(first, paths[0], 2))
        with Running(tmp_path / "second", "--segment", "A>B", "--nats", broker) as second:
            second.until(lambda: second.counted().get("nats broker failed", 0) >= 1)
            send(broker, pair(paths[1], estimator), 3, settled(first, paths[1], 2))
            assert "synopsis" not in second.counted()
            first.end(signal.SIGTERM)
            send(broker, pair(paths[2], estimator), 3, settled(second, paths[2], 2))
            assert second.counted()["synopsis"] == 6
    assert f"another collector, {socket.gethostname()}:{tmp_path}/store.db, reads from it" in second.log
    assert "can be used again" in second.log


def test_an_agent_keeps_what_the_collector_does_not_know(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of a newer version is never said to be stored, others go on; and the check says what is promised."""
    monkeypatch.setattr("wirelag.transport.nats._STORED_S", 1.0)
    agent = pair(recent(4, 50, 9), RDA)[0]
    first, *others = agent.messages(0, 4)

    async def work(counted: Callable[[], dict[str, int]]) -> None:
        way = sender(Address(broker), "A")
        newer = bytearray(encode(first))
        newer[4] += 1
        await asyncio.gather(*(send_patiently(way, encode(message), message.key) for message in others))
        with pytest.raises(Declined, match=r"within 1 s; is one running, .* upgrade collectors before agents$"):
            await way.send(bytes(newer), first.key)
        assert counted()["synopsis"] == 3
        await way.close()

    with Running(tmp_path, "--segment", "A>B", "--nats", broker) as running:
        asyncio.run(asyncio.wait_for(work(running.counted), PATIENCE_S))
        assert running.counted()["of an unknown version"] >= 1
    assert running.log.count("its sender keeps it until this wirelag is upgraded") == 1
    said = wirelag("collect", "--check", "--nats", broker, "--listen", "127.0.0.1:0", "--store", tmp_path / "new.db")
    assert "one copy (1 of 3 replicas): what it loses, agents send again" in said.stdout


@pytest.mark.parametrize("unseen", [False, True])
def test_a_consumer_that_does_not_see_its_messages_gets_another_leader(
    unseen: bool, broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only then. This stream keeps what was read, so a consumer knows of less than the stream has: as if behind."""
    monkeypatch.setattr("wirelag.transport.nats_stalls.SILENT_S", 0.0)
    asked: list[str] = []

    async def heard(message: Msg) -> None:
        asked.append(message.subject)

    async def work() -> None:
        line = Line(Address(broker), "A")
        context = await line.stream()
        await context.add_stream(StreamConfig(name="S", subjects=["some.>"]))
        await context.add_consumer("S", ConsumerConfig(durable_name="c", filter_subject="some.3.*"))
        for subject in ("some.3.a", "some.4.a"):
            await context.publish(subject, b"message")
        if unseen:
            pulled = await context.pull_subscribe_bind("c", "S")
            await (await pulled.fetch(1))[0].ack_sync()
        await line.subscribe("$JS.API.CONSUMER.LEADER.>", heard)
        stall = Stall(line, "S", "c")
        await stall.watch(True)
        assert asked == []
        await stall.watch(False)
        await line.close()

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert asked == ["$JS.API.CONSUMER.LEADER.STEPDOWN.S.c"] * unseen
    assert capsys.readouterr().err.count("consumer c of stream S: its broker has lost sight") == unseen


def test_the_check_asks_the_broker_for_room(tmp_path: Path) -> None:
    """A broker whose disk limit is below what the streams need; and one whose stream is nearly full."""
    port, secret = free_port(), tmp_path / "secret"
    secret.write_text(f"wirelag:{PASSWORD}")
    url = f"nats://127.0.0.1:{port}"
    words = ("--nats", url, "--nats-secret", secret, "--listen", "127.0.0.1:0", "--store", tmp_path / "new.db")

    async def streams(*make: StreamConfig) -> list[str]:
        client = await nats.connect(url, user="wirelag", password=PASSWORD)
        for one in make:
            await client.jetstream().add_stream(one)
            for _ in range(10):
                await client.jetstream().publish("wirelag.status.A", bytes(10_000))
        found = [str(one.config.name) for one in await client.jetstream().streams_info()]
        await client.close()
        return found

    with transport_peers.broker(tmp_path, port, most="1GB"):
        said = " ".join(wirelag("collect", "--check", *words).stdout.split())
        assert (
            "which has no room for the streams (insufficient storage resources available): they need 4352 MiB" in said
        )
        assert asyncio.run(streams()) == []  # nothing is left
    with transport_peers.broker(tmp_path, port):
        assert "no room" not in wirelag("collect", "--check", *words).stdout
        small = StreamConfig(
            name="WIRELAG", subjects=["wirelag.status.*"], max_bytes=100_000, discard=DiscardPolicy.OLD
        )
        assert asyncio.run(streams(small)) == ["WIRELAG"]
        said = " ".join(wirelag("collect", "--check", *words).stdout.split())
        assert "whose stream WIRELAG is nearly full" in said


def test_of_two_agents_with_one_name_the_second_is_refused(tmp_path: Path, broker: str) -> None:
    """The broker takes both: the collector tells the second one, which keeps its messages."""
    agent = pair(recent(8, 50, 1), RDA)[0]
    messages = agent.messages(0, 8)

    async def work(running: Running) -> list[str]:
        first, second = (sender(Address(broker), "A") for _ in range(2))
        refused = list[str]()
        for number, message in enumerate(messages):
            await send_patiently(first, encode(message), message.key)
            try:
                await second.send(encode(message), message.key)
            except Declined as error:
                refused.append(str(error))
            await asyncio.to_thread(until, lambda: heard(running) > number, "the first one's message")  # noqa: B023
        await asyncio.gather(first.close(), second.close())
        return refused

    def heard(running: Running) -> int:
        return running.counted().get("synopsis", 0)

    with Running(tmp_path, "--segment", "A>B", "--nats", broker) as running:
        refused = asyncio.run(asyncio.wait_for(work(running), PATIENCE_S))
        assert heard(running) == 9  # the second took over with its first message; then the other one spoke again
        assert refused[0] == f"{broker}: another agent called A is running; give each its own name"
        assert len(refused) == 7  # it keeps them
        assert "nats of a second agent, dropped" not in running.counted()
    assert running.log.count("two agents are called A at the broker: the one that began later is refused") == 1


def test_two_agents_with_one_name_are_found_though_one_uses_the_broker(tmp_path: Path, broker: str) -> None:
    """Each transport knew only its own agents: it accepted both, and mixed their results without a line in the log."""
    up, down = (replace(agent, point="edge 1") for agent in pair(recent(8, 50, 1), RDA))

    async def work(running: Running) -> list[str]:
        first, second = sender(Address(running.url), "edge 1"), sender(Address(broker), "edge 1")
        refused: list[str] = []
        for number, (one, other) in enumerate(zip(up.messages(0, 8), down.messages(0, 8), strict=True)):
            await send_patiently(first, encode(one), one.key)
            try:
                if number == 0:  # the collector has not made its stream yet
                    await send_patiently(second, encode(other), other.key)
                else:
                    await second.send(encode(other), other.key)
            except Declined as error:
                refused.append(str(error))
            else:
                await asyncio.to_thread(until, lambda: heard(running) > 2 * number + 1, "both messages")  # noqa: B023
        await asyncio.gather(first.close(), second.close())
        return refused

    def heard(running: Running) -> int:
        return running.counted().get("synopsis", 0) + running.counted().get("nats of a second agent", 0)

    with Running(tmp_path, "--segment", "edge 1>B", "--nats", broker) as running:
        refused = asyncio.run(asyncio.wait_for(work(running), PATIENCE_S))
        assert len(refused) == 7  # its first message was taken
        assert running.counted()["synopsis"] == 9
    assert running.log.count("two agents are called edge 1 at the broker") == 1


def test_a_refused_agent_is_heard_once_the_other_is_silent(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries one message at a time, which counts as sent once it is stored; asks are not its."""
    for name, value in (("nats._PUT_OFF_S", 0.2), ("runs.SILENT_S", 2.0)):
        monkeypatch.setattr(f"wirelag.transport.{name}", value)
    first, second, *more = pair(recent(60, 50, 1), RDA)[0].messages(0, 60)
    others, goes_on = more[:6], iter(more[6:])

    async def work() -> None:
        inbox, took = NatsInbox(Address(broker)), list[str]()

        async def take() -> None:
            async for data, acknowledge in inbox.messages():
                took.append(peek(data).key)
                await acknowledge()

        taking = asyncio.create_task(take())
        older, younger = (sender(Address(broker), "A") for _ in range(2))
        for way, message in ((older, first), (younger, first), (older, second)):
            await send_patiently(way, encode(message), message.key)
        declined = 0
        while not declined:
            if (message := next(goes_on, None)) is not None:  # however slow this host is, the older one is not silent
                await older.send(encode(message), message.key)
            try:
                await younger.send(encode(others[0]), others[0].key)
            except Declined:
                declined += 1
        stealing = asyncio.ensure_future(anext(aiter(younger.asks())))
        await inbox.ask("A", b"for the first")
        assert await anext(aiter(older.asks())) == b"for the first"
        assert not stealing.done()
        stealing.cancel()
        for message in others:
            while True:
                try:
                    await younger.send(encode(message), message.key)
                    break
                except Declined:
                    declined += 1
                    await asyncio.sleep(0.05)
        while not {message.key for message in (first, second, *others)} <= set(took):  # the older one has been silent
            await asyncio.sleep(0.02)
        taking.cancel()
        await asyncio.gather(older.close(), younger.close(), inbox.close())

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_point_beyond_its_quota_waits_in_the_broker(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sends a burst beyond its quota: its messages wait at the broker, B's pass at once, and none is lost."""
    monkeypatch.setattr("wirelag.transport.nats._STORED_S", PATIENCE_S)
    (tmp_path / "collector.toml").write_text("[limits]\nmessages = 4\n")
    up, down = pair(recent(64, 10, 1), Lda(8, (0,), tail=8))

    async def work(running: Running) -> tuple[int, int]:
        burst, others = (sender(Address(broker), point) for point in "AB")
        sending = asyncio.gather(
            *(send_patiently(burst, encode(message), message.key) for message in up.messages(0, 60))
        )
        await asyncio.to_thread(
            until, lambda: running.counted().get("nats waited for its turn", 0) >= 3, "that A waits"
        )
        for message in down.messages(0, 3):
            await others.send(encode(message), message.key)
        await asyncio.to_thread(until, lambda: heard(running, "B") == 3, "messages of B")
        early = heard(running, "A")
        await sending
        assert heard(running, "A") == 60
        await asyncio.gather(burst.close(), others.close())
        return early, running.counted()["synopsis"]

    def heard(running: Running, point: str) -> int:
        agents = {one["point"]: one["messages"] for one in running.json("/api/v1/agents")["agents"]}
        return int(agents.get(point, 0))

    with Running(tmp_path, str(tmp_path / "collector.toml"), "--segment", "A>B", "--nats", broker) as running:
        early, taken = asyncio.run(asyncio.wait_for(work(running), PATIENCE_S))
        assert early < 60
        assert taken == 63
