"""HTTP/2 by nghttp2's h2load: h2load_client.py ADDRESS PORT CONNECTIONS IN_FLIGHT BYTES SECONDS LOG.

One h2load per connection, because its log does not name connections. Our log has the format of load.c.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

ENTRY = struct.Struct("<qqIHH8x")
PATIENCE_S = 60.0


def local_port(process: subprocess.Popen[bytes]) -> int:
    """The port of the only connection of a process, as soon as it has one."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        links = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir() if entry.is_symlink()]
        sockets = {match[1] for link in links if (match := re.match(r"socket:\[(\d+)\]", link))}
        for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in sockets:
                return int(fields[1].partition(":")[2], 16)
        time.sleep(0.005)
    raise OSError("h2load has no connection")


def main(url: str, connections: int, in_flight: int, seconds: float, log: Path) -> None:
    """Run all connections and write the log."""
    paths = [log.with_name(f"h2load{i}.txt") for i in range(connections)]
    options = ["-c", "1", "-t", "1", "-m", str(in_flight), "-D", f"{round(seconds * 1000)}ms"]
    running = [
        subprocess.Popen(["h2load", *options, f"--log-file={path}", url], stdout=subprocess.DEVNULL) for path in paths
    ]
    ports = [local_port(process) for process in running]
    entries = []
    for process, path, port in zip(running, paths, ports, strict=True):
        if process.wait(seconds + PATIENCE_S):
            raise OSError("h2load failed")
        for i, line in enumerate(path.read_text().splitlines()):
            start_us, status, took_us = map(int, line.split("\t")[:3])
            if status == 200:
                entries.append(ENTRY.pack(start_us * 1000, (start_us + took_us) * 1000, i, port, in_flight))
    log.write_bytes(struct.pack("<q", 0) + b"".join(entries))  # on CLOCK_REALTIME


if __name__ == "__main__":
    _, address, port, connections, in_flight, size, seconds, log = sys.argv
    main(f"http://{address}:{port}/{size}", int(connections), int(in_flight), float(seconds), Path(log))
