"""Health checks: a dead backend is out within seconds and comes back; a check that cannot tell takes nobody out."""

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.balance import EQUAL, Site, entries, site
from tests.support.balance_loop import NAMES as FOUR
from tests.support.balance_loop import of, steered, well
from tests.support.balanced_site import LONG_S, received, traffic
from tests.support.balancer_packets import CONFIG
from tests.support.in_lab import IN_LAB
from tests.support.waiting import until
from wirelag.balance.health import Health, Votes
from wirelag.balance.settings import Config, HealthSettings
from wirelag.errors import WirelagError
from wirelag.transport.health_check import check_servers

NAMES = dict.fromkeys("abc", "")
QUICK = {"health": {"check": "http", "path": "/1", "interval": "100ms", "timeout": "300ms"}}


def test_two_failures_in_a_row_are_down_and_two_passes_are_up() -> None:
    votes = Votes(2, 2, strict=True)
    rounds = [{"a"}, set(), {"a"}, {"a"}, {"a"}, set(), {"a"}, set(), set()]
    down = [votes.add(NAMES, dict.fromkeys(failed, "refused")) for failed in rounds]
    assert [set(one) for one in down] == [set(), set(), set(), {"a"}, {"a"}, {"a"}, {"a"}, {"a"}, set()]
    assert down[3] == {"a": "refused"}


def test_if_no_backend_passes_none_is_down() -> None:
    votes = Votes(1, 1, strict=True)
    assert votes.add(NAMES, dict.fromkeys("abc", "no reply")) == {}
    assert set(votes.add(NAMES, dict.fromkeys("ab", "no reply"))) == {"a", "b"}
    assert votes.add({"c": ""}, {}) == {}, "removed from the file"


def test_without_a_setting_only_those_that_have_passed_are_judged() -> None:
    votes = Votes(1, 1, strict=False)
    assert votes.add(NAMES, {"a": "refused"}) == {}
    assert votes.add(NAMES, {}) == {}
    assert set(votes.add(NAMES, {"a": "refused"})) == {"a"}


@pytest.mark.parametrize(
    ("reply", "kind", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "http", ""),
        (b"HTTP/1.1 503 Unavailable\r\n\r\n", "http", "HTTP status 503"),
        (b"220 mail ready\r\n", "http", "not an HTTP reply"),
        (b"HTTP/1.1 \xb2\xb2\xb2 x\r\n", "http", "not an HTTP reply"),
        (b"", "http", "not an HTTP reply"),
        (None, "http", "no reply"),
        (None, "tcp", ""),
    ],
)
def test_what_passes(reply: bytes | None, kind: str, why: str) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if reply is not None:
                    connection.recv(1000)
                    connection.sendall(reply)
                while reply is None and connection.recv(1000):
                    pass  # until the other side gives up

        thread = threading.Thread(target=serve)
        thread.start()
        found = check_servers({"a": "127.0.0.1"}, listener.getsockname()[1], kind, "/", "x", 0.3)  # type: ignore[arg-type]
        thread.join()
        port = listener.getsockname()[1]
    assert found == ({"a": why} if why else {})
    assert check_servers({"a": "127.0.0.1"}, port, "tcp", "/", "x", 1) == {"a": "connection refused"}


def test_the_settings_of_checks(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG)
    assert Config.load(str(path)).health == HealthSettings("tcp", False, 80)
    path.write_text(CONFIG + '[health]\ncheck = "http"\nport = 8080\npath = "/up"\ntimeout = "200ms"\n')
    assert Config.load(str(path)).health == HealthSettings("http", True, 8080, "/up", timeout_ns=200_000_000)
    path.write_text(CONFIG.replace("ports = [80]", 'protocol = "udp"'))
    assert Config.load(str(path)).health.kind is None
    path.write_text(CONFIG.replace("ports = [80]", "") + '[health]\ncheck = "tcp"\n')
    with pytest.raises(WirelagError, match=r"health\.port: is missing"):
        Config.load(str(path))


def test_checks_follow_the_file_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = Config.load(str(path))
        first, second = config.backends[:2]
        here, dead = replace(first, address="127.0.0.1"), replace(second, address="127.0.0.2")
        config = replace(config, backends=(here, dead), health=HealthSettings())
        health = Health(config, lambda line: None)
        try:
            checked = HealthSettings("tcp", True, listener.getsockname()[1], interval_ns=10**7, fall=10**6)
            health.configure(replace(config, health=checked))
            assert health.down() == {}
            health.configure(replace(config, health=replace(checked, fall=1)))
            until(lambda: health.down() == {dead.name: "connection refused"}, "that the dead one is down")
        finally:
            health.close()


def test_a_backend_that_is_down_keeps_its_connections_and_starts_low_when_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG)
    dataplane, balancer = steered(path)
    everyone = {name: well() for name in FOUR}
    balancer.set_down({"web2": "connection refused"})
    entry = balancer.step(dataplane.reading(**everyone))
    assert "web2" not in entry.decision.weights
    assert of(entry.to_json(), "web2")["standing"] == "down"
    assert of(entry.to_json(), "web2")["weight"] == 0
    assert dataplane.shares["web2"] == 0
    assert dataplane.listed["web2"].down
    assert not dataplane.listed["web1"].down
    balancer.set_down({})
    entry = balancer.step(dataplane.reading(**everyone))
    assert 0 < entry.decision.weights["web2"] < 0.02
    assert not dataplane.listed["web2"].down
    balancer.set_down(dict.fromkeys(FOUR, "no reply"))
    assert sum(dataplane.shares.values()) == pytest.approx(1), "somebody must serve"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("health", tmp_path, seed=4, servers=3, service="exponential:3000") as built:
        yield built


@pytest.mark.acceptance
@IN_LAB
def test_a_dead_backend_is_out_within_seconds_and_comes_back(place: Site) -> None:
    """A stopped process, whose kernel still accepts connections. While it is out it gets no packet of new clients."""
    from lab.clients import Load

    place.configure([1, 2, 3], {**EQUAL, **QUICK})
    command = place.steer()
    client = place.ask(12, LONG_S, Load(lifetime="exponential:100000", patience_us=300_000))
    traffic(place, 1, 2, 3)

    def standing() -> str:
        said = entries(command)
        return next((one["standing"] for one in said[-1]["backends"] if one["name"] == "server3"), "") if said else ""

    os.kill(place.servers[3].pid, signal.SIGSTOP)
    until(lambda: standing() == "down", "server3 down")
    assert "server3: down (no reply): it gets no new connections" in command.said()
    weight = {one["name"]: one["weight"] for one in entries(command)[-1]["backends"]}
    assert weight["server3"] == 0
    out = len(entries(command))
    until(lambda: len(entries(command)) > out + 2, "two intervals without it")
    traffic(place, 1, 2)
    opened = [one["opened"] for said in entries(command)[out + 1 :] for one in said["backends"]]
    silent = [
        one["opened"] for said in entries(command)[out + 1 :] for one in said["backends"] if one["name"] == "server3"
    ]
    assert sum(opened) > 0
    assert sum(silent) == 0
    os.kill(place.servers[3].pid, signal.SIGCONT)
    until(lambda: standing() not in ("", "down"), "server3 up")
    traffic(place, 3)
    client.stop()
    assert "server3: passes its health check again" in command.said()
    command.stop()
    assert received(place, 3) > 0
