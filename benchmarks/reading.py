"""Benchmarks of reading captures."""

import subprocess
import sys
from pathlib import Path

from wirelag.capture.pcap import CaptureFile
from wirelag.packets.packet_id import PacketId


def read_columns(path: Path, ids: bool) -> int:
    """Read a capture to columns; return the number of packets."""
    capture = CaptureFile(str(path), packet_id=PacketId() if ids else None)
    return sum(len(batch) for batch in capture)


_READ_STANDARD_INPUT = """
import resource, sys
from wirelag.capture.pcap import CaptureFile
for batch in CaptureFile("-"):
    pass
import re
fields = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", open("/proc/self/status").read()))
print(int(fields["VmHWM"]) - int(fields["RssFile"]))
"""


def memory_of_reading(path: Path, gigabytes: float) -> int:
    """Peak private memory in bytes while reading this much from a pipe: the capture's records, repeated."""
    data = path.read_bytes()
    header, records = data[:24], data[24:]
    with subprocess.Popen(
        [sys.executable, "-c", _READ_STANDARD_INPUT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin
        assert reader.stdout
        reader.stdin.write(header)
        for _ in range(max(1, round(gigabytes * 1e9 / len(records)))):
            reader.stdin.write(records)
        reader.stdin.close()
        return int(reader.stdout.read()) * 1024
