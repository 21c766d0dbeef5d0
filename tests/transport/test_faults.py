"""Faults at an agent's side: what is not stored stays, and one bad message or a bad disk delays no other."""

import asyncio
import http.server
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent_messages import SECOND_NS, Agent, pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.command import WIRELAG
from tests.support.in_lab import IN_LAB
from tests.support.transport_peers import run
from tests.support.waiting import PATIENCE_S, until_soon
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, encode
from wirelag.transport import Address, Declined, Refused, Unreachable, sender
from wirelag.transport.outbox import Outbox
from wirelag.transport.runs import DOUBT_S, SILENT_S, Runs
from wirelag.transport.spool import Spool

MONTH_NS = 30 * 86400 * 10**9


@contextmanager
def replies(status: int, text: bytes = b"<html>login</html>") -> Iterator[str]:
    """A server that replies the same to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 201, 202, 302, 400, 404, 413, 415, 500, 503])
def test_only_204_means_stored(status: int) -> None:
    """A login page of a proxy has status 200, and one that lets only short messages pass 413: the message stays."""

    async def work(url: str) -> None:
        way = sender(Address(url), "A")
        with pytest.raises(Unreachable, match=f"status {status}"):
            await way.send(b"x", "k")
        await way.close()

    with replies(status) as url:
        run(work(url))


def test_an_older_collector_that_does_not_know_the_version_drops_nothing() -> None:
    """Collectors before version 2 of the store replied 400 to another version, in these words."""

    async def work(url: str, error: type[Exception]) -> None:
        way = sender(Address(url), "A")
        with pytest.raises(error):
            await way.send(b"x", "k")
        await way.close()

    for said, error in (
        (b"it has version 2 of the format, this wirelag reads 1: use the same wirelag", Declined),
        (b"it is damaged: the checksum does not match", Refused),
    ):
        with replies(400, said) as url:
            run(work(url, error))


def moved(message: Message, by_ns: int) -> Message:
    interval = Interval(message.interval.start_ns + by_ns, message.interval.end_ns + by_ns)
    place = {"start_ns": interval.start_ns, "end_ns": interval.end_ns}
    return replace(message, interval=interval, records=tuple(record | place for record in message.records))


def test_messages_from_the_future_do_not_block_those_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both agents had a wrong clock for an interval; now all clocks are right."""
    monkeypatch.setattr("wirelag.transport.outbox.LEAST_ASIDE_S", 0.01)

    async def work(url: str) -> None:
        async def deliver(agent: Agent) -> None:
            spool, (first, *others) = Spool(tmp_path / agent.point), agent.messages(0, 6)
            for message in (moved(first, MONTH_NS), *others):
                spool.put(encode(message), message.key)
            way = sender(Address(url), agent.point)
            outbox = Outbox(way, spool)
            running = asyncio.create_task(outbox.run())
            await until_soon(lambda: len(spool) == 0, "an empty spool")
            running.cancel()
            await way.close()
            spool.close()

        await asyncio.gather(*map(deliver, pair(recent(8, 50, 1), RDA)))

    with Running(tmp_path, "--segment", "A>B") as running:
        run(work(running.url))
        counted = running.counted()
        assert counted["synopses"] == 10
        assert counted["from the future"] == 2


def test_hundreds_of_messages_of_a_wrong_clock_block_nothing(tmp_path: Path) -> None:
    """An agent's clock was two hours ahead for a while: what it sent then waits, all that came after it is stored."""
    wrong, right = 150, 30

    async def work(url: str) -> None:
        spool = Spool(tmp_path / "spool")
        for number, message in enumerate(pair(recent(wrong + right, 5, 1), RDA)[0].messages(0, wrong + right)):
            one = moved(message, 2 * 3600 * SECOND_NS) if number < wrong else message
            spool.put(encode(one), one.key)
        way = sender(Address(url), "A")
        running = asyncio.create_task(Outbox(way, spool).run())
        await until_soon(lambda: len(spool) == wrong, "that the right ones are stored")
        running.cancel()
        await way.close()
        spool.close()

    with Running(tmp_path, "--segment", "A>B") as running:
        run(work(running.url))
        assert running.counted()["synopses"] == right


class Moody:
    """A way to a collector that declines some messages, then is gone, then takes all."""

    def __init__(self) -> None:
        self.mood, self.tried = "declines", list[str]()

    async def send(self, data: bytes, key: str) -> None:
        self.tried.append(key)
        if self.mood == "gone":
            raise Unreachable("gone")
        if self.mood == "declines":
            raise Declined("not this one")

    async def asks(self) -> AsyncIterator[bytes]:
        return
        yield b""

    async def close(self) -> None:
        pass


