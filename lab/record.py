"""A recorder at a host: what comes in there, on the clock CLOCK_REALTIME."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import Process

SNAP_BYTES = 128


class Recorder:
    """Records from when it is made until `stop`."""

    def __init__(self, network: Network, path: Path, host: str = "point", both: bool = False) -> None:
        """At the point: what the client sends. At the client with `both`: both directions."""
        self.path = path
        # The point forwards by the interface that it receives by: only what comes in counts.
        options = [] if both else ["-Q", "in"]
        what = f"host {SERVICE_ADDRESS}" if both else f"dst host {SERVICE_ADDRESS}"
        command = [
            *("tcpdump", "-i", "eth0", "-n", "-s", str(SNAP_BYTES), "-B", "65536", "-Z", "root", "--immediate-mode"),
            *("--time-stamp-precision=nano", *options, "-w", str(path), *what.split()),
        ]
        self._process: Process = network.start(host, command, path.with_suffix(".txt"))
        self._process.wait_for_line("listening on")

    def stop(self) -> None:
        """Nothing that came before is missing from the file, or this fails."""
        said = self._process.stop(signal.SIGINT)
        dropped = re.search(r"(\d+) packets? dropped by kernel", said)
        if dropped is None or int(dropped[1]):
            raise OSError(f"the recorder missed packets: {said.strip()}")
