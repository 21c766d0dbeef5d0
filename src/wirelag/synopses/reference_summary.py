"""The delays between references in an interval, summed up in a few numbers: the form in which `rli` travels.

Law: for all packets, and for each class, it holds the exact sum of delays, their variance and the error of the mean.
Classes are the largest and the slowest of an interval, `most` in total; all others form the class "other". So the
bytes per interval are bounded, however many flows there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER_KEY, Grouping
from wirelag.stats.distribution import Z95
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.flows import COLUMN, Flows

MOST: Final = 1 << 100  # largest sum of delays
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Heard:
    """The references themselves."""

    references: int = 0  # references used
    references_lost: int = 0  # references whose sequence numbers never arrived
    references_rejected: int = 0
    sender_ns: int | None = None  # mean error bound of their times; None: the sender does not state one


@dataclass(frozen=True, slots=True)
class Interpolated:
    """The packets of an interval, or of one class."""

    packets: int  # settled packets: the references on both sides have arrived, or will not
    timed: int  # packets of these with a delay
    sum_ns: int
    variance_ns2: float
    error_ns2: float | None  # variance of the mean, from how well references predict each other; None: too few
    heard: Heard | None = None  # None for a class

    def to_fields(self) -> dict[str, Any]:
        """Named numbers."""
        plain = asdict(self)
        return plain | (plain.pop("heard") or {})

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Interpolated:
        """The inverse of `to_fields`; a ValueError if the numbers are impossible."""
        packets, timed = (_whole(fields[name], 0) for name in ("packets", "timed"))
        if timed > packets:
            raise ValueError("more packets have a delay than were counted")
        error = fields["error_ns2"]
        found = cls(
            packets,
            timed,
            _whole(fields["sum_ns"], -MOST),
            _real(fields["variance_ns2"]),
            None if error is None else _real(error),
        )
        if fields["class"] is not None:
            return found
        used, lost, rejected = (_whole(fields[f"references{end}"], 0) for end in ("", "_lost", "_rejected"))
        sender_ns = fields["sender_ns"]
        return replace(found, heard=Heard(used, lost, rejected, None if sender_ns is None else _whole(sender_ns, 0)))

    def crossing(self) -> Crossing:
        """The same in the form of all two-point methods: what was sent is unknown, and so is loss."""
        reason = "no packet came between two references" if self.packets and not self.timed else None
        return Crossing(received=self.packets, moments=self._moments(), reason=reason)

    def _moments(self) -> Moments:
        if self.error_ns2 is None:
            return Moments.of(self.timed, self.sum_ns, None, self.packets)
        moments = Moments.of(self.timed, self.sum_ns, self.variance_ns2, self.packets)
        # The error is not chance among packets but the line between references: `bound_ns` gives its 95%.
        moments.doubt_ns2 = moments.weight**2 * self.error_ns2 * (Z95**2 / (2 * math.log(2 / 0.05)))
        return moments


def interpolated(flows: Flows) -> Interpolated:
    """Sum up all packets."""
    report, counts = flows.report(), flows.counts
    rejected = sum(n for name, n in counts.items() if name.startswith("rejected_"))
    heard = Heard(counts.get("accepted", 0), flows.lost, rejected, flows.sender_ns)
    variance = (report.std or 0.0) ** 2 * 1e18
    ends = report.ci95.get("mean")
    error = None if ends is None else _variance(ends[0] * 1e9, ends[1] * 1e9)
    return Interpolated(counts.get("regular", 0), flows.timed, flows.sum_ns, variance, error, heard)


def by_class(flows: Flows, grouping: Grouping) -> tuple[list[tuple[str, Interpolated]], bool]:
    """The largest and the slowest classes, half each; and whether there were more."""
    if not len(flows):
        return [], False
    packets = _ends(flows)
    first, class_of = grouping.distinct(packets)
    more = len(first) > grouping.most
    if more:
        chosen = _chosen(_classes(flows, class_of), grouping.most)
        place = np.full(len(first), len(chosen))  # the last one is "other"
        place[chosen] = np.arange(len(chosen))
        first, class_of = first[chosen], place[class_of]
    tags = grouping.tags(packets, first, np.ones(len(first), np.uint8))
    names = [grouping.keys[tag] for tag in tags.tolist()] + [OTHER_KEY] * more
    return list(zip(names, _each(_classes(flows, class_of)), strict=True)), more


def _ends(flows: Flows) -> PacketBatch:
    """One packet per record."""
    column, ports = {name: flows.records[:, i] for name, i in COLUMN.items()}, flows.records[:, COLUMN["ports"]]
    return PacketBatch(
        {
            "time_ns": flows.column("first_ns"),
            "flow_key": column["key"],
            "src": np.column_stack((column["src_high"], column["src_low"])),
            "dst": np.column_stack((column["dst_high"], column["dst_low"])),
            "src_port": (ports >> np.uint64(32)).astype(np.uint16),
            "dst_port": (ports >> np.uint64(16)).astype(np.uint16),
            "kind": np.zeros(len(flows), np.uint8),  # a record does not tell
        }
    )


def _classes(flows: Flows, class_of: Rows) -> Flows:
    """One record per class, in order."""
    records = flows.records.copy()
    records[:, COLUMN["key"]] = class_of.astype(np.uint64)
    return replace(flows, records=records).merged()


def _chosen(classes: Flows, most: int) -> Rows:
    """The classes with the most packets, then those that are significantly slow."""
    table = classes.table()
    largest = np.argsort(-table["packets"].astype(np.int64), kind="stable")[: most - most // 2]
    low = np.nan_to_num(table["low"], nan=-np.inf)
    low[largest] = -np.inf
    slowest = np.argsort(-low, kind="stable")
    slowest = slowest[~np.isin(slowest, largest)][: most // 2]
    return np.sort(np.concatenate((largest, slowest)))


def _each(classes: Flows) -> Iterator[Interpolated]:
    table = {name: column.tolist() for name, column in classes.table().items()}
    sums = zip(classes.column("sum_ns").tolist(), classes.column("sum_high").tolist(), strict=True)
    for i, (low, high) in enumerate(sums):
        sum_ns = (low % (1 << 64)) + (high << 64)
        error = _variance(table["low"][i] * 1e9, table["high"][i] * 1e9)
        std_ns = 1e9 * table["std"][i]
        yield Interpolated(
            table["packets"][i],
            table["timed"][i],
            sum_ns - (1 << 128) if sum_ns >> 127 else sum_ns,
            std_ns**2 if math.isfinite(std_ns) else 0.0,
            error,
        )


def _variance(low_ns: float, high_ns: float) -> float | None:
    """Variance of the mean from its 95% interval; None if there is none."""
    return ((high_ns - low_ns) / 2 / 1.96) ** 2 if math.isfinite(high_ns - low_ns) else None


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < (MOST if least else 1 << 62):
        raise ValueError("has a value that should be an integer but is not")
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0 or value > 1e40:
        raise ValueError("has a value that should be a variance but is not")
    return float(value)
