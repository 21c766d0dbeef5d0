"""FRRouting on one router: zebra and ospfd in its namespace, separate from the system's own, and their output.

Hellos are frequent and routes are computed at once, so that a network converges within seconds. A neighbour is given up
only after ten seconds of silence: even on a busy machine only a failed link may change a route.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.network import Network
from wirelag.network.ospf import COMMANDS

DAEMONS = Path("/usr/lib/frr")
HELLO_S, DEAD_S = 1, 10


@dataclass(frozen=True)
class Frr:
    """The routing of one router; it ends with the network."""

    network: Network
    router: str

    def start(self, router_id: str, costs: Mapping[str, int], passive: str) -> None:
        """Run OSPF on these interfaces; advertise the passive one without running OSPF on it."""
        self._folder.mkdir(parents=True)
        shutil.chown(self._folder, "frr", "frr")  # the daemons' user
        for daemon, settings in (("zebra", ""), ("ospfd", _settings(router_id, costs, passive))):
            (self._folder / f"{daemon}.conf").write_text(settings)
            files = {"-f": f"{daemon}.conf", "-i": f"{daemon}.pid", "-z": "zserv.api", "--vty_socket": ""}
            options = [part for option, name in files.items() for part in (option, str(self._folder / name))]
            command = [str(DAEMONS / daemon), *options, "-A", "127.0.0.1", "-P", "0", "--log", "stdout"]
            process = self.network.start(self.router, command, self._folder / f"{daemon}.txt")
            process.wait_for_file(self._folder / f"{daemon}.vty")

    def database(self) -> str:
        """The router's database, as vtysh prints it."""
        questions = [word for command in COMMANDS for word in ("-c", command)]
        return self.network.run(self.router, "vtysh", "--vty_socket", str(self._folder), *questions)

    def next_hops(self) -> dict[str, frozenset[str]]:
        """The kernel's forwarding table: the interfaces to each prefix, several if costs are equal."""
        listed = json.loads(self.network.run(self.router, "ip", "-j", "route"))
        return {
            route["dst"]: frozenset(hop["dev"] for hop in route.get("nexthops", [route]))
            for route in listed
            if "linkdown" not in route.get("flags", ())
        }

    @property
    def _folder(self) -> Path:
        return self.network.folder / self.router


def _settings(router_id: str, costs: Mapping[str, int], passive: str) -> str:
    lines: list[str] = []
    for interface, cost in costs.items():
        lines += [
            f"interface {interface}",
            " ip ospf network point-to-point",
            " ip ospf area 0",
            f" ip ospf cost {cost}",
            f" ip ospf hello-interval {HELLO_S}",
            f" ip ospf dead-interval {DEAD_S}",
        ]
    lines += [
        f"interface {passive}",
        " ip ospf area 0",
        " ip ospf passive",
        "router ospf",
        f" ospf router-id {router_id}",
        " timers throttle spf 0 50 200",
        " timers throttle lsa all 0",
        " timers lsa min-arrival 0",
    ]
    return "\n".join([*lines, ""])
