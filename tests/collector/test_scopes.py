"""Scopes of tokens, and the audit log, with a real collector."""

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.collector_process import Running, login
from tests.support.waiting import until
from wirelag.collector.check import told
from wirelag.collector.settings import Settings
from wirelag.collector.tokens import refusal, senders, tokens_of
from wirelag.errors import WirelagError
from wirelag.transport.audit import MOST_REFUSALS, Audit

ADMIN, READ, METRICS, AGENT = (f"the-token-for-{name}" for name in ("everything", "results", "prometheus", "point-a"))
FILE = f"# who may what\n{ADMIN}\n{READ} read\n{METRICS} metrics\n{AGENT} agent:A\n"


def test_a_file_of_tokens() -> None:
    tokens = tokens_of(FILE + "an-agent-as-before-it-was B\n", "tokens")
    assert list(tokens.values()) == ["admin", "read", "metrics", "agent:A", "agent:B"]
    assert senders(tokens) == {ADMIN: None, AGENT: "A", "an-agent-as-before-it-was": "B"}
    assert senders(None) is None
    for text, why in (
        (f"{AGENT} agent:A\n{METRICS} metrics\n", "no token may read results"),
        (f"{AGENT} agent:\n{ADMIN}\n", "line 1: agent: needs the name of a point"),
        ("short read\n", "line 1 is not a token"),
        (f"{ADMIN}\n{READ} Read\n", "line 2: unknown scope Read; did you mean read"),
        (f"{ADMIN}\n{METRICS} metric\n", "line 2: unknown scope metric; did you mean metrics"),
        (f"{METRICS} metrics\n{ADMIN}\n{METRICS}\n", "line 3 has the token of line 1"),
    ):
        with pytest.raises(WirelagError, match=why):
            tokens_of(text, "tokens")


def test_the_check_names_secrets_that_every_user_may_read(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(FILE)
    settings = Settings.of({"token_file": str(tokens), "listen": "127.0.0.1:0", "store": str(tmp_path / "db")}, "test")
    for mode, warned in ((0o644, True), (0o640, False), (0o600, False)):
        tokens.chmod(mode)
        assert (f"  every user of this host may read {tokens}: chmod o= {tokens}" in list(told(settings))) == warned


def test_what_scopes_allow() -> None:
    asked = [("GET", "/"), ("GET", "/api/v1/segments"), ("DELETE", "/api/v1/agents"), ("GET", "/metrics")]
    allowed = {scope: [not refusal(scope, *one) for one in asked] for scope in ("admin", "read", "metrics", "agent:A")}
    assert allowed == {
        "admin": [True] * 4,
        "read": [True, True, False, True],
        "metrics": [False, False, False, True],
        "agent:A": [False] * 4,
    }


def status(running: Running, token: str, path: str, method: str = "GET") -> int:
    request = urllib.request.Request(running.url + path, headers={"Authorization": f"Bearer {token}"}, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


def test_a_collector_keeps_to_scopes_and_says_who_did_what(tmp_path: Path) -> None:
    tokens, settings, log = tmp_path / "tokens", tmp_path / "collector.toml", tmp_path / "audit.jsonl"
    tokens.write_text(FILE)
    settings.write_text(f'token_file = "{tokens}"\naudit = "{log}"\nsegments = ["A>B"]\n')

    def said(what: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["what"] == what]

    with Running(tmp_path, str(settings), token=ADMIN) as running:
        asked = [("/api/v1/segments", "GET"), ("/metrics", "GET"), ("/api/v1/agents?point=A", "DELETE")]
        found = {token: [status(running, token, *one) for one in asked] for token in (READ, METRICS, AGENT)}
        assert found == {READ: [200, 200, 403], METRICS: [403, 200, 403], AGENT: [403, 403, 403]}
        assert status(running, ADMIN, "/api/v1/agents?point=A", "DELETE") not in (401, 403)
        assert status(running, READ, "/v1/messages", "POST") == 401, "only agents send"
        assert status(running, "guessed-and-not-right", "/metrics") == 401
        session = {"Cookie": login(running.url, READ)}
        running.token = None
        assert running.get("/api/v1/segments", session)[0] == 200
        tokens.write_text(FILE.replace(f"{METRICS} metrics\n", ""))
        running.process.send_signal(signal.SIGHUP)
        until(lambda: status(running, METRICS, "/metrics") == 401, "the token that was removed")
        assert running.end(signal.SIGTERM) == 0
    assert [line["scope"] for line in said("login")] == ["read"]
    assert [line["tokens"] for line in said("reload")] == [3]
    sent = [str(line["sent"]) for line in said("refused")]
    assert "a token of scope read for DELETE /api/v1/agents" in sent
    assert "a wrong token" in sent
    assert log.stat().st_mode & 0o777 == 0o600
    assert not any(token in log.read_text() for token in (ADMIN, READ, METRICS, AGENT))


def test_refusals_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(str(path))
    for _ in range(1000):
        audit.say("refused", source="198.51.100.1\n", sent="x" * 1000)
    audit.say("login", source="127.0.0.1")
    audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) <= 4 * MOST_REFUSALS, "a second or two"
    assert sum(line.get("refusals_left_out", 0) + (line["what"] == "refused") for line in lines) == 1000
    with pytest.raises(WirelagError, match="cannot write the audit log"):
        Audit(str(tmp_path / "nowhere" / "audit.jsonl"))
