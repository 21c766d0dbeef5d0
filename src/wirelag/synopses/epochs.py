"""Epochs: response latencies of flows, each over about half a second; the synopsis of `pirate`.

Memory: 232 bytes per epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.address import to_address
from wirelag.packets.distinct import distinct, places_among
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


@dataclass(slots=True, eq=False)
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

    @classmethod
    def none(cls) -> Epochs:
        """No epochs."""
        return cls(np.empty(0, EPOCH))

    def at_most(self, most: int) -> Epochs:
        """The first of them; the others are counted."""
        if len(self) <= most:
            return self
        more = self.counts.get("unlisted", 0) + len(self) - most
        return replace(self, rows=self.rows[:most].copy(), counts=self.counts | {"unlisted": more})

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

    def one_way(self, before: Array | None = None) -> Epochs:
        """If both directions of a flow were taken for a client's, keep the one heard first, or in `before`."""
        ends, first, place = distinct(self.ends)
        since_ns = self.rows["start_ns"][first]
        back = places_among(ends, _reversed(ends))
        kept = (back < 0) | (since_ns <= since_ns[back])
        if before is not None and len(before):
            kept &= places_among(before, _reversed(ends)) < 0
        return self if kept.all() else self.of(kept[place])

    def without_paced(self) -> Epochs:
        """No estimate for a flow that in most epochs had a pace of its own: it takes a few epochs to show."""
        if not (self.rows["reason"] == PACED).any():
            return self
        flow = distinct(self.ends).place
        answered, paced = self.rows["count"] > 0, self.rows["reason"] == PACED
        wrong = answered & (np.bincount(flow, paced) > np.bincount(flow, answered))[flow]
        rows = self.rows.copy()
        rows["reason"][wrong] = PACED
        for name in ("count", "sum_ns", "confidence", "batch_count", "batch_sum_ns", "think_count", "think_sum_ns"):
            rows[name][wrong] = 0
        return replace(self, rows=rows)

    def by_ends(self) -> Iterator[tuple[list[int], Array]]:
        """Rows of each flow."""
        ends, _, place = distinct(self.ends)
        order = np.argsort(place, kind="stable")
        counts = np.bincount(place, minlength=len(ends))
        ends_at = np.cumsum(counts)
        for words, count, end in zip(ends.tolist(), counts, ends_at, strict=True):
            yield words, self.rows[order[end - count : end]]

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

    @property
    def samples(self) -> int:
        """How many latencies epochs tell of."""
        return int(self.rows["count"].sum())

    @property
    def mean(self) -> float | None:
        """The sum of all latencies over their number, never a mean of means; in seconds."""
        answered = self.rows["count"] > 0
        samples = int(self.rows["count"][answered].sum())
        return float(self.rows["sum_ns"][answered].sum()) / samples / 1e9 if samples else None

    def report(self, delays: Distribution | None = None) -> Report:
        """All epochs together; they have no single delays."""
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
                "method": sorted(METHODS[method] for method in np.flatnonzero(np.bincount(rows["method"]))),
                "epochs": len(rows),
                "answered": len(answered),
                "abstained": {REASONS[i]: int(n) for i, n in enumerate(reasons) if n},
                "confidence": _confidence(answered),
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
    words, _, inverse = distinct(telling(ends, by))
    names = sorted(set(texts := ends_texts(words, by)))
    if not names:
        return
    numbers = {name: number for number, name in enumerate(names)}
    place = np.array([numbers[text] for text in texts])[inverse]
    members = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    for group in np.argsort(-np.bincount(place, weights), kind="stable").tolist():
        yield names[group], members[group]


def telling(ends: Array, by: str) -> Array:
    """The words that tell flows, clients or servers apart; the others are 0."""
    words: Array = np.array(ends)
    if by == "client":
        words[:, 2:] = 0
    elif by == "server":
        words[:, :2], words[:, 4] = 0, words[:, 4] & np.uint64(0xFFFF0000)
    return words


def ends_texts(ends: Array, by: str) -> list[str]:
    """The name of each row, as `ends_text` says it; an address is formatted once."""
    if by != "flow":
        return [ends_text(words, by) for words in ends.tolist()]
    addresses, _, place = distinct(ends[:, :4].reshape(-1, 2))
    texts = [_endpoint(high, low) for high, low in addresses.tolist()]
    return [
        _flow_text(texts[src], texts[dst], ports)
        for (src, dst), ports in zip(place.reshape(-1, 2).tolist(), ends[:, 4].tolist(), strict=True)
    ]


def ends_text(words: list[int], by: str) -> str:
    """Five words (source, destination, ports and protocol) as the name of a flow, of its client or of its server."""
    if by == "client":
        return _endpoint(words[0], words[1])
    if by == "server":
        return _with_port(_endpoint(words[2], words[3]), words[4] >> 16 & 0xFFFF)
    return _flow_text(_endpoint(words[0], words[1]), _endpoint(words[2], words[3]), words[4])


def _flow_text(src: str, dst: str, ports: int) -> str:
    name = {6: "tcp", 17: "udp", 50: "esp"}.get(ports & 0xFF, str(ports & 0xFF))
    return f"{_with_port(src, ports >> 32)} > {_with_port(dst, ports >> 16 & 0xFFFF)} {name}"


def _to_many(ends: Array) -> Array:
    """Datagrams to a multicast or broadcast address. A host may end in .255 where networks are large; few do."""
    high, low, of = ends[:, 2], ends[:, 3], ends[:, 4]
    last = low & np.uint64(0xFFFFFFFF)
    is_ipv4 = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
    to_group = (last >> np.uint64(28) == 0xE) | (last & np.uint64(0xFF) == 0xFF)
    to_one: Array = np.where(is_ipv4, ~to_group, high >> np.uint64(56) != 0xFF) | (of & np.uint64(0xFF) == TCP)
    return ~to_one


def _reversed(ends: Array) -> Array:
    """The same flows in the other direction."""
    half, port = np.uint64(32), np.uint64(16)
    ports = ends[:, 4]
    back = (ports >> port & np.uint64(0xFFFF)) << half | (ports >> half) << port | ports & np.uint64(0xFF)
    return np.column_stack((ends[:, 2:4], ends[:, :2], back))


def _endpoint(high: int, low: int) -> str:
    return str(to_address(high, low))


def _with_port(address: str, port: int) -> str:
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _bound_ns(rows: Array, mean_ns: float) -> float | None:
    """Half of the 95% interval of a ratio of sums. Flows are independent; if there are few, their epochs count."""
    for members in (rows["key"], np.arange(len(rows))):
        place = distinct(members).place
        sums = np.bincount(place, rows["sum_ns"].astype(np.float64))
        counts = np.bincount(place, rows["count"].astype(np.float64))
        if len(sums) >= FEWEST:
            off = sums - mean_ns * counts
            return float(Z95 * np.sqrt((off**2).sum() * len(sums) / (len(sums) - 1)) / counts.sum())
    return None


def _mean(sums_ns: Array, counts: Array) -> float | None:
    total = int(counts.sum())
    return float(sums_ns[counts > 0].sum()) / total / 1e9 if total else None


def _confidence(rows: Array) -> float | None:
    """The confidence of all responses, in steps of 0.01%: single ones are whole per cent."""
    found = _weighted(rows["confidence"], rows["count"])
    return None if found is None else round(found / 100, 4)


def _weighted(values: Array, weights: Array) -> float | None:
    return float((values * weights).sum() / weights.sum()) if len(values) else None
