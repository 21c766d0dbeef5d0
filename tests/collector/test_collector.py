"""The collector as a process: exact over HTTP and NATS, whatever dies; 401 without a token; garbage counted."""

import asyncio
import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import needs
from tests.support.agent_messages import EPOCH_NS, SECOND_NS, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import (
    RDA,
    Running,
    are_true,
    ended,
    recent,
    send,
    settled,
    surely,
)
from tests.support.command import wirelag
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S
from wirelag.collector.listeners import MOST_UNHEARD, Said
from wirelag.collector.loop import Collector
from wirelag.collector.openapi import PARAMETERS, document, written
from wirelag.collector.sqlite import SqliteStore
from wirelag.estimators.lda import Lda
from wirelag.protocol.messages import decode, encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds
from wirelag.transport import Address, sender
from wirelag.transport.http import MEDIA_TYPE

TOKEN = "a-token-that-is-long-enough"
OF_A = "another-token-for-one-point"
DOCS = ROOT / "docs" / "reference"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, "--segment", "A>B") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(f"# who may come\n{TOKEN}\n{OF_A} A\n")
    with Running(folder, "--segment", "A>B", "--token-file", str(folder / "tokens"), token=TOKEN) as running:
        yield running
    assert TOKEN not in running.log
    assert OF_A not in running.log


def post(url: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    given = {"Content-Type": MEDIA_TYPE} | (headers or {})
    try:
        line.request("POST", "/v1/messages", body, given)
        return line.getresponse().status
    finally:
        line.close()


# ---- measurements ----


def test_every_interval_is_exact_in_every_output(running: Running) -> None:
    path = recent(5, 2000, 1)
    send(running.url, pair(path, RDA), 6, settled(running, path, 5))
    assert are_true(running.reports(), path) == 5
    (segment,) = running.json("/api/v1/segments")["segments"]
    assert (segment["segment"], segment["upstream"], segment["downstream"]) == ("A>B", "A", "B")
    assert segment["latest"]["start"] == (path.start_ns + 5 * SECOND_NS) / 1e9
    few = running.json("/api/v1/reports", segment="A>B", points=3)
    assert len(few["reports"]) <= 3
    assert sum(one["sent"] for one in few["reports"]) == sum(one["sent"] for one in running.reports())
    asked = urllib.request.Request(f"{running.url}/api/v1/reports?segment=A%3EB", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.read()))["reports"] == running.reports()
    agents = running.json("/api/v1/agents")["agents"]
    assert [(one["point"], one["alive"], one["clock"]["error"]) for one in agents] == [
        ("A", True, 2e-5),
        ("B", True, 2e-5),
    ]
    for report in running.reports():
        if report["mean"]:
            low, high = report["ci95"]["mean"]
            assert low < report["mean"] - 40e-6
            assert high > report["mean"] + 40e-6
            assert report["clock"] == {"error": 4e-5, "synchronised": True}


