"""What the holder of one agent's token, or of none, can do to a collector: each attack as it was found."""

import http.client
import json
import re
import select
import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.support.agent_messages import SECOND_NS, pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.hostile import OF_EVIL, TOKEN, collector, opened, peak_bytes, post
from tests.support.messages import as_message, taken_apart
from tests.support.waiting import PATIENCE_S
from wirelag.collector.agents import Agents
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.estimators.rli import Rli
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import ClockReading, Message, Seen, encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import MOST_NAMED, PROMPT_NS, Rounds
from wirelag.protocol.terms import Terms
from wirelag.synopses.symbols import symbols_of
from wirelag.transport.http import MEDIA_TYPE
from wirelag.transport.notices import LONGEST, MOST, Notices
from wirelag.transport.quotas import Limits, Quotas

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
    assert stored.all(0, 0)[0]["says"] == {"spooled": 3}


@pytest.mark.parametrize("text", ["rows)\nwirelag: A>B is not measured: FORGED \x1b[31mred", "x" * 3_000_000])
def test_terms_write_nothing_into_the_log(attacked: Running, text: str) -> None:
    """`terms.deviation` was any text: forged lines, and 26 MB of log from ten messages."""
    up, down = (agent.messages(0, 1)[0] for agent in pair(recent(12, 50, 33), RDA))
    assert isinstance(up.terms.estimator, Rda)
    forged = replace(up.terms, estimator=replace(up.terms.estimator, deviation=text))  # type: ignore[arg-type]
    assert post(attacked, encode(replace(up, point="C", terms=forged))) == 400
    assert post(attacked, encode(replace(down, point="D")), TOKEN) == 204
    serves(attacked)  # and its log, at the end, has no forged line


