"""Shared by the experiments: traces with known delays, the fridge kernel run over them, errors, printed tables.

A trace is a packet batch of DNS queries and responses. An error is |log2(estimated/true)| at a quantile, as in the
paper.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.fridge_plan import CERTAIN, Fridges
from wirelag.estimators.fridge_weights import union_weights
from wirelag.estimators.matchers import matcher_bits
from wirelag.packets.batch import COLUMNS, Flag, Kind, PacketBatch

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

UNION, OVERWRITE, EXPIRY = 0, 1, 2  # variants of the kernel
TYPICAL = (0.50, 0.95, 0.99)
ERROR_NAMES = ("p50", "p95", "p99", "max 5..95%")
MIDDLE = np.arange(5, 96) / 100  # quantiles over which the largest error is taken
ISP_RATE_PER_S = 535_000


# ---- traces ----


@dataclass(frozen=True)
class Trace:
    """Queries and responses in order of time, and their truth."""

    packets: PacketBatch
    request: Array  # per packet: the number of its request
    arrivals: Array  # per packet: the requests so far
    flow_key: Array  # per request
    delays_ns: Array  # delays of answered requests, in order of their responses
    survived: Array  # and the requests between

    @property
    def rate_per_s(self) -> float:
        """Requests per second, on average."""
        last = np.searchsorted(self.arrivals, len(self.flow_key))
        return len(self.flow_key) / float(self.packets.time_ns[last]) * 1e9


def trace_of(rng: np.random.Generator, asked_ns: Array, answered: float, delays_ns: Array) -> Trace:
    """Requests at these times; each is answered with this probability, after the delay of its number."""
    requests = len(asked_ns)
    answered_ones = np.flatnonzero(rng.random(requests) < answered)
    time_ns = np.concatenate((asked_ns, asked_ns[answered_ones] + delays_ns[answered_ones]))
    number = np.concatenate((np.arange(requests), answered_ones))
    order = np.argsort(time_ns, kind="stable")
    number, is_answer = number[order], order >= requests
    flow_key = rng.integers(0, 2**64, requests, dtype=np.uint64)
    columns = {
        name: np.zeros((len(order), width) if width > 1 else len(order), dtype) for name, dtype, width in COLUMNS
    }
    columns["time_ns"], columns["flow_key"] = time_ns[order], flow_key[number]
    columns["kind"][:] = Kind.DNS
    columns["message"][is_answer] = 0x80
    columns["flags"][is_answer] = Flag.REVERSE
    arrivals = np.cumsum(~is_answer)
    survived = arrivals[is_answer] - (number[is_answer] + 1)
    return Trace(PacketBatch(columns), number, arrivals, flow_key, delays_ns[number[is_answer]], survived)


def isp(seed: int = 1, requests: int = 3_000_000) -> Trace:
    """Like the paper's trace of an ISP: Poisson, 535k requests/s, 13% answered, lognormal delays, mean 58 ms."""
    rng = np.random.default_rng(seed)
    asked_ns = np.cumsum(rng.exponential(1e9 / ISP_RATE_PER_S, requests)).astype(np.int64)
    delays_ns = (np.exp(rng.normal(3.209, 1.302, requests)) * 1e6).astype(np.int64)
    return trace_of(rng, asked_ns, 0.13, delays_ns)


def log_uniform(longest_ms: float, octaves: int = 10, seed: int = 1, requests: int = 1_250_000) -> Trace:
    """The paper's synthetic trace: constant 1M requests/s, 40% answered, delays log-uniform up to the longest.

    The paper's range starts at 0, which a log-uniform delay cannot reach; here it spans this many octaves.
    """
    rng = np.random.default_rng(seed)
    delays_ns = (longest_ms * 1e6 * 2.0 ** rng.uniform(-octaves, 0, requests)).astype(np.int64)
    return trace_of(rng, np.arange(1, requests + 1) * 1000, 0.4, delays_ns)


# ---- fridges over traces ----


@dataclass(frozen=True)
class Seen:
    """The samples of one run."""

    row: Array  # row of the response
    delays_ns: Array
    fridge: Array
    survived: Array
    weights: Array  # integers, from the kernel


def fridges_of(slots: Sequence[int], probabilities: Sequence[float]) -> Fridges:
    """Fridges with probabilities in the kernel's units."""
    return Fridges(tuple(slots), tuple(round(p * CERTAIN) for p in probabilities))


