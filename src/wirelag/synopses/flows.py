"""Flows: the delay of every flow, as records of a bounded table; the synopsis of `rli`.

Memory: 144 bytes per record, and 64 KB for the plot of references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.address import to_address
from wirelag.report import Report
from wirelag.stats.queue_drain import Drain
from wirelag.stats.ranking import FEWEST

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

FEWEST_ERRORS: Final = 8
# Share of the mean square error of references. `busy` errs so only at the far end of its prediction: half, on average
# over a random walk. For the others the walk gives less (1/3, 1/2), but regular packets differ more from references
# than references from each other: with 1 the intervals cover 90 to 98% of simulated flows, with 1/3 71 to 89%.
SHARES: Final = {"linear": 1.0, "left": 1.0, "busy": 0.5}
HALF: Final = 1 << 32
WRAP: Final = 1 << 64
RECORD: Final = (
    "key", "first_ns", "last_ns", "packets", "bytes", "timed", "sum_ns", "sum_high", "squares", "squares_high",
    "brackets", "error", "reason", "src_high", "src_low", "dst_high", "dst_low", "ports",
)  # fmt: skip
WIDE: Final = ("sum_ns", "squares", "squares_high")
COLUMN: Final = {name: i for i, name in enumerate(RECORD)}
SHOWN: Final = 4096  # most references in the plot
REASONS: Final = ("inactive", "active", "evicted", "cut")  # why a record left


@dataclass(slots=True)
class Flows:
    """The synopsis: records of flows that ended or were cut, and sums over all packets.

    The state of the queue (drain, trusted, base) is that of the last part added; if packets take several paths, that of
    the remaining packets. `settled`: packets with a delay, of all flows, sampled or not.
    """

    method: str
    drain: Drain
    trusted: bool  # `busy` was in effect at the end
    base_ns: int | None
    records: Words  # one row each, columns as in RECORD
    packets: int
    bytes: int
    timed: int
    sum_ns: int
    squares: int
    errors: tuple[tuple[int, int], ...]  # by segment of the prediction: count, and sum of squared errors
    counts: dict[str, int] = field(default_factory=dict)
    references_ns: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))  # time and delay of some of them
    settled: int = 0
    error: float = float("nan")  # mean square error of a packet, over all flows
    lost: int = 0  # references whose sequence numbers never arrived
    sender_ns: int | None = None  # mean error bound of their times; None: the sender does not state one

    def __len__(self) -> int:
        return len(self.records)

    def __add__(self, other: Flows) -> Flows:
        return added([self, other])

    def column(self, name: str) -> Array:
        """One column of the records; times and sums are signed; errors (variances, in ns^2) are floats."""
        values = self.records[:, COLUMN[name]]
        if name == "error":
            return values.view(np.float64)
        return values.view(np.int64) if name.endswith("_ns") else values

    @property
    def brackets(self) -> float:
        """The equivalent number of brackets of equal size: those would have the same error."""
        return self.settled**2 / max(1, self.counts.get("together", 0))

    @property
    def error_ns(self) -> float | None:
        """Root mean square error of the method where the truth was known; None if it never was."""
        count = sum(n for n, _ in self.errors)
        return (sum(squares for _, squares in self.errors) / count) ** 0.5 if count else None

    def _errors_at(self, queue_ns: Floats) -> Floats:
        """Mean square errors of packets that waited about as long; of all if few did, or if waits are not known."""
        if self.error_ns is None or self.fallback:
            return np.full(len(queue_ns), np.nan if self.error_ns is None else self.error_ns**2)
        known = [squares / n if n >= FEWEST_ERRORS else self.error_ns**2 for n, squares in self.errors]
        _, bits = np.frexp(np.floor(np.clip(np.nan_to_num(queue_ns), 0, 2.0**40)))
        return np.asarray(known)[np.minimum(bits, len(known) - 1)]

    def judged(self) -> Flows:
        """Add the errors of the method in this queue: the mean square over all packets, and `error` of each record.

        The latter is the mean square error of packets that waited as long, divided by the number of brackets: errors in
        different brackets are independent.
        """
        timed, errors = self.column("timed").astype(np.float64), self._errors_at(self._waits())
        self.column("error")[:] = errors / np.maximum(self.column("brackets"), 1)
        known = np.isfinite(errors) & (timed > 0)
        if known.any():
            self.error = float((errors * timed)[known].sum() / timed[known].sum())
        elif self.error_ns is not None:
            self.error = self.error_ns**2
        return self

    def _waits(self) -> Floats:
        """Mean time in the queue of each record: without the fixed part and its own serialisation."""
        packets = np.maximum(self.column("packets"), 1).astype(np.float64)
        mean_ns = _sums(self) / np.maximum(self.column("timed"), 1).astype(np.float64)
        serialisation_ns = (
            self.column("bytes") / packets * 1e9 / self.drain.bytes_per_s if self.drain.bytes_per_s else 0.0
        )
        return np.asarray(mean_ns - serialisation_ns - (self.base_ns or 0))

    def merged(self) -> Flows:
        """Merge the records of each flow, which timeouts and evictions split; in order of keys.

        Brackets are added: one that was split by a record's end counts twice. Errors are those of the common mean.
        """
        keys, first, inverse = np.unique(self.records[:, 0], return_index=True, return_inverse=True)
        records = self.records[first]
        if len(keys) < len(self):
            inverse = inverse.reshape(-1)
            records[:, COLUMN["error"]] = self._own_errors(inverse, len(keys)).view(np.uint64)
            for name in ("packets", "bytes", "timed", "brackets"):
                np.add.at(sums := np.zeros(len(keys), np.uint64), inverse, self.records[:, COLUMN[name]])
                records[:, COLUMN[name]] = sums
            for name in ("sum_ns", "squares"):
                place = COLUMN[name]
                records[:, place : place + 2] = _added_words(self.records[:, place : place + 2], inverse, len(keys))
            for name, extreme in (("first_ns", np.minimum), ("last_ns", np.maximum)):
                times = records[:, COLUMN[name]].view(np.int64).copy()
                extreme.at(times, inverse, self.column(name))
                records[:, COLUMN[name]] = times.view(np.uint64)
        return replace(self, records=records)

    def shortened(self, most: int) -> Flows:
        """At most `most` records, those with the smallest keys; the others are counted."""
        if len(self) <= most:
            return self
        counts = self.counts | {"unlisted": self.counts.get("unlisted", 0) + len(self) - most}
        return replace(self, records=self.records[:most].copy(), counts=counts)

    def _own_errors(self, inverse: npt.NDArray[np.intp], count: int) -> Floats:
        """Variances of the means of `count` sets of records with independent errors; nan: unknown."""
        errors, timed = self.column("error"), self.column("timed").astype(np.float64)
        known = np.isfinite(errors) & (timed > 0)
        squares = np.bincount(inverse[known], (errors * timed**2)[known], count)
        with np.errstate(invalid="ignore"):
            return np.asarray(squares / np.bincount(inverse[known], timed[known], count) ** 2)

    def _bound_ns(self, errors: Floats, variances: Floats, timed: Floats, packets: Floats) -> Floats:
        """Half of the 95% interval of the mean of any packets: of one, some or all flows.

        The error has three parts: each flow's own (`errors`; 0 for all together); a part common to all, because their
        packets lie in the same brackets, so that no subset is more certain than the whole (of both, the share SHARES);
        and packets without a delay, which are assumed to be like the others.
        """
        rest = variances * (1 - timed / np.maximum(packets, 1)) / np.maximum(timed, 1)
        straight = min(1.0, self.straight / max(1, self.settled))
        share = straight * SHARES["linear"] + (1 - straight) * SHARES[self.method]
        wrong = share * (errors + self.error / max(1.0, self.brackets))
        return np.asarray(1.96 * np.sqrt(wrong + np.maximum(rest, 0)))

    def table(self) -> dict[str, Array]:
        """One column each: key, packets, bytes, timed, references, and in seconds mean, std, low and high (95%).

        `_bound_ns` defines the uncertainty; an error is that of references with the same predicted wait. References
        show only what they meet: with few packets in the queue, `linear` takes their delays, which are those behind a
        packet, for those of all. Without a delay, or without a predicted reference, the numbers are nan.
        """
        timed, packets = (self.column(name).astype(np.float64) for name in ("timed", "packets"))
        known = timed > 0
        mean_ns = np.where(known, _sums(self) / np.maximum(timed, 1), np.nan)
        variances = np.where(known, _variances(self), np.nan)
        bound_ns = self._bound_ns(self.column("error"), variances, timed, packets)
        return {
            **{name: self.column(name) for name in ("key", "packets", "bytes", "timed")},
            "references": self.column("brackets"),
            "mean": mean_ns / 1e9,
            "std": np.sqrt(variances) / 1e9,
            "low": (mean_ns - bound_ns) / 1e9,
            "high": (mean_ns + bound_ns) / 1e9,
        }

    def slowest_first(self, means: Array | None = None) -> npt.NDArray[np.intp]:
        """Rows by their mean, the largest first; then those with too few packets timed for a place, then without one.

        `means` are those of `table`, if already computed.
        """
        means = self.table()["mean"] if means is None else means
        unknown = np.isnan(means)
        few = self.column("timed") < np.uint64(FEWEST)
        return np.lexsort((self.column("key"), -np.where(unknown, 0, means), few, unknown))

    def ends(self, row: int) -> tuple[str, int, str, int, int]:
        """Source and destination of a record, address and port each, and its protocol."""
        src_high, src_low, dst_high, dst_low, ports = (int(word) for word in self.records[row, COLUMN["src_high"] :])
        src, dst = str(to_address(src_high, src_low)), str(to_address(dst_high, dst_low))
        return src, ports >> 32, dst, ports >> 16 & 0xFFFF, ports & 0xFF

    @property
    def straight(self) -> int:
        """Packets, of all flows, that `linear` timed although `busy` was asked for."""
        if self.method != "busy":
            return 0
        return self.counts.get("untrusted", 0) if self.drain.bytes_per_s else self.settled

    @property
    def used(self) -> str:
        """The method that timed the packets: `linear` if it timed all of them."""
        return "linear" if self.settled and self.straight >= self.settled else self.method

    @property
    def fallback(self) -> str | None:
        """Why `busy` falls back to `linear`, if it does."""
        if self.method != "busy" or self.trusted:
            return None
        if not self.drain.bytes_per_s:
            return "the drain rate of the queue is not known"
        return (
            "too few references found an empty queue, or packets waited where it should have been empty "
            "(a capture that drops or reorders packets has this effect)"
        )

    def report(self) -> Report:
        """The report over all packets."""
        mean_ns = self.sum_ns / self.timed if self.timed else None
        variance = max(0, self.squares * self.timed - self.sum_ns**2) / self.timed**2 if self.timed else 0.0
        accepted, regular = self.counts.get("accepted", 0), self.counts.get("regular", 0)
        ci95 = {}
        whole = self.timed == self.settled
        own = 0.0 if whole else float(self._own_errors(np.zeros(len(self), np.intp), 1)[0])
        if mean_ns is not None and np.isfinite(own + self.error):
            numbers = (np.array(number, np.float64) for number in (own, variance, self.timed, regular))
            bound_ns = float(self._bound_ns(*numbers))
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
                "method": self.used,
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


def added(parts: Sequence[Flows]) -> Flows:
    """All parts in order of time, with one record per flow; the state of the queue is that of the last part."""
    last = next((part for part in reversed(parts) if part.packets), parts[-1])
    known = [part for part in parts if np.isfinite(part.error)]
    weight = sum(part.settled for part in known)
    counts = Counter[str]()
    for part in parts:
        counts.update(part.counts)
    return Flows(
        last.method,
        last.drain,
        last.trusted,
        last.base_ns,
        np.concatenate([part.records for part in parts]),
        sum(part.packets for part in parts),
        sum(part.bytes for part in parts),
        sum(part.timed for part in parts),
        sum(part.sum_ns for part in parts),
        sum(part.squares for part in parts),
        tuple((sum(n for n, _ in at), sum(a for _, a in at)) for at in zip(*(p.errors for p in parts), strict=True)),
        dict(counts),
        evenly(np.concatenate([part.references_ns for part in parts])),
        sum(part.settled for part in parts),
        sum(part.error * part.settled for part in known) / weight if weight else last.error,
        sum(part.lost for part in parts),
        None if any(part.sender_ns is None for part in parts) else max(part.sender_ns or 0 for part in parts),
    ).merged()


def evenly(rows: Ints) -> Ints:
    """Thin pairs (time, number): the first in each of SHOWN equal parts of their time range, to leave room for more."""
    if len(rows) <= SHOWN:
        return rows
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    times = rows[:, 0] - rows[0, 0]
    _, first = np.unique((times / (times[-1] + 1) * SHOWN).astype(np.int64), return_index=True)
    return rows[first]


def _added_words(words: Words, inverse: npt.NDArray[np.intp], count: int) -> Words:
    """Sums of two-word numbers, lower word first, by group; signed numbers work too."""
    halves = np.zeros((count, 4), np.uint64)  # halves of 32 bits: carries of 2^32 records fit
    for part in range(4):
        word = words[:, part // 2]
        np.add.at(halves[:, part], inverse, word >> np.uint64(32) if part % 2 else word & np.uint64(HALF - 1))
    for part in range(3):
        halves[:, part + 1] += halves[:, part] >> np.uint64(32)
    halves &= np.uint64(HALF - 1)
    return np.asarray(halves[:, ::2] | halves[:, 1::2] << np.uint64(32))


def _sums(flows: Flows) -> Floats:
    """Sum of the delays of each record. Most fit into one word; floats of two words would lose small negative ones."""
    low, high = flows.column("sum_ns"), flows.column("sum_high").view(np.int64)
    two = high * float(WRAP) + low.view(np.uint64).astype(np.float64)
    return np.where(high == low >> np.int64(63), low.astype(np.float64), two)


def _variances(flows: Flows) -> Floats:
    """Variance of the delays of each record, in ns^2; integers if clocks are so far apart that floats lose digits."""
    timed, low, high = (flows.column(name) for name in ("timed", "squares", "squares_high"))
    n = np.maximum(timed, 1).astype(np.float64)
    means_ns = _sums(flows) / n
    variances = (low.astype(np.float64) + high.astype(np.float64) * WRAP) / n - means_ns**2
    far = np.flatnonzero(np.abs(means_ns) >= 1 << 30)
    if len(far):
        wide = {name: flows.column(name)[far].astype(np.uint64).astype(object) for name in ("timed", *WIDE)}
        sums = (flows.column("sum_high")[far].view(np.int64).astype(object) << 64) + wide["sum_ns"]
        exact = ((wide["squares_high"] << 64) + wide["squares"]) * wide["timed"] - sums**2
        variances[far] = exact.astype(np.float64) / n[far] ** 2
    return np.asarray(np.maximum(variances, 0))


class Picture:
    """A sample of the accepted references, chosen by their number, so that batching does not matter."""

    def __init__(self) -> None:
        self._kept: list[npt.NDArray[np.int64]] = []  # time, delay
        self._length, self._count, self._every = 0, 0, 1

    def add(self, arrived_ns: npt.NDArray[np.int64], delays_ns: npt.NDArray[np.int64]) -> None:
        """Add accepted references."""
        first = -self._count % self._every
        self._count += len(arrived_ns)
        if first < len(arrived_ns):
            self._kept.append(np.stack([arrived_ns, delays_ns], axis=1)[first :: self._every])
            self._length += len(self._kept[-1])
        while self._length > 2 * SHOWN:
            self._thin()

    def shown(self) -> npt.NDArray[np.int64]:
        """At most SHOWN references."""
        while self._length > SHOWN:
            self._thin()
        return np.concatenate([np.empty((0, 2), np.int64), *self._kept])

    def _thin(self) -> None:
        self._kept = [np.concatenate(self._kept)[::2]]
        self._length, self._every = len(self._kept[0]), 2 * self._every
