"""Serving: access, error messages, and independence of clients."""

import asyncio
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

from tests.support import needs
from tests.support.agent_messages import EPOCH_NS, SECOND_NS, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import RDA, Running, recent, send, settled
from tests.support.command import wirelag
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S
from wirelag.collector.check import told
from wirelag.collector.loop import Collector
from wirelag.collector.serve import Guard, listening
from wirelag.collector.settings import Settings
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.tally import Tally
from wirelag.estimators.lda import Lda
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample
from wirelag.transport import Acknowledge
from wirelag.transport.http import MEDIA_TYPE
from wirelag.transport.http_inbox import HttpInbox

ENDS = Ends("A>B", "A", "B")
LDA = Lda(64, (0,), tail=100)


def scope(path: str, host: str, **more: str) -> dict[str, Any]:
    headers = [(b"host", host.encode()), *((name.encode(), value.encode()) for name, value in more.items())]
    return {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers, "scheme": "http",
            "server": ("127.0.0.1", 8321), "root_path": ""}  # fmt: skip


def status_of(guard: Guard, asked: dict[str, Any]) -> int:
    """The status of a response; 200 where the application would answer."""
    found: list[int] = []

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        await guard(asked, receive, sent)

    asyncio.run(run())
    return found[0]


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1/v1/?", "", "[::1", "localhost:1:1", "127.0.0.1.evil.example", "a b"]
)
def test_without_a_token_only_loopback_names_are_accepted(host: str) -> None:
    guard = Guard(application, None, False)
    assert status_of(guard, scope("/", host)) == 403
    for name in ("localhost", "127.0.0.1:8321", "[::1]:8321", "127.0.0.2"):
        assert status_of(guard, scope("/", name)) == 200