def test_what_was_set_aside_before_an_outage_arrives_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirelag.transport.outbox.LEAST_ASIDE_S", 0.05)
    monkeypatch.setattr("wirelag.transport.outbox.pauses", lambda: iter(lambda: 0.02, None))

    async def work() -> None:
        spool, way = Spool(tmp_path / "spool"), Moody()
        outbox = Outbox(way, spool)
        running = asyncio.create_task(outbox.run())
        keys = [f"synopsis-{number}" for number in range(5)]
        for key in keys:
            await outbox.put(b"a", key)
        await until_soon(lambda: min(map(way.tried.count, keys)) > 1, "that each is declined twice")
        way.mood, way.tried = "gone", []
        await until_soon(lambda: len(way.tried) > 20, "that some are due meanwhile")
        way.mood = "takes all"
        await asyncio.wait_for(outbox.drained(), PATIENCE_S)
        assert len(spool) == 0
        running.cancel()
        spool.close()

    run(work())


def test_if_everything_is_declined_nothing_is_hurried(tmp_path: Path) -> None:
    """A collector that cannot store anything gets a few requests, not one for each message; then all arrive."""

    class Full:
        asked, full = 0, True

        async def send(self, data: bytes, key: str) -> None:
            self.asked += 1
            if self.full:
                raise Declined("the collector: cannot take a message now (status 503)")

    async def work() -> None:
        way, spool, told = Full(), Spool(tmp_path), list[str]()
        for number in range(200):
            spool.put(b"data", f"key-{number}")
        outbox = Outbox(way, spool, told.append)  # type: ignore[arg-type]
        running = asyncio.create_task(outbox.run())
        await until_soon(lambda: outbox.reachable is False, "that it counts as unreachable")
        assert way.asked < 20
        assert len(told) == 2
        way.full = False
        await outbox.drained()
        assert (outbox.sent, len(spool)) == (200, 0)
        assert told[2:] == ["the collector answers again; 199 messages wait"]
        running.cancel()
        spool.close()

    run(work())


# ---- disks ----

MOUNTED = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"')
FAILING = """
import json, os, subprocess, sys
from pathlib import Path
from wirelag.transport.spool import Spool

folder = Path(sys.argv[1])
def remount(how): subprocess.run(["mount", "-o", "remount," + how, str(folder)], check=True)
def see(spool): return [[name[-9:-8] for name in spool.names], spool.problem is not None, spool.dropped]
spool, seen = Spool(folder / "spool"), {}
names = [spool.put(b"%d" % i * 9, f"key-{i}") for i in range(3)]
if sys.argv[2] == "read-only":
    remount("ro")
else:
    (folder / "filler").write_bytes(bytes(1))
    with open(folder / "filler", "ab", buffering=0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError: pass
names += [spool.put(b"%d" % i * 9000, f"key-{i}") for i in range(3, 6)]
seen["fails"] = see(spool)
seen["read"] = [len(spool.read(name)) for name in names]
spool.remove(names[0]); spool.remove(names[3])
seen["removed"] = see(spool)
if sys.argv[2] == "read-only":
    remount("rw")
else:
    (folder / "filler").unlink()
names.append(spool.put(b"6" * 9, "key-6"))
seen["works"] = see(spool)
spool.close()
seen["again"] = see(Spool(folder / "spool"))
print(json.dumps(seen))
"""


@IN_LAB
@pytest.mark.parametrize("fault", ["read-only", "full"])
def test_a_spool_outlives_a_disk_that_fails_for_a_while(tmp_path: Path, fault: str) -> None:
    command = [*MOUNTED, str(tmp_path), sys.executable, "-c", FAILING, str(tmp_path), fault]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout)
    assert seen["fails"] == [["0", "1", "2", "3", "4", "5"], True, 0]
    assert seen["read"] == [9, 9, 9, 9000, 9000, 9000]
    assert seen["removed"] == [["1", "2", "4", "5"], True, 0]
    assert seen["works"] == seen["again"] == [["1", "2", "4", "5", "6"], False, 0]


CROWDED = """
import json, sys
from pathlib import Path
from wirelag.transport import spool as module

folder = Path(sys.argv[1])
spool = module.Spool(folder / "spool")
for i in range(30): spool.put(bytes(4000), f"key-{i}")
with open(folder / "filler", "ab", buffering=0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError: pass
module.HELD_BYTES = 40_000
for i in range(30, 60): spool.put(bytes(4000), f"key-{i}")
print(json.dumps([[int(name[25:-8]) for name in spool.names], spool.dropped]))
"""


