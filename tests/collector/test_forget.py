"""An agent that was removed can be forgotten: by the command, by the API, with a collector that runs or not."""

import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.support.agent_messages import Agent, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import RDA, Running, recent, send, settled
from tests.support.command import wirelag
from tests.support.transport_peers import free_port, make_certificate
from tests.support.waiting import until

TOKEN = "a-token-that-is-long-enough"


def named(path: Travelled) -> list[Agent]:
    return [replace(agent, segment="A>B") for agent in pair(path, RDA)]


def points(running: Running) -> list[str]:
    return [one["point"] for one in running.json("/api/v1/agents")["agents"]]


def delete(running: Running, query: str, token: str = TOKEN) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{running.url}/api/v1/agents?{query}", method="DELETE", headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def allowed(running: Running) -> set[str]:
    """The methods of this path, as the reply to another one names them."""
    asked = urllib.request.Request(f"{running.url}/api/v1/agents", b"", {"Authorization": f"Bearer {TOKEN}"})
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(asked)
    with refused.value as answer:
        assert answer.code == 405
        return set(answer.headers["Allow"].split(", "))


def test_the_api_forgets_an_agent_and_its_series(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    path = recent(4, 50, 3)
    with Running(tmp_path, "--token-file", str(tmp_path / "tokens"), token=TOKEN) as running:
        send(running.url, named(path), 5, settled(running, path, 4), TOKEN)
        assert points(running) == ["A", "B"]
        assert 'wirelag_intervals_total{outcome="measured",segment="A>B"}' in running.get("/metrics")[1]
        assert delete(running, "point=A", "another-token-that-is-wrong") == 401
        assert delete(running, "point=nobody") == 404
        assert delete(running, "pint=A") == 400
        assert delete(running, "point=A") == 200
        assert allowed(running) == {"DELETE", "GET", "HEAD"}
        assert points(running) == ["B"]
        text = running.get("/metrics")[1]
        assert 'wirelag_agent_up{point="B"}' in text
        assert 'wirelag_agent_up{point="A"}' not in text
        assert 'wirelag_intervals_total{outcome="measured",segment="A>B"}' not in text  # so that no alert fires for it
        assert len(running.reports()) >= 4  # results stay
    with Running(tmp_path, "--token-file", str(tmp_path / "tokens"), token=TOKEN) as running:
        assert points(running) == ["B"]
        again = recent(2, 50, 4)
        other = replace(named(again)[1], point="zürich", segment="zürich>B")  # any printable name will do
        send(running.url, [named(again)[0], other], 1, lambda: points(running) == ["A", "B", "zürich"], TOKEN)
        assert running.get("/api/v1/reports", None, segment="zürich>B")[0] == 200
        assert delete(running, "point=z%C3%BCrich") == 200
        assert points(running) == ["A", "B"]


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=pytest.mark.acceptance)])
def test_the_command_asks_the_collector_that_runs(tmp_path: Path, encrypted: bool) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    words = ["--token-file", str(tmp_path / "tokens")]
    if encrypted:
        certificate, key = make_certificate(tmp_path)
        words += ["--certificate", str(certificate), "--key", str(key)]
    port, path = free_port(), recent(2, 50, 3)
    options = (*words, "--store", tmp_path / "store.db", "--listen", f"127.0.0.1:{port}")
    with Running(tmp_path, *words, port=port, token=TOKEN) as running:
        if encrypted:  # nobody has sent anything: it is asked, and says so
            assert "C: no such agent" in wirelag("collect", "--forget", "C", *options, code=2).stderr
            return
        send(running.url, named(path), 3, settled(running, path, 2), TOKEN)
        assert wirelag("collect", "--forget", "A", *options).stdout == "A is forgotten; its results stay\n"
        assert points(running) == ["B"]
        assert "A: no such agent" in wirelag("collect", "--forget", "A", *options, code=2).stderr
    assert wirelag("collect", "--forget", "B", *options).stdout == "B is forgotten; its results stay\n"
    with Running(tmp_path, *words, token=TOKEN) as running:
        until(lambda: points(running) == [], "no agent")
