"""A long way to the collector and a slow disk: an agent keeps up with both."""

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.command import as_process, wirelag
from tests.support.transport_peers import free_port, message, program, run, soon
from wirelag.protocol.messages import encode
from wirelag.transport import LANES, Address, sender
from wirelag.transport.http import MEDIA_TYPE
from wirelag.transport.outbox import Outbox
from wirelag.transport.spool import Spool, key_of

SEGMENTS = 10


class Far:
    """A collector far away: it answers nobody until so many messages are under way, which takes them all one trip."""

    def __init__(self, together: int) -> None:
        self.together, self.under_way, self.taken = together, 0, 0
        self._there = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            assert MEDIA_TYPE.encode() in head
            (length,) = (int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"Content-Length"))
            await reader.readexactly(length)
            self.under_way += 1
            if self.taken and self.under_way >= self.together:  # the first one tells that the collector answers
                self._there.set()
            if self.taken:
                await self._there.wait()
            self.taken += 1
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def test_messages_of_ten_segments_take_one_trip(tmp_path: Path) -> None:
    """10 segments at 150 ms, one POST at a time: 18 s behind after a minute. Now all of them are under way at once."""

    async def work() -> None:
        far, spool = Far(1 + SEGMENTS), Spool(tmp_path)
        server = await asyncio.start_server(far.serve, "127.0.0.1")
        way = sender(Address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "A")
        outbox = Outbox(way, spool)
        running = asyncio.create_task(outbox.run())
        await outbox.put(encode(message(0)), message(0).key)
        await soon(outbox.drained())
        await outbox.put_all([(encode(message(i)), message(i).key) for i in range(1, 1 + SEGMENTS)])
        await soon(outbox.drained())
        assert (far.taken, len(spool)) == (1 + SEGMENTS, 0)
        running.cancel()
        await way.close()
        server.close()

    assert SEGMENTS <= LANES
    run(work())


def test_messages_that_come_together_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, really = [0], os.fsync

    def count(number: int) -> None:
        synced[0] += 1
        really(number)

    monkeypatch.setattr(os, "fsync", count)
    spool = Spool(tmp_path)
    names = spool.put_all([(b"%d" % i * 1000, f"key-{i}") for i in range(SEGMENTS)])
    assert synced == [2]  # the file and its folder, not ten times
    assert spool.put_all([(b"again", "key-3"), (b"new", "key-x"), (b"new", "key-x")])[::2] == [None, None]
    assert [spool.read(str(name)) for name in names] == [b"%d" % i * 1000 for i in range(SEGMENTS)]
    spool.remove(str(names[3]))
    assert spool.read(str(names[3])) is None
    spool.close()
    again = Spool(tmp_path)  # what was delivered comes back with the others: it is counted once
    assert [key_of(name) for name in again.names] == [*(f"key-{i}" for i in range(SEGMENTS)), "key-x"]
    for name in again.names[:SEGMENTS]:
        again.remove(name)
    assert [path.name for path in tmp_path.iterdir()] == again.names
    again.close()


def test_an_agent_writes_once_for_each_interval(tmp_path: Path) -> None:
    wirelag("simulate", "--packets", "3000", "--seed", "1", "-o", tmp_path / "some.pcap")
    settings = tmp_path / "agent.toml"
    segments = "".join(f'[[segments]]\nname = "A>B{i}"\ndirection = "10.0.{i}.0/24>0.0.0.0/0"\n' for i in range(10))
    settings.write_text(
        f'point = "A"\nread = ["{tmp_path}/some.pcap"]\nspeed = "1000x"\ninterval = "100ms"\n{segments}'
    )
    where = ("--collector", f"http://127.0.0.1:{free_port()}", "--spool", str(tmp_path / "spool"))
    as_process("agent", str(settings), *where)
    files = [path.name for path in (tmp_path / "spool").iterdir()]
    with_all = Spool(tmp_path / "spool")
    assert len(with_all) >= SEGMENTS
    assert len(files) <= len(with_all) / SEGMENTS
    with_all.close()


TOGETHER = """
import sys
from wirelag.transport.spool import Spool
spool, number = Spool(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    spool.put_all([(b"%d " % (10 * number + i) * 3000, f"key-{10 * number + i}") for i in range(10)])
    print("put", number, flush=True)
    number += 1
"""


def test_messages_that_share_a_file_survive_their_process_together(tmp_path: Path) -> None:
    confirmed = 0
    for lines in (1, 4, 9):
        with program(sys.executable, "-c", TOGETHER, str(tmp_path), str(confirmed), ready="ready") as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.kill()
        spool = Spool(tmp_path)
        there = [int(key_of(name).removeprefix("key-")) for name in spool.names]
        assert [spool.read(name) for name in spool.names] == [b"%d " % number * 3000 for number in there]
        assert there == list(range(len(there)))
        assert len(there) >= 10 * (confirmed + lines)
        assert len(there) % 10 == 0
        confirmed = len(there) // 10
        spool.close()


def test_a_damaged_file_costs_its_own_messages(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_all([(b"one", "key-1"), (b"two", "key-2")])
    spool.put_all([(b"three", "key-3"), (b"four", "key-4")])
    spool.close()
    first = min(tmp_path.iterdir())
    first.write_bytes(first.read_bytes().replace(b"key-1:3", b"key-1:9"))
    again = Spool(tmp_path)
    assert [key_of(name) for name in again.names] == ["key-3", "key-4"]
    assert (again.damaged, again.dropped) == ([first.name], 2)
    assert again.put(b"one", "key-1") is not None
    assert (tmp_path / f"{first.name}.damaged").exists()
    again.close()


def test_a_status_goes_ahead_of_what_waits(tmp_path: Path) -> None:
    """Else the collector would hear how far behind an agent is as late as the agent is behind."""

    class Slow:
        def __init__(self) -> None:
            self.through, self.held = list[str](), threading.Event()

        async def send(self, data: bytes, key: str) -> None:
            if key.startswith("key") and self.through:
                await asyncio.Event().wait()
            self.through.append(key)

    async def work() -> None:
        way, spool = Slow(), Spool(tmp_path)
        outbox = Outbox(way, spool)  # type: ignore[arg-type]
        running = asyncio.create_task(outbox.run())
        for number in range(3 * LANES):
            await outbox.put(b"data", f"key-{number}")
        assert await soon(outbox.try_now(b"status", "status-1"))
        assert way.through[-1] == "status-1"
        assert outbox.waited_s > 0
        assert len(spool) >= 3 * LANES - 1
        running.cancel()
        spool.close()

    run(work())