@IN_LAB
def test_a_full_disk_keeps_the_newest(tmp_path: Path) -> None:
    """Disk and memory are full: the oldest files make room, so that what happens now is not lost."""
    command = [*MOUNTED, str(tmp_path), sys.executable, "-c", CROWDED, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names, dropped = json.loads(done.stdout)
    assert names == list(range(60 - len(names), 60))
    assert dropped == 60 - len(names)
    assert 20 <= len(names) <= 40  # ten in memory, and those that the disk has room for


LARGE = """
import json, subprocess, sys
from pathlib import Path
from wirelag.transport import spool as module

folder, seen = Path(sys.argv[1]), []
def see(spool): seen.append([[int(name[25:-8]) for name in spool.names], spool.dropped])
spool = module.Spool(folder / "spool")
for i in range(10): spool.put(bytes(4000), f"key-{i}")
with open(folder / "filler", "ab", buffering=0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError: pass
module.HELD_BYTES = 150_000
for i in range(10, 12): spool.put(bytes(100_000), f"key-{i}")
see(spool)
(folder / "filler").unlink()
spool = module.Spool(folder / "small", 5 * 4096)
for i in range(5): spool.put(bytes(4000), f"key-{i}")
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
for i in range(5, 8): spool.put(bytes(4000), f"key-{i}")
see(spool)
subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
spool.put(bytes(4000), "key-8")
see(spool)
print(json.dumps(seen))
"""


@IN_LAB
def test_nothing_is_dropped_in_vain(tmp_path: Path) -> None:
    """Files that free too little for a large message stay, and so do those that cannot be removed."""
    command = [*MOUNTED, str(tmp_path), sys.executable, "-c", LARGE, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    full, read_only, after = json.loads(done.stdout)
    assert full == [[*range(10), 11], 1]  # the older one of the two large ones
    assert read_only == [list(range(8)), 0]
    assert after == [list(range(4, 9)), 4]  # the oldest make room


def test_a_spool_whose_directory_is_removed_begins_anew(tmp_path: Path) -> None:
    """As with rm -rf: what was in it does not wait any more, it is told, and what comes then is on disk again."""

    async def work() -> None:
        folder, told = tmp_path / "spool", list[str]()
        spool = Spool(folder)
        outbox = Outbox(sender(Address("http://127.0.0.1:9"), "A"), spool, told.append)
        for i in range(5):
            await outbox.put(b"data", f"key-{i}")
        shutil.rmtree(folder)
        await outbox.put(b"data", "key-0")
        assert (outbox.waiting, outbox.dropped, outbox.disk_fails) == (1, 5, False)
        assert told == [f"{folder}: others removed files of 5 messages that waited: lost"]
        assert [path.name[20:] for path in folder.iterdir()] == ["-key-0.message"]
        with pytest.raises(WirelagError, match="another agent spools here"):
            Spool(folder)
        for path in folder.iterdir():
            path.unlink()
        (name,) = spool.names
        assert spool.read(name) is None
        assert (outbox.waiting, outbox.dropped) == (0, 6)
        spool.close()

    run(work())


def test_a_small_spool_and_no_collector_fill_no_log(tmp_path: Path) -> None:
    """Every message is larger than the spool, and cannot be sent: four lines a second before."""
    capture = tmp_path / "capture.pcap"
    subprocess.run([*WIRELAG, "simulate", "--packets", "9000", "--seed", "1", "-o", capture, "--quiet"], check=True)
    agent = [
        *WIRELAG, "agent", "--point", "A", "-r", str(capture), "--speed", "1000x", "--segment", "A>B",
        "--collector", "http://127.0.0.1:9", "--spool", str(tmp_path / "spool"), "--spool-most", "1B",
        "--interval", "10ms", "--grace", "1ms",
    ]  # fmt: skip
    done = subprocess.run(agent, capture_output=True, text=True, check=True)
    intervals = int(done.stderr.partition("ends after ")[2].partition(" ")[0].replace(",", ""))
    assert intervals > 20
    assert len(done.stderr.splitlines()) <= 6
    assert "larger than the spool (1 bytes): such messages are sent, but not kept" in done.stderr


def test_an_agent_goes_on_after_sighup(tmp_path: Path) -> None:
    capture = tmp_path / "capture.pcap"
    subprocess.run([*WIRELAG, "simulate", "--packets", "2000", "--seed", "1", "-o", capture, "--quiet"], check=True)
    agent = [
        *WIRELAG, "agent", "--point", "A", "-r", str(capture), "--speed", "0.01x", "--segment", "A>B",
        "--collector", "http://127.0.0.1:9", "--spool", str(tmp_path / "spool"),
    ]  # fmt: skip
    with subprocess.Popen(agent, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("A: reading" in line for line in lines)
        process.send_signal(signal.SIGHUP)
        assert any("SIGHUP: settings are read at the start; restart to change them" in line for line in lines)
        process.terminate()
        assert any("ends after" in line for line in lines)
    assert process.returncode == 0


@IN_LAB
def test_an_agent_works_on_a_read_only_disk(tmp_path: Path) -> None:
    """Its spool is on a file system that is read-only when it starts, as ext4 is after an error."""
    mount = "mount -t tmpfs -o ro tmpfs"
    capture = tmp_path / "capture.pcap"
    subprocess.run([*WIRELAG, "simulate", "--packets", "2000", "--seed", "1", "-o", capture, "--quiet"], check=True)
    (tmp_path / "disk").mkdir()
    with Running(tmp_path, "--segment", "A>B") as running:
        agent = [
            *WIRELAG, "agent", "--point", "A", "-r", str(capture), "--speed", "1000x", "--segment", "A>B",
            "--collector", running.url, "--spool", str(tmp_path / "disk" / "spool"),
        ]  # fmt: skip
        inside = ("unshare", "--mount", "sh", "-c", f'{mount} "$0" && exec "$@"', str(tmp_path / "disk"))
        done = subprocess.run([*inside, *agent], capture_output=True, text=True, check=True)
        assert "cannot be used as a spool (Read-only file system); messages wait in memory" in done.stderr
        assert running.counted()["synopsis"] >= 2
        (status,) = running.json("/api/v1/agents")["agents"]
        assert status["says"]["spool_failing"] is True


# ---- names ----


def test_of_two_agents_with_one_name_the_second_is_refused(tmp_path: Path) -> None:
    """Both agents say they are A: the second one's messages stay with it, and both sides say so."""
    agent = pair(recent(8, 50, 1), RDA)[0]
    messages = agent.messages(0, 8)

    async def work(url: str) -> list[str]:
        first, second = (sender(Address(url), "A") for _ in range(2))
        refused = []
        for message in messages:
            await first.send(encode(message), message.key)
            try:
                await second.send(encode(message), message.key)
            except Declined as error:
                refused.append(str(error))
        await asyncio.gather(first.close(), second.close())
        return refused

    with Running(tmp_path, "--segment", "A>B") as running:
        refused = asyncio.run(asyncio.wait_for(work(running.url), PATIENCE_S))
        assert len(refused) == 7  # it took over with its first message; then the other one spoke again
        assert "(status 409: another agent called A is running; give each its own name)" in refused[0]
        assert running.counted()["http of a second agent"] == 7
    assert running.log.count("two agents are called A: the one at 127.0.0.1, which began later, is refused") == 1


def test_a_second_agent_that_starts_again_and_again_gets_nothing_in(tmp_path: Path) -> None:
    """Each of its runs is a new one; once two were seen running, none of them is taken for the first one's next."""
    agent = pair(recent(8, 50, 1), RDA)[0]
    messages = agent.messages(0, 8)

    async def work(url: str) -> int:
        first, refused = sender(Address(url), "A"), 0
        for message in messages:
            await first.send(encode(message), message.key)
            second = sender(Address(url), "A")
            try:
                await second.send(encode(message), message.key)
            except Declined:
                refused += 1
            await second.close()
        await first.close()
        return refused

    with Running(tmp_path, "--segment", "A>B") as running:
        assert asyncio.run(asyncio.wait_for(work(running.url), PATIENCE_S)) == 7  # all but the first of the first run
        assert running.counted()["http of a second agent"] == 7


def test_a_first_agent_that_starts_again_beside_a_second_is_late_and_then_heard() -> None:
    runs = Runs()
    assert [runs.admits("A", run, 0.0) for run in ("one", "two", "one", "two")] == [True, True, True, False]
    for number in range(10):
        assert not runs.admits("A", f"two {number}", 1.0 + number)
    assert not runs.admits("A", "one again", 20.0)  # it cannot be told from the second
    assert not runs.refuses("A", "one", 21.0)  # what a broker repeats
    assert runs.refuses("A", "two", 21.0)
    assert runs.admits("A", "one again", SILENT_S)  # the first run has ended
    assert runs.admits("A", "one once more", SILENT_S + 1)  # no other run was heard since
    assert [runs.admits("B", run, 0.0) for run in ("one", "two", "one")] == [True, True, True]
    assert runs.admits("B", "one", DOUBT_S - 10)
    assert runs.admits("B", "one again", DOUBT_S)  # the second has not been heard for long


def test_an_agent_that_starts_again_is_heard_at_once() -> None:
    runs = Runs()
    for number in range(200):
        assert runs.admits("A", f"run {number}", 0.0)
    assert runs.admits("A", "", 0.0)  # one that does not say
    assert runs.admits("A", "run 198", 1.0)  # both are running
    assert not runs.admits("A", "run 199", 2.0)
    assert runs.admits("A", "run 198", 3.0)
    assert not runs.admits("A", "run 199", 3.0 + SILENT_S - 1)
    assert runs.admits("A", "run 199", 3.0 + SILENT_S)  # the other one has ended
    assert runs.admits("A", "run 199", 100.0)
