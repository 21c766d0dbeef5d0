"""Incoming packets of a host, on CLOCK_REALTIME: recorded, or measured in the kernel."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import Process
from wirelag.ebpf.pirate import KernelPirate
from wirelag.estimators.pirate import Method, Pirate
from wirelag.packets.roles import Server

SNAP_BYTES = 128


class Recorder:
    """Records from its creation until `stop`."""

    def __init__(self, network: Network, path: Path, host: str = "point", both: bool = False) -> None:
        """At the point: the client's packets. At the client with `both`: both directions."""
        self.path = path
        # The point forwards through the interface that it receives on: only incoming packets count.
        options = [] if both else ["-Q", "in"]
        what = f"host {SERVICE_ADDRESS}" if both else f"dst host {SERVICE_ADDRESS}"
        command = [
            *("tcpdump", "-i", "eth0", "-n", "-s", str(SNAP_BYTES), "-B", "65536", "-Z", "root", "--immediate-mode"),
            *("--time-stamp-precision=nano", *options, "-w", str(path), *what.split()),
        ]
        self._process: Process = network.start(host, command, path.with_suffix(".txt"))
        self._process.wait_for_line("listening on")

    def stop(self) -> None:
        """Stop; fail if any earlier packet is missing from the file."""
        self._process.wait_until_idle()  # when stopped, it drops what it has not read yet
        said = self._process.stop(signal.SIGINT)
        dropped = re.search(r"(\d+) packets? dropped by kernel", said)
        if dropped is None or int(dropped[1]):
            raise OSError(f"the recorder missed packets: {said.strip()}")


class InKernel:
    """Measures at the point, from its creation until `stop`, which writes epochs and their cost to files."""

    def __init__(self, network: Network, path: Path, method: Method) -> None:
        """Measure the client's packets, beside the recorder."""
        self.path = path
        with network.inside("point"):
            self._meter = KernelPirate(Pirate(method), "eth0", servers=(Server.parse(SERVICE_ADDRESS),))

    def stop(self) -> None:
        """Stop; fail if any packet was not measured."""
        with self._meter as meter:
            epochs = meter.finish()
            times, ns = meter.ran()
        missed = {name: epochs.counts[name] for name in ("busy", "untold", "failed") if epochs.counts[name]}
        if missed or not epochs.packets:
            raise OSError(f"the meter in the kernel saw {epochs.packets} packets, and missed some: {missed}")
        np.save(self.path, epochs.rows)
        self.path.with_suffix(".json").write_text(json.dumps({"ran": times, "ns": ns}))
