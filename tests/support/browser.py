"""A headless Chromium, controlled over a pipe: open pages, wait, click, evaluate."""

import itertools
import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import PATIENCE_S, until

AGAIN_S = 5.0  # a page that closes loses its questions: ask again
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--window-size=1200,1600",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page, with its `requests` and its `problems`."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._numbers = itertools.count(1)
        self._left = b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def files() -> None:  # Chromium reads from 3 and writes to 4
            os.dup2(theirs_in, 103)
            os.dup2(theirs_out, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        profile = f"--user-data-dir={self._folder / 'profile'}"
        self._process = subprocess.Popen(
            [self._program, *FLAGS, profile, "about:blank"], preexec_fn=files, pass_fds=(3, 4, theirs_in, theirs_out),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        page = until(self._page, "a page")  # Chromium answers before it has one
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        self._send("Browser.close", {})
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _page(self) -> str | None:
        targets = self.call("Target.getTargets")["targetInfos"]
        return next((one["targetId"] for one in targets if one["type"] == "page"), None)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the DevTools protocol; return its reply."""
        message = self._answer({self._send(method, parameters)}, time.monotonic() + PATIENCE_S)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", **_evaluated(expression))
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until it is true."""
        question = _evaluated(f"(() => {{try {{return {expression}}} catch {{return false}}}})()")
        end, asked = time.monotonic() + PATIENCE_S, set[int]()
        while time.monotonic() < end:
            asked.add(self._send("Runtime.evaluate", question))
            try:
                answer = self._answer(asked, time.monotonic() + AGAIN_S)
            except TimeoutError:
                continue
            if value := answer.get("result", {}).get("result", {}).get("value"):  # none: the page closed meanwhile
                return value
            select.select([], [], [], 0.05)
        raise AssertionError(f"{expression} never held; {self.problems}")

    def _answer(self, asked: set[int], end: float) -> dict[str, Any]:
        """The first reply to any of these; TimeoutError if none comes."""
        while (message := self._next(end)).get("id") not in asked:
            pass
        asked.remove(message["id"])
        return message

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return number

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._left += read
        first, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(said["exceptionDetails"].get("exception", {}).get("description", said)))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(said["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] == "error":
            self.problems.append(json.dumps(said["args"]))


def _evaluated(expression: str) -> dict[str, Any]:
    return {"expression": expression, "returnByValue": True, "awaitPromise": True}
