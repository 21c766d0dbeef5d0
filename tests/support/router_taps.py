"""Packets at the taps of the lab's routers."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import wirelag
from lab.frr import DAEMONS
from tests.support import needs

MS = 1_000_000
WITH_ROUTERS = pytest.mark.skipif(
    not (DAEMONS / "ospfd").exists() or bool(needs.absent("vtysh", "tc")),
    reason=needs.absent("vtysh", "tc") or needs.program("vtysh"),
)


def passed(folder: Path, tap: str) -> pl.DataFrame:
    """The packets at one tap."""
    names = ("packet_id", "flow_key", "time_ns", "wire_length")
    parts = [
        pl.DataFrame({name: getattr(part, name).copy() for name in names})
        for part in wirelag.read(str(folder / "captures" / f"{tap}.pcap"))
    ]
    return pl.concat(parts) if parts else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))


def delays_ms(folder: Path, one: str, other: str) -> npt.NDArray[np.float64]:
    """The delays of packets that passed both taps."""
    both = passed(folder, one).join(passed(folder, other), on="packet_id", validate="1:1")
    return (both["time_ns_right"] - both["time_ns"]).to_numpy() / MS
