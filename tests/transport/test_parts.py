"""Partitions at a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import fleet
from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, recent
from tests.support.waiting import PATIENCE_S
from wirelag.protocol.messages import encode
from wirelag.protocol.sharing import PARTS
from wirelag.transport import Acknowledge, Address
from wirelag.transport.parts import STREAM, Parts


class Given:
    """An inbox with these messages."""

    scheme = "given"

    def __init__(self, messages: list[bytes]) -> None:
        self._messages, self.stored = messages, list[bool | None]()

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        async def acknowledge(is_stored: bool | None = True) -> None:
            self.stored.append(is_stored)

        for data in self._messages:
            yield data, acknowledge


def test_a_message_is_acknowledged_once_every_owner_has_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message about no segment goes to all partitions. Without owners, and with a broker that loses it, it is not."""
    data = encode(next(iter(pair(recent(1, 100, 3), RDA)[0].messages(0, 1))))
    monkeypatch.setattr("wirelag.transport.parts._STORED_S", 0.1)

    async def run(nats: str) -> None:
        parts, given, again = Parts(Address(nats), "me"), Given([data, data]), Given([data, data])
        await parts.ensure()
        await parts.forward(given)  # type: ignore[arg-type]  # an inbox that ends
        stream = await parts.line.stream()
        info = await stream.stream_info(STREAM)
        assert (info.state.messages, given.stored) == (2 * PARTS, [None, None])  # it drops no repetition of its own
        await stream.purge_stream(STREAM)
        monkeypatch.setattr("wirelag.transport.parts._STORED_S", PATIENCE_S)
        await parts.open(range(PARTS))
        forwarding = asyncio.create_task(parts.forward(again))  # type: ignore[arg-type]
        owner = parts.messages()
        for left in range(2 * PARTS, 0, -1):
            assert len(again.stored) < 2, left
            came, acknowledge = await anext(owner)
            assert came == data
            await acknowledge()
        await forwarding
        assert again.stored == [True, True]
        await parts.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(asyncio.wait_for(run(nats), PATIENCE_S))
