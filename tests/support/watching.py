"""`wirelag watch` in the lab, read line by line."""

import json
import signal
import subprocess
from typing import Any

from lab.network import Network
from tests.support.command import WIRELAG
from tests.support.waiting import PATIENCE_S


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class Watching:
    """A program in the lab whose output is read line by line."""

    def __init__(self, network: Network, host: str, *arguments: str) -> None:
        command = network.command(host, [*WIRELAG, "watch", *arguments])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> dict[str, Any]:
        assert self.process.stdout
        text = self.process.stdout.readline()
        assert text, self.process.stderr and self.process.stderr.read()
        found: dict[str, Any] = json.loads(text)
        return found

    def end(self, number: int = signal.SIGINT, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        if number:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == code, err
        return lines_of(out), err