def test_a_host_header_is_not_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Starlette build the path of `url` from the Host header."""

    class Url:
        path, hostname = "/v1/", "x"

    monkeypatch.setattr(Request, "url", Url())
    guard = Guard(application, {"a-token-that-is-long-enough": "admin"}, False)
    assert status_of(guard, scope("/api/v1/segments", "x/v1/?")) == 401
    assert status_of(guard, scope("/v1/messages", "x")) == 200  # has its own token


class Stuck:
    """An inbox whose broker does not answer."""

    scheme = "stuck"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.asked = asyncio.Event()

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        await asyncio.Event().wait()
        yield b"", Nothing()

    async def ask(self, point: str, data: bytes) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class Nothing:
    async def __call__(self, is_stored: bool = True) -> None:
        pass


def test_a_broker_that_does_not_answer_delays_nothing(tmp_path: Path) -> None:
    agents = pair(recent(6, 200, 3, loss=0.05), RDA)
    made = [agent.messages(0, 6) for agent in agents]

    class Inbox(Stuck):
        scheme = "http"

        def __init__(self) -> None:
            super().__init__()
            self.taken = 0

        async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
            for one, other in zip(*made, strict=True):  # one batch each: none waits for the asks of another
                for message in (one, other):
                    stored = asyncio.get_running_loop().create_future()

                    async def acknowledge(is_stored: bool = True, stored: Any = stored) -> None:
                        stored.set_result(is_stored)

                    yield encode(message), acknowledge
                    assert await stored
                    self.taken += 1
            await asyncio.Event().wait()

        async def ask(self, point: str, data: bytes) -> None:
            self.asked.set()

    async def run() -> int:
        collector = Collector(Rounds([ENDS]), SqliteStore(str(tmp_path / "store.db")))
        stuck, inbox = Stuck(), Inbox()
        working = asyncio.create_task(collector.run([stuck, inbox]))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await stuck.asked.wait()
                await inbox.asked.wait()
                while inbox.taken < 12:
                    await asyncio.sleep(0.01)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await collector.close()
        return inbox.taken

    assert asyncio.run(run()) == 12


def test_a_full_disk_is_reported_at_once(tmp_path: Path) -> None:
    """The collector does not wait until agents time out."""
    messages = [encode(one) for one in pair(recent(2, 50, 4), LDA)[0].messages(0, 2)]

    async def run() -> list[bool]:
        store = SqliteStore(str(tmp_path / "store.db"))
        collector = Collector(Rounds([ENDS]), store)
        answers: list[bool] = []

        class Inbox(Stuck):
            async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
                await collector.in_worker(store._base.execute, "pragma query_only = on")  # as if the disk were full
                for data in messages:
                    stored = asyncio.get_running_loop().create_future()

                    async def acknowledge(is_stored: bool = True, stored: Any = stored) -> None:
                        stored.set_result(is_stored)

                    yield data, acknowledge
                    answers.append(await stored)
                    await collector.in_worker(store._base.execute, "pragma query_only = off")
                self.asked.set()
                await asyncio.Event().wait()

        inbox = Inbox()
        working = asyncio.create_task(collector.run([inbox]))
        async with asyncio.timeout(PATIENCE_S):
            await inbox.asked.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await collector.close()
        return answers

    assert asyncio.run(run()) == [False, True]


def test_a_message_that_is_not_stored_is_503_at_once() -> None:
    async def run() -> int:
        inbox = HttpInbox(None)
        data = encode(pair(Travelled.made(1, 50, 1), LDA)[0].messages(0, 1)[0])

        async def refuse() -> None:
            async for _, acknowledge in inbox.messages():
                await acknowledge(False)

        given = {"content-type": MEDIA_TYPE, "content-length": str(len(data))}
        asked = scope("/v1/messages", "localhost", **given) | {"method": "POST"}

        async def receive() -> Any:
            return {"type": "http.request", "body": data, "more_body": False}

        refusing = asyncio.create_task(refuse())
        async with asyncio.timeout(PATIENCE_S):
            answer = await inbox._take(Request(asked, receive))
        await inbox.close()
        await refusing
        assert inbox.counts["not stored"] == 1
        return answer.status_code

    assert asyncio.run(run()) == 503


# ---- clocks ----


def test_a_collector_with_a_late_clock_leaves_messages_to_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [EPOCH_NS - 3600 * SECOND_NS]
    agents = pair(Travelled.made(4, 100, 5, loss=0.0), LDA)
    store = SqliteStore(str(tmp_path / "store.db"))
    collector = Collector(Rounds([ENDS]), store, lambda: now[0])
    both = [encode(one) for two in zip(*(agent.messages(0, 5) for agent in agents), strict=True) for one in two]
    assert collector._take(both) == []
    assert collector._left == set(range(len(both)))
    told = capsys.readouterr().err
    assert told.count("the clock of this host is behind") == 1
    assert "agents keep their messages" in told
    now[0] = EPOCH_NS + 6 * SECOND_NS  # corrected: all of it comes again
    assert collector._take(both)
    assert not collector._left
    rows = store.rows("A>B", None, SECOND_NS, (0, 2**62), 100)
    assert sum(row.tally.sent for row in rows) == 400
    # If only one point is ahead, its clock is wrong; unless its time comes soon, its message is of no use.
    soon, ahead = (
        replace(agents[0], start_ns=agents[0].start_ns + hours * 3600 * SECOND_NS, kept={}).messages(0, 1)[0]
        for hours in (1, 720)
    )
    collector._take([encode(soon)])
    assert collector._left == {0}
    collector._take([encode(ahead)])
    assert not collector._left
    assert collector.counted["from the future"] == 1
    store.close()


def test_a_collector_with_a_late_clock_is_ready_again_although_nobody_sends(tmp_path: Path) -> None:
    """A proxy that asks /-/ready lets no message through: none can show that the clock is right again."""
    steady = [10**15]
    store = SqliteStore(str(tmp_path / "store.db"))
    collector = Collector(Rounds([ENDS]), store, lambda: EPOCH_NS - 3600 * SECOND_NS, steady=lambda: steady[0])
    ahead = encode(pair(Travelled.made(1, 100, 5), LDA)[0].messages(0, 1)[0])
    ready = []
    for passed_s in (0, 119, 119, 121):  # the agent repeats its message once
        steady[0] += passed_s * SECOND_NS
        collector._pass_time()
        ready.append(collector.health.ready)
        if len(ready) < 3:
            collector._take([ahead])
    assert ready == [True, False, False, True]
    store.close()


# ---- intervals that cannot be measured ----


def test_points_with_different_settings_are_not_empty_intervals(tmp_path: Path) -> None:
    path = recent(4, 100, 6, loss=0.0)
    agents = pair(path, LDA)[0], pair(path, replace(LDA, seed=5))[1]
    with Running(tmp_path, "--segment", "A>B") as running:
        send(running.url, agents, 5, settled(running, path, 4))
        report = running.reports()[1]
        metrics = running.get("/metrics")[1]
    assert (report["covered"], report["mean"], report["lost"], report["missed"]) == (0.0, None, None, 0)
    assert min(report["sent"], report["received"]) > 50  # what each point reported
    assert "set up differently" in report["reason"]
    lines = [line for line in metrics.splitlines() if line.startswith("wirelag_intervals_total")]
    counts = {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}
    assert counts["incomparable"] >= 4
    assert counts["empty"] == counts["measured"] == 0  # so that WirelagNoResults fires
    assert running.log.count("A>B is not measured: A and B are set up differently") == 1


def test_an_unusable_broker_is_reported_once(tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with Running(tmp_path, "--segment", "A>B", "--nats", url) as running:
        running.until(lambda: running.counted().get("nats broker failed", 0) >= 2)
    assert running.log.count(f"{url}: cannot use the NATS server there") == 1
    said = wirelag("collect", "--check", "--nats", url, "--listen", "127.0.0.1:0", "--store", tmp_path / "new.db")
    assert "which fails now: " in said.stdout


def test_a_quantile_beyond_the_sample_is_not_reported() -> None:
    delays_ns = np.random.default_rng(2).integers(10**6, 10**7, 2000)
    few = np.sort(delays_ns[:50])
    tally = Tally("rda", 1, covered_ns=SECOND_NS, sent=2000, received=2000)
    tally.moments = Moments.of_delays(delays_ns, 1)
    tally._take_delays(Crossing(tail=DelaySample.of(np.arange(50), few, 40)))
    said = tally.to_json(EPOCH_NS, SECOND_NS, True)
    assert said["quantiles"]["0.5"] is not None
    assert said["quantiles"]["0.99"] is said["quantiles"]["0.999"] is said["max"] is said["min"] is None
    assert all(name in said["ci95"] for name, value in said["quantiles"].items() if value is not None)
    whole = Tally("rda", 1, covered_ns=SECOND_NS, sent=50, received=50)
    whole.moments = Moments.of_delays(few, 1)
    whole._take_delays(Crossing(tail=DelaySample.of(np.arange(50), few, 1)))
    assert whole.to_json(EPOCH_NS, SECOND_NS, True)["max"] == few.max() / 1e9


# ---- history ----


@pytest.mark.every(2)
@pytest.mark.parametrize("lengths_ns", [(SECOND_NS // 5, SECOND_NS), (SECOND_NS, SECOND_NS // 10)])
def test_history_includes_intervals_of_another_length(tmp_path: Path, lengths_ns: tuple[int, int]) -> None:
    with Running(tmp_path, "--segment", "A>B") as running:
        start_ns = time.time_ns() // SECOND_NS * SECOND_NS - 26 * SECOND_NS
        for i, length_ns in enumerate(lengths_ns):
            path = Travelled.made(3, 100, 7, start_ns=start_ns + 6 * i * SECOND_NS, loss=0.0)
            count = 3 * SECOND_NS // length_ns
            agents = pair(path, LDA, length_ns)
            more = SECOND_NS // length_ns + 1  # packets may be in flight for a second
            send(running.url, agents, count + more, settled(running, path, count))
        found = running.json("/api/v1/reports", segment="A>B")
        before = running.json("/api/v1/reports", segment="A>B", to=start_ns / 1e9 + 6)
        latest = running.json("/api/v1/segments")["segments"][0]["latest"]
    starts = [one["start"] for one in found["reports"]]
    assert starts == sorted(starts)
    assert found["length"] == lengths_ns[1] / 1e9
    assert found["reports"][-1]["start"] == latest["start"]
    assert sum(one["sent"] for one in found["reports"]) == 600
    assert sum(one["sent"] for one in before["reports"]) == 300
    assert before["length"] == lengths_ns[0] / 1e9
    assert len(found["gaps"]) == 1


# ---- one store, one listening address ----


def test_two_collectors_do_not_share_a_store(tmp_path: Path) -> None:
    with Running(tmp_path, "--segment", "A>B") as running:
        second = wirelag("collect", "--store", running.store, "--listen", "127.0.0.1:0", code=2)
        assert second.stderr.count("\n") == 1
        assert f"another collector (process {running.process.pid}) writes to it" in second.stderr
        running.end(signal.SIGKILL)
    with Running(tmp_path, "--segment", "A>B"):  # a dead collector holds no lock
        pass


def test_every_address_includes_ipv4(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip(needs.needs("IPv6"))
    (tmp_path / "tokens").write_text("a-token-that-is-long-enough\n")
    plain = {"listen": "[::]:0", "token_file": str(tmp_path / "tokens"), "store": str(tmp_path / "store.db")}
    settings = Settings.of(plain, "here")
    assert next(iter(told(settings))).startswith("listens on http://[::]:0/ for")
    with listening(settings) as sock:
        port = sock.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=PATIENCE_S).close()
