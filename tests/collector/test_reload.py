"""SIGHUP: a running collector takes over tokens, certificate, segments and retention, or says why not."""

import asyncio
import signal
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, login, recent
from tests.support.transport_peers import make_certificate, run
from tests.support.waiting import until
from wirelag import settings as settings_reader
from wirelag.collector.agents import ALIVE_NS, Presence
from wirelag.collector.reload import Reload
from wirelag.collector.settings import Settings
from wirelag.protocol.messages import encode
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
        "SIGHUP: settings were read again, certificate included; changed: tokens, segments, retain; restart to change "
        "slow_ns"
    )
    assert len(lines) == 3
    assert all(line.endswith("; the previous settings stay") for line in lines[1:])
    assert str(settings) in lines[2]


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
