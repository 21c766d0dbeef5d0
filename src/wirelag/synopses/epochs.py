"""Epochs: response latencies of flows, each over about half a second; the synopsis of `pirate`.

Memory: 232 bytes per epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import to_address
from wirelag.report import Report
from wirelag.stats.distribution import Distribution

Array = npt.NDArray[Any]

Z95: Final = 1.96
FEWEST: Final = 4  # flows, or epochs of one flow, needed for a confidence interval
METHODS: Final = ("gap", "modes", "ack", "window", "syn", "auto", "blind")
REASONS: Final = (
    "", "too_few", "spontaneous", "joined", "think", "reordered", "coalesced", "no_gap", "crowd", "initial", "not_tcp",
    "too_fast", "multicast", "tunnel", "paced", "acks", "doubtful",
)  # fmt: skip
PACED: Final = REASONS.index("paced")
MEANING: Final = {
    "too_few": "too few responses",
    "spontaneous": "requests that no response triggered: an open loop",
    "joined": "capture began inside the flow, or a first guess was wrong: the packets in flight are unknown",
    "think": "the client's think time cannot be separated from latency",
    "reordered": "too many packets out of order",
    "coalesced": "several requests in a packet",
    "no_gap": "no gap between requests stands out",
    "crowd": "several connections in one flow, or bursts larger than the packets in flight",
    "initial": "the opening flight was cut by the initial congestion window",
    "not_tcp": "the method needs TCP headers",
    "too_fast": "responses would be faster than half the handshake's round trip",
    "multicast": "sent to a multicast or broadcast address",
    "tunnel": "a tunnel, which may carry several connections",
    "paced": "packets at a pace of their own, as in a call or a stream: an open loop",
    "acks": "short packets that may be requests or acknowledgements",
    "doubtful": "answers from such packets are wrong too often",
}
UNSIGNED: Final = ("key", "waits", "src_high", "src_low", "dst_high", "dst_low", "ports")
EPOCH: Final = np.dtype([(name, "<u8" if name in UNSIGNED else "<i8") for name in _kernels.EPOCH_COLUMNS])
ENDS: Final = _kernels.EPOCH_COLUMNS.index("src_high")
TCP: Final = 6
TUNNEL: Final = 1 << 8  # in the last word of the ends: a tunnel, whose contents are hidden


@dataclass(slots=True)
class Epochs:
    """The synopsis: ended epochs, and counts of packets."""

    rows: Array
    packets: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Epochs) -> Epochs:
        counts = {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in self.counts | other.counts}
        return Epochs(np.concatenate([self.rows, other.rows]), self.packets + other.packets, counts)

    def of(self, rows: npt.NDArray[Any]) -> Epochs:
        """A selection of epochs."""
        return replace(self, rows=self.rows[rows])

    def possible(self) -> Epochs:
        """Without impossible estimates.

        Removes those of datagrams to many, whatever their pace; those shorter than half the handshake's round trip; and
        those of tunnels, unless a TCP handshake was recognised and one packet is in flight: the start of a tunnel
        reveals nothing about the connections in it.
        """
        rows, answered = self.rows, self.rows["count"] > 0
        network_ns = np.maximum(rows["network_ns"], 0)
        unknown = (rows["in_flight"] > 1) | (rows["network_ns"] < 0)
        tunnel = answered & unknown & ((self.ends[:, 4] & np.uint64(TUNNEL)) != 0)
        too_fast = answered & (2 * rows["sum_ns"] < network_ns * rows["count"])
        to_many = _to_many(self.ends)
        none = too_fast | tunnel | to_many
        if not none.any():
            return self
        rows = rows.copy()
        for name in ("count", "sum_ns", "batch_count", "batch_sum_ns", "think_count", "think_sum_ns", "confidence"):
            rows[name][none] = 0
        for of, reason in ((too_fast, "too_fast"), (tunnel, "tunnel"), (to_many, "multicast")):
            rows["reason"][of] = REASONS.index(reason)
        return replace(self, rows=rows)

    def one_way(self, before: Collection[tuple[int, ...]] = ()) -> Epochs:
        """If both directions of a flow were taken for a client's, keep the one heard first, or in `before`."""
        distinct, first, place = np.unique(self.ends, axis=0, return_index=True, return_inverse=True)
        since = dict(zip(map(tuple, distinct.tolist()), self.rows["start_ns"][first].tolist(), strict=True))
        kept = np.array(
            [_reversed(ends) not in before and ns <= since.get(_reversed(ends), ns) for ends, ns in since.items()], bool
        )
        return self if kept.all() else self.of(kept[place.reshape(-1)])

    def without_paced(self) -> Epochs:
        """No estimate for a flow that in most epochs had a pace of its own: it takes a few epochs to show."""
        if not (self.rows["reason"] == PACED).any():
            return self
        flow = np.unique(self.ends, axis=0, return_inverse=True)[1].reshape(-1)
        answered, paced = self.rows["count"] > 0, self.rows["reason"] == PACED
        wrong = answered & (np.bincount(flow, paced) > np.bincount(flow, answered))[flow]
        rows = self.rows.copy()
        rows["reason"][wrong] = PACED
        for name in ("count", "sum_ns", "confidence", "batch_count", "batch_sum_ns", "think_count", "think_sum_ns"):
            rows[name][wrong] = 0
        return replace(self, rows=rows)

    def by_ends(self) -> Iterator[tuple[list[int], Array]]:
        """Rows of each flow."""
        distinct, place = np.unique(self.ends, axis=0, return_inverse=True)
        order = np.argsort(place.reshape(-1), kind="stable")
        counts = np.bincount(place.reshape(-1), minlength=len(distinct))
        ends_at = np.cumsum(counts)
        for ends, count, end in zip(distinct.tolist(), counts, ends_at, strict=True):
            yield ends, self.rows[order[end - count : end]]

    def groups(self, by: str) -> Iterator[tuple[str, Epochs]]:
        """Epochs of each flow, client or server, most responses first."""
        for name, rows in named(self.ends, by, self.rows["count"]):
            yield name, self.of(rows)

    @property
    def times_ns(self) -> npt.NDArray[np.int64]:
        """The midpoint of each epoch."""
        return np.asarray(self.rows["start_ns"] + (self.rows["end_ns"] - self.rows["start_ns"]) // 2)

    @property
    def delays(self) -> Distribution:
        """Empty: epochs give means, not single delays."""
        return Distribution()

    @property
    def ends(self) -> npt.NDArray[np.uint64]:
        """Endpoints of each epoch in five words: addresses, ports and protocol."""
        return self.rows.view("<u8").reshape(-1, len(_kernels.EPOCH_COLUMNS))[:, ENDS:]

    def report(self) -> Report:
        """All epochs together: the sum of all latencies over their number, never a mean of means."""
        rows = self.rows
        answered = rows[rows["count"] > 0]
        samples = int(answered["count"].sum())
        mean_ns = float(answered["sum_ns"].sum()) / samples if samples else None
        ci95 = {}
        if mean_ns is not None and (bound_ns := _bound_ns(answered, mean_ns)) is not None:
            ci95["mean"] = (max(0.0, mean_ns - bound_ns) / 1e9, (mean_ns + bound_ns) / 1e9)
        reasons = np.bincount(rows["reason"][rows["count"] == 0], minlength=len(REASONS))
        networks = answered["network_ns"][answered["network_ns"] >= 0]
        return Report(
            "pirate",
            "response",
            packets=self.packets,
            samples=samples,
            mean=None if mean_ns is None else mean_ns / 1e9,
            ci95=ci95,
            reason=None if samples else "no epoch has an estimate",
            details={
                "method": sorted({METHODS[method] for method in np.unique(rows["method"])}),
                "epochs": len(rows),
                "answered": len(answered),
                "abstained": {REASONS[i]: int(n) for i, n in enumerate(reasons) if n},
                "confidence": _weighted(answered["confidence"] / 100, answered["count"]),
                "requests": int(rows["requests"].sum()),
                "lost": int(rows["lost"].sum()),
                "in_flight": _weighted(answered["in_flight"], answered["count"]),
                "batch": _mean(answered["batch_sum_ns"], answered["batch_count"]),
                "think": _mean(answered["think_sum_ns"], answered["think_count"]),
                "think_samples": int(answered["think_count"].sum()),
                "network": float(np.median(networks)) / 1e9 if len(networks) else None,
            },
        )


def named(ends: Array, by: str, weights: Array) -> Iterator[tuple[str, Array]]:
    """Rows with the same flow, client or server, by name, largest weight first."""
    distinct, inverse = np.unique(ends, axis=0, return_inverse=True)
    texts = np.array([ends_text(words, by) for words in distinct.tolist()], object)
    names, of_ends = np.unique(texts, return_inverse=True)
    if not len(names):
        return
    place = of_ends[inverse.reshape(-1)]
    members = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    for group in np.argsort(-np.bincount(place, weights), kind="stable"):
        yield str(names[group]), members[group]


def ends_text(words: list[int], by: str) -> str:
    """Five words (source, destination, ports and protocol) as the name of a flow, of its client or of its server."""
    src, dst = (_endpoint(words[i], words[i + 1]) for i in (0, 2))
    src_port, dst_port, protocol = words[4] >> 32, words[4] >> 16 & 0xFFFF, words[4] & 0xFF
    if by == "client":
        return src
    server = _with_port(dst, dst_port)
    name = {6: "tcp", 17: "udp", 50: "esp"}.get(protocol, str(protocol))
    return server if by == "server" else f"{_with_port(src, src_port)} > {server} {name}"


def _to_many(ends: Array) -> Array:
    """Datagrams to a multicast or broadcast address. A host may end in .255 where networks are large; few do."""
    high, low, of = ends[:, 2], ends[:, 3], ends[:, 4]
    last = low & np.uint64(0xFFFFFFFF)
    is_ipv4 = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
    to_group = (last >> np.uint64(28) == 0xE) | (last & np.uint64(0xFF) == 0xFF)
    to_one: Array = np.where(is_ipv4, ~to_group, high >> np.uint64(56) != 0xFF) | (of & np.uint64(0xFF) == TCP)
    return ~to_one


def _reversed(ends: tuple[int, ...]) -> tuple[int, ...]:
    """The same flow in the other direction."""
    src_high, src_low, dst_high, dst_low, ports = ends
    there, back, protocol = ports >> 32, ports >> 16 & 0xFFFF, ports & 0xFF
    return dst_high, dst_low, src_high, src_low, back << 32 | there << 16 | protocol


def _endpoint(high: int, low: int) -> str:
    return str(to_address(high, low))


def _with_port(address: str, port: int) -> str:
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _bound_ns(rows: Array, mean_ns: float) -> float | None:
    """Half of the 95% interval of a ratio of sums. Flows are independent; if there are few, their epochs count."""
    for members in (rows["key"], np.arange(len(rows))):
        _, place = np.unique(members, return_inverse=True)
        sums = np.bincount(place, rows["sum_ns"].astype(np.float64))
        counts = np.bincount(place, rows["count"].astype(np.float64))
        if len(sums) >= FEWEST:
            off = sums - mean_ns * counts
            return float(Z95 * np.sqrt((off**2).sum() * len(sums) / (len(sums) - 1)) / counts.sum())
    return None


def _mean(sums_ns: Array, counts: Array) -> float | None:
    total = int(counts.sum())
    return float(sums_ns[counts > 0].sum()) / total / 1e9 if total else None


def _weighted(values: Array, weights: Array) -> float | None:
    return float((values * weights).sum() / weights.sum()) if len(values) else None
