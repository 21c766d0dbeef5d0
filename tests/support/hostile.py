"""What attackers do to a collector, and what shows that it stood."""

import http.client
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.collector_process import Running
from tests.support.waiting import PATIENCE_S
from wirelag.transport.http import MEDIA_TYPE

TOKEN = "a-token-that-is-long-enough"
OF_EVIL = "the-token-of-an-agent-gone-bad"
SEGMENTS = ("A>B", "C>D")


@contextmanager
def collector(
    folder: Path, name: str, segments: Sequence[str] = SEGMENTS, *more: str, prefix: Sequence[str] = ()
) -> Iterator[Running]:
    """A collector with two tokens: one may do everything, the other belongs to an attacker at C."""
    (folder / name).mkdir()
    (folder / name / "tokens").write_text(f"{TOKEN}\n{OF_EVIL} C\n")
    words = [word for segment in segments for word in ("--segment", segment)]
    words += ["--token-file", str(folder / name / "tokens"), *more]
    with Running(folder / name, *words, token=TOKEN, prefix=prefix) as running:
        yield running
    assert "Traceback" not in running.log
    assert TOKEN not in running.log
    assert OF_EVIL not in running.log


def post(running: Running, body: bytes, token: str = OF_EVIL) -> int:
    parts = urlsplit(running.url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        line.request("POST", "/v1/messages", body, {"Content-Type": MEDIA_TYPE, "Authorization": f"Bearer {token}"})
        return line.getresponse().status
    finally:
        line.close()


def opened(running: Running, text: str) -> socket.socket:
    """A connection on which this much was sent."""
    parts = urlsplit(running.url)
    line = socket.create_connection((parts.hostname, parts.port or 0), timeout=PATIENCE_S)
    line.sendall(text.encode())
    return line


def peak_bytes(running: Running) -> int:
    """The most memory that the process has had."""
    lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