@pytest.mark.parametrize("name", ["\ud800", "x\nwirelag: FORGED \x1b[31m", "x" * 50_000])
def test_names_that_no_version_knows_are_shown_escaped(
    attacked: Running, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of an unknown parameter was in the reply, which a surrogate made 500, and from a broker in the log."""
    message = replace(pair(recent(1, 50, 33), RDA)[0].messages(0, 1)[0], point="C")
    names, arrays = taken_apart(encode(message))
    plain = json.loads(names)
    plain[0]["terms"]["packet_id"][name] = 1
    forged = as_message(json.dumps(plain).encode(), arrays)
    assert post(attacked, forged) == 503
    serves(attacked)
    running = inside(tmp_path)
    assert running._take([forged]) == []
    said = capsys.readouterr().err
    assert said.startswith("wirelag: a message has terms that this version does not know")
    assert (said.count("\n"), said.rstrip("\n").isprintable(), len(said) < 500) == (1, True, True)
    running.store.close()


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


# ---- memory of what waits ----

SMALL = 8 * MIB  # the limit of what waits


def inside(folder: Path, segments: Sequence[str] = ("A>B", "C>D"), most_bytes: int = SMALL) -> Collector:
    """A collector without its server, which nobody can reach but the test."""
    ends = [Ends(name, *name.split(">")) for name in segments]
    rounds = Rounds(ends, named_by_agents=not ends, most_bytes=most_bytes)
    running = Collector(rounds, SqliteStore(str(folder / "store.db")))
    running._ask_for = lambda asks: None  # type: ignore[method-assign]
    return running


def cuts(count: int, rows: int, point: str = "C", segment: str | None = "C>D") -> Iterator[Message]:
    """Cuts of lda at packets that no other point has seen: they wait."""
    terms = Terms(Lda(rows, (0,), tail=8), interval_ns=SECOND_NS, delimiters=Delimiters(SECOND_NS))
    start_ns, values = time.time_ns() - 40 * SECOND_NS, np.arange(rows, dtype=np.uint64)
    for number in range(count):
        interval = Interval(start_ns + number * 10**7, start_ns + (number + 1) * 10**7, number + 1)
        tail = {"tail_ids": values[:1], "tail_times_ns": np.zeros(1, np.int64), "tail_level": 0, "tail_packets": 1}
        place = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": interval.name, "class": None}
        record = place | {"counts": values, "sums": values, "base_ns": 0} | tail
        clock = ClockReading(True, 1, "stated")
        yield Message("synopsis", point, segment, interval, terms, clock, Seen(1, 0, 1, 1), (record,), interval.end_ns)


def test_one_point_fills_only_its_own_share(tmp_path: Path) -> None:
    """A real collector: large cuts that wait, the halves of others before and after them, kill -9, and a restart."""
    (tmp_path / "c.toml").write_text('limits.memory = "32MiB"\n')
    ups, downs = (agent.messages(0, 3) for agent in pair(recent(3, 200, 5), Lda(64, (0,), tail=64)))
    with collector(tmp_path, "shares", (), str(tmp_path / "c.toml")) as running:
        before = peak_bytes(running)
        for message in ups:
            assert post(running, encode(replace(message, segment="A>B")), TOKEN) == 204
        for number, message in enumerate(cuts(45, 1 << 16)):
            assert post(running, encode(replace(message, segment=f"C>x{number}"))) == 204
        for message in downs:
            assert post(running, encode(replace(message, segment="A>B")), TOKEN) == 204
        assert [(one["missed"], one["reason"]) for one in running.reports("A>B")[:2]] == [(0, None)] * 2
        assert running.counted()["dropped because memory was full"] > 10
        assert in_use(running)["waiting_bytes"] <= 32 * MIB
        assert peak_bytes(running) - before < 128 * MIB
        running.end(signal.SIGKILL)
        with running:
            running.until(lambda: in_use(running)["waiting_bytes"] > 16 * MIB)
            assert in_use(running)["waiting_bytes"] <= 32 * MIB
            assert peak_bytes(running) - before < 160 * MIB


def in_use(running: Running) -> dict[str, float]:
    """How much of each limit is in use."""
    found = re.findall(r'wirelag_limit_used{limit="(\w+)"} (\S+)', running.get("/metrics")[1])
    return {name: float(value) for name, value in found}


def test_waiting_cuts_have_a_bound_also_after_a_restart(tmp_path: Path) -> None:
    """Cuts at packets were not counted: 24 messages took 1 GB, and again at every start."""
    running = inside(tmp_path)
    for message in cuts(60, 1 << 16):
        assert running._take([encode(message)]) is not None
        assert running.rounds.bytes <= SMALL
    assert running.rounds.counted["dropped because memory was full"] > 40
    assert len(list(running.store.messages_since(0))) == 60  # nothing that was acknowledged is lost
    again = Collector(Rounds([Ends("C>D", "C", "D")], most_bytes=SMALL), running.store)
    tracemalloc.start()
    assert again.resume() is not None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again.rounds.bytes <= SMALL
    assert peak < 2 * SMALL + 32 * MIB  # what waits, with what is read at once
    running.store.close()


def test_large_messages_push_out_nobody_else_s(tmp_path: Path) -> None:
    """One point's large messages pushed out another's acknowledged half, which then "had sent nothing"."""
    running, path = inside(tmp_path, ()), recent(3, 200, 5)
    ups, downs = (agent.messages(0, 3) for agent in pair(path, Lda(64, (0,), tail=64)))
    for message in ups:
        assert running._take([encode(replace(message, segment="A>B"))]) is not None
    for number, message in enumerate(cuts(40, 1 << 16)):
        assert running._take([encode(replace(message, segment=f"C>x{number}"))]) is not None
    assert running.rounds.counted["dropped because memory was full"] > 20
    for message in downs:
        assert running._take([encode(replace(message, segment="A>B"))]) is not None
    reports = running.store.rows("A>B", None, SECOND_NS, (0, 2**62), 9)
    assert [(row.tally.missed, row.tally.reason) for row in reports[:2]] == [(0, None)] * 2
    assert all(row.tally.moments.used > 150 for row in reports[:2])
    running.store.close()


def test_what_had_to_go_is_read_again_before_anything_is_said(tmp_path: Path) -> None:
    """A point that fills the memory by itself: its halves are in the store, and are found there."""
    running, path = inside(tmp_path), recent(12, 2000, 6)
    running.rounds = Rounds([Ends("A>B", "A", "B")], most_bytes=200_000)
    ups, downs = (agent.messages(0, 12) for agent in pair(path, Lda(1024, (0,), tail=64)))
    for message in ups:
        assert running._take([encode(message)]) is not None
    assert running.rounds.counted["dropped because memory was full"] > 3
    for message in downs:
        assert running._take([encode(message)]) is not None
    rows = running.store.rows("A>B", None, SECOND_NS, (0, 2**62), 20)
    assert [row.tally.missed for row in rows] == [0] * 12
    assert all(row.tally.received for row in rows[:11])
    running.store.close()


def test_intervals_that_wait_for_replies_end_with_what_is_known(tmp_path: Path) -> None:
    """Both halves are there, but the replies do not come: memory is made by giving the result."""
    running, path = inside(tmp_path), recent(12, 500, 7, loss=0.3)
    running.rounds = Rounds([Ends("A>B", "A", "B")], most_bytes=200_000)
    for two in zip(*(agent.messages(0, 12) for agent in pair(path, RDA)), strict=True):
        for message in two:
            assert running._take([encode(message)]) is not None
            assert running.rounds.bytes <= 200_000
    assert running.rounds.counted["dropped because memory was full"] > 3
    later_ns = running.steady() + PROMPT_NS
    running.steady = lambda: later_ns  # the last ones have waited for long enough
    assert running._pass_time() is not None
    rows = running.store.rows("A>B", None, SECOND_NS, (0, 2**62), 20)
    assert [row.tally.missed for row in rows] == [0] * 12
    running.store.close()


# ---- many results from few bytes ----


def summed(segment: str | None, start_ns: int, classes: int, point: str = "C") -> Message:
    """What rli says of an interval: a result by itself, with classes."""
    interval = Interval(start_ns, start_ns + SECOND_NS)
    sums = {"packets": 1, "timed": 1, "sum_ns": 1, "variance_ns2": 0, "error_ns2": None}
    place = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": None}
    heard = {"references": 1, "references_lost": 0, "references_rejected": 0, "sender_ns": 0}
    records = [place | {"class": None} | sums | heard]
    records += [place | {"class": f"{number:x}"} | sums for number in range(classes)]
    terms, seen = Terms(Rli(), interval_ns=SECOND_NS), Seen(1, 0, SECOND_NS, 1)
    clock = ClockReading(True, 1, "stated")
    return Message("synopsis", point, segment, interval, terms, clock, seen, tuple(records), interval.end_ns)


def test_a_message_without_a_segment_is_not_about_hundreds(tmp_path: Path) -> None:
    """1,456 bytes were a result of 400 classes of 512 segments: 21 s, and no class was left for others."""
    running, now_ns = inside(tmp_path, ()), time.time_ns() // SECOND_NS * SECOND_NS
    named = [encode(summed(f"x{number}>C", now_ns - 5 * SECOND_NS, 0)) for number in range(MOST_NAMED)]
    assert running._take(named[:256]) is not None
    assert running._take(named[256:]) is not None
    assert len(running.rounds.segments) == MOST_NAMED
    assert running._take([encode(summed(None, now_ns - 2 * SECOND_NS, 400))]) == []
    assert running.rounds.counted["of too many segments"] == 1
    assert {key for _, key in running.store.series()} == {None}
    running.store.close()


def test_a_point_has_a_share_of_segments_and_classes(tmp_path: Path) -> None:
    running, now_ns = inside(tmp_path, ()), time.time_ns() // SECOND_NS * SECOND_NS
    running.rounds = Rounds([], named_by_agents=True, most_named=4, most_classes=64)
    for number in range(6):
        at_ns = now_ns - (number + 2) * SECOND_NS
        assert running._take([encode(summed(f"x{number}>C", at_ns, 40))]) is not None
        assert running._take([encode(summed(f"x{number}>C", at_ns - 60 * SECOND_NS, 40))]) is not None
    assert running.rounds.counted["segments beyond the limit"]
    classes = [segment for segment, key in running.store.series() if key is not None]
    assert len(set(classes)) == 4
    assert len(classes) <= 40 + 32 + 21 + 16  # the first was alone when it came
    assert running.store.beyond > 0
    assert running._take([encode(summed("A>B", now_ns - 2 * SECOND_NS, 40, "B"))]) is not None
    assert sum(segment == "A>B" and key is not None for segment, key in running.store.series()) == 40
    running.store.close()


# ---- connections, and silence ----


def test_a_length_that_is_only_declared_takes_nothing(attacked: Running) -> None:
    """Memory was reserved by declared lengths: eight silent requests, and everyone was refused for 29 s."""
    with ExitStack() as lines:
        for _ in range(8):
            lines.enter_context(opened(attacked, f"{HEAD}Content-Length: {(16 << 20) - (1 << 14)}\r\n\r\n"))
        serves(attacked)


def test_bytes_that_wait_count_for_their_point(attacked: Running) -> None:
    """Three requests that stop just before their end: one or two are refused, and requests of others are not."""
    most = 16 << 20
    with ExitStack() as lines:
        held = [lines.enter_context(opened(attacked, f"{HEAD}Content-Length: {most}\r\n\r\n")) for _ in range(3)]
        for line in held:
            with suppress(OSError):
                line.sendall(bytes(most - 1))
        assert select.select(held, [], [], PATIENCE_S)[0]  # one of them has its reply
        refused = select.select(held, [], [], 0)[0]
        assert {line.recv(12) for line in refused} == {b"HTTP/1.1 503"}
        assert len(refused) < 3
        serves(attacked)


def test_strangers_shut_nobody_out(attacked: Running) -> None:
    """4,100 idle connections of a stranger: everyone got 503, also on a connection kept open."""
    where = urlsplit(attacked.url)
    body = encode(pair(recent(1, 50, 1), RDA)[0].messages(0, 1)[0])
    words = {"Content-Type": MEDIA_TYPE, "Authorization": f"Bearer {TOKEN}"}
    kept = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
    with closing(kept), ExitStack() as lines:
        for number in range(600):
            lines.enter_context(opened(attacked, ""))
            if number % 300 == 0:
                kept.request("POST", "/v1/messages", body, words)
                assert kept.getresponse().read() == b""
        serves(attacked)
        kept.request("POST", "/v1/messages", body, words)
        assert kept.getresponse().status == 204
        used = in_use(attacked)
    assert attacked.counted()["strangers sent off"] > 590 - Limits().strangers
    assert used["strangers"] <= Limits().strangers
    assert used["connections"] <= Limits().strangers + 5


def test_a_point_has_a_share_of_connections(attacked: Running) -> None:
    ask = f"GET /v1/asks/C HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OF_EVIL}\r\n\r\n"
    with ExitStack() as lines:
        replies = Counter(lines.enter_context(opened(attacked, ask)).recv(12) for _ in range(Limits().connections + 5))
        assert replies == {b"HTTP/1.1 200": Limits().connections, b"HTTP/1.1 429": 5}
        serves(attacked)
    assert attacked.counted()["http too many connections"] == 5


def test_a_point_has_the_same_share_of_connections_for_what_it_may_not_do(attacked: Running) -> None:
    """Refused requests of a right token stay connected, and so they count."""
    ask = f"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OF_EVIL}\r\n\r\n"
    with ExitStack() as lines:
        replies = Counter(lines.enter_context(opened(attacked, ask)).recv(12) for _ in range(Limits().connections + 5))
        assert replies == {b"HTTP/1.1 403": Limits().connections, b"HTTP/1.1 429": 5}
        serves(attacked)


def test_wrong_tokens_are_counted_and_logged_with_their_source(tmp_path: Path) -> None:
    with collector(tmp_path, "wrong") as running:
        for _ in range(3):
            assert running.get("/metrics", {"Authorization": "Bearer wrong-wrong-wrong"})[0] == 401
            assert post(running, b"", "wrong-wrong-wrong") == 401
            with opened(running, "POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\ntoken=x") as line:
                assert line.recv(12) == b"HTTP/1.1 401"
        assert running.get("/metrics", {})[0] == 401
        counted = running.counted()
    assert (counted["refused: a wrong token"], counted["refused: a wrong login"]) == (6, 3)
    assert (counted["refused: no token"], counted["http unauthorised"]) == (1, 3)
    assert running.log.count("wirelag: 127.0.0.1: refused, it sent a wrong token\n") == 1
    assert running.log.count("wirelag: 127.0.0.1: refused, it sent a wrong login\n") == 1
    assert "wrong-wrong" not in running.log


# ---- quotas ----


def test_a_point_waits_beyond_its_rate_and_others_do_not() -> None:
    now_s = 100.0
    quotas = Quotas(Limits(messages=10, bytes=1000, time=0.25), lambda: now_s)
    assert [quotas.wait_s("C", 0, 5.0) for _ in range(101)] == [0.0] * 101  # ten seconds' worth at once
    assert quotas.wait_s("C", 0, 5.0) == pytest.approx(0.1)
    assert [quotas.wait_s("D", 100, 0.0) for _ in range(100)] == [0.0] * 100
    assert quotas.wait_s("D", 10_000, 0.0) == 0.0
    assert quotas.wait_s("D", 1, 0.0) == pytest.approx(10.0)  # and it does not count
    now_s = 111.0
    assert quotas.wait_s("D", 1, 0.0) == 0.0
    quotas.spent("E", 5.0)
    assert quotas.wait_s("E", 0, 0.0) == pytest.approx(10.0)
    assert quotas.wait_s("C", 0, 0.0) == 0.0


def test_an_honest_agent_never_waits() -> None:
    """64 segments, one synopsis and three replies of 30 kB a second each, for ten minutes."""
    now_s = 0.0
    quotas = Quotas(Limits(), lambda: now_s)
    for second in range(600):
        now_s = float(second)
        assert not any(quotas.wait_s("A", 30_000, 0.0) for _ in range(64 * 4))
        quotas.spent("A", 64 * 3e-3)


def test_time_that_messages_take_counts_for_their_point(tmp_path: Path) -> None:
    running, now_ns = inside(tmp_path, ()), time.time_ns() // SECOND_NS * SECOND_NS
    running.quotas = Quotas(Limits(time=1e-6))
    assert running._take([encode(summed("x>C", now_ns - 2 * SECOND_NS, 5))]) is not None
    assert running.quotas.wait_s("C", 0, 0.0) > 100
    assert running.quotas.wait_s("A", 0, 0.0) == 0.0
    running.store.close()
