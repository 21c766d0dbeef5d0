"""A collector that only receives, beside agents in the lab."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import uvicorn
from starlette.applications import Starlette

from tests.support.command import WIRELAG
from tests.support.two_points import SECOND_NS
from tests.support.waiting import PATIENCE_S
from wirelag.protocol.messages import Message, decode, encode
from wirelag.transport.http_inbox import HttpInbox

AGENT = (*WIRELAG, "agent")
LENGTH_NS = SECOND_NS // 4  # interval of live agents
PORT = 8321


class Receiver:
    """A collector that stores messages; with `holds` it does not acknowledge them."""

    def __init__(self, inside: Callable[[], AbstractContextManager[None]], address: str = "10.5.0.11") -> None:
        self.messages: list[Message] = []
        self.holds = False
        self._came = threading.Condition()
        self._inside, self._address = inside, address
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._inside():
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = HttpInbox({"sesame": None})
        app = Starlette(routes=self._inbox.routes())
        config = uvicorn.Config(app, self._address, PORT, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve())
        async for data, acknowledge in self._inbox.messages():
            message = decode(data)
            with self._came:
                self.messages.append(message)
                self._came.notify_all()
            if not self.holds:
                await acknowledge()
        await serving

    def ask(self, message: Message) -> None:
        asyncio.run_coroutine_threadsafe(self._inbox.ask(message.point, encode(message)), self._loop).result(PATIENCE_S)

    def wait(self, wanted: Callable[[list[Message]], bool]) -> list[Message]:
        """Wait until the messages so far are the wanted ones."""
        with self._came:
            assert self._came.wait_for(lambda: wanted(self.messages), PATIENCE_S), [m.key for m in self.messages]
            return list(self.messages)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.should_exit = True
            await self._inbox.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(PATIENCE_S)
        self._thread.join(PATIENCE_S)


def synopses(messages: Sequence[Message], point: str) -> dict[int, Message]:
    """The synopses of one point, by interval; each came once."""
    found = [m for m in messages if m.type == "synopsis" and m.point == point]
    keys = [m.key for m in found]
    assert len(set(keys)) == len(keys)
    return {m.interval.start_ns: m for m in found}


def whole(messages: Sequence[Message]) -> list[int]:
    """Intervals that both points covered, and in which packets passed."""
    both = [synopses(messages, point) for point in ("client", "server1")]
    return sorted(
        start_ns
        for start_ns in set(both[0]) & set(both[1])
        if all(m[start_ns].seen.covered_ns == LENGTH_NS and m[start_ns].seen.packets for m in both)
    )
