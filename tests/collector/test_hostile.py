"""A collector under attack: hostile messages are counted, however slow, and do not change the results of others."""

import asyncio
import http.client
import json
import random
import signal
import socket
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Agent, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import RDA, Running, are_true, recent, send, settled
from tests.support.hostile import OF_EVIL, TOKEN, collector, opened, post
from tests.support.waiting import PATIENCE_S
from wirelag.collector.agents import Agents
from wirelag.collector.connections import SILENT_S
from wirelag.collector.loop import Collector
from wirelag.collector.metrics import Metrics
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_file import UNCHECKED
from wirelag.collector.store import MINUTE_NS
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import IDLE_NS, LINGER_NS, MOST_NAMED, Rounds
from wirelag.transport.http import MEDIA_TYPE


def enemies(path: Travelled) -> list[bytes]:
    """Broken or malicious messages of an agent at C, all with a valid token."""
    rng = random.Random(5)
    good = [encode(replace(agent, point="C")) for agent in pair(path, RDA)[0].messages(0, 2)]
    bad = [b"", b"WLAG", bytes(1000), good[0][:4] + struct.pack("<I", 2) + good[0][8:], good[0] + b"more"]
    cut = [good[0][: rng.randrange(len(good[0]))] for _ in range(20)]
    bad += cut + [sealed(data) for data in cut]
    for _ in range(150):
        changed = bytearray(good[0])
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        bad += [bytes(changed), sealed(bytes(changed))]
    other = [replace(agent, point="C") for agent in pair(path, replace(RDA, seed=77))[0].messages(0, 2)]
    bad += [encode(message) for message in other]  # another seed
    for hours in (-1, 1, 24 * 365):
        shift_ns = hours * 3600 * SECOND_NS
        bad += [encode(moved(message, shift_ns)) for message in other]
    return bad + good + good  # and replayed


def sealed(data: bytes) -> bytes:
    """The message with a valid checksum."""
    return data[:8] + struct.pack("<I", zlib.crc32(data[12:])) + data[12:]


def moved(message: Message, by_ns: int) -> Message:
    """The same message at another time."""
    interval = Interval(message.interval.start_ns + by_ns, message.interval.end_ns + by_ns)
    where = {"start_ns": interval.start_ns, "end_ns": interval.end_ns}
    return replace(message, interval=interval, records=tuple(record | where for record in message.records))


