"""The balancer's loop with a dataplane in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wirelag.balance.loop import Balancer
from wirelag.balance.maglev import shares
from wirelag.balance.settings import BackendSettings, Config
from wirelag.ebpf.service import Backend, Counts, Dataplane, Reading, Table, Way

S = 10**9


def of(line: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in line["backends"] if one["name"] == name)


class Memory:
    """A dataplane that stores what it is given, and returns given counts."""

    description = "memory"

    def __init__(self, most: int = 16) -> None:
        self.free = list(range(most))[::-1]
        self.slots: dict[str, int] = {}
        self.listed: dict[str, Backend] = {}
        self.entries: Table | None = None
        self.tables = 0
        self.time_ns = S

    def backends(self) -> tuple[Backend, ...]:
        return tuple(self.listed.values())

    def table(self) -> Table | None:
        return self.entries

    def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
        self.listed = {one.name: one for one in backends}
        for name in set(self.slots) - set(self.listed):
            self.free.append(self.slots.pop(name))
        for name in self.listed:
            if name not in self.slots:
                self.slots[name] = self.free.pop()
        return dict(self.slots)

    def set_table(self, table: Table) -> None:
        assert set(np.unique(table).tolist()) <= set(self.slots.values())
        self.entries = table
        self.tables += 1

    def reading(self, **counts: Counts) -> Reading:
        self.time_ns += S
        return Reading(self.time_ns, counts, {})

    def read(self) -> Reading:
        return self.reading()

    def close(self, leave: bool) -> None:
        pass

    @property
    def shares(self) -> dict[str, float]:
        assert self.entries is not None
        return shares(self.entries, self.slots)


def well(ms: float = 5) -> Counts:
    return Counts(round(ms * 10**6 * 200), 200, 0, 200, 20, 20, 200)


def mac_given(one: BackendSettings) -> Way:
    assert one.mac is not None
    return Way(one.mac)


def steered(config: Path) -> tuple[Memory, Balancer]:
    dataplane: Dataplane = Memory()
    return dataplane, Balancer(Config.load(str(config)), dataplane, mac_given)  # type: ignore[return-value]


NAMES = ("web1", "web2", "web3", "web4")
