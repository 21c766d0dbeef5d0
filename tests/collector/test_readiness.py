"""A collector that cannot work now says so, keeps what it can, and goes on by itself."""

import gzip
import http.client
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.command import WIRELAG
from tests.support.in_lab import IN_LAB
from tests.support.places import DATA
from tests.support.transport_peers import free_port, run
from tests.support.waiting import PATIENCE_S, until
from wirelag.collector.health import LATE_S, STUCK_S, Health
from wirelag.protocol.messages import encode
from wirelag.transport import Address, Declined, sender
from wirelag.transport.quotas import Limits
from wirelag.transport.service_manager import watchdog_s

FULL = """
mount -t tmpfs -o size=400k tmpfs "$0"
cp "$1" "$0/store.db"
{fault}
shift
exec "$@"
"""
FAULTS = {
    "full": ('dd if=/dev/zero of="$0/filler" bs=4096 2> /dev/null', "filler"),
    "read-only": ('mount -o remount,ro "$0"', None),
}


def get(port: int, path: str) -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    line.request("GET", path)
    reply = line.getresponse()
    text = reply.read().decode()
    line.close()
    return reply.status, text


@contextmanager
def on_a_disk(folder: Path, fault: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """A collector whose store, of the version before, is on a disk with a fault."""
    (folder / "old.db").write_bytes(gzip.decompress((DATA / "store-version1.db.gz").read_bytes()))
    (folder / "disk").mkdir()
    script = FULL.format(fault=FAULTS[fault][0])
    collector = (*WIRELAG, "collect", "--store", str(folder / "disk/store.db"), "--listen", f"127.0.0.1:{port}")
    command = ("unshare", "--mount", "sh", "-c", script, str(folder / "disk"), str(folder / "old.db"), *collector)
    environment = os.environ | {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "20000"}
    process = subprocess.Popen([*command, "--segment", "A>B"], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@IN_LAB
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_at_the_start(tmp_path: Path, fault: str) -> None:
    """It listens, accepts nothing, is not restarted meanwhile, and works as soon as the disk does."""

    async def decline() -> None:
        way, message = (
            sender(Address(f"http://127.0.0.1:{port}"), "A"),
            pair(recent(1, 50, 1), RDA)[0].messages(0, 1)[0],
        )
        with pytest.raises(Declined):
            await way.send(encode(message), message.key)
        await way.close()

    port = free_port()
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(tmp_path / "notify"))
    heard.settimeout(PATIENCE_S)
    with heard, on_a_disk(tmp_path, fault, port) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "agents keep their messages" in line, line
        assert [heard.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        assert get(port, "/-/healthy")[0] == 200
        status, text = get(port, "/-/ready")
        assert (status, text.partition(":")[0]) == (503, "store")
        with ExitStack() as lines:  # strangers
            many = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(Limits().strangers + 1)]
            for one in many:
                lines.enter_context(one)
            assert many[0].recv(1) == b""  # it had to go
            run(decline())
        inside = Path(f"/proc/{process.pid}/root{tmp_path}/disk")
        if FAULTS[fault][1] is None:
            enter = ("nsenter", "--mount", "--target", str(process.pid), "mount", "-o", "remount,rw", tmp_path / "disk")
            subprocess.run(enter, check=True)
        else:
            (inside / "filler").unlink()
        assert "collecting at" in process.stderr.readline()
        assert get(port, "/-/ready") == (200, "no problem\n")
        assert (inside / "store.db.version1").exists()


@IN_LAB
def test_a_disk_that_fills_up_and_has_room_again(tmp_path: Path) -> None:
    """While it is full, /-/ready says so and nothing is acknowledged; then everything is stored."""
    first, second = pair(recent(6, 50, 2), RDA)[0].messages(0, 2)
    port, filler = free_port(), tmp_path / "empty"
    filler.touch()
    script = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    (tmp_path / "disk").mkdir()
    collector = (*WIRELAG, "collect", "--store", str(tmp_path / "disk/store.db"), "--listen", f"127.0.0.1:{port}")
    command = ("unshare", "--mount", "sh", "-c", script, str(tmp_path / "disk"), *collector, "--segment", "A>B")

    async def decline() -> None:
        way = sender(Address(f"http://127.0.0.1:{port}"), "A")
        sent = encode(first)
        with suppress(Declined):
            while True:  # small transactions may still fit
                await way.send(sent, first.key)
        await way.close()

    async def deliver() -> None:
        way = sender(Address(f"http://127.0.0.1:{port}"), "A")
        await way.send(encode(second), second.key)
        await way.close()

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "collecting at" in process.stderr.readline()
        filler = Path(f"/proc/{process.pid}/root{tmp_path}/disk/filler")
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        run(decline())
        assert "cannot write" in process.stderr.readline()
        assert get(port, "/-/ready")[0] == 503
        assert 'wirelag_problem{what="store"} 1.0' in get(port, "/metrics")[1]
        filler.unlink()
        assert "can be written again" in process.stderr.readline()
        assert get(port, "/-/ready")[0] == 200
        run(deliver())
        process.terminate()


# ---- service managers ----


def test_the_service_manager_hears_that_it_is_ready_and_works(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(PATIENCE_S)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
        with Running(tmp_path, "--segment", "A>B", environment=asked):
            assert [heard.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_worker_that_is_stuck_is_not_healthy() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    for now[0], ready in ((LATE_S - 1, True), (LATE_S, False)):  # a database that hangs
        assert (health.ready, health.healthy) == (ready, True)
    assert health.text().startswith("worker: waits for the store")
    for now[0], healthy in ((STUCK_S - 1, True), (STUCK_S, False)):
        assert (health.healthy, health.ready) == (healthy, False)
    assert health.text().startswith("worker:")
    health.works()
    assert health.ready


def test_problems_are_told_once_and_so_is_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    health = Health()
    for problem in ("FILE: cannot write", "FILE: cannot write now", None, None):
        health.note("store", problem, "FILE: can be written again")
        assert health.ready == (problem is None)
        assert "FILE" not in health.text()
    health.note("room", "FILE: is full", "")
    assert (health.ready, health.problems) == (True, ["room"])
    said = capsys.readouterr().err.splitlines()
    assert said == ["wirelag: FILE: cannot write", "wirelag: FILE: can be written again", "wirelag: FILE: is full"]


@pytest.mark.parametrize(
    ("given", "every"), [({}, None), ({"WATCHDOG_USEC": "60000000"}, 30.0), ({"WATCHDOG_USEC": "x"}, None)]
)
def test_how_often_a_manager_wants_to_hear(
    given: dict[str, str], every: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert watchdog_s() == every
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_s() is None


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """Every line fails as on a full disk: the collector listens, takes messages, reloads, and ends when asked."""
    message, port = pair(recent(6, 50, 2), RDA)[0].messages(0, 1)[0], free_port()
    command = (*WIRELAG, "collect", "--store", str(tmp_path / "store.db"), "--listen", f"127.0.0.1:{port}")

    async def deliver() -> None:
        way = sender(Address(f"http://127.0.0.1:{port}"), "A")
        await way.send(encode(message), message.key)
        await way.close()

    with open("/dev/full", "w") as full, subprocess.Popen([*command, "--segment", "A>B"], stderr=full) as process:
        try:
            until(lambda: reaches(port), "a collector that listens")
            run(deliver())
            process.send_signal(signal.SIGHUP)  # it says what has changed
            run(deliver())
            assert get(port, "/-/ready") == (200, "no problem\n")
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) in (0, 120)  # 120: Python could not flush the log


def reaches(port: int) -> bool:
    with suppress(OSError):
        return get(port, "/-/healthy")[0] == 200
    return False