def test_results_of_others_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    path = recent(5, 500, 21)
    with ExitStack() as stack:
        quiet, attacked = (stack.enter_context(collector(tmp_path, name)) for name in ("quiet", "attacked"))
        bad = enemies(path)
        for body in bad[::2]:
            post(attacked, body)
        authorised = f"Host: x\r\nAuthorization: Bearer {OF_EVIL}\r\nContent-Type: {MEDIA_TYPE}\r\n"

        def begin(text: str) -> socket.socket:
            return stack.enter_context(opened(attacked, text))

        for _ in range(40):  # requests that never end
            begin("POST /v1/messages HTTP/1.1\r\nHost: x\r\n")
        begin(f"POST /v1/messages HTTP/1.1\r\n{authorised}Content-Length: 5000\r\n\r\nWLAG")
        huge = begin(f"POST /v1/messages HTTP/1.1\r\n{authorised}Content-Length: {100 << 20}\r\n\r\n")
        endless = begin(f"POST /v1/messages HTTP/1.1\r\n{authorised}Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):  # responses that are never read
            begin(f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n")
        for running in (quiet, attacked):
            send(running.url, pair(path, RDA), 6, settled(running, path, 5), TOKEN)
        for body in bad[1::2]:
            post(attacked, body)
        for message in pair(path, RDA)[0].messages(0, 5):  # A's messages a second time
            assert post(attacked, encode(message), TOKEN) == 204
        assert post(attacked, encode(pair(path, RDA)[0].messages(0, 1)[0])) == 403  # C is not A
        assert post(attacked, bad[0], "no token of ours") == 401
        assert huge.recv(12) == b"HTTP/1.1 413"
        assert endless.recv(12) == b"HTTP/1.1 411"
        mine, theirs = (
            running.get("/api/v1/reports", None, segment="A>B")[1].encode() for running in (quiet, attacked)
        )
        assert mine == theirs
        assert are_true(json.loads(mine)["reports"], path) == 5
        counted = attacked.counted()
        assert counted.get("internal errors", 0) == 0
        assert counted["http garbage"] > 150
        assert counted["garbage"] > 10
        assert counted["from the future"] >= 2
        assert counted["http unauthorised"] == 2
        assert counted["http too large"] == 1
        assert attacked.process.poll() is None


@pytest.mark.acceptance
def test_connections_without_a_whole_request_are_closed(tmp_path: Path) -> None:
    with collector(tmp_path, "slow") as running:
        lines = [
            opened(running, text)
            for text in ("", "GET / HTTP/1.1\r\n", "POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nt")
        ]
        kept = http.client.HTTPConnection("127.0.0.1", int(running.url.rpartition(":")[2]), timeout=PATIENCE_S)
        began = time.monotonic()
        while time.monotonic() - began < SILENT_S + 4:  # a client that keeps asking stays
            kept.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
            assert kept.getresponse().read()
            time.sleep(0.2)
        for line in lines:
            line.settimeout(PATIENCE_S)
            with line, suppress(ConnectionResetError):
                assert line.recv(1000)[:12] in (b"", b"HTTP/1.1 408")
        assert running.counted()["slow connections"] >= 2
        kept.close()


# ---- many ----


class Poster:
    """One of many agents: one connection, one message after another."""

    def __init__(self, running: Running) -> None:
        parts = urlsplit(running.url)
        self._where = parts.hostname, parts.port

    async def __aenter__(self) -> "Poster":
        self._reader, self._writer = await asyncio.open_connection(*self._where)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def post(self, body: bytes) -> int:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        self._writer.write(f"{head}Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        return int(answer.split()[1])


def tell_all(running: Running, messages: Sequence[Sequence[bytes]]) -> float:
    """Send each agent's messages, all agents at once; return the seconds that it took."""

    async def tell(own: Sequence[bytes]) -> None:
        async with Poster(running) as poster:
            for body in own:
                while (status := await poster.post(body)) == 503:
                    await asyncio.sleep(0.05)
                assert status == 204

    async def work() -> None:
        await asyncio.gather(*map(tell, messages))

    began = time.monotonic()
    asyncio.run(work())
    return time.monotonic() - began


@pytest.mark.acceptance
def test_two_hundred_agents_do_not_affect_each_other(tmp_path: Path) -> None:
    """A hundred segments with the same packets: all give the results of a single one."""
    path, count = recent(10, 500, 22), 11
    lda = Lda(64, (0,), tail=128)
    agents: list[Agent] = []
    for number in range(100):
        up, down = pair(path, lda)
        agents += [replace(up, point=f"u{number}"), replace(down, point=f"d{number}")]
    names = [f"u{number}>d{number}" for number in range(100)]
    messages = [[encode(message) for message in agent.messages(0, count)] for agent in agents]

    def reports(running: Running, name: str) -> bytes:
        found = json.loads(running.get("/api/v1/reports", None, segment=name)[1])
        return json.dumps(found["reports"]).encode()

    def all_settled(running: Running, name: str) -> Callable[[], bool]:
        return lambda: sum(one["settled"] for one in running.reports(name)) >= count - 1

    with collector(tmp_path, "alone", names[:1]) as alone:
        tell_all(alone, messages[:2])
        alone.until(all_settled(alone, names[0]))
        expected = reports(alone, names[0])
    with collector(tmp_path, "many", names) as many:
        seconds = tell_all(many, messages)
        for name in names:
            many.until(all_settled(many, name))
            assert reports(many, name) == expected
        counted = many.counted()
        metrics = many.get("/metrics")[1]
    assert counted["synopses"] == 200 * count
    assert counted.get("duplicates", 0) == 0
    assert len(metrics.splitlines()) < 20_000
    print(f"200 agents, {200 * count} messages in {seconds:.1f} s: {200 * count / seconds:.0f} a second")


# ---- one message, one collector ----


def of_a_minute_ago(seed: int) -> Travelled:
    """Packets of a minute that is over, so that it is summed at once."""
    start_ns = (time.time_ns() // MINUTE_NS - 2) * MINUTE_NS
    return Travelled.made(5, 200, seed, start_ns=start_ns)


def poisoned(message: Message, **numbers: int) -> Message:
    return replace(message, records=tuple(record | numbers for record in message.records))


def told_by(agent: Message, **says: object) -> Message:
    now_ns = time.time_ns()
    record = {"start_ns": now_ns, "end_ns": now_ns, "name": None, "class": None} | says
    return replace(agent, type="status", segment=None, interval=Interval(now_ns, now_ns), records=(record,))


def test_no_number_of_a_message_ends_the_collector(tmp_path: Path) -> None:
    """Numbers that are too large to count, or at the limit: others continue, also after a restart."""
    path, lda = of_a_minute_ago(31), Lda(64, (0,), tail=128)
    honest, bad = of_a_minute_ago(32), {"tail_packets": 2**63 + 5}
    with collector(tmp_path, "numbers") as running:
        ups, downs = (agent.messages(0, 5) for agent in pair(path, lda))
        for up, down in zip(ups, downs, strict=True):
            mine, theirs = replace(up, point="C"), replace(down, point="D")
            worst = replace(mine.clock, error_ns=2**63 - 1)
            assert post(running, encode(poisoned(mine, **bad))) in (204, 400)
            assert post(running, encode(replace(mine, clock=worst))) in (204, 400)
            for one in (mine, theirs):
                body = encode(poisoned(one, tail_level=30, tail_packets=2**48 - 1))
                assert post(running, body, TOKEN) == 204
        running.until(lambda: running.counted().get("synopses", 0) >= 10)
        for message in (message for agent in pair(honest, lda) for message in agent.messages(0, 5)):
            assert post(running, encode(message), TOKEN) == 204
        running.until(lambda: any(one["used"] for one in running.reports("A>B", resolution="minute")))
        assert running.get("/api/v1/reports", None, segment="C>D")[0] == 200
        assert running.get("/metrics")[0] == 200
        assert running.process.poll() is None
        running.end(signal.SIGTERM)
        with running:
            assert running.reports("A>B")
            assert running.process.poll() is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, 2**63])
def test_no_agent_status_breaks_a_response(tmp_path: Path, number: float) -> None:
    message = replace(pair(recent(1, 50, 33), RDA)[0].messages(0, 1)[0], point="C")
    with pytest.raises(ValueError, match=r"JSON|integer|not a plain value"):
        decode(encode(told_by(message, spooled=number)))
    kept = {"C": {"packets": 0, "unseen": 0, "messages": 1, "bytes": 9, "says": {"spooled": number, "lost_parts": 1}}}
    store = SqliteStore(str(tmp_path / "store.db"))  # written by a collector that accepted it
    store.begin()
    store.put_agents(kept)
    store.commit()
    agents = Agents(store.agents()).all(0, 0)
    store.close()
    assert agents[0]["says"] == {"lost_parts": 1}
    assert json.dumps(agents, allow_nan=False)
    assert b'wirelag_agent_intervals_lost_total{point="C"} 1.0' in Metrics().text(agents, {}, 0)[0]


def test_an_agent_s_status_is_bounded() -> None:
    agents = Agents({})
    message = pair(recent(1, 50, 34), RDA)[0].messages(0, 1)[0]
    status = told_by(message, **{f"name{number}": number for number in range(60)}, **{"x" * 65: 1})
    agents.heard(replace(status, records=status.records * 2 + ({"second": 1},)), 100, status.sent_ns, 0)
    says = agents.all(0, 0)[0]["says"]
    assert len(says) == 64
    assert "second" not in says
    assert "x" * 65 not in says


def test_a_minute_that_cannot_be_summed_affects_only_its_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a damaged row of an older version in the store, which has no checksum, only its series has no minute."""
    store = SqliteStore(str(tmp_path / "store.db"))
    rounds = Rounds([Ends("A>B", "A", "B"), Ends("C>D", "C", "D")])
    running = Collector(rounds, store, lambda: EPOCH_NS + 300 * SECOND_NS)
    path = Travelled.made(3, 200, 35, loss=0.0)
    for up, down in zip(*(agent.messages(0, 4) for agent in pair(path, Lda(64, (0,), tail=100))), strict=True):
        for one in (up, down, replace(up, point="C"), replace(down, point="D")):
            assert running._take([encode(one)]) is not None
    query = "update results set sent = null, crc = ? where series = (select id from series where segment = 'C>D')"
    store._base.execute(query, (UNCHECKED,))
    for _ in range(2):
        assert running._pass_time() is not None
    assert [row.tally.sent for row in store.rows("A>B", None, MINUTE_NS, (0, 2**62), 9)] == [600]
    assert store.rows("C>D", None, MINUTE_NS, (0, 2**62), 9) == []
    assert running.counted["internal errors"] == 1
    assert "a sum of series" in capsys.readouterr().err
    store.close()


def test_one_point_names_only_its_own_segments(tmp_path: Path) -> None:
    """A segment without messages makes room."""
    message = pair(Travelled.made(1, 20, 36), RDA)[0].messages(0, 1)[0]
    rounds, now_ns = Rounds([], named_by_agents=True), EPOCH_NS + 2 * SECOND_NS
    for number in range(MOST_NAMED + 5):
        rounds.take(replace(message, point="C", segment=f"C>x{number}"), now_ns)
    assert len(rounds.segments) == MOST_NAMED
    rounds.take(replace(message, segment="A>B"), now_ns)
    assert len(rounds.segments) == MOST_NAMED + 1
    for later_ns in (LINGER_NS, IDLE_NS + 1, IDLE_NS + 2):
        rounds.pass_time(now_ns + later_ns)
    assert rounds.segments == []
    rounds.take(replace(message, point="C", segment="C>x"), now_ns + IDLE_NS)
    assert len(rounds.segments) == 1