def kernel_seed(number: int) -> int:
    """64 bits that differ everywhere from those of the next number."""
    return (number + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1


def run(
    trace: Trace, fridges: Fridges, seed: int = 0, variant: int = UNION, stages: int = 1, expiry_ns: int = 0
) -> Seen:
    """The samples that these fridges take from a trace."""
    bits, size = matcher_bits(("dns",)), len(trace.packets)
    kernel = _kernels.Fridge(bits, fridges.slots, fridges.probabilities, kernel_seed(seed), variant, stages, expiry_ns)
    dtypes = (np.uint32, np.int64, np.uint8, np.uint8, np.uint8, np.uint64, np.int64)
    room = [np.empty(size, dtype) for dtype in dtypes]
    count = kernel.observe(trace.packets, *room)  # type: ignore[arg-type]
    row, delays_ns, _, _, fridge, survived, weights = (column[:count].copy() for column in room)
    return Seen(row, delays_ns, fridge, survived.astype(np.int64), weights)


# ---- errors ----


def quantiles_ns(delays_ns: Array, weights: Array | None, ranks: Sequence[float] | Floats) -> Floats:
    """Weighted quantiles: the shortest delay up to which a share of the weight lies."""
    order = np.argsort(delays_ns)
    shares = np.cumsum(np.ones(len(order)) if weights is None else weights[order].astype(np.float64))
    places = np.searchsorted(shares, np.asarray(ranks) * shares[-1] * (1 - 1e-12))
    return np.asarray(delays_ns[order][np.minimum(places, len(order) - 1)], np.float64)


@dataclass(frozen=True)
class Truth:
    """The true quantiles of a trace's delays, for comparison."""

    typical_ns: Floats  # p50, p95, p99
    middle_ns: Floats  # p5 to p95

    @classmethod
    def of(cls, delays_ns: Array, weights: Array | None = None) -> Truth:
        """The quantiles of these delays."""
        return cls(quantiles_ns(delays_ns, weights, TYPICAL), quantiles_ns(delays_ns, weights, MIDDLE))

    def errors(self, delays_ns: Array, weights: Array | None = None) -> Floats:
        """|log2(estimated/true)| at p50, p95 and p99, and the largest over 5..95%."""
        found = Truth.of(delays_ns, weights)
        typical = np.abs(np.log2(found.typical_ns / self.typical_ns))
        return np.append(typical, np.abs(np.log2(found.middle_ns / self.middle_ns)).max())


def pooled(runs: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Delays and weights of several runs together, as the paper combines hash seeds."""
    delays, weights = zip(*runs, strict=True)
    return np.concatenate(delays), np.concatenate(weights)


# ---- octaves ----


@dataclass(frozen=True)
class Octaves:
    """A trace's delays by octave of the longest: the last one is (longest/2, longest]."""

    longest_ns: float
    count: int
    true: Floats  # how many delays each has

    @classmethod
    def of(cls, trace: Trace, longest_ms: float, count: int) -> Octaves:
        """The octaves of this trace."""
        empty = cls(longest_ms * 1e6, count, np.zeros(count))
        return cls(empty.longest_ns, count, empty.sums(trace.delays_ns, np.ones(len(trace.delays_ns))))

    @property
    def names(self) -> list[str]:
        """The upper end of each, in ms."""
        return [f"{self.longest_ns / 1e6 / 2**k:g}" for k in reversed(range(self.count))]

    def sums(self, delays_ns: Array, weights: Array) -> Floats:
        """The weights in each octave."""
        place = np.floor(np.log2(np.maximum(delays_ns, 1) / self.longest_ns)).astype(int) + self.count
        return np.bincount(np.clip(place, 0, self.count - 1), weights, minlength=self.count)

    def ratio(self, runs: Sequence[tuple[Array, Array]]) -> Floats:
        """Estimate/true, averaged over the runs."""
        return np.mean([self.sums(*one) for one in runs], axis=0) / self.true

    def standard_error(self, trace: Trace, fridges: Fridges, runs: int) -> Floats:
        """The standard error of the unbiased ratio: a delay seen with probability q adds a variance of 1/q - 1."""
        variances = union_weights(fridges, trace.survived) - 1
        return np.sqrt(self.sums(trace.delays_ns, variances) / runs) / self.true


# ---- the command line ----


def arguments(about: str, page: bool = False) -> argparse.Namespace:
    """The arguments of every experiment."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small trace and few seeds: seconds, rough numbers")
    if page:
        parser.add_argument("--html", metavar="FILE", help="also write the figure as a page")
    return parser.parse_args()


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns are at least two spaces apart."""
    cells = [list(header)] + [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    print(f"# {title}")
    for row in cells:
        print(
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            sep="  ",
        )
    print()


def write_page(path: str, title: str, x_title: str, y_title: str, lines: dict[str, tuple[Array, Array]]) -> None:
    """A page of its own with one figure: a line for each name."""
    from wirelag.render.html.charts import line
    from wirelag.render.html.frame import Frame, chart, document

    drawn = [
        line(name, x.tolist(), y.tolist(), f"c{1 + i % 4}") | {"dash": ("", "dash", "dot")[i // 4 % 3]}
        for i, (name, (x, y)) in enumerate(lines.items())
    ]
    every_x, every_y = (np.concatenate([pair[k] for pair in lines.values()]) for k in (0, 1))
    axis = {"kind": "count", "scale": "log", "range": [float(every_x.min()), float(every_x.max())], "title": x_title}
    up = {"kind": "count", "range": [0, 1.05 * float(every_y.max())], "title": y_title}
    figure = {"x": axis, "panels": [{"y": up, "series": drawn}]}
    text = document(Frame(title=title, subject=""), chart("figure", title, "", 560), {"figure": figure})
    Path(path).write_text(text, encoding="utf-8")
    print(f"wrote {path}")
