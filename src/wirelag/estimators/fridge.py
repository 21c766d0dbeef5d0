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

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from wirelag import _kernels
from wirelag.estimators.fridge_plan import CERTAIN, Fridges, Plans, plan
from wirelag.estimators.matchers import MATCHERS, matcher_bits
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.synopses.samples import SampleBatch, Samples, Sink

if TYPE_CHECKING:
    from wirelag.estimators.fridge_rows import FridgeRows
    from wirelag.packets.batch import Array, PacketBatch
    from wirelag.packets.grouping import Grouping

Variant = Literal["union", "inverse-variance", "overwrite", "expiry"]

AUTO: Final = ("tcp", "dns", "ntp", "icmp")  # quic-spin has no ids to wait for
_KERNEL_VARIANTS: Final = {"union": 0, "inverse-variance": 0, "overwrite": 1, "expiry": 2}


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

    def rows_meter(self, threads: int) -> FridgeRows:
        """A fresh meter for decoded rows."""
        from wirelag.estimators.fridge_rows import FridgeRows

        return FridgeRows(self, threads)

    def estimate(self, *synopses: Samples) -> Report:
        """The report of one interval's samples."""
        (samples,) = synopses
        return samples.report("fridge", "round_trip")


@dataclass(slots=True)
class _Generation:
    """Fridges in use, and their counters at the last cut."""

    fridges: Fridges
    kernel: _kernels.Fridge
    before: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Counts since the last call."""
        kernel = self.kernel
        now = {"requests": kernel.arrivals, "backwards": kernel.backwards, "too_long": kernel.too_long}
        counted = {name: n - self.before[name] for name, n in now.items()}
        self.before = Counter(now)
        return counted


class Generations:
    """The fridges in use, and those that are drained.

    When the plan changes, new requests enter new fridges, with coins of their own: the seed is hashed with the time.
    The old fridges are drained: no request enters, so waiting requests survive, with the weight of the requests before.
    So every delay has the weight of its own fridges, and the sum stays unbiased.
    """

    def __init__(self, estimator: Fridge) -> None:
        self._estimator = estimator
        fridges = estimator.first()
        self.open = _Generation(fridges, estimator.kernel(fridges, estimator.seed))
        self.drained: _Generation | None = None
        adapts = not estimator.slots and estimator.variant == "union"
        self.plans = Plans(estimator.memory // 2) if adapts else None

    def replace(self, fridges: Fridges, now_ns: int) -> dict[str, int]:
        """Let requests enter these fridges from now on, and drain the previous ones. Returns counts of those before."""
        self.open.kernel.drain()
        counted = self.drained.counts() if self.drained else {}
        self.drained = self.open
        self.open = _Generation(fridges, self._estimator.kernel(fridges, _hashed(self._estimator.seed, now_ns)))
        return counted

    def count(self, samples: Samples) -> None:
        """Add the counts since the last cut."""
        for one in (self.open, self.drained):
            if one is not None:
                samples.count(**one.counts())


class FridgeMeter:
    """The fridges at one point, and samples since the last cut."""

    def __init__(self, estimator: Fridge) -> None:
        from wirelag.stats.distribution import Distribution

        self._estimator = estimator
        self._held = Generations(estimator)
        self._delays = Distribution()  # of the stretch
        self._samples = Samples()
        self._kept: list[tuple[Array, ...]] = []  # inverse-variance needs an interval's samples together

    @property
    def fridges(self) -> Fridges:
        """The fridges that requests enter now."""
        return self._held.open.fridges

    @property
    def bytes(self) -> int:
        """The memory of all slots in bytes, including those being drained."""
        held = (self._held.open, self._held.drained)
        return sum(one.kernel.slot_bytes for one in held if one is not None)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Put requests into the fridges, take out those with a response, and add the samples to their groups."""
        plans = self._held.plans
        if plans is None:
            self._observe(packets, grouping)
            return
        if len(packets) and not plans.begun:
            plans.begin(int(packets.time_ns[0]))
        while len(packets):
            later = packets.time_ns >= plans.end_ns
            rows = int(later.argmax()) if later.any() else len(packets)
            self._observe(packets[:rows], grouping)
            packets = packets[rows:]
            if len(packets):
                self._turn(plans, int(packets.time_ns[0]))

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
        if self._held.plans is not None:
            self._delays.add(delays_ns, weights)
        for sink in self._estimator.sinks:
            sink(packets, _sample_batch(columns)._replace(tags=tags))

    def match(self, packets: PacketBatch) -> SampleBatch:
        """The samples of a batch."""
        return _sample_batch(self._found(packets))

    def _found(self, packets: PacketBatch) -> tuple[Array, ...]:
        """Rows of the responses, delays in ns, legs, kinds, fridges, survived requests, weights."""
        import numpy as np

        held = self._held
        if held.drained is None:
            return _observe(held.open.kernel, packets)
        old, new = _observe(held.drained.kernel, packets), _observe(held.open.kernel, packets)
        fresh = ~np.isin(new[0], old[0])  # a request repeated after the edge: its first copy counts
        both = [np.concatenate((a, b[fresh])) for a, b in zip(old, new, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return tuple(column[order] for column in both)

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in this interval; requests without a response stay."""
        if self._kept:
            self._add_kept()
        self._held.count(self._samples)
        samples, self._samples = self._samples, Samples()
        return samples

    def _turn(self, plans: Plans, next_ns: int) -> None:
        """A stretch has ended."""
        delays, requests, now = self._delays, self._held.open.kernel.arrivals, self.fridges
        if plans.due(next_ns, requests, delays.samples, delays.max_ns or 0):
            fridges = plans.next(requests, delays.by_bin, now)
            if fridges is not now:
                self.replace(fridges, plans.since_ns)
            self._delays = type(delays)()

    def replace(self, fridges: Fridges, now_ns: int) -> None:
        """Let requests enter these fridges from now on; drain the previous ones."""
        self._samples.count(**self._held.replace(fridges, now_ns))

    def _add_kept(self) -> None:
        import numpy as np

        from wirelag.estimators.fridge_weights import inverse_variance_weights
        from wirelag.stats.bins import MIDDLES_NS
        from wirelag.stats.distribution import BINS

        legs, delays_ns, fridge, survived = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        self._kept = []
        bins = np.searchsorted(MIDDLES_NS, delays_ns) * 16 // BINS  # octaves and wider: finer bins are more biased
        weights = inverse_variance_weights(self.fridges, fridge, survived, bins)
        coins = np.random.default_rng(self._estimator.seed).random(len(weights))
        self._samples.add(legs, delays_ns, np.floor(weights + coins).astype(np.int64))


def _observe(kernel: _kernels.Fridge, packets: PacketBatch) -> tuple[Array, ...]:
    import numpy as np

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
