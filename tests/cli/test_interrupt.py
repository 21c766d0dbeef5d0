"""^C on a long run: what was read so far is reported, marked partial, with exit code 130."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from pathlib import Path

import jsonschema
import pytest

from tests.support.captures import plain_bytes
from tests.support.command import WIRELAG
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S, until

SSH = "rtt/zeek/ssh.pcap.gz"


def interrupted(given: bytes, fifo: Path, *words: object) -> tuple[int, str, str]:
    """Run a command on a pipe that stays open; ^C when it has taken all bytes and waits for more."""
    os.mkfifo(fifo)
    command = [*WIRELAG, words[0], str(fifo), *map(str, words[1:])]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        fifo.open("wb", buffering=0) as pipe,
    ):
        pipe.write(given)
        until(lambda: _waits_for_more(pipe.fileno(), process.pid), "the reader has taken all bytes")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def _waits_for_more(pipe: int, pid: int) -> bool:
    """Whether the reader has taken everything, and sleeps in its next read."""
    (left,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return not left and "pipe" in Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.parametrize("command", ["rtt", "response", "info"])
def test_an_interrupted_command_reports_what_it_has(shared_data: Path, tmp_path: Path, command: str) -> None:
    given = plain_bytes(shared_data / SSH)
    code, out, err = interrupted(given, tmp_path / "pipe", command, "--format", "json")
    assert code == 130
    assert "Traceback" not in err
    assert "warning: partial" in err
    found = json.loads(out)
    assert found["partial"] is True
    assert found["packets"] == 1797
    schema = json.loads((ROOT / f"docs/reference/schema/{command}.json").read_text())
    jsonschema.validate(found, schema)
    (tmp_path / "whole.pcap").write_bytes(given)
    whole = subprocess.run(
        [*WIRELAG, command, tmp_path / "whole.pcap", "--format", "json"], capture_output=True, text=True, check=True
    )
    same = json.loads(whole.stdout)
    for name in ("mean", "samples", "ci95", "kinds", "conversations"):
        assert found.get(name) == same.get(name)


def test_tables_and_pages_say_so_too(shared_data: Path, tmp_path: Path) -> None:
    given, page = plain_bytes(shared_data / SSH), tmp_path / "page.html"
    code, out, _ = interrupted(given, tmp_path / "pipe", "rtt", "--html", page)
    assert code == 130
    assert out.splitlines()[-1] == "partial: stopped before the end of the input"
    assert "partial: stopped before the end of the input" in page.read_text()


def test_without_a_packet_it_only_stops(tmp_path: Path) -> None:
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    assert interrupted(header, tmp_path / "pipe", "response") == (
        130,
        "",
        "wirelag: stopped before there was a result\n",
    )
