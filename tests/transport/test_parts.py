"""Partitions at a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support import fleet
from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, recent
from wirelag.protocol.messages import encode
from wirelag.protocol.sharing import PARTS
from wirelag.transport import Acknowledge, Address
from wirelag.transport.parts import STREAM, Parts


class Given:
    """An inbox with these messages."""

    scheme = "given"

    def __init__(self, messages: list[bytes]) -> None:
        self._messages, self.stored = messages, list[bool]()

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        async def acknowledge(is_stored: bool = True) -> None:
            self.stored.append(is_stored)

        for data in self._messages:
            yield data, acknowledge


def test_the_broker_drops_no_repetition_of_its_own(tmp_path: Path) -> None:
    """A message about no segment goes to all partitions, here twice."""
    data = encode(next(iter(pair(recent(1, 100, 3), RDA)[0].messages(0, 1))))

    async def run(nats: str) -> None:
        parts, given = Parts(Address(nats), "me"), Given([data, data])
        await parts.ensure()
        await parts.forward(given)  # type: ignore[arg-type]  # an inbox that ends
        info = await (await parts.line.stream()).stream_info(STREAM)
        assert (info.state.messages, given.stored) == (2 * PARTS, [True, True])
        await parts.close()

    with fleet.broker(tmp_path / "nats") as nats:
        asyncio.run(run(nats))
