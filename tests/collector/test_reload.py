"""SIGHUP: a running collector takes over tokens, certificate, segments and retention, or says why not."""

import asyncio
import re
import signal
import ssl
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, login, recent, send, settled
from tests.support.transport_peers import make_certificate, run
from tests.support.waiting import until
from wirelag import settings as settings_reader
from wirelag.collector.agents import ALIVE_NS, Presence
from wirelag.collector.reload import LATER, TAKEN, Reload, changed
from wirelag.collector.settings import Settings
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import MOST_CLASSES, Rounds
from wirelag.transport import Address, Unreachable, sender

FIRST, SECOND, AGENT = "the-first-token-of-all", "the-second-token-of-all", "the-token-of-an-agent"


def test_tokens_segments_and_retention_are_read_again(tmp_path: Path) -> None:
    tokens, settings = tmp_path / "tokens", tmp_path / "collector.toml"
    tokens.write_text(f"{FIRST}\n{AGENT} A\n")
    settings.write_text(f'token_file = "{tokens}"\nsegments = ["A>B"]\n')
    with Running(tmp_path, str(settings), token=FIRST) as running:
        session = login(running.url, FIRST)
        assert len(running.json("/api/v1/segments")["segments"]) == 1

        tokens.write_text(f"{SECOND}\n")
        settings.write_text(
            f'token_file = "{tokens}"\nsegments = ["A>B", "B>C"]\nslow = "3ms"\n[retain]\nintervals = "5d"\n'
        )
        running.process.send_signal(signal.SIGHUP)
        until(lambda: running.get("/api/v1/segments")[0] == 401, "that the first token is refused")
        assert running.get("/api/v1/segments", {"Cookie": session})[0] == 401  # nor its session
        running.token = SECOND
        until(lambda: len(running.json("/api/v1/segments")["segments"]) == 2, "the second segment")
        assert not accepts(running.url, AGENT)
        assert accepts(running.url, SECOND)

        settings.write_text('segments = "no list"\n')
        running.process.send_signal(signal.SIGHUP)
        running.read_log("the previous settings stay")  # two signals at once would be one
        settings.unlink()
        running.process.send_signal(signal.SIGHUP)
        running.read_log("the previous settings stay")
        assert accepts(running.url, SECOND)
        assert running.end(signal.SIGTERM) == 0
    lines = [line.removeprefix("wirelag: ") for line in running.log.splitlines() if "SIGHUP" in line]
    assert lines[0] == (
        "SIGHUP: settings were read again, certificate included; changed: tokens, segments, retain, slow"
    )
    assert len(lines) == 3
    assert all(line.endswith("; the previous settings stay") for line in lines[1:])
    assert str(settings) in lines[2]


def test_each_setting_is_taken_over_or_named(tmp_path: Path) -> None:
    """Limits, removed segments and the threshold of slow ones at once; the rest is named until there is a restart."""
    settings, topology = tmp_path / "collector.toml", tmp_path / "topology.json"
    settings.write_text('segments = ["A>B", "B>C"]\n[limits]\nmessages = 400\n')
    path = recent(3, 20, 3)
    agents = pair(path, RDA)
    with Running(tmp_path, str(settings)) as running:
        send(running.url, agents, 3, settled(running, path, 2))
        assert 'segment="A>B"' in running.get("/metrics")[1]
        settings.write_text(
            f'segments = ["B>C", "C>D"]\nslow = "3ms"\ntopology = "{topology}"\n[follow]\nevery = "2s"\n[limits]\n'
            'messages = 300\nsegments = 7\nmemory = "32MiB"\nstrangers = 99\n'
        )
        for _ in range(2):
            running.process.send_signal(signal.SIGHUP)
            running.read_log("SIGHUP")
        metrics = running.get("/metrics")[1]
        assert 'segment="A>B"' not in metrics
        limits = {"messages_per_second_of_a_point": 300, "segments_of_a_point": 7, "strangers_of_an_address": 99}
        for limit, most in (limits | {"waiting_bytes": 32 << 20}).items():
            (found,) = re.findall(rf'^wirelag_limit{{limit="{limit}"}} (.*)$', metrics, re.MULTILINE)
            assert float(found) == most, limit
        accepts(running.url, "")
        assert running.counted()["of no segment"] == 1
        assert len(running.reports()) == 3  # what was measured stays
        running.end(signal.SIGTERM)
    lines = [line for line in running.log.splitlines() if "SIGHUP" in line]
    assert lines[0].endswith("changed: segments, slow, limits; restart to change topology, follow")
    assert lines[1].endswith("changed: nothing; restart to change topology, follow")


def test_no_setting_is_left_out_of_a_reload() -> None:
    before = Settings.of({}, "test")
    assert {one.name for one in fields(Settings)} == {*TAKEN, *LATER, "given", "token_file"}
    assert changed(before, replace(before, host="::1", port=9, store="x"), LATER) == ["listen", "store"]


