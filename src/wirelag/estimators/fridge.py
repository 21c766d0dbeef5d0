"""Round-trip delays in a few kilobytes.

Guarantee: the number of delays in any range is estimated without bias, in any memory.
Memory: 24 bytes per slot, `memory` bytes in total, whatever arrives; half of it is reserved for the previous fridges
after a new plan, unless the slots are set by hand. The synopsis takes at most 76 KB per group and leg.

Requests wait in arrays in which new requests overwrite old ones, so long delays are seen less often than short ones.
A delay that survived x requests was seen with probability q = sum over fridges of p (1 - p/M)^x, and counts as 1/q
delays. After Y. Zheng, X. Chen, M. Braverman and J. Rexford, *Unbiased Delay Measurement in the Data Plane*, 2022,
with a corrected exponent, and with this union weight instead of the paper's inverse variances, which are biased.
docs/reference/fridge.md is the law.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.matchers import MATCHERS, matcher_bits
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.batch import Array, PacketBatch
from wirelag.packets.filters import LATEST_NS
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.distribution import BINS, Distribution
from wirelag.synopses.samples import SampleBatch, Samples, Sink

Floats = npt.NDArray[np.float64]
Variant = Literal["union", "inverse-variance", "overwrite", "expiry"]

AUTO: Final = ("tcp", "dns", "ntp", "icmp")  # quic-spin has no ids to wait for
CERTAIN: Final = 1 << 32  # probability 1 in the kernel
_KERNEL_VARIANTS: Final = {"union": 0, "inverse-variance": 0, "overwrite": 1, "expiry": 2}


@dataclass(frozen=True, slots=True)
class Fridges:
    """The slots of each fridge (M, a power of two) and the probability to enter it (p, in 2^-32)."""

    slots: tuple[int, ...]
    probabilities: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The memory of all slots in bytes."""
        return _kernels.SLOT_BYTES * sum(self.slots)

    def seen(self, survived: Array) -> Floats:
        """The probability q that a delay that survived `survived` requests is seen in any fridge."""
        parts = zip(self.slots, self.probabilities, strict=True)
        return np.asarray(sum(_seen(m, p / CERTAIN, survived) for m, p in parts), np.float64)


# ---- weights as floats: the reference for the kernel's integers, and the paper's ----


def _seen(slots: int, probability: float, survived: Array) -> Floats:
    """The probability p (1 - p/M)^x, x = all requests since."""
    hit = probability / slots
    kept = np.exp(survived * math.log1p(-hit)) if hit < 1 else np.where(survived > 0, 0.0, 1.0)
    return np.asarray(probability * kept, np.float64)


def union_weights(fridges: Fridges, survived: Array) -> Floats:
    """1/q: unbiased, without bins. As in the kernel, q is at least 2^-32."""
    return np.asarray(1 / np.maximum(fridges.seen(survived), 1 / CERTAIN), np.float64)


def single_weights(slots: int, probability: float, survived: Array, hit: float | None = None) -> Floats:
    """The weight 1 / (p (1 - hit)^x) of a single fridge.

    Two pairs are unbiased: x = all requests with hit = p/M (the default), and x = those that entered with hit = 1/M.
    Any other pair is wrong; the paper's text mixes them.
    """
    decay = math.log1p(-(probability / slots if hit is None else hit))
    return np.asarray(np.exp(survived.astype(np.float64) * -decay) / probability)


