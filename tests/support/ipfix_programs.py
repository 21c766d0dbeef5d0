"""What other programs read from IPFIX: libfixbuf's ipfixDump, and nfdump."""

import csv
import io
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.support import needs
from tests.support.places import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until

ABSENT = needs.absent("nfcapd", "ipfixDump")
DELAYS = ROOT / "docs" / "reference" / "ipfix-delays.xml"


def dumped(file: Path) -> list[dict[str, str]]:
    """Records as libfixbuf reads them, with the delay elements of the documentation's XML: by an element's number."""
    words = ["ipfixDump", "-e", DELAYS, "-d", "-i", file]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    records = [
        dict(re.findall(r"^\t\(([\d/]+)\).*? : (.*)$", record, re.MULTILINE))
        for record in said.split("--- data record")
    ]
    return [fields for fields in records if "148" in fields or "83" in fields]  # flows and segments


def milliseconds(time: str) -> int:
    """A time as ipfixDump prints it, since 1970."""
    return round(datetime.fromisoformat(f"{time}+00:00").timestamp() * 1e3)


@contextmanager
def nfcapd(folder: Path, options: int = 1) -> Iterator[int]:
    """nfdump's collector, at this port; at the end it has read all that was sent, and found no error.

    It does not number records of options, of which each but the first so looks like a gap.
    """
    folder.mkdir(exist_ok=True)
    port = free_port()
    words = [str(needs.find("nfcapd")), "-w", str(folder), "-b", "127.0.0.1", "-p", str(port), "-B", "4000000"]
    collector = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: waiting_at(port) == 0, "nfcapd")
        yield port
        until(lambda: waiting_at(port) == 0, "all was read")
    finally:
        collector.send_signal(signal.SIGTERM)
        said = collector.communicate()[1]
    assert f"Sequence Errors: {options - 1}, Bad Packets: 0" in said


def nfdump(folder: Path) -> list[dict[str, str]]:
    """What nfdump prints of a folder."""
    told = subprocess.run(["nfdump", "-R", folder, "-o", "csv"], capture_output=True, text=True, check=True)
    return list(csv.DictReader(io.StringIO(told.stdout.partition("Summary")[0])))


def collected(datagrams: Iterable[bytes], folder: Path, options: int) -> list[dict[str, str]]:
    """What nfdump prints of datagrams with so many records of options."""
    with nfcapd(folder, options) as port, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for datagram in datagrams:
            out.sendto(datagram, ("127.0.0.1", port))
    return nfdump(folder)


def waiting_at(port: int) -> int | None:
    """Bytes that wait at a port of UDP; None: nobody listens."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].partition(":")[2], 16) == port:
            return int(words[4].partition(":")[2], 16)
    return None