def test_prometheus_values_equal_the_packets(running: Running) -> None:
    path = recent(4, 1000, 2)
    send(running.url, pair(path, RDA), 5, settled(running, path, 4))
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(running.get("/metrics")[1])
        for sample in family.samples
    }

    def of(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    assert of("wirelag_packets_sent_total", segment="A>B") == 4000
    assert of("wirelag_packets_lost_total", segment="A>B") == path.lost.sum()
    mean = of("wirelag_one_way_delay_seconds_sum", segment="A>B") / of(
        "wirelag_one_way_delay_seconds_count", segment="A>B"
    )
    assert mean == pytest.approx(path.delays_ns[~path.lost].mean() / 1e9, rel=0.02)
    for bound in ("0.005", "0.01"):
        share = of("wirelag_one_way_delay_seconds_bucket", segment="A>B", le=bound)
        share /= of("wirelag_one_way_delay_seconds_count", segment="A>B")
        assert share == pytest.approx((path.delays_ns[~path.lost] <= float(bound) * 1e9).mean(), abs=0.1)
    assert of("wirelag_intervals_total", segment="A>B", outcome="measured") == 4
    assert of("wirelag_agent_up", point="A") == 1
    assert of("wirelag_agent_clock_error_seconds", point="A") == 2e-5
    assert of("wirelag_report_ready_seconds_count", stage="complete") >= 5


@pytest.mark.acceptance  # times are those of an idle machine
def test_a_report_is_ready_soon_after_both_messages(running: Running) -> None:
    """Intervals of 100 ms as they end, over HTTP, each with a second round: mostly complete within 200 ms."""
    asyncio.run(_live(running))
    buckets = {
        (sample.labels["stage"], sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(running.get("/metrics")[1])
        if family.name == "wirelag_report_ready_seconds"
        for sample in family.samples
        if "le" in sample.labels
    }
    assert buckets["complete", "+Inf"] >= 10
    assert buckets["complete", "0.2"] >= 0.5 * buckets["complete", "+Inf"]  # other tests may keep the machine busy


async def _live(running: Running) -> None:
    length_ns, count = SECOND_NS // 10, 12
    start_ns = (time.time_ns() // SECOND_NS + 1) * SECOND_NS
    path = replace(recent(2, 2000, 3), start_ns=start_ns)
    path = replace(path, sent_ns=path.sent_ns - path.sent_ns[0] + start_ns)
    agents = pair(path, RDA, length_ns)
    made = [agent.messages(0, count) for agent in agents]
    lines = [sender(Address(running.url), agent.point) for agent in agents]

    async def answer(which: int) -> None:
        async for data in lines[which].asks():
            await surely(lines[which], agents[which].answer(decode(data)))

    async def speak(which: int) -> None:
        for message in made[which]:
            await asyncio.sleep(max(0.0, (message.interval.end_ns - time.time_ns()) / 1e9))
            await surely(lines[which], message)

    answering = [asyncio.create_task(answer(which)) for which in (0, 1)]
    await asyncio.gather(speak(0), speak(1))
    await asyncio.to_thread(running.until, lambda: running.counted().get("answers", 0) >= 2 * (count - 1))
    await ended(lines, answering)


def test_listeners_receive_results_as_they_come(running: Running) -> None:
    parts = urlsplit(running.url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    line.request("GET", "/api/v1/events")
    stream = line.getresponse()
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    assert stream.readline() == b": wirelag\n"
    path = recent(3, 500, 4)
    send(running.url, pair(path, RDA), 4, settled(running, path, 3))
    heard: list[dict[str, Any]] = []
    while sum(one["report"]["settled"] for one in heard) < 3:
        text = stream.readline().decode()
        if text.startswith("data: "):
            heard += json.loads(text.removeprefix("data: "))
    assert are_true([one["report"] for one in heard], path) >= 3
    line.close()


# ---- kills ----


def test_kill_9_of_the_collector_loses_and_repeats_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, "--segment", "A>B")
    path = recent(12, 500, 5)
    agents = pair(path, RDA)
    with running:
        url = running.url
    running._port = int(url.rpartition(":")[2])

    async def live() -> None:
        lines = [sender(Address(url), agent.point) for agent in agents]

        async def answer(which: int) -> None:
            async for data in lines[which].asks():
                await surely(lines[which], agents[which].answer(decode(data)))

        answering = [asyncio.create_task(answer(which)) for which in (0, 1)]
        await asyncio.to_thread(running.__enter__)
        for number, (up, down) in enumerate(zip(*(agent.messages(0, 13) for agent in agents), strict=True)):
            await surely(lines[0], up)
            if number in (2, 5, 8):  # one half is on disk, the other in flight
                await asyncio.to_thread(running.end, signal.SIGKILL)
                await asyncio.to_thread(running.__enter__)
            await surely(lines[1], down)
            if number in (4, 7, 10):  # in the middle of a round
                await asyncio.to_thread(running.end, signal.SIGKILL)
                await asyncio.to_thread(running.__enter__)
        await asyncio.to_thread(running.until, settled(running, path, 12))
        await ended(lines, answering)

    asyncio.run(live())
    assert are_true(running.reports(), path) == 12
    assert len({one["start"] for one in running.reports()}) == len(running.reports())
    assert running.end(signal.SIGTERM) == 0


def test_a_missing_message_is_unseen_never_zero(running: Running) -> None:
    path = recent(6, 500, 6)
    agents = pair(path, RDA)
    made = [agent.messages(0, 7) for agent in agents]
    made[1] = [message for i, message in enumerate(made[1]) if i not in (2, 3)]
    for agent, messages in zip(agents, made, strict=True):
        agent.__dict__["messages"] = lambda first, count, messages=messages: messages
    send(running.url, agents, 7, lambda: sum(one["missed"] for one in running.reports()) == 2)
    missing = [one for one in running.reports() if one["missed"]]
    assert [one["start"] - path.start_ns / 1e9 for one in missing] == [2.0, 3.0]
    for one in missing:
        assert (one["mean"], one["lost"], one["loss"], one["covered"]) == (None, None, None, 0.0)
        assert one["reason"] == "B has sent nothing about it"
    before = next(one for one in running.reports() if one["start"] == path.start_ns / 1e9 + 1)
    assert before["lost"] is None


def test_a_clean_end_is_quick_despite_a_listener(running: Running) -> None:
    parts = urlsplit(running.url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=PATIENCE_S) as listener:
        listener.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert listener.recv(12) == b"HTTP/1.1 200"
        assert running.end(signal.SIGTERM) == 0
    assert "graceful shutdown exceeded" not in running.log, "the end waited for the listener"
    assert "Traceback" not in running.log


# ---- access ----


@pytest.mark.parametrize("path", ["/", "/metrics", "/openapi.json", "/assets/page.js", "/nothing", *PARAMETERS])
def test_without_the_token_everything_is_401(guarded: Running, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": "wirelag=x"},
                    {"Accept": "text/html"}):  # fmt: skip
        assert guarded.get(path, headers)[0] == 401
    assert guarded.get(path, {"Authorization": f"Bearer {OF_A}"})[0] == 403  # of an agent, which reads nothing


def test_messages_need_a_token_of_their_point(guarded: Running) -> None:
    agents = pair(recent(1, 50, 7), RDA)
    of_a, of_b = (encode(agent.messages(0, 1)[0]) for agent in agents)
    assert post(guarded.url, of_a) == 401
    assert post(guarded.url, of_a, {"Authorization": f"Bearer {OF_A}"}) == 204
    assert post(guarded.url, of_b, {"Authorization": f"Bearer {OF_A}"}) == 403
    assert post(guarded.url, of_b, {"Authorization": f"Bearer {TOKEN}"}) == 204


def test_a_token_opens_a_session_for_the_page(guarded: Running) -> None:
    parts = urlsplit(guarded.url)

    def login(token: str) -> http.client.HTTPResponse:
        line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
        line.request("POST", "/login", f"token={token}", {"Content-Type": "application/x-www-form-urlencoded"})
        answer = line.getresponse()
        answer.read()
        line.close()
        return answer

    assert login("wrong").status == 401
    assert login(OF_A).status == 401
    answer = login(TOKEN)
    cookie = answer.getheader("set-cookie", "")
    assert answer.status == 303
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/", {"Cookie": cookie.partition(";")[0]})[0] == 200


def test_without_a_token_other_host_names_are_refused(running: Running) -> None:
    assert running.get("/", {"Host": "evil.example"})[0] == 403
    assert running.get("/metrics", {"Host": "localhost:1"})[0] == 200


# ---- garbage ----


def test_garbage_is_counted_and_changes_nothing(running: Running) -> None:
    path = recent(4, 500, 8)
    agents = pair(path, RDA)
    good = encode(agents[0].messages(0, 1)[0])
    for body, status in (
        (b"", 400), (b"garbage" * 99, 400), (good[:-7], 204), (good[:4] + b"\7\0" + good[6:], 503),
        (good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], 204), (good + b"more", 204),
    ):  # fmt: skip
        assert post(running.url, body) in (status, 400), body[:20]
    strange = [
        replace(agents[0].messages(0, 1)[0], point="nobody"),
        replace(agents[0].messages(0, 1)[0], segment="X>Y"),
        replace(pair(path, replace(RDA, seed=9))[1].messages(1, 1)[0], point="C"),
    ]
    for message in strange:
        assert post(running.url, encode(message)) == 204
    later = replace(recent(4, 500, 8), start_ns=path.start_ns + 2 * 86_400 * SECOND_NS)
    ahead = replace(agents[1], start_ns=later.start_ns, kept={})
    assert post(running.url, encode(ahead.messages(0, 1)[0])) == 204
    send(running.url, agents, 5, settled(running, path, 4))
    for message in agents[0].messages(0, 4):  # replayed
        assert post(running.url, encode(message)) == 204
    counted = running.counted()
    assert counted.get("garbage", 0) + counted["http garbage"] >= 5
    assert counted["of no segment"] >= 3
    assert counted["from the future"] == 1
    assert are_true(running.reports(), path) == 4
    assert running.process.poll() is None


def test_a_huge_message_is_refused_before_it_is_sent(running: Running) -> None:
    parts = urlsplit(running.url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=PATIENCE_S) as line:
        about = f"Host: 127.0.0.1\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {100 << 20}"
        head = f"POST /v1/messages HTTP/1.1\r\n{about}\r\n\r\n"
        line.sendall(head.encode())
        assert line.recv(12) == b"HTTP/1.1 413"
    assert running.counted()["http too large"] == 1


# ---- disks and listeners ----


@pytest.mark.parametrize("each", [1, 8])
def test_a_message_lost_to_a_full_disk_is_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], each: int
) -> None:
    """Also where the disk fills up in the middle of a batch: what its first messages led to is stored later."""
    path = Travelled.made(30, 200, 12, loss=0.0)
    agents = pair(path, Lda(64, (0,), tail=100))
    messages = [encode(one) for two in zip(*(agent.messages(0, 31) for agent in agents), strict=True) for one in two]
    store = SqliteStore(str(tmp_path / "store.db"))
    collector = Collector(Rounds([Ends("A>B", "A", "B")]), store, lambda: EPOCH_NS + 32 * SECOND_NS)
    (pages,) = store._base.execute("pragma page_count").fetchone()
    store._base.execute(f"pragma max_page_count = {pages + (3 if each == 1 else 7)}")
    batches = [messages[i : i + each] for i in range(0, len(messages), each)]
    refused = [batch for batch in batches if collector._take(batch) is None]
    assert 10 < each * len(refused) < len(messages)
    told = capsys.readouterr().err
    assert "agents keep their messages" in told
    store._base.execute("pragma max_page_count = 100000")
    for batch in refused:
        assert collector._take(batch) is not None
    rows = store.rows("A>B", None, SECOND_NS, (0, 2**62), 100)
    assert [row.start_ns for row in rows] == [EPOCH_NS + i * SECOND_NS for i in range(31)]
    assert sum(row.tally.sent for row in rows) == sum(row.tally.loss_sent for row in rows) == 6000
    store.close()


