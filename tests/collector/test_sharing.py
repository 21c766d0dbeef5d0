"""Collectors that share the work, as processes, with a real broker and a real database."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import fleet, needs, postgres
from tests.support.agent_messages import Agent, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import RDA, Running, are_true, login, recent, send, settled
from tests.support.command import wirelag
from tests.support.places import ROOT
from tests.support.waiting import until
from wirelag.protocol.sharing import PARTS, part_of

TOKEN = "the-token-of-all-collectors"


def between(name: str, path: Travelled) -> list[Agent]:
    """Agents at both ends of a segment of this name, which may be long ago."""
    return [
        replace(one, point=point, segment=name) for one, point in zip(pair(path, RDA), name.split(">"), strict=True)
    ]


def owned(server: postgres.Server, url: str) -> dict[int, str]:
    """The owner of each partition, by the port in its name."""
    rows = server.sql("select part, holder from wirelag.fences where holder is not null", url.rpartition("/")[2])
    return {part: holder.split("-")[-2] for part, holder in rows}


@pytest.fixture
def shared(tmp_path: Path, server: postgres.Server) -> Iterator[tuple[list[Running], str, str]]:
    """Two collectors, their database and their broker."""
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "share.toml").write_text('[share]\nlease = "3s"\n')  # this machine may be busy
    url = server.database()
    words = (str(tmp_path / "share.toml"), "--token-file", str(tmp_path / "tokens"))
    with (
        fleet.broker(tmp_path / "nats") as nats,
        fleet.collectors(tmp_path, 2, url, nats, *words, token=TOKEN) as running,
    ):
        until(lambda: len(set(owned(server, url).values())) == 2, "two owners")
        yield running, url, nats


def test_two_collectors_are_one(shared: tuple[list[Running], str, str], server: postgres.Server) -> None:
    """Both ends meet wherever they are heard; each collector serves everything; who dies hands over."""
    (one, other), url, nats = shared
    owners = owned(server, url)
    assert len(owners) == PARTS
    port = one.url.rpartition(":")[2]
    names = [f"A{i}>B{i}" for i in range(99)]
    of_one, last = [name for name in names if owners[part_of(name)] == port][:2]
    of_other = next(name for name in names if owners[part_of(name)] != port)
    path = recent(4, 100, 3)
    send(nats, between(of_one, path), 4, settled(other, path, 3, of_one))
    send(one.url, between(of_other, path), 4, settled(other, path, 3, of_other), TOKEN)
    for running in (one, other):
        assert are_true(running.reports(of_one), path) == are_true(running.reports(of_other), path) == 3
        said = {each["segment"]: each for each in running.json("/api/v1/segments")["segments"]}
        assert (said[of_other]["upstream"], said[of_other]["downstream"]) == tuple(of_other.split(">"))
        until(lambda running=running: len(running.json("/api/v1/agents")["agents"]) == 4, "all agents")
    said_first = wirelag("collect", "--check", "--store", url, "--nats", nats, "--listen", "127.0.0.1:0").stdout
    assert f"shares the work by way of {nats}" in said_first
    assert f"keeps results in {url} (existing)" in said_first
    session = {"Cookie": login(one.url, TOKEN)}
    assert other.get("/api/v1/segments", session)[0] == 200

    wirelag("collect", "--forget", of_other.split(">")[0], "--store", url, "--listen", "127.0.0.1:0")
    until(lambda: len(other.json("/api/v1/agents")["agents"]) == 3, "that an agent is forgotten everywhere")

    up, down = between(last, path)
    send(one.url, [up], 4, lambda: True, TOKEN)  # its other half comes when the owner is dead
    one.end(signal.SIGKILL)
    send(other.url, [up, down], 4, settled(other, path, 3, last), TOKEN)
    assert are_true(other.reports(last), path) == 3
    assert set(owned(server, url).values()) == {other.url.rpartition(":")[2]}


def test_collectors_that_share_do_not_follow() -> None:
    said = wirelag("collect", "--store", "postgresql://h/d", "--nats", "nats://127.0.0.1", "--topology", "ospf:",
                   "--follow", "1s", code=2)  # fmt: skip
    assert "those that share the work cannot follow yet" in said.stderr


@pytest.mark.acceptance
def test_every_interval_is_stored_once_whatever_fails(tmp_path: Path) -> None:
    """Faults of each kind, and one more."""
    from lab.fleet import missing

    if (lacking := needs.ROOT if os.geteuid() else missing()) is not None:
        pytest.skip(lacking)
    words = ["--faults=7", "--seconds=60", "--paused=12", "--lease=3s", "--patience=300", "--segments=4"]
    command = [sys.executable, str(ROOT / "experiments" / "fleet_drill.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, wrong 0, unlike the truth 0, wrong in minutes 0" in done.stdout
