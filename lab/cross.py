"""Cross traffic: TCP flows from the client to the server, of real sizes, which begin at random times."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import ROOT, Process, program
from lab.workloads import drawn_sizes, mean_size

PORT = 8081


@dataclass(frozen=True)
class CrossTraffic:
    """Uploads that use this rate on average; each is a connection to a server of its own."""

    mbit: float

    def plan(self, seconds: float, seed: int) -> list[tuple[float, int]]:
        """The second in which each flow begins, and its bytes: the arrivals are a Poisson process."""
        random = np.random.default_rng(seed)
        count = int(random.poisson(seconds * self.mbit * 1e6 / 8 / mean_size()))
        begins = np.sort(random.uniform(0, seconds, count))
        return list(zip(begins.tolist(), drawn_sizes(random, count).tolist(), strict=True))

    def start(self, network: Network, seconds: float, seed: int, folder: Path) -> Process:
        """Start it; what it carried is in cross.txt of the folder at the end."""
        plan = folder / "cross.json"
        plan.write_text(json.dumps(self.plan(seconds, seed)))
        sink = [program("httpd"), f"address={SERVICE_ADDRESS}", f"port={PORT}", "service-us=constant:0"]
        network.start("server1", sink, folder / "cross_server.txt").wait_for_port(PORT)
        script = [sys.executable, str(ROOT / "cross_client.py"), SERVICE_ADDRESS, str(PORT), str(seconds), str(plan)]
        return network.start("client", script, folder / "cross.txt")