def test_a_slow_listener_is_disconnected(tmp_path: Path) -> None:
    async def slow() -> None:
        store = SqliteStore(str(tmp_path / "store.db"))
        collector = Collector(Rounds([]), store)
        listening = collector.listeners.listen()
        first = asyncio.ensure_future(anext(listening))
        await asyncio.sleep(0)
        for number in range(MOST_UNHEARD + 2):
            collector.listeners.tell([Said("A>B", {"number": number})])
        with pytest.raises(StopAsyncIteration):
            await first
        await collector.close()

    asyncio.run(slow())


# ---- documents ----


def test_the_document_is_up_to_date() -> None:
    assert (DOCS / "openapi.json").read_text() == written(), (
        "python -m wirelag.collector.openapi > docs/reference/openapi.json"
    )


def test_wrong_parameters_are_reported(running: Running) -> None:
    for query, says in (
        ({}, "segment is missing"),
        ({"segment": "A>B", "from": "nan"}, "from must be a number from 0 to"),
        ({"segment": "A>B", "limit": "0"}, "limit must be a number from 1 to 10000"),
        ({"segment": "A>B", "resolution": "week"}, "resolution must be one of interval, minute, hour"),
        ({"segment": "A>B", "colour": "red"}, "'colour' is not a parameter"),
    ):
        status, text = running.get("/api/v1/reports", None, **query)
        assert status == 400
        assert says in json.loads(text)["error"]
    assert running.get("/api/v1/reports", None, segment="X>Y")[0] == 404
    status, text = running.get("/api/v1/path", None, source="A", target="B")
    assert status == 404
    assert "--topology" in text