def inverse_variance_weights(fridges: Fridges, fridge: Array, survived: Array, bins: Array) -> Floats:
    """The paper's section 4.2: per bin of delay, the fridges' estimates weighted by their inverse variances.

    Biased, because an estimate and its variance come from the same samples: a fridge that saw too little looks certain.
    """
    own = np.empty(len(fridge), np.float64)
    for k, (slots, p) in enumerate(zip(fridges.slots, fridges.probabilities, strict=True)):
        own[fridge == k] = single_weights(slots, p / CERTAIN, survived[fridge == k])
    cells, cell = np.unique(np.column_stack((bins, fridge)), axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    sureness = 1 / np.bincount(cell, own**2)  # 1 / V_k(t)
    _, bin_of_cell = np.unique(cells[:, 0], return_inverse=True)
    return np.asarray(own * (sureness / np.bincount(bin_of_cell, sureness)[bin_of_cell])[cell], np.float64)


# ---- how to divide the memory ----

SMALLEST_ENTRY: Final = 24  # probabilities are tried down to 2^-24
STRETCH_NS: Final = 10**9  # of packet time: fridges are planned again at its end, whatever intervals are asked for
FEWEST_TO_ADAPT: Final = 100  # samples: with fewer, the delays are unknown
WORTH_IT: Final = 1.2  # replan if the standard error shrinks by this factor
_LONGEST_MS: Final = 2.0 ** np.arange(4, 13)  # unknown delays: the longest is 16 to 4096 ms
_MOST_SURVIVED: Final = 2.0 ** np.arange(6, 23)  # unknown rate: requests that the longest delay has to survive
_POINTS: Final = (np.arange(48) + 0.5) / 48  # ranks that stand for all delays


def plan(
    memory: int, rate_per_s: float | None = None, delays: Distribution | None = None, fridges: int | None = None
) -> Fridges:
    """The fridges with the smallest standard error in this memory.

    The variance of the estimated number of delays is the sum over delays of 1/q(x) - 1, with x = rate * delay. Known
    delays need one fridge, made for them, and a second one only for the space that the first, a power of two, leaves.
    Unknown delays need three by default. They are chosen to minimise, over all lengths that the delays may have, the
    worst ratio of the error to the smallest possible error.
    """
    room = memory // _kernels.SLOT_BYTES
    if room < 1:
        raise ValueError(f"{memory} bytes are too few for a slot of {_kernels.SLOT_BYTES} bytes")
    known = delays is not None and delays.samples > 0 and rate_per_s is not None
    survived = _survived(rate_per_s, delays if known else None)
    one = _choices(_equal(room, 1))
    choices = (
        one + _choices(_greedy(room)) if known and not fridges else _choices(_equal(room, min(fridges or 3, room, 8)))
    )
    least = np.min([_inflation(*choice, survived).min(axis=0) for choice in one], axis=0)
    regrets = [(_inflation(slots, entries, survived) / least).max(axis=1) for slots, entries in choices]
    slots, entries = choices[int(np.argmin([regret.min() for regret in regrets]))]
    chosen = entries[int(np.argmin(min(regrets, key=np.min)))]
    return Fridges(slots, tuple(int(p) for p in chosen))


def _survived(rate_per_s: float | None, delays: Distribution | None) -> Floats:
    """The requests that delays must survive, one row per case: one if delays are known, else log-uniform."""
    if delays is not None and rate_per_s is not None:
        ranks = np.cumsum(delays.weights)
        return np.asarray(MIDDLES_NS[np.searchsorted(ranks, _POINTS * delays.weight)] / 1e9 * rate_per_s).reshape(1, -1)
    longest = _MOST_SURVIVED if rate_per_s is None else _LONGEST_MS / 1e3 * rate_per_s
    return np.asarray(longest.reshape(-1, 1) * 2.0 ** (10 * (_POINTS - 1)))


def _equal(room: int, count: int) -> tuple[int, ...]:
    """Equal powers of two, then doubled one after the other while they fit."""
    slots = [1 << (room // count).bit_length() - 1] * count
    for k in range(count):
        if sum(slots) + slots[k] <= room:
            slots[k] *= 2
    return tuple(slots)


def _greedy(room: int) -> tuple[int, ...]:
    """The largest power of two, and the largest one in the remaining space."""
    first = 1 << room.bit_length() - 1
    return (first, 1 << (room - first).bit_length() - 1) if room > first else (first,)


@lru_cache(maxsize=16)  # a meter plans each second, for the same memory
def _choices(slots: tuple[int, ...]) -> list[tuple[tuple[int, ...], Array]]:
    """Slots, in both orders, with all entry probabilities to try (one row each, in 2^-32, largest first).

    Probabilities are powers of two at (nearly) equal distances; if the first is 1, it takes what the others leave.
    """
    powers = {
        tuple(first + halves * k // 2 for k in range(len(slots)))
        for first in range(SMALLEST_ENTRY + 1)
        for halves in range(2, 2 * SMALLEST_ENTRY + 1)
    }
    entries = CERTAIN >> np.array(sorted(choice for choice in powers if choice[-1] <= SMALLEST_ENTRY))
    entries[:, 0] = np.minimum(entries[:, 0], CERTAIN - entries[:, 1:].sum(axis=1))
    return [(sizes, entries) for sizes in dict.fromkeys((slots, slots[::-1]))]


def _inflation(slots: tuple[int, ...], entries: Array, survived: Floats) -> Floats:
    """By how much the standard error exceeds that of seeing every delay: for each choice (row) and case (column)."""
    seen = np.zeros((len(entries), *survived.shape))
    for k, size in enumerate(slots):
        p = (entries[:, k] / CERTAIN).reshape(-1, 1, 1)
        seen += p * np.exp(survived * np.log1p(-np.minimum(p / size, 1 - 1e-9)))
    return np.asarray(np.sqrt(np.mean(1 / np.maximum(seen, 1e-200), axis=2)))


# ---- the estimator ----


@dataclass(frozen=True, slots=True)
class Fridge:
    """The estimator of round-trip delay in bounded memory.

    Either `memory` bytes, planned again after each second as rate and delays change, or fixed `slots` and entry
    `probabilities`. The variants other than `union` serve for comparison.
    Its meters also pass every sample to the `sinks`.
    """

    matchers: tuple[str, ...] = AUTO
    memory: int = 64 << 10
    slots: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    seed: int = 0
    variant: Variant = "union"
    stages: int = 1  # stages of `expiry`
    expiry_ns: int = 1 << 29
    sinks: tuple[Sink, ...] = field(default=(), compare=False, repr=False)

    points: ClassVar[tuple[str, ...]] = ("tap",)
    can: ClassVar[Capabilities] = Capabilities(in_kernel=True)

    def first(self) -> Fridges:
        """The initial fridges."""
        if self.slots:
            probabilities = self.probabilities or (1 / len(self.slots),) * len(self.slots)
            return Fridges(self.slots, tuple(round(p * CERTAIN) for p in probabilities))
        if self.variant == "expiry":
            return Fridges(
                (self.stages << (self.memory // _kernels.SLOT_BYTES // self.stages).bit_length() - 1,), (CERTAIN,)
            )
        return plan(self.memory // 2)

    def kernel(self, fridges: Fridges, seed: int) -> _kernels.Fridge:
        """Empty fridges."""
        variant = _KERNEL_VARIANTS[self.variant]
        return _kernels.Fridge(
            matcher_bits(self.matchers),
            fridges.slots,
            fridges.probabilities,
            seed,
            variant,
            self.stages,
            self.expiry_ns,
        )

    def meter(self, point: str) -> FridgeMeter:
        """A fresh meter."""
        return FridgeMeter(self)

    def rows_meter(self, threads: int) -> FridgeMeter:
        """A fresh meter for decoded rows, whose number of requests makes it the work of one thread."""
        return FridgeMeter(self)

    def estimate(self, *synopses: Samples) -> Report:
        """The report of one interval's samples."""
        (samples,) = synopses
        return samples.report("fridge", "round_trip")


@dataclass(slots=True)
class _Generation:
    """Fridges in use, and their counters at the last cut."""

    fridges: Fridges
    kernel: _kernels.Fridge
    since_ns: int
    before: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Counts since the last call."""
        kernel = self.kernel
        now = {"requests": kernel.arrivals, "backwards": kernel.backwards, "too_long": kernel.too_long}
        counted = {name: n - self.before[name] for name, n in now.items()}
        self.before = Counter(now)
        return counted


@dataclass(slots=True)
class _Stretch:
    """What a new plan is made from: requests and delays since the last one."""

    start_ns: int
    end_ns: int
    arrivals: int = 0  # before it
    delays: Distribution = field(default_factory=Distribution)


class FridgeMeter:
    """The fridges at one point, and samples since the last cut.

    When the plan changes, new requests enter new fridges, with coins of their own: the seed is hashed with the time.
    The old fridges are drained: no request enters, so waiting requests survive, with the weight of the requests before.
    So every delay has the weight of its own fridges, and the sum stays unbiased.
    """

    all_rows, apart, sharded = True, True, False  # any packet may end a stretch

    def __init__(self, estimator: Fridge) -> None:
        self._estimator = estimator
        fridges = estimator.first()
        self._open = _Generation(fridges, estimator.kernel(fridges, estimator.seed), 0)
        self._drained: _Generation | None = None
        self._adapts = not estimator.slots and estimator.variant == "union"
        self._stretch: _Stretch | None = None
        self._samples = Samples()
        self._kept: list[tuple[Array, ...]] = []  # inverse-variance needs an interval's samples together

    @property
    def fridges(self) -> Fridges:
        """The fridges that requests enter now."""
        return self._open.fridges

    @property
    def bytes(self) -> int:
        """The memory of all slots in bytes, including those being drained."""
        return self._open.kernel.slot_bytes + (self._drained.kernel.slot_bytes if self._drained else 0)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Put requests into the fridges, take out those with a response, and add the samples to their groups."""
        if not self._adapts:
            self._observe(packets, grouping)
            return
        while len(packets):
            stretch = self._stretch or self._begin(int(packets.time_ns[0]))
            later = packets.time_ns >= stretch.end_ns
            rows = int(later.argmax()) if later.any() else len(packets)
            self._observe(packets[:rows], grouping)
            packets = packets[rows:]
            if len(packets):
                self._adapt(stretch, _edge_after(int(packets.time_ns[0])))

    def _begin(self, first_ns: int) -> _Stretch:
        """The first stretch."""
        self._stretch = _Stretch(first_ns, _edge_after(first_ns))
        self._open.since_ns = first_ns
        return self._stretch

    def work(self, decoder: _kernels.Decoder, packets: int) -> None:
        """The same with decoded rows, of all packets, at once."""
        self._samples.packets += packets
        tally, rows, row = self._samples.tally(), len(decoder), 0
        delays_ns, weights = np.empty(rows, np.int64), np.empty(rows, np.int64)
        while row < rows:
            stretch = (self._stretch or self._begin(decoder.time_ns(row))) if self._adapts else None
            until_ns = LATEST_NS if stretch is None else min(stretch.end_ns, LATEST_NS)
            old = self._drained.kernel if self._drained else None
            row, found = self._open.kernel.observe_rows(decoder, row, until_ns, old, tally, delays_ns, weights)
            if stretch is not None:
                stretch.delays.add(delays_ns[:found], weights[:found])
                if row < rows:
                    self._adapt(stretch, _edge_after(decoder.time_ns(row)))

    def _observe(self, packets: PacketBatch, grouping: Grouping | None) -> None:
        rows, delays_ns, legs, _, fridge, survived, weights = columns = self._found(packets)
        self._samples.packets += len(packets)
        if not len(rows):
            return
        tags = None if grouping is None else grouping.add(packets, rows, legs, delays_ns, weights)
        if self._estimator.variant == "inverse-variance":
            self._kept.append((legs, delays_ns, fridge, survived))
        else:
            self._samples.add(legs, delays_ns, weights)
            self._samples.spread.add(packets.flow_key, packets.time_ns, rows, legs, delays_ns, weights)
        if self._stretch is not None:
            self._stretch.delays.add(delays_ns, weights)
        for sink in self._estimator.sinks:
            sink(packets, _sample_batch(columns)._replace(tags=tags))

    def match(self, packets: PacketBatch) -> SampleBatch:
        """The samples of a batch."""
        return _sample_batch(self._found(packets))

    def _found(self, packets: PacketBatch) -> tuple[Array, ...]:
        """Rows of the responses, delays in ns, legs, kinds, fridges, survived requests, weights."""
        if not self._drained:
            return _observe(self._open.kernel, packets)
        old, new = _observe(self._drained.kernel, packets), _observe(self._open.kernel, packets)
        fresh = ~np.isin(new[0], old[0])  # a request repeated after the edge: its first copy counts
        both = [np.concatenate((a, b[fresh])) for a, b in zip(old, new, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return tuple(column[order] for column in both)

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in this interval; requests without a response stay."""
        if self._kept:
            self._add_kept()
        counted = self._open.counts()
        self._samples.count(**counted)
        if self._drained:
            self._samples.count(**self._drained.counts())
        samples, self._samples = self._samples, Samples()
        return samples

    def _adapt(self, stretch: _Stretch, next_ns: int) -> None:
        """A stretch has ended. Replan if that is worth it and discards nothing that still waits in drained fridges."""
        ended_ns, delays = stretch.end_ns, stretch.delays
        requests = self._open.kernel.arrivals - stretch.arrivals
        long_enough = ended_ns - self._open.since_ns >= 2 * (delays.max_ns or 0)
        if requests == 0 or delays.samples < FEWEST_TO_ADAPT or not long_enough:
            stretch.end_ns = next_ns
            return
        rate_per_s = requests / (ended_ns - stretch.start_ns) * 1e9
        better = plan(self._estimator.memory // 2, rate_per_s, delays)
        survived = _survived(rate_per_s, delays)
        now, then = (
            _inflation(fridges.slots, np.array([fridges.probabilities]), survived).item()
            for fridges in (self._open.fridges, better)
        )
        if then * WORTH_IT < now:
            self.replace(better, ended_ns)
        self._stretch = _Stretch(max(ended_ns, next_ns - STRETCH_NS), next_ns, self._open.kernel.arrivals)

    def replace(self, fridges: Fridges, now_ns: int) -> None:
        """Let requests enter these fridges from now on; drain the previous ones."""
        self._open.kernel.drain()
        if self._drained:
            self._samples.count(**self._drained.counts())
        self._drained = self._open
        kernel = self._estimator.kernel(fridges, _hashed(self._estimator.seed, now_ns))
        self._open = _Generation(fridges, kernel, now_ns)

    def _add_kept(self) -> None:
        legs, delays_ns, fridge, survived = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        self._kept = []
        bins = np.searchsorted(MIDDLES_NS, delays_ns) * 16 // BINS  # octaves and wider: finer bins are more biased
        weights = inverse_variance_weights(self._open.fridges, fridge, survived, bins)
        coins = np.random.default_rng(self._estimator.seed).random(len(weights))
        self._samples.add(legs, delays_ns, np.floor(weights + coins).astype(np.int64))


def _edge_after(time_ns: int) -> int:
    return (time_ns // STRETCH_NS + 1) * STRETCH_NS


def _observe(kernel: _kernels.Fridge, packets: PacketBatch) -> tuple[Array, ...]:
    size = len(packets)
    rows, delays_ns = np.empty(size, np.uint32), np.empty(size, np.int64)
    legs, kinds, fridge = np.empty(size, np.uint8), np.empty(size, np.uint8), np.empty(size, np.uint8)
    survived, weights = np.empty(size, np.uint64), np.empty(size, np.int64)
    count = kernel.observe(packets, rows, delays_ns, legs, kinds, fridge, survived, weights)
    return tuple(column[:count] for column in (rows, delays_ns, legs, kinds, fridge, survived, weights))


def _sample_batch(columns: tuple[Array, ...]) -> SampleBatch:
    rows, delays_ns, legs, kinds, _, _, weights = columns
    return SampleBatch(rows, delays_ns, legs, MATCHERS, kinds, weights)


def _hashed(seed: int, word: int) -> int:
    """`step` of docs/reference/columns.md."""
    x = ((seed ^ word) * 0xD6E8FEB86659FD93) & 2**64 - 1
    return x ^ x >> 32
