"""The slowest samples: their packets have the numbers of tshark, and display filters show them."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import wirelag as api
from tests.support import needs
from tests.support.command import wirelag
from tests.support.places import DATA

TSHARK = shutil.which("tshark")
NEEDS_TSHARK = pytest.mark.skipif(TSHARK is None, reason=needs.program("tshark"))
HTTP = "rtt/zeek/1000-requests-one-dropped-response.pcap.gz"
CAPTURES = (
    HTTP,
    "rtt/zeek/modbusBig.pcap.gz",
    "rtt/nfstream/skype.pcap.gz",
    "rtt/tcptrace/http.dmp.gz",
    "wild/FoxIO-LLC__ja4__pcap__ssh2.pcapng.gz",
    "wild/OISF__suricata-verify__tests__telnet__telnet-01__telnet.pcap.gz",
)


def shown(capture: Path, text: str) -> list[tuple[int, int]]:
    """Number and time of the packets that a display filter shows."""
    fields = ("-T", "fields", "-e", "frame.number", "-e", "frame.time_epoch")
    ran = subprocess.run([str(TSHARK), "-n", "-r", capture, "-Y", text, *fields], capture_output=True, text=True)
    rows = []
    for line in ran.stdout.splitlines():
        number, time = line.split("\t")
        seconds, fraction = time.split(".")
        rows.append((int(number), int(seconds) * 10**9 + int(fraction.ljust(9, "0"))))
    return rows


@NEEDS_TSHARK
@pytest.mark.every(6)
@pytest.mark.parametrize("command", ["rtt", "response"])
@pytest.mark.parametrize("name", CAPTURES)
def test_tshark_shows_the_packets(command: str, name: str, shared_data: Path) -> None:
    path = shared_data / name
    result = api.rtt(str(path), top=1) if command == "rtt" else api.response(str(path), method="pairs", top=1)
    assert result.slowest
    for one in result.slowest:
        ((capture, text),) = one.filters.items()
        packets = shown(path, text)
        assert capture == str(path)
        assert packets[-1] == (one.frames[-1][1], one.time_ns + one.delay_ns)
        assert one.time_ns in [time_ns for _, time_ns in packets]
        if command == "response":
            assert packets[0][0] == one.frames[0][1]


@pytest.mark.parametrize("words", ["", "--leg client", "--leg mixed", "--port 80", "--memory 64KiB"])
def test_they_are_the_largest_of_all_samples(words: str, shared_data: Path, tmp_path: Path) -> None:
    import polars as pl

    file = tmp_path / "samples.parquet"
    ran = wirelag("rtt", shared_data / HTTP, *words.split(), "--top", "7", "--samples", file, "--format", "json")
    report: dict[str, Any] = json.loads(ran.stdout)
    samples = pl.read_parquet(file)
    samples = samples if "mixed" in words else samples.filter(leg="client" if "client" in words else "server")
    largest = samples.sort("delay_ns", descending=True, maintain_order=True).head(7)
    told = [(round(one["delay"] * 1e9), one["frames"][-1]["number"]) for one in report["slowest"]]
    assert told == list(zip(largest["delay_ns"], largest["response_number"], strict=True))
    assert report["slowest"][0]["delay"] == report["max"]


def test_numbers_are_those_of_each_file(shared_data: Path, tmp_path: Path) -> None:
    """Two files, one compressed: each sample names the file that has its packets."""
    plain = tmp_path / "loopback.pcap.gz"
    plain.write_bytes(gzip.compress((DATA / "loopback.pcap").read_bytes()))
    other = shared_data / HTTP
    for command in (api.rtt, api.response):
        together = command([str(plain), str(other)], top=100)
        alone = [one for path in (plain, other) for one in command(str(path), top=100).slowest]
        known = {(one.delay_ns, one.frames) for one in alone}
        assert {(one.delay_ns, one.frames) for one in together.slowest} <= known
        assert {capture for one in together.slowest for capture, _ in one.frames} <= {str(plain), str(other)}


def test_how_many_are_listed(shared_data: Path) -> None:
    for top, listed in ((None, 5), (0, 0), (3, 3), (1000, 100)):
        assert len(api.rtt(str(shared_data / HTTP), top=top).slowest) == listed
    table = wirelag("rtt", shared_data / HTTP, "--top", "2").stdout
    assert table.count("frame.number <= ") == 2
    assert "slowest" not in wirelag("rtt", shared_data / HTTP, "--top", "0").stdout


def test_the_page_lists_them(shared_data: Path) -> None:
    result = api.rtt(str(shared_data / HTTP))
    page = result.page()
    assert "The slowest" in page
    assert f"frame.number &lt;= {result.slowest[0].frames[0][1]} &amp;&amp; " in page
