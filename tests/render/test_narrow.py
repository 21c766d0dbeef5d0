"""Tables on narrow terminals: no line is wider, and what is left is what the wide table says."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.support.command import WIRELAG, wirelag
from tests.support.places import ROOT
from wirelag.render.tables import fit

SSH = "rtt/zeek/ssh.pcap.gz"
HTTP = "rtt/PcapPlusPlus/example.pcap.gz"
CLIENT, SERVER = (f"twopoint/mptcpanalyzer-0.3.2/{side}_1_tcp_only.pcap.gz" for side in ("client", "server"))
COMMANDS = (
    ("rtt", SSH, "--by", "server", "--interval", "100d"),
    ("rtt", SSH, "--by", "flow", "--leg", "both", "--above", "10ms", "--sla", "p99<1s"),
    ("rtt", "hidden/nDPI/vxlan.pcap"),
    ("response", SSH),
    ("response", SSH, "--method", "auto", "--by", "flow"),
    ("response", "hidden/zeek/ssh.client-side-half-duplex.pcap"),
    ("oneway", CLIENT, SERVER, "--by", "flow"),
    ("flows", SERVER, "--reference", "capture", "--upstream", CLIENT),
    ("info", SSH, "hidden/PcapPlusPlus/4KHttpRequests.pcap.gz"),
    ("watch", "rtt", "-r", HTTP, "--speed", "max", "--interval", "5s", "--by", "server"),
    ("watch", "response", "-r", HTTP, "--speed", "max", "--interval", "5s", "--by", "server"),
)


@pytest.mark.every(6)
@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(shared_data: Path, words: tuple[str, ...], columns: int) -> None:
    given = [shared_data / word if word.count("/") else word for word in words]
    wide = wirelag(*given, environment={"COLUMNS": ""}, code=None)
    narrow = wirelag(*given, environment={"COLUMNS": str(columns)}, code=None)
    assert narrow.returncode == wide.returncode
    lines = narrow.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert max(map(len, wide.stdout.splitlines())) > 80 or "vxlan" in str(words)
    cut = "\N{HORIZONTAL ELLIPSIS}"
    told, _, left_out = narrow.stdout.partition("left out, to fit ")
    assert [word for word in told.split() if cut not in word and word not in wide.stdout] == []
    missing = set().union(*(one - two for one, two in zip(heads(wide.stdout), heads(told), strict=True)))
    said = " ".join(left_out.partition(";")[0].removeprefix(f"{columns} columns: ").split())
    assert {name for name in missing if " to " not in name} == {name for name in said.split(", ") if name} - {
        "pictures"
    }


def heads(text: str) -> list[set[str]]:
    """The names of columns of each table."""
    lines = [line for line in text.splitlines() if "mean, 95% interval" in line]
    return [{name for name in re.split(r"  +", line.strip()) if name} for line in lines]


def test_pictures_keep_their_place_on_the_axis() -> None:
    """The blanks before the first block: without them, a slow path would look as fast as a fast one."""
    capture = ROOT / "docs" / "guides" / "data" / "web.pcap.gz"
    apart = []
    for width in ("", "118"):
        lines = wirelag("rtt", capture, environment={"COLUMNS": width}).stdout.splitlines()[1:3]
        server, client = (re.search("[▁-█]", line) for line in lines)
        assert server
        assert client
        apart.append(server.start() - client.start())
    assert apart == [20, 20], "octaves between the first blocks of both legs"


@pytest.mark.parametrize("quantity", ["rtt", "response"])
def test_rows_of_a_live_report_stay_in_one_line(shared_data: Path, quantity: str) -> None:
    """Each row was one long cell, so that narrow terminals broke it in the middle of a figure."""
    words = ("watch", quantity, "-r", shared_data / HTTP, "--speed", "max", "--by", "server")
    told = wirelag(*words, environment={"COLUMNS": "80"}).stdout
    rows = re.findall(r"^.* \d+ (?: +pairs)? +[\d.]+ [mu]?s .*", told, re.MULTILINE)
    assert len(rows) > 10
    assert all(len(re.findall(r"[\d.]+ [mu]s\b", row)) >= 4 for row in rows)
    assert "left out, to fit 80 columns: pictures" in told


def test_times_of_live_intervals_say_their_zone(shared_data: Path) -> None:
    for quantity in ("rtt", "response"):
        told = wirelag("watch", quantity, "-r", shared_data / HTTP, "--speed", "max", "--interval", "5s").stdout
        lines = [line for line in told.splitlines() if line.startswith("2013-")]
        assert len(lines) == 4
        assert all(re.match(r"2013-05-02 20:20:\d\d\.\d{3} UTC  ", line) for line in lines)


def test_means_keep_their_interval(shared_data: Path) -> None:
    """At the least width, too: a figure without its uncertainty is no figure."""
    told = wirelag("rtt", shared_data / HTTP, environment={"COLUMNS": "20"}).stdout
    assert re.search(r"1.12 ms, \S+ us to \S+ ms", told)
    assert max(map(len, told.splitlines())) <= 60


def test_a_terminal_decides_and_a_pipe_has_all(shared_data: Path) -> None:
    command = [*WIRELAG, "rtt", str(shared_data / SSH)]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    piped = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    os.close(ours)
    assert max(map(len, shown.decode().splitlines())) <= 80 < max(map(len, piped.splitlines()))
    assert shown.decode().splitlines() == wirelag(*command[1:], environment={"COLUMNS": "80"}).stdout.splitlines()


def test_text_is_wrapped_and_indented() -> None:
    assert fit(["one " * 20, ""], 60) == ["one " * 14 + "one", "  one one one one one", ""]
    below = ["yes  rtt  " + "one " * 12 + "one", " " * 10 + "one " * 6 + "one"]
    assert fit(["yes  rtt  " + "one " * 20], 61) == below, "below the last column"
    assert fit(["a" * 40 + "  " + "one " * 10], 60)[1].startswith("  one"), "unless it is far to the right"
