"""Flows: what is known of the delay of every flow, as records of a bounded table; the synopsis of `rli`.

Memory: 136 bytes a record, and 64 KB for a picture of the references.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.drain import Drain
from wirelag.packets import to_address
from wirelag.report import Report

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

FEWEST_ERRORS: Final = 8
# Of the mean square error about references. `busy` errs so only at the far end of what it foretells: half, in the mean
# over a random walk. For the others the walk says less (1/3, 1/2), but regular packets are more unlike references than
# references are unlike each other: with 1 the intervals hold 90 to 98% of simulated flows, with 1/3 71 to 89%.
SHARES: Final = {"linear": 1.0, "left": 1.0, "busy": 0.5}
HALF: Final = 1 << 32
WRAP: Final = 1 << 64
RECORD: Final = (
    "key", "first_ns", "last_ns", "packets", "bytes", "timed", "sum_ns", "squares", "squares_high", "brackets",
    "first_row", "reason", "src_high", "src_low", "dst_high", "dst_low", "ports",
)  # fmt: skip
COLUMN: Final = {name: i for i, name in enumerate(RECORD)}
SHOWN: Final = 4096  # references at most, for a picture
REASONS: Final = ("inactive", "active", "evicted", "cut")  # why a record left


@dataclass(slots=True)
class Flows:
    """The synopsis: records of flows that ended or were cut, and what all packets say together."""

    method: str
    drain: Drain
    trusted: bool  # `busy` was used as such at the end
    base_ns: int | None
    records: Words  # a row each, columns as in RECORD
    packets: int
    bytes: int
    timed: int
    sum_ns: int
    squares: int
    errors: tuple[tuple[int, int], ...]  # by segment of what was foretold: how many, and the sum of their squares
    counts: dict[str, int] = field(default_factory=dict)
    references_ns: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))  # when, how late: a part of them

    def __len__(self) -> int:
        return len(self.records)

    def __add__(self, other: Flows) -> Flows:
        """Both, with a record for each flow; what is known of the queue is that of the other, which is later."""
        return Flows(
            other.method,
            other.drain,
            other.trusted,
            other.base_ns,
            np.concatenate([self.records, other.records]),
            self.packets + other.packets,
            self.bytes + other.bytes,
            self.timed + other.timed,
            self.sum_ns + other.sum_ns,
            self.squares + other.squares,
            tuple((n + m, a + b) for (n, a), (m, b) in zip(self.errors, other.errors, strict=True)),
            {name: self.counts.get(name, 0) + n for name, n in other.counts.items()},
            evenly(np.concatenate([self.references_ns, other.references_ns])),
        ).merged()

    def column(self, name: str) -> Array:
        """One column of the records; times and sums are signed."""
        values = self.records[:, COLUMN[name]]
        return values.view(np.int64) if name.endswith("_ns") else values

    @property
    def error_ns(self) -> float | None:
        """Root mean square of how wrong the method was where the truth was known; None: it never was."""
        count = sum(n for n, _ in self.errors)
        return (sum(squares for _, squares in self.errors) / count) ** 0.5 if count else None

    def _errors_at(self, queue_ns: Floats) -> Floats:
        """Mean squares of the errors of packets that waited about so long; of all where few did."""
        if self.error_ns is None:
            return np.full(len(queue_ns), np.nan)
        known = [squares / n if n >= FEWEST_ERRORS else self.error_ns**2 for n, squares in self.errors]
        _, bits = np.frexp(np.floor(np.clip(np.nan_to_num(queue_ns), 0, 2.0**40)))
        return np.asarray(known)[np.minimum(bits, len(known) - 1)]

    def _mean_error(self) -> float:
        """Mean square error of a packet, by how long the flows wait."""
        timed = self.column("timed").astype(np.float64)
        errors = self._errors_at(self._waits()) if timed.any() else np.zeros(0)
        return float((errors * timed).sum() / timed.sum()) if timed.any() else (self.error_ns or 0.0) ** 2

    def _waits(self) -> Floats:
        """Mean time in the queue of each record: less what is fixed and its own serialisation."""
        packets = np.maximum(self.column("packets"), 1).astype(np.float64)
        mean_ns = self.column("sum_ns") / np.maximum(self.column("timed"), 1).astype(np.float64)
        serialisation_ns = (
            self.column("bytes") / packets * 1e9 / self.drain.bytes_per_s if self.drain.bytes_per_s else 0.0
        )
        return np.asarray(mean_ns - serialisation_ns - (self.base_ns or 0))

    def merged(self) -> Flows:
        """Records of the same flow as one, in the order of keys: what timeouts and evictions took apart."""
        keys, first, inverse = np.unique(self.records[:, 0], return_index=True, return_inverse=True)
        records = self.records[first]
        if len(keys) < len(self):
            inverse = inverse.reshape(-1)
            for name in ("packets", "bytes", "timed", "sum_ns", "brackets"):
                np.add.at(sums := np.zeros(len(keys), np.uint64), inverse, self.records[:, COLUMN[name]])
                records[:, COLUMN[name]] = sums
            halves = np.zeros((len(keys), 4), np.uint64)  # of 32 bits: 2^32 records leave room for their carries
            for part in range(4):
                words = self.records[:, COLUMN["squares"] + part // 2]
                np.add.at(halves[:, part], inverse, words >> np.uint64(32) if part % 2 else words & np.uint64(HALF - 1))
            for part in range(3):
                halves[:, part + 1] += halves[:, part] >> np.uint64(32)
            halves &= np.uint64(HALF - 1)
            records[:, COLUMN["squares"]] = halves[:, 0] | halves[:, 1] << np.uint64(32)
            records[:, COLUMN["squares_high"]] = halves[:, 2] | halves[:, 3] << np.uint64(32)
            for name, extreme in (("first_ns", np.minimum), ("last_ns", np.maximum)):
                times = records[:, COLUMN[name]].view(np.int64).copy()
                extreme.at(times, inverse, self.column(name))
                records[:, COLUMN[name]] = times.view(np.uint64)
        return Flows(**{name: getattr(self, name) for name in self.__slots__} | {"records": records})

    def table(self) -> dict[str, Array]:
        """A column each: key, packets, bytes, timed, references, and in seconds mean, std, low and high (95%).

        Error model: in each bracket of references the method is wrong, independently of the others, and packets without
        a delay are like those that have one. How wrong: the share SHARES of the mean square of the errors
        about references that were foretold to wait as long. What references do not meet, they do not show: with few
        packets in the queue `linear` takes their delays, which are those behind a packet, for those of all.
        Without a delay, or without a reference that was foretold, the numbers are nan.
        """
        timed = self.column("timed").astype(np.float64)
        packets, brackets = self.column("packets").astype(np.float64), self.column("brackets").astype(np.float64)
        known = timed > 0
        mean_ns = np.where(known, self.column("sum_ns") / np.maximum(timed, 1), np.nan)
        std_ns = np.where(known, np.sqrt(_variances(self)), np.nan)
        errors = SHARES[self.method] * self._errors_at(self._waits())
        rest = std_ns**2 * (1 - timed / np.maximum(packets, 1)) / np.maximum(timed, 1)
        bound_ns = 1.96 * np.sqrt(errors / np.maximum(brackets, 1) + rest)
        return {
            **{name: self.column(name) for name in ("key", "packets", "bytes", "timed")},
            "references": self.column("brackets"),
            "mean": mean_ns / 1e9,
            "std": std_ns / 1e9,
            "low": (mean_ns - bound_ns) / 1e9,
            "high": (mean_ns + bound_ns) / 1e9,
        }

    def ends(self, row: int) -> tuple[str, int, str, int, int]:
        """Source and destination of a record, address and port each, and its protocol."""
        src_high, src_low, dst_high, dst_low, ports = (int(word) for word in self.records[row, COLUMN["src_high"] :])
        src, dst = str(to_address(src_high, src_low)), str(to_address(dst_high, dst_low))
        return src, ports >> 32, dst, ports >> 16 & 0xFFFF, ports & 0xFF

    @property
    def fallback(self) -> str | None:
        """Why `busy` works as `linear` does, if so."""
        if self.method != "busy" or self.trusted:
            return None
        if not self.drain.bytes_per_s:
            return "the drain rate of the queue is not known"
        return "too few references found an empty queue, or packets waited where it should have been empty"

    def report(self) -> Report:
        """All packets together."""
        mean_ns = self.sum_ns / self.timed if self.timed else None
        variance = (self.squares * self.timed - self.sum_ns**2) / self.timed**2 if self.timed else 0
        accepted, regular = self.counts.get("accepted", 0), self.counts.get("regular", 0)
        ci95 = {}
        if mean_ns is not None and self.error_ns is not None:
            share = self.counts.get("together", 0) / max(1, regular) ** 2  # 1 / brackets, if all had as many packets
            bound_ns = 1.96 * (self._mean_error() * share + variance / max(1, self.packets)) ** 0.5
            ci95["mean"] = ((mean_ns - bound_ns) / 1e9, (mean_ns + bound_ns) / 1e9)
        rejected = {name[9:]: n for name, n in self.counts.items() if name.startswith("rejected_")}
        return Report(
            "rli",
            "one_way",
            packets=self.packets,
            samples=self.timed,
            mean=None if mean_ns is None else mean_ns / 1e9,
            std=None if mean_ns is None else variance**0.5 / 1e9,
            ci95=ci95,
            reason=None if self.timed else "no packet came between two references",
            details={
                "method": self.method,
                "fallback": self.fallback,
                "coverage": self.timed / regular if regular else None,
                "references": {"accepted": accepted, "rejected": rejected},
                "base": None if self.base_ns is None else self.base_ns / 1e9,
                "error": None if self.error_ns is None else self.error_ns / 1e9,
                "drain_bytes_per_s": self.drain.bytes_per_s or None,
                "clock_noise": self.drain.noise_ns / 1e9,
                "records": len(self),
                "counts": dict(sorted(self.counts.items())),
            },
        )


def evenly(rows: Ints) -> Ints:
    """Pairs of a time and a number: the first in each of SHOWN equal parts of their time, so that more can be added."""
    if len(rows) <= SHOWN:
        return rows
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    times = rows[:, 0] - rows[0, 0]
    _, first = np.unique((times / (times[-1] + 1) * SHOWN).astype(np.int64), return_index=True)
    return rows[first]


def _variances(flows: Flows) -> Floats:
    """Of the delays of each record, in ns^2. With clocks far apart floats would lose them: then whole numbers."""
    timed, sums = flows.column("timed"), flows.column("sum_ns")
    low, high = flows.column("squares"), flows.column("squares_high")
    n = np.maximum(timed, 1).astype(np.float64)
    if abs(flows.base_ns or 0) < 1 << 30:
        squares = low.astype(np.float64) + high.astype(np.float64) * WRAP
        return np.asarray(np.maximum(squares / n - (sums / n) ** 2, 0))
    exact = ((high.astype(object) << 64) + low.astype(object)) * timed.astype(object) - sums.astype(object) ** 2
    return np.asarray(np.maximum(exact.astype(np.float64), 0) / n**2)
