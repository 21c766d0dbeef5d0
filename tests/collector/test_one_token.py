"""What the holder of one agent's token, or of none, can do to a collector: each attack as it was found."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.hostile import OF_EVIL, TOKEN, collector, opened, peak_bytes, post
from wirelag.collector.agents import Agents
from wirelag.collector.notices import LONGEST, MOST, Notices
from wirelag.estimators.rda import Rda
from wirelag.packets.intervals import Interval
from wirelag.protocol.messages import Message, encode
from wirelag.synopses.symbols import symbols_of
from wirelag.transport.http import MEDIA_TYPE

MIB = 1 << 20
HEAD = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OF_EVIL}\r\nContent-Type: {MEDIA_TYPE}\r\n"
SHORT = Rda(short=True, rows=32, tail=512, memory=64 << 20)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector for all attacks that leave it as it was."""
    with collector(tmp_path_factory.mktemp("attacked"), "attacked") as running:
        yield running
    assert "FORGED" not in running.log
    assert len(running.log) < 2000


def serves(running: Running) -> None:
    """Others are served as if nothing had happened."""
    assert running.process.poll() is None
    assert running.get("/api/v1/agents")[0] == 200
    assert running.get("/metrics")[0] == 200
    assert post(running, encode(pair(recent(1, 50, 1), RDA)[0].messages(0, 1)[0]), TOKEN) == 204
    assert running.counted().get("internal errors", 0) == 0


def test_a_body_in_chunks_is_not_read(attacked: Running) -> None:
    """A length beside chunks: the chunks had no limit, and 600 MiB were taken."""
    before, chunk, sent = peak_bytes(attacked), b"10000\r\n" + bytes(0x10000) + b"\r\n", 0
    with opened(attacked, f"{HEAD}Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n") as line:
        with suppress(OSError):
            while sent < 64 * MIB:
                line.sendall(chunk)
                sent += len(chunk)
        with suppress(ConnectionResetError):  # the reply may be gone with the connection
            assert line.recv(12) in (b"HTTP/1.1 411", b"")
    assert peak_bytes(attacked) - before < 16 * MIB
    serves(attacked)


def test_more_bytes_than_the_length_are_not_read(attacked: Running) -> None:
    with opened(attacked, f"{HEAD}Content-Length: 10\r\n\r\n0123456789") as line:
        assert line.recv(12) == b"HTTP/1.1 400"  # not a message
    serves(attacked)


def test_no_level_makes_a_number_large(attacked: Running) -> None:
    """`cache_level` had no bound: counts were shifted by 2^33 bits, which took 2.2 GB for 2.6 kB."""
    up, down = (agent.messages(0, 1)[0] for agent in pair(recent(6, 200, 3), SHORT))
    record = dict(up.records[0])
    words = symbols_of(np.array([12345], np.uint64), 0, 64, SHORT.seed)
    for level in (31, 1 << 33, (1 << 48) - 1):
        evil = record | {"class": "x", "cache_level": level, "symbols": words, "entries": 1}
        before = peak_bytes(attacked), attacked.counted().get("garbage", 0)
        assert post(attacked, encode(replace(down, point="D")), TOKEN) == 204
        assert post(attacked, encode(replace(up, point="C", records=(record, evil)))) == 204
        assert attacked.counted()["garbage"] == before[1] + 1
        assert peak_bytes(attacked) - before[0] < 16 * MIB
    serves(attacked)


def status(message: Message, **says: object) -> bytes:
    at_ns = message.interval.end_ns
    record = {"start_ns": at_ns, "end_ns": at_ns, "name": None, "class": None} | says
    return encode(
        replace(message, type="status", point="C", segment=None, interval=Interval(at_ns, at_ns), records=(record,))
    )


@pytest.mark.parametrize("text", ["\ud800", "a\nb", "\x1b[31m", "x" * 257])
def test_no_text_of_a_status_breaks_a_reply(attacked: Running, text: str) -> None:
    """A lone surrogate made `/api/v1/agents` answer 500 for ever: it was stored."""
    message = pair(recent(1, 50, 33), RDA)[0].messages(0, 1)[0]
    before = attacked.counted().get("garbage", 0)
    for says in ({"version": text}, {text: 1}):
        assert post(attacked, status(message, **says)) == 204
    assert attacked.counted()["garbage"] == before + 2
    serves(attacked)
    kept = {"packets": 0, "unseen": 0, "messages": 1, "bytes": 9}
    stored = Agents({"C": kept | {"says": {"version": text, text: 1, "spooled": 3}}})  # by an earlier collector
    assert stored.all(0)[0]["says"] == {"spooled": 3}


@pytest.mark.parametrize("text", ["rows)\nwirelag: A>B is not measured: FORGED \x1b[31mred", "x" * 3_000_000])
def test_terms_write_nothing_into_the_log(attacked: Running, text: str) -> None:
    """`terms.deviation` was any text: forged lines, and 26 MB of log from ten messages."""
    up, down = (agent.messages(0, 1)[0] for agent in pair(recent(12, 50, 33), RDA))
    assert isinstance(up.terms.estimator, Rda)
    forged = replace(up.terms, estimator=replace(up.terms.estimator, deviation=text))  # type: ignore[arg-type]
    assert post(attacked, encode(replace(up, point="C", terms=forged))) == 400
    assert post(attacked, encode(replace(down, point="D")), TOKEN) == 204
    serves(attacked)  # and its log, at the end, has no forged line


def test_the_log_says_each_thing_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    notices = Notices(lambda: now_s)
    for number in range(1000):
        notices.say("refusals", str(number % 100), f"refused {number}\n\x1b[2J\ud800" + "x" * 1000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST
    assert lines[0].startswith("wirelag: refused 0\\n\\x1b[2J\\ud800xxx")
    assert all(len(line) <= LONGEST + len("wirelag: ") and line.isprintable() for line in lines)
    now_s = 61.0
    notices.pass_time()
    assert capsys.readouterr().err == f"wirelag: refusals: {1000 - MOST} more in the last minute\n"
    notices.pass_time()
    notices.say("refusals", "0", "refused again")
    assert capsys.readouterr().err == "wirelag: refused again\n"
