"""Health checks: a dead backend is out within seconds and comes back; a check that cannot tell takes nobody out."""

import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.balance import EQUAL, Site, entries, opened, site
from lab.network import CLIENT_ADDRESS, POINT_ADDRESS
from tests.support.balance_loop import NAMES as FOUR
from tests.support.balance_loop import of, steered, well
from tests.support.balanced_site import LONG_S, traffic
from tests.support.balancer_packets import CONFIG
from tests.support.in_lab import IN_LAB
from tests.support.waiting import PATIENCE_S, until
from wirelag.balance.health import OTHERS, Health, Votes, _make_room
from wirelag.balance.settings import Config, HealthSettings
from wirelag.errors import WirelagError
from wirelag.transport.health_check import check_servers

NAMES = dict.fromkeys("abc", "")
RESET, SILENCE = b"reset", b"silence"
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


OK = b"HTTP/1.1 200 OK\r\n\r\n"
BYTES = [OK[at : at + 1] for at in range(len(OK))]


@pytest.mark.parametrize(
    ("reply", "kind", "why"),
    [
        ([OK], "http", ""),
        (BYTES, "http", ""),
        ([OK + bytes(1 << 16)], "http", ""),
        ([b"HTTP/1.1 503 Unavailable\r\n\r\n"], "http", "HTTP status 503"),
        ([b"HTTP/1.1 500\r\n"], "http", "HTTP status 500"),
        ([b"HTTP/1.1 2000 OK\r\n\r\n"], "http", "not an HTTP reply"),
        ([b"220 mail ready\r\n"], "http", "not an HTTP reply"),
        ([b"HTTP/1.1 \xb2\xb2\xb2 x\r\n"], "http", "not an HTTP reply"),
        ([b"x" * 5000], "http", "not an HTTP reply"),
        ([], "http", "it ends the connection without a reply"),
        ([RESET], "http", "connection reset by peer"),
        ([SILENCE], "http", "no reply"),
        ([b"HTTP/1.1 20", SILENCE], "http", "no reply"),
        ([SILENCE], "tcp", ""),
        ([RESET], "tcp", ""),
    ],
)
def test_what_passes(reply: list[bytes], kind: str, why: str) -> None:
    """Whatever a backend does, a check ends in time, with a reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # the check may be over
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if kind == "http":
                    connection.recv(1000)
                for part in reply:
                    if part == SILENCE:
                        while connection.recv(1000):
                            pass  # until the other side gives up
                    elif part == RESET:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        port, limit_s = listener.getsockname()[1], 0.2 if SILENCE in reply else 9
        found = check_servers({"a": "127.0.0.1"}, port, kind, "/", "x", limit_s)  # type: ignore[arg-type]
        thread.join()
    assert found == ({"a": why} if why else {})
    assert check_servers({"a": "127.0.0.1"}, port, "tcp", "/", "x", 1) == {"a": "connection refused"}


def test_what_came_in_time_counts_on_a_host_that_looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock shows that the time is over as soon as the server has accepted the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def times_s() -> Iterator[float]:
            yield 0.0
            select.select([listener], [], [], PATIENCE_S)
            while True:
                yield 100.0

        clock_s = times_s()
        monkeypatch.setattr("wirelag.transport.health_check.time.monotonic", lambda: next(clock_s))
        port = listener.getsockname()[1]
        assert check_servers({"a": "127.0.0.1"}, port, "tcp", "/", "x", 0.1) == {}


def test_an_address_of_version_6_is_a_host_in_brackets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said: list[bytes] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                said.append(connection.recv(1000))
                connection.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        assert check_servers({"a": "127.0.0.1"}, port, "http", "/up", "2001:db8::1", 9) == {}
        thread.join()
    assert said[0].startswith(b"GET /up HTTP/1.1\r\nHost: [2001:db8::1]\r\n")


def test_if_checks_cannot_be_made_all_stays_as_it_is(tmp_path: Path) -> None:
    """A thousand backends, and no file descriptor left: told once; the checks go on when there are some."""
    path, told = tmp_path / "lb.toml", list[str]()
    path.write_text(CONFIG)
    config = Config.load(str(path))
    one = replace(config.backends[0], address="127.0.0.1")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        checked = HealthSettings("tcp", True, listener.getsockname()[1], interval_ns=10**9 * 60, fall=1)
        config = replace(config, health=checked, backends=(one, replace(one, name="dead", address="127.0.0.2")))
        health = Health(replace(config, health=HealthSettings()), told.append)
        health._check(config)
        assert health.down() == {"dead": "connection refused"}
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
            for _ in range(2):
                health._check(config)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert health.down() == {"dead": "connection refused"}
        assert told == ["health checks cannot be made (Too many open files): who is down stays so until they can"]
        health._check(replace(config, backends=(one,)))
        assert health.down() == {}
    _make_room(before[0])
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[0] + OTHERS, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


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


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "silent"])
def test_a_dead_server_is_down_after_as_many_checks_as_set(silent: bool) -> None:
    """A real server: killed, or with a queue so full that its host no longer replies."""
    script = "import socket; s = socket.create_server(('127.0.0.1', 0), backlog=0); print(s.getsockname()[1]); input()"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, votes, checks = int(server.stdout.readline()), Votes(3, 2, strict=False), 0
        one = {"a": "127.0.0.1"}

        def check(also: dict[str, str]) -> dict[str, str]:
            found = check_servers(one, port, "tcp", "/", "x", 0.1)
            return votes.add({**one, "b": "another"}, found | also)

        with ExitStack() as stack:
            assert not check({})
            while silent and not check_servers(one, port, "tcp", "/", "x", 0.1):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if not silent:
                server.kill()
                server.wait()
            while not (down := check({})):
                checks += 1
                assert checks < 3, "two failures, and no more, before the one that counts"
        server.kill()
    assert checks == 2
    assert down == {"a": "no reply" if silent else "connection refused"}


DEATHS: dict[str, Callable[[Site], None]] = {
    "stopped": lambda place: os.kill(place.servers[3].pid, signal.SIGSTOP),
    "killed": lambda place: os.kill(place.servers[3].pid, signal.SIGKILL),
    "silent": lambda place: place.network.ip("server3", "link set eth0 down"),
}
BACK: dict[str, Callable[[Site], None]] = {
    "stopped": lambda place: os.kill(place.servers[3].pid, signal.SIGCONT),
    "silent": lambda place: place.network.ip("server3", "link set eth0 up"),
}
WHY = {"stopped": "no reply", "killed": "connection refused", "silent": "no reply"}
MOST_CHECKS = 2 + 2  # those that fail, one that was under way, and one before the next interval


@pytest.mark.acceptance
@IN_LAB
@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_backend_is_out_after_few_checks_and_comes_back(place: Site, death: str) -> None:
    """Counted on its wire: a few health checks until it is out, and from then on no new connection at all."""
    from lab.clients import Load

    settings = {"stopped": QUICK, "killed": {}, "silent": {"health": {"check": "tcp"}}}[death]
    place.configure([1, 2, 3], {**EQUAL, **settings})
    command = place.steer()
    client = place.ask(12, LONG_S, Load(lifetime="exponential:100000", patience_us=300_000))
    traffic(place, 1, 2, 3)
    wire = place.openings(3)
    until(lambda: any(one.source == POINT_ADDRESS for one in opened(wire)), "a health check")

    def standing() -> str:
        said = entries(command)
        return next((one["standing"] for one in said[-1]["backends"] if one["name"] == "server3"), "") if said else ""

    died_s = time.time()
    DEATHS[death](place)
    until(lambda: standing() == "down", "server3 down")
    out_s = time.time()
    assert f"server3: down ({WHY[death]}): it gets no new connections" in command.said()
    weight = {one["name"]: one["weight"] for one in entries(command)[-1]["backends"]}
    assert weight["server3"] == 0
    traffic(place, 1, 2)
    sent = opened(wire)
    clients = [one.time_s for one in sent if one.source == CLIENT_ADDRESS]
    first = min(one["time"] for one in entries(command) if is_down(one))
    assert [time_s for time_s in clients if time_s > out_s] == [], "none of those opened, or repeated, later"
    if death != "stopped":  # QUICK checks ten times in a second
        checks = [one for one in sent if one.source == POINT_ADDRESS and died_s < one.time_s < first]
        assert 2 <= len(checks) <= MOST_CHECKS
    if death in BACK:
        BACK[death](place)
        until(lambda: standing() not in ("", "down"), "server3 up")
        traffic(place, 3)
        assert "server3: passes its health check again" in command.said()
    client.stop()
    command.stop()


def is_down(entry: dict[str, Any]) -> bool:
    return any(one["name"] == "server3" and one["standing"] == "down" for one in entry["backends"])
