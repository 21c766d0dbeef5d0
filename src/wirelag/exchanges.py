"""Exchanges: requests with their responses, seen both ways; the synopsis of `pairs`.

What each column means is written in docs/reference/pairs.md. Memory: 128 bytes an exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.crowds import LEAST, Crowds
from wirelag.distribution import Distribution
from wirelag.epochs import named
from wirelag.report import Report
from wirelag.samples import facts

Array = npt.NDArray[Any]

PIPELINED, RETRANSMITTED, JOINED, CUT, UNSEEN = 1, 2, 4, 8, 16
FLAGS: Final = {
    "pipelined": PIPELINED,
    "retransmitted": RETRANSMITTED,
    "joined": JOINED,
    "cut": CUT,
    "unseen": UNSEEN,
}
NOT_SINGLE: Final = np.uint64(PIPELINED | JOINED | CUT | UNSEEN)  # these give no single times
EXCHANGE: Final = np.dtype(
    [
        ("key", "<u8"), ("begin_ns", "<i8"), ("request_ns", "<i8"), ("first_ns", "<i8"), ("last_ns", "<i8"),
        ("idle_ns", "<i8"), ("network_server_ns", "<i8"), ("network_client_ns", "<i8"), ("request_bytes", "<u8"),
        ("response_bytes", "<u8"), ("flags", "<u8"), ("ends", "<u8", (5,)),
    ]
)  # fmt: skip


@dataclass(slots=True)
class Exchanges:
    """The synopsis: exchanges that ended, and what was counted beside them."""

    rows: Array
    packets: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Exchanges) -> Exchanges:
        counts = {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in self.counts | other.counts}
        return Exchanges(np.concatenate([self.rows, other.rows]), self.packets + other.packets, counts)

    def of(self, rows: Array) -> Exchanges:
        """Some of them."""
        return replace(self, rows=self.rows[rows])

    @property
    def single(self) -> Exchanges:
        """Those that give single times."""
        return self.of((self.rows["flags"] & NOT_SINGLE) == 0)

    @property
    def response_ns(self) -> npt.NDArray[np.int64]:
        """From the request to the last byte of the response, at this point."""
        return np.asarray(self.rows["last_ns"] - self.rows["request_ns"])

    @property
    def times_ns(self) -> npt.NDArray[np.int64]:
        """When it was: the last byte of each response."""
        return np.asarray(self.rows["last_ns"])

    @property
    def delays(self) -> Distribution:
        """Response times."""
        times = Distribution()
        times.add(self.single.response_ns)
        return times

    def groups(self, by: str) -> Iterator[tuple[str, Exchanges]]:
        """Exchanges of each flow, client or server, most exchanges first."""
        for name, rows in named(self.rows["ends"], by, np.ones(len(self.rows))):
            yield name, self.of(rows)

    def report(self) -> Report:
        """All of them together."""
        single = self.single
        rows, times = single.rows, self.delays
        first_ns = rows["first_ns"] - rows["request_ns"]
        to_server, to_client = rows["network_server_ns"], rows["network_client_ns"]
        thought = (rows["idle_ns"] >= 0) & (to_client >= 0)
        batches = self.rows[(self.rows["flags"] & np.uint64(PIPELINED | CUT | UNSEEN)) == PIPELINED]
        return Report(
            "pairs",
            "response",
            packets=self.packets,
            reason=None if len(rows) else "no request was seen together with its whole response",
            details={
                "exchanges": len(self.rows),
                **{name: int(np.count_nonzero(self.rows["flags"] & np.uint64(flag))) for name, flag in FLAGS.items()},
                "first_byte": _mean(first_ns),
                "network": _mean(to_server[to_server >= 0]),
                "network_client": _mean(to_client[to_client >= 0]),
                "server": _mean(np.maximum(first_ns - to_server, 0)[to_server >= 0]),
                "transfer": _mean(rows["last_ns"] - rows["first_ns"]),
                "felt": _mean((single.response_ns + to_client)[to_client >= 0]),
                "think": _mean(np.maximum(rows["idle_ns"] - to_client, 0)[thought]),
                "think_samples": int(np.count_nonzero(thought)),
                "batch": _mean(batches["last_ns"] - batches["begin_ns"]),
                "batches": len(batches),
                "counts": dict(sorted(self.counts.items())),
            },
            **facts(times, _crowds(rows, single.response_ns)),
        )


def _crowds(rows: Array, response_ns: npt.NDArray[np.int64]) -> Crowds | None:
    """The samples by connection; None where connections are too few to tell how alike theirs are."""
    keys = np.ascontiguousarray(rows["key"])
    if len(np.unique(keys)) < LEAST:
        return None
    crowds = Crowds()
    crowds.add(keys, np.arange(len(rows), dtype=np.uint32), np.zeros(len(rows), np.uint8), response_ns)
    return crowds


def _mean(values_ns: Array) -> float | None:
    return float(values_ns.mean()) / 1e9 if len(values_ns) else None
