"""Old agents and the new collector, new agents and an old one: nothing is dropped because versions differ."""

import asyncio
import base64
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.places import DATA
from tests.support.transport_peers import run
from tests.support.waiting import until_soon
from wirelag.protocol.messages import VERSION, UnknownVersion, decode, encode, peek
from wirelag.transport import Address, Declined, sender
from wirelag.transport.outbox import Outbox
from wirelag.transport.spool import Spool


def recorded() -> list[dict[str, Any]]:
    """Messages as agents of version 1 wrote them: three seconds at both ends, by lda and rda."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress((DATA / "messages-version1.json.gz").read_bytes()))
    return [one | {"data": base64.b64decode(one["data"])} for one in found]


def as_version(data: bytes, version: int) -> bytes:
    return data[:4] + struct.pack("<I", version) + data[8:]


def test_messages_of_the_version_before_are_read() -> None:
    for one in recorded():
        message = decode(one["data"])
        assert (message.point, message.interval.start_ns) == (one["point"], one["start_ns"])
        assert message.terms.estimator.name == one["estimator"]
        assert peek(one["data"]).interval == message.interval
        assert len(message.records) == 1
        for cut in range(0, len(one["data"]), 97):
            with pytest.raises(ValueError, match=r"."):
                decode(one["data"][:cut])


def test_an_agent_of_the_version_before_is_measured(tmp_path: Path) -> None:
    """What it left in its spool is settled by a collector of today."""

    async def deliver(url: str) -> None:
        for point in "AB":
            way = sender(Address(url), point)
            for one in recorded():
                if one["point"] == point and one["estimator"] == "lda":
                    await way.send(one["data"], one["key"])
            await way.close()

    sent = {one["start_ns"] / 1e9: one["sent"] for one in recorded()}
    with Running(tmp_path, "--segment", "A>B") as running:
        run(deliver(running.url))
        reports = running.reports()
        assert {one["start"]: one["sent"] for one in reports} == sent
        assert [one["settled"] for one in reports[:2]] == [True, True]
        assert all(one["mean"] is not None for one in reports)


def test_a_version_that_is_not_known_is_kept_and_delays_no_other(tmp_path: Path) -> None:
    """An agent was upgraded before its collector, or back: its messages stay in its spool."""
    agent = pair(recent(4, 50, 1), RDA)[0]
    messages = agent.messages(0, 4)
    newer = as_version(encode(messages[0]), VERSION + 1)
    with pytest.raises(UnknownVersion):
        decode(newer)

    async def work(url: str) -> None:
        way, spool, told = sender(Address(url), "A"), Spool(tmp_path / "spool"), list[str]()
        with pytest.raises(Declined, match=f"version {VERSION + 1} of the format"):
            await way.send(newer, messages[0].key)
        spool.put(newer, messages[0].key)
        for message in messages[1:]:
            spool.put(encode(message), message.key)
        outbox = Outbox(way, spool, told.append)
        running = asyncio.create_task(outbox.run())
        await until_soon(lambda: outbox.sent == 3 and len(spool.names) == 1, "three messages")  # then it is removed
        assert [spool.read(name) for name in spool.names] == [newer]
        assert len(told) == 1
        assert "the message waits on disk, others go on" in told[0]
        running.cancel()
        await way.close()
        spool.close()

    with Running(tmp_path, "--segment", "A>B") as running:
        run(work(running.url))
        counted = running.counted()
        assert counted["synopsis"] == 3
        assert counted["http of an unknown version"] >= 1