@pytest.mark.acceptance
def test_schemathesis_finds_nothing(running: Running, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.skip(needs.needs("schemathesis", "pip install schemathesis"))
    path = recent(3, 300, 10)
    send(running.url, pair(path, RDA), 4, settled(running, path, 3))
    ran = subprocess.run(
        [str(program), "run", f"{running.url}/openapi.json", "--exclude-path", "/api/v1/events", "--checks", "all",
         "-n", "12", "--seed", "1", "--workers", "1", "--no-color"],
        capture_output=True, text=True, timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:]


def test_every_response_is_described() -> None:
    assert set(document()["paths"]) == set(PARAMETERS)


# ---- settings ----


def test_check_reports_the_settings(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "collector.toml").write_text(
        f"""
        listen = "127.0.0.1:0"
        store = "{tmp_path}/results.db"
        token_file = "{tmp_path}/tokens"
        segments = ["A>B", {{ name = "B[A>C]", upstream = "b1", downstream = "b2" }}]
        [retain]
        intervals = "3d"
        size = "2GiB"
        """
    )
    ran = wirelag("collect", tmp_path / "collector.toml", "--check")
    assert "holders of one of 1 tokens" in ran.stdout
    assert "B[A>C]: from b1 to b2" in ran.stdout
    assert "at most 2048 MiB in total" in ran.stdout
    assert TOKEN not in ran.stdout + ran.stderr
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--listen", "0.0.0.0:0"], "needs a token"),
        (["--listen", "nonsense"], "is not ADDRESS:PORT"),
        (["--token-file", "/no/such/file"], "/no/such/file: cannot read"),
        (["--segment", "A"], "is not a segment"),
        (["--retain", "intervals=soon"], "is not a duration"),
        (["--retain", "soon"], "is not WHAT=HOW"),
        (["--nats", "nats://example.org:4222"], "in plain text"),
        (["--certificate", "/dev/null"], "go together"),
        (["/no/such.toml"], "/no/such.toml: cannot read"),
        (["--topology", "/no/such.json", "--check", "--listen", "127.0.0.1:0"], "/no/such.json"),
    ],
)
def test_wrong_settings_are_one_line(words: list[str], says: str) -> None:
    ran = wirelag("collect", *words, code=2)
    assert says in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line(running: Running, tmp_path: Path) -> None:
    port = running.url.rpartition(":")[2]
    ran = wirelag("collect", "--listen", f"127.0.0.1:{port}", "--store", tmp_path / "other.db", code=2)
    assert "cannot listen" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_changed_settings_can_be_checked_beside_the_collector(running: Running, tmp_path: Path) -> None:
    """Before a reload: its port is in use by itself. Its store is not changed, nor its lock taken from it."""
    where = ("--listen", f"127.0.0.1:{running.url.rpartition(':')[2]}", "--segment", "X>Y", "--check")
    files = {path: path.stat().st_mtime_ns for path in running.store.parent.glob("store.db*")}
    ran = wirelag("collect", *where, "--store", running.store)
    assert f"is running (process {running.process.pid})" in ran.stdout
    assert "X>Y: from X to Y" in ran.stdout
    assert {path: path.stat().st_mtime_ns for path in running.store.parent.glob("store.db*")}.keys() == files.keys()
    assert "cannot listen" in wirelag("collect", *where, "--store", tmp_path / "other.db", code=2).stderr
    assert "writes to it" in wirelag("collect", "--listen", "127.0.0.1:0", "--store", running.store, code=2).stderr
