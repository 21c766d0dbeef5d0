"""The spool and the outbox: kills at any instant, a full spool, and catching up."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.transport_peers import (
    message,
    program,
    run,
    soon,
)
from wirelag.errors import WirelagError
from wirelag.protocol.messages import decode, encode
from wirelag.transport import Unreachable
from wirelag.transport.outbox import Outbox
from wirelag.transport.spool import Spool, key_of

# ---- the spool ----


def test_the_spool_keeps_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a" / "spool")
    names = [spool.put(bytes([i]) * i, f"key-{i}") for i in range(12)]
    assert spool.put(b"again", "key-3") is None
    assert spool.names == names
    assert spool.read(str(names[5])) == b"\5" * 5
    assert key_of(str(names[5])) == "key-5"
    spool.remove(str(names[5]))
    assert spool.read(str(names[5])) is None
    spool.close()
    again = Spool(tmp_path / "a" / "spool")
    assert again.names == names[:5] + names[6:]
    assert again.put(b"x", "key-5") not in names
    assert oct((tmp_path / "a" / "spool").stat().st_mode)[-3:] == "700"
    again.close()


def test_the_spool_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=10 * 4096)
    for number in range(25):
        spool.put(bytes(4000), f"key-{number}")
        assert spool.bytes <= 10 * 4096
    assert [key_of(name) for name in spool.names] == [f"key-{number}" for number in range(15, 25)]
    assert (spool.dropped, len(list(tmp_path.iterdir()))) == (15, 10)
    spool.put(bytes(5 * 4096), "key-large")
    assert (spool.dropped, len(spool)) == (20, 6)
    with pytest.raises(WirelagError, match="larger than the spool"):
        spool.put(bytes(11 * 4096), "key-too-large")
    assert (spool.dropped, len(spool)) == (21, 6)
    spool.close()
    smaller = Spool(tmp_path, most_bytes=5 * 4096)
    assert [key_of(name) for name in smaller.names] == ["key-large"]
    smaller.close()


def test_a_spool_has_one_owner(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(WirelagError, match="another agent spools here"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_a_closed_spool_is_free_though_a_child_still_has_its_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # as between fork and exec of a program that is started
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        spool.close()
        Spool(tmp_path).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


def test_an_impossible_place_for_a_spool(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WirelagError, match=r"file: cannot spool here \(.*\); choose another --spool"):
        Spool(tmp_path / "file")


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    spool = Spool(tmp_path, most_bytes=4096)
    spool.put(b"1", "key-1")
    spool.put(b"2", "key-2")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(spool) == 1
    spool.close()


SPOOLING = """
import sys
from wirelag.transport.spool import Spool, key_of
spool, number = Spool(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    spool.put(b"%d " % number * 3000, f"key-{number}")
    print("put", number, flush=True)
    number += 1
    if number % 3 == 0:
        oldest = spool.names[0]
        print("remove", key_of(oldest).removeprefix("key-"), flush=True)
        spool.remove(oldest)
"""


def test_a_spool_survives_its_process_at_any_instant(tmp_path: Path) -> None:
    """kill -9, twenty times: confirmed messages are there, whole and in order; removed ones may come back."""
    rng, put, removed = random.Random(11), set[int](), set[int]()
    for _ in range(20):
        with program(sys.executable, "-c", SPOOLING, str(tmp_path), str(len(put)), ready="ready") as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(rng.randrange(1, 30))]
            process.kill()
            for line in [line for line in [*said, *process.stdout] if line.endswith("\n")]:  # the last may be cut
                what, number = line.split()
                (put if what == "put" else removed).add(int(number))
        spool = Spool(tmp_path)
        there = [int(key_of(name).removeprefix("key-")) for name in spool.names]
        assert [spool.read(name) for name in spool.names] == [b"%d " % number * 3000 for number in there]
        assert there == sorted(there)
        assert put - removed <= set(there)
        put = set(range(max([*there, *put], default=-1) + 1))  # the last may have been stored before it was confirmed
        removed = put - set(there)
        spool.close()
    assert len(put) > 100


# ---- the outbox ----


class Gate:
    """A sender that lets messages through while it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.tried = asyncio.Event()
        self.through: list[int] = []
        self.after: Callable[[int], Coroutine[Any, Any, None]] | None = None

    async def send(self, data: bytes, key: str) -> None:
        self.tried.set()
        if not self.open.is_set():
            raise Unreachable("the gate: is closed")
        self.through.append(decode(data).sent_ns)
        if self.after is not None:
            await self.after(len(self.through))

    async def asks(self) -> AsyncIterator[bytes]:
        return
        yield b""

    async def close(self) -> None:
        return


def test_old_and_new_messages_take_turns(tmp_path: Path) -> None:
    async def work() -> None:
        spool, gate, told = Spool(tmp_path), Gate(), list[str]()
        spool.put(encode(message(0)), message(0).key)  # from an earlier process
        outbox = Outbox(gate, spool, told.append)
        running = asyncio.create_task(outbox.run())
        for number in range(1, 80):
            await outbox.put(encode(message(number)), message(number).key)
        await soon(gate.tried.wait())
        assert outbox.reachable is False

        async def one_more(count: int) -> None:
            if 2 <= count < 12:
                await outbox.put(encode(message(100 + count)), message(100 + count).key)

        gate.after = one_more
        gate.open.set()
        await soon(outbox.drained())
        waited = [number for number in gate.through if number < 100]
        new = [number for number in gate.through if number > 100]
        assert waited == list(range(80))
        assert new == list(range(102, 112))
        assert gate.through.index(111) < 60  # long before the last old one
        assert told == [
            "the gate: is closed; messages wait on disk until it answers",
            "the collector answers again; 79 messages wait",
        ]
        assert (outbox.sent, outbox.waiting, outbox.waiting_bytes, outbox.dropped) == (90, 0, 0, 0)
        running.cancel()
        spool.close()

    run(work())


def test_a_long_outage_keeps_the_newest_and_counts_the_rest(tmp_path: Path) -> None:
    async def work() -> None:
        spool, gate = Spool(tmp_path, most_bytes=8 * 4096), Gate()
        outbox = Outbox(gate, spool)
        running = asyncio.create_task(outbox.run())
        for number in range(50):
            await outbox.put(encode(message(number)), message(number).key)
        await soon(gate.tried.wait())
        gate.open.set()
        await soon(outbox.drained())
        assert gate.through[-8:] == list(range(42, 50))
        assert len(gate.through) <= 9  # and the one that was being sent
        assert outbox.dropped == 42
        running.cancel()
        spool.close()

    run(work())


def test_a_full_disk_does_not_silence_an_agent(tmp_path: Path) -> None:
    """Simulated by a spool that is too small for the message."""

    async def work() -> None:
        spool, gate, told = Spool(tmp_path, most_bytes=0), Gate(), list[str]()
        outbox = Outbox(gate, spool, told.append)
        with pytest.raises(Unreachable):
            await outbox.put(encode(message(1)), message(1).key)
        gate.open.set()
        await outbox.put(encode(message(2)), message(2).key)
        assert gate.through == [2]
        assert len(told) == 1
        spool.close()

    run(work())