def test_limits_hold_from_the_reload_on() -> None:
    """Those of messages, connections, segments, classes and memory."""
    message = pair(recent(2, 20, 3), RDA)[0].messages(0, 1)[0]
    rounds = Rounds([], named_by_agents=True)
    for name in ("A>C", "A>D", "A>E"):
        rounds.take(replace(message, segment=name), 0)
    assert len(rounds.segments) == 3
    assert rounds.classes_of("A>C") == MOST_CLASSES // 3
    rounds.allow(1, 3, 48)
    rounds.take(replace(message, segment="A>F"), 0)
    assert len(rounds.segments) == 3
    assert rounds.counted["segments beyond the limit"] == 1
    assert rounds.classes_of("A>C") == 16
    rounds.take(replace(message, interval=message.interval, segment="A>D", point="D"), 0)
    assert rounds.bytes == 0  # all of it went
    assert rounds.measure([Ends("A>C", "A", "C")], named_by_agents=False) == ["A>D", "A>E"]
    assert rounds.segments == [Ends("A>C", "A", "C")]
    assert rounds.classes_of("A>C") == 48  # it is the operator's now


def test_a_renewed_certificate_is_used(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    before = certificate.read_text()
    words = ("--certificate", str(certificate), "--key", str(key))
    with Running(tmp_path, *words) as running:
        where = "127.0.0.1", int(running.url.rpartition(":")[2])
        assert ssl.get_server_certificate(where) == before
        make_certificate(tmp_path)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: ssl.get_server_certificate(where) == certificate.read_text(), "the new certificate")
        key.write_text("not a key")
        running.process.send_signal(signal.SIGHUP)
        running.read_log("no certificate that fits")
        until(lambda: ssl.get_server_certificate(where) == certificate.read_text(), "the same certificate")
        running.end(signal.SIGTERM)
    assert certificate.read_text() != before
    assert "no certificate that fits" in running.log


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between two reads."""
    monkeypatch.setattr(settings_reader, "APART_S", 0)


@pytest.mark.parametrize("cut", [0, -1, -8, -len(f"\n{AGENT} A\n") - 6], ids=["empty", "no newline", "half", "no A"])
@pytest.mark.usefixtures("at_once")
def test_a_half_written_file_of_tokens_changes_nothing(tmp_path: Path, cut: int) -> None:
    """Half a line is another token, without a scope: one for everything."""
    tokens, whole = tmp_path / "tokens", f"{SECOND} metrics\n{FIRST} read\n{AGENT} A\n"
    tokens.write_text(whole[:cut])
    before = Settings.of({}, "test")
    now = replace(before, tokens={FIRST: "admin"}, token_file=str(tokens))
    taken: list[Settings] = []

    async def take(new: Settings) -> None:
        taken.append(new)

    async def work() -> None:
        reload = Reload(now, lambda: Settings.of({"token_file": str(tokens)}, "test"), take)
        reload.begin()
        await reload.done()
        assert not taken
        tokens.write_text(whole)
        reload.begin()
        await reload.done()

    run(work())
    assert [list(one.tokens or ()) for one in taken] == [[SECOND, FIRST, AGENT]]


@pytest.mark.usefixtures("at_once")
def test_files_that_change_are_read_until_they_do_not(tmp_path: Path) -> None:
    """A writer that is slow: each part of the file would be a file of tokens."""
    tokens, lines = tmp_path / "tokens", [f"{FIRST}\n", f"{SECOND} read\n", f"{AGENT} A\n"]
    tokens.write_text("")
    taken: list[Settings] = []

    def read() -> Settings:
        if lines:
            tokens.write_text(tokens.read_text() + lines.pop(0))
        return Settings.of({"token_file": str(tokens)}, "test")

    async def take(new: Settings) -> None:
        taken.append(new)

    async def work() -> None:
        reload = Reload(Settings.of({}, "test"), read, take)
        reload.begin()
        await reload.done()

    run(work())
    assert [len(one.tokens or ()) for one in taken] == [3]


@pytest.mark.usefixtures("at_once")
def test_many_signals_are_two_reloads() -> None:
    """One that was under way, and one for what has changed since."""
    taken: list[Settings] = []

    async def take(new: Settings) -> None:
        taken.append(new)

    async def work() -> None:
        reload = Reload(Settings.of({}, "test"), lambda: Settings.of({}, "test"), take)
        reload.begin()
        await asyncio.sleep(0)
        for _ in range(1000):
            reload.begin()
        await reload.done()

    run(work())
    assert len(taken) == 2


def test_agents_that_end_and_come_back_are_in_the_log(tmp_path: Path) -> None:
    """A line when an agent ends or falls silent, and one when it is back; none for those that are as they were."""
    presence, silent_s = Presence(["old"], 0.0), ALIVE_NS / 1e9
    assert presence.heard("A", False, 1.0) is None
    assert presence.silent(silent_s - 1) == []
    assert presence.silent(silent_s + 2) == ["old: nothing heard for 30 s", "A: nothing heard for 30 s"]
    assert presence.silent(silent_s + 3) == []
    assert presence.heard("A", False, 301.0) == "A is heard again, after 5 min"
    assert presence.heard("A", False, 302.0) is None
    assert presence.heard("A", True, 303.0) == "A: the agent has ended"
    assert presence.heard("A", True, 303.0) is None
    assert presence.silent(1000.0) == []
    assert presence.heard("A", False, 2000.0) == "A is heard again"
    presence.forget("A")
    assert presence.silent(3000.0) == []


def accepts(url: str, token: str) -> bool:
    """Whether a message with this token is stored."""
    message = pair(recent(2, 10, 1), RDA)[0].messages(0, 1)[0]

    async def work() -> None:
        line = sender(Address(url, token), message.point)
        try:
            await line.send(encode(message), message.key)
        except Unreachable as error:
            refused.append(str(error))
        await line.close()

    refused: list[str] = []
    run(work())
    assert all("does not accept the token" in line for line in refused)
    return not refused
