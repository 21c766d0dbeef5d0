"""A collector as a separate process, and agents that talk to it, for the tests of both."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as File
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from tests.support import waiting
from tests.support.agent_messages import SECOND_NS, Agent, Path
from tests.support.command import WIRELAG
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S
from wirelag.estimators.rda import Rda
from wirelag.protocol.messages import Message, decode, encode
from wirelag.transport import Address, Sender, Unreachable, sender

RDA = Rda(buckets=600, tail=200)


class Running:
    """A collector that listens on its own port."""

    def __init__(
        self,
        folder: File,
        *words: str,
        port: int = 0,
        token: str | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`prefix`: a command that runs it."""
        self.store, self.token = folder / "store.db", token
        self._command = [*prefix, *WIRELAG, "collect", "--store", str(self.store), *words]
        self._port = port or free_port()
        self._environment = os.environ | dict(environment or {})
        self.log = ""

    def __enter__(self) -> Self:
        command = [*self._command, "--listen", f"127.0.0.1:{self._port}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=self._environment)
        assert self.process.stderr is not None
        line = ""
        while "collecting at" not in line:  # it may say first that it has rescued its store
            line = self.process.stderr.readline()
            self.log += line
            assert line, f"it did not start: {self.log}"
        self.url = line.split()[2].rstrip("/,")
        self._port = int(self.url.rpartition(":")[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> int:
        """Send it a signal, and wait."""
        assert self.process.stderr is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        if not self.process.stderr.closed:
            self.log += self.process.stderr.read()
            self.process.stderr.close()
        return self.process.wait(PATIENCE_S)

    def read_log(self, text: str) -> None:
        """Wait for a line that holds this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if text in line:
                return
        raise AssertionError(f"the log ends without {text!r}: {self.log}")

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> tuple[int, str]:
        """The status and the text of a response."""
        given = {"Authorization": f"Bearer {self.token}"} if self.token and headers is None else dict(headers or {})
        request = urllib.request.Request(f"{self.url}{path}?{urlencode(query)}".rstrip("?"), headers=given)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str, **query: Any) -> Any:
        status, text = self.get(path, None, **query)
        assert status == 200, text
        return json.loads(text)

    def reports(self, segment: str = "A>B", **query: Any) -> list[dict[str, Any]]:
        """Reports by beginning."""
        found: list[dict[str, Any]] = self.json("/api/v1/reports", segment=segment, **query)["reports"]
        return found

    def counted(self) -> dict[str, int]:
        found: dict[str, int] = self.json("/api/v1/status")["counted"]
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this collector's state is as wanted."""
        waiting.until(holds, "the expected state of the collector")


def recent(seconds: int, rate: int, seed: int, **more: Any) -> Path:
    """Packets of the last seconds, all of them complete."""
    now_ns = time.time_ns() // SECOND_NS * SECOND_NS
    return Path.made(seconds, rate, seed, start_ns=now_ns - (seconds + 2) * SECOND_NS, **more)


def login(url: str, token: str) -> str:
    """Log in at the page; return the cookie of the session."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    request = urllib.request.Request(f"{url}/login", data=f"token={token}".encode(), method="POST")
    try:
        urllib.request.build_opener(Stay).open(request)
    except urllib.error.HTTPError as answer:
        return str(answer.headers["Set-Cookie"]).partition(";")[0]
    raise AssertionError("no session")


def send(url: str, agents: Iterable[Agent], count: int, until: Callable[[], bool], token: str | None = None) -> None:
    """Let agents send `count` intervals, with retries, and answer asks until `until` holds."""
    asyncio.run(_send(Address(url, token), agents, count, until))


async def _send(address: Address, agents: Iterable[Agent], count: int, until: Callable[[], bool]) -> None:
    by_point: dict[str, list[Agent]] = {}
    for agent in agents:
        by_point.setdefault(agent.point, []).append(agent)
    lines = {point: sender(address, point) for point in by_point}
    answering = [asyncio.create_task(_answer(several, lines[point])) for point, several in by_point.items()]
    made = [(agent.point, agent.messages(0, count)) for several in by_point.values() for agent in several]
    await asyncio.gather(*(_send_all(lines[point], messages) for point, messages in made))
    await asyncio.to_thread(waiting.until, until, "the expected state of the collector")
    await ended(lines.values(), answering)


async def ended(lines: Iterable[Sender], answering: Iterable[asyncio.Task[None]]) -> None:
    """Close the lines and their answering tasks; a task that was just asked would retry endlessly."""
    for line in lines:
        await line.close()
    for task in answering:
        task.cancel()
    for outcome in await asyncio.gather(*answering, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


async def _send_all(line: Sender, messages: Iterable[Message]) -> None:
    for message in messages:
        await surely(line, message)


async def surely(line: Sender, message: Message) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await line.send(encode(message), message.key)
                return
            except Unreachable:
                await asyncio.sleep(0.05)


async def _answer(agents: list[Agent], line: Sender) -> None:
    """At a point of several segments, the agent of the requested segment answers."""
    async for data in line.asks():
        ask = decode(data)
        await surely(line, next(agent for agent in agents if agent.segment == ask.segment).answer(ask))


def settled(running: Running, path: Path, count: int, segment: str = "A>B") -> Callable[[], bool]:
    """Whether `count` intervals of a path are settled."""

    def holds() -> bool:
        with suppress(OSError, http.client.HTTPException, AssertionError):
            known = [bool(one["settled"]) for one in running.reports(segment) if one["start"] >= path.start_ns / 1e9]
            return sum(known) >= count
        return False

    return holds


def are_true(reports: Iterable[dict[str, Any]], path: Path) -> int:
    """Settled reports equal the packets exactly; return their number."""
    found = 0
    for report in reports:
        start_ns = round(report["start"] * 1e9)
        if not report["settled"] or start_ns < path.start_ns or report["lost"] is None:
            continue
        sent = path.during(start_ns, start_ns + SECOND_NS)
        delays_ns = path.delays_ns[sent & ~path.lost]
        assert report["used"] == len(delays_ns)
        if len(delays_ns):
            assert report["mean"] == int(delays_ns.sum()) / len(delays_ns) / 1e9
        assert report["lost"] == int((sent & path.lost).sum())
        found += 1
    return found
