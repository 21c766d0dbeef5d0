"""Flows as rows: which ones are selected, and their figures, each and together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.addresses import Direction
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.packets.grouping import Grouping
    from wirelag.report import Report
    from wirelag.synopses.flows import Flows
    from wirelag.twopoint.direction import Course

COLUMNS: Final = ("packets", "bytes", "timed", "references", "mean", "std", "low", "high")


class FlowRow(NamedTuple):
    """The figures of one flow, group or interval, or of all flows; times in seconds."""

    scope: str
    key: str
    packets: int
    bytes: int
    timed: int
    references: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """A flow as the JSON contract defines it."""
        ci95 = None if self.low is None else [self.low, self.high]
        return {
            "key": self.key,
            "packets": self.packets,
            "bytes": self.bytes,
            "timed": self.timed,
            "references": self.references,
            "mean": self.mean,
            "std": self.std,
            "ci95": ci95,
        }


@dataclass(frozen=True)
class Choice:
    """Which flows to report. References and the queue need all packets, so flows are selected afterwards."""

    wanted: Filter
    course: Course | None = None  # with two captures: flows that travel from one to the other
    direction: Direction | None = None
    keys: npt.NDArray[np.uint64] | None = None  # sorted: flows with a packet that passes the expression

    def of(self, flows: Flows) -> Flows:
        """The selected flows, and their figures together."""
        import numpy as np

        from wirelag.synopses.flows import COLUMN

        passes = self._passes(flows)
        if passes.all():
            return flows
        records = flows.records[passes]
        whole = _as_one(replace(flows, records=records), np.zeros(len(records), np.uint64))
        numbers = {name: int(whole.records[:, at].sum()) for name, at in COLUMN.items() if at < COLUMN["brackets"]}
        sum_ns = numbers["sum_ns"] + (numbers["sum_high"] << 64)
        return replace(
            flows, records=records, bytes=numbers["bytes"], timed=numbers["timed"],
            sum_ns=sum_ns - (1 << 128 if sum_ns >> 127 else 0),
            squares=numbers["squares"] + (numbers["squares_high"] << 64),
            counts=flows.counts | {"regular": numbers["packets"]},
        )  # fmt: skip

    def _passes(self, flows: Flows) -> npt.NDArray[np.bool_]:
        import numpy as np

        from wirelag.packets.addresses import Direction
        from wirelag.twopoint.direction import FORWARD

        ends = _ends(flows)
        passes = np.ones(len(flows), np.bool_)
        if self.course is not None and len(flows):
            passes &= self.course.of(ends, self.direction) == FORWARD
        if self.wanted.nets:
            passes &= Direction(self.wanted.nets).rows(ends) | Direction((), self.wanted.nets).rows(ends)
        if self.wanted.ports:
            passes &= np.isin(ends.src_port, self.wanted.ports) | np.isin(ends.dst_port, self.wanted.ports)
        if self.wanted.protocols:
            passes &= np.isin(flows.column("ports") & np.uint64(0xFF), np.array(self.wanted.protocols, np.uint64))
        if self.keys is not None:
            passes &= np.isin(flows.column("key"), self.keys)
        return passes


def _ends(flows: Flows) -> PacketBatch:
    """The first packet of each record, where known."""
    import numpy as np

    from wirelag.packets.batch import PacketBatch
    from wirelag.synopses.flows import COLUMN

    ports = flows.column("ports")
    return PacketBatch(
        {
            "time_ns": flows.column("first_ns"),
            "src": flows.records[:, COLUMN["src_high"] : COLUMN["src_low"] + 1],
            "dst": flows.records[:, COLUMN["dst_high"] : COLUMN["dst_low"] + 1],
            "src_port": (ports >> np.uint64(32)).astype(np.uint16),
            "dst_port": (ports >> np.uint64(16) & np.uint64(0xFFFF)).astype(np.uint16),
        }
    )


def _as_one(flows: Flows, keys: npt.NDArray[np.uint64]) -> Flows:
    """Merge records with equal keys.

    Flows share brackets of references, so there are no more brackets than references.
    """
    import numpy as np

    from wirelag.synopses.flows import COLUMN

    records = flows.records.copy()
    records[:, COLUMN["key"]] = keys
    merged = replace(flows, records=records).merged()
    most = np.uint64(max(1, flows.counts.get("accepted", 0)))
    merged.records[:, COLUMN["brackets"]] = np.minimum(merged.records[:, COLUMN["brackets"]], most)
    return merged


def summary(flows: Flows, choice: Choice, scope: str, key: str) -> tuple[Flows, Report, FlowRow]:
    """The selected flows, and their figures together."""
    chosen = choice.of(flows)
    report = chosen.report()
    if chosen is not flows and not len(chosen):
        report = replace(report, reason="no such flow")
    low, high = report.ci95.get("mean", (None, None))
    packets, used = chosen.counts.get("regular", 0), chosen.counts.get("accepted", 0)
    line = FlowRow(scope, key, packets, chosen.bytes, chosen.timed, used, report.mean, report.std, low, high)
    return chosen, report, line


def _rows(
    flows: Flows, scope: str, name: Callable[[int], str], most: int | None = None, first: int = 0
) -> Iterator[FlowRow]:
    """A row for each record, slowest first, those with few packets timed last; or for those at some places."""
    columns = flows.table()
    order = flows.slowest_first(columns["mean"])[first:most]
    for place in range(0, len(order), 1 << 14):  # few values are Python objects at a time
        rows = order[place : place + (1 << 14)]
        lists = [columns[column][rows].tolist() for column in COLUMNS]
        for row, values in zip(rows.tolist(), zip(*lists, strict=True), strict=True):
            numbers: list[Any] = [None if value != value else value for value in values]
            yield FlowRow(scope, name(row), *numbers)


def flow_rows(flows: Flows, most: int | None = None, first: int = 0) -> Iterator[FlowRow]:
    """A row for each flow, slowest first, or for those at some places: names take time."""
    from wirelag.packets.filters import PROTOCOLS

    known = {number: name for name, numbers in PROTOCOLS.items() for number in numbers}
    merged = flows.merged()

    def name(row: int) -> str:
        src, src_port, dst, dst_port, protocol = merged.ends(row)
        word = known.get(protocol, f"protocol {protocol}")
        return f"{_end(src, src_port)} > {_end(dst, dst_port)} {word}"

    return _rows(merged, "flow", name, most, first)


def _end(address: str, port: int) -> str:
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def group_rows(flows: Flows, grouping: Grouping) -> tuple[Iterable[FlowRow], int]:
    """A row for each group. Flows are grouped as packets of one direction are; those with the most packets are kept.

    Also: how many groups there are beyond those.
    """
    import numpy as np

    merged = flows.merged()
    if not len(merged):
        return (), 0
    ends = _ends(merged)
    distinct, group_of = grouping.distinct(ends)
    packets = np.bincount(group_of, weights=merged.column("packets"))
    # The grouping numbers groups as they come: the largest first, of several the one that came first.
    first = np.lexsort((merged.column("first_ns"), -packets[group_of]))
    tags = np.empty(len(merged), np.uint64)
    tags[first] = grouping.tags(ends, first, np.ones(len(merged), np.int64)).astype(np.uint64)
    grouped = _as_one(merged, tags)
    rows = _rows(grouped, "group", lambda row: grouping.keys[int(grouped.records[row, 0])])
    return rows, max(0, len(distinct) - grouping.most)
