"""The one-way delay of every flow, from sparse reference packets that carry their send time.

Guarantee: with `linear` and `left`, a packet's delay lies between those of the references around it in time, and every
flow's mean has an interval derived from how well references predict each other. A reference that is lost, copied, late
or forged (wrong size, stream, time or sequence) is counted and not used. Memory: `memory` bytes of flow table, 128 per
flow (112 of them used); 120 for each of the `buffer` packets that wait for the next reference; a synopsis has at most
`most_flows` records of 144 bytes.

`linear` and `left` are RLI and RLI-L of M. Lee, N. Duffield and R. Kompella, *Not All Microseconds are Equal:
Fine-Grained Per-Flow Measurements with Reference Latency Interpolation*, 2010. `busy` is ours: it infers that the queue
was empty where the link was idle, uses the send time of the packet before each reference, and learns how delay grows
after the last known state. It needs the drain rate of the queue; if that is unknown, or packets wait although the
queue should be empty, it falls back to `linear` and reports that. The fixed part of the delay, propagation and clock
difference, is the delay of references that found the queue empty (until there is one: the smallest delay), minus
serialisation. docs/reference/rli.md is the law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.batch import Array, Flag, Kind, PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.stamp import NONE, PAYLOAD_BYTES, STANDARD_BYTES, errors_ns, parse
from wirelag.report import Report
from wirelag.stats.moments import exact_sum
from wirelag.stats.queue_drain import SIGMAS, Drain, known_delays, learn_queue
from wirelag.synopses.flows import RECORD, WRAP, Flows, Picture
from wirelag.synopses.reference_summary import Interpolated

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Method = Literal["linear", "left", "busy"]

NAME: Final = "rli"
METHODS: Final = ("linear", "left", "busy")
FLOW_MEMORY: Final = 16 << 20  # an agent's memory for the flows of an interval
FLOW_BYTES, RECORD_BYTES, WAITING_BYTES = 128, 144, 120  # bytes of a flow, its record, a waiting packet
CERTAIN: Final = 1 << 32  # probability 1, as the kernel counts
REGULAR, REFERENCE, OTHER, ANOTHER = 0, 1, 2, 3  # kinds of rows; the last are references of another stream
PATIENCE: Final = 64  # valid references of other streams, until a stream is given up
FARTHEST_NS: Final = 1 << 40  # largest difference of a reference's two times
FALSE: Final = 2  # delays that may be false although their times are in order: the first and the last
AHEAD: Final = 1 << 20  # references that may be lost in a row
LEARNING: Final = 1 << 13  # packets from which the drain rate is learned
PATIENT: Final = 1 << 15  # packets after which it is learned again, if it is not trusted
FED: Final = 1 << 16  # packets per call
ROUNDING_NS: Final = 4  # rounding of both clocks and of serialisation
UDP: Final = 17
NO_ERRORS: Final = ((0, 0),) * 32


@dataclass(frozen=True, slots=True)
class Rli:
    """The estimator of every flow's one-way delay.

    `bytes_per_s` is the drain rate (None: learned from packets, with the burst of a shaper, and again while it does not
    fit; 0: unknown), `noise_ns` the standard
    deviation of the receiver's clock (None: learned), `overhead` the bytes that the wire adds to a captured packet (24
    for Ethernet; -14 for a queue that does not count the Ethernet header). `hold` below 1 means sample and hold: a
    packet opens a flow with that probability. `stream` is the flow key of the references, direction included; None
    takes that of the first valid one, which anyone who can send packets may choose. It is given up when other streams
    continue and it does not: when 64 valid packets of other streams, or twice as many as it had, came without one of
    its own. So a few forged packets at the start do no harm. With `mark`, references are UDP packets with this DSCP, on
    any port, instead of those on STAMP's own port.
    """

    method: Method = "busy"
    memory: int = 128 << 20
    bytes_per_s: int | None = None
    noise_ns: float | None = None
    overhead: int = 0
    buffer: int = 1 << 16
    bracket_ns: int = 10**9
    early_ns: int = 10**6
    late_ns: int = 10**10
    base_ns: int = 10**9
    inactive_ns: int = 15 * 10**9
    active_ns: int = 1800 * 10**9
    hold: float = 1.0
    most_flows: int = 1 << 20
    stream: int | None = None
    seed: int = 0
    mark: int | None = None

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("downstream",)
    can: ClassVar[Capabilities] = Capabilities(one_sided=True, ordered=True, by_mark=False)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method; use one of {', '.join(METHODS)}")
        if not 0 <= self.hold <= 1 or self.most_flows < 1 or not -100 <= self.overhead <= 1000:
            raise ValueError("hold must be 0 to 1, most_flows at least 1, overhead -100 to 1000 bytes")
        if self.mark is not None and not 0 <= self.mark <= 63:
            raise ValueError("a mark must be a DSCP, 0 to 63")

    @property
    def bytes(self) -> int:
        """The memory of a meter, with a synopsis half full."""
        return self.memory + RECORD_BYTES * self.most_flows // 2 + WAITING_BYTES * self.buffer

    @classmethod
    def for_agent(cls, method: Method, memory: int | None, seed: int) -> Rli:
        """The same for an agent, with this much memory for the flows of an interval."""
        memory = memory or FLOW_MEMORY
        return cls(method, memory, most_flows=max(1, memory // FLOW_BYTES), seed=seed)

    def kernel(self, drain: Drain) -> _kernels.Rli:
        """An empty table for a queue with this drain."""
        return _kernels.Rli(
            METHODS.index(self.method), self.memory, drain.bytes_per_s, self.buffer, _idle_ns(drain), self.bracket_ns,
            self.early_ns, self.late_ns, self.base_ns, self.inactive_ns, self.active_ns, round(self.hold * CERTAIN),
            self.seed, drain.burst,
        )  # fmt: skip

    def possible(self, packets: PacketBatch) -> npt.NDArray[np.intp]:
        """Rows that may be references: by port or by mark."""
        if self.mark is None:
            return np.flatnonzero(packets.kind == np.uint8(Kind.STAMP))
        marked = (packets.protocol == np.uint8(UDP)) & (packets.dscp == np.uint8(self.mark))
        return np.flatnonzero(marked & ~packets.has(Flag.LATER | Flag.SHORT))

    def meter(self, point: str) -> RliMeter:
        """A fresh meter for the far end of the path."""
        return RliMeter(self)

    def estimate(self, *synopses: Flows) -> Report:
        """The report over all flows of one interval; `Flows.table` has each flow."""
        (flows,) = synopses
        return flows.report()

    def synopsis(self, fields: Mapping[str, Any]) -> Interpolated:
        """The inverse of the synopsis' `to_fields`."""
        return Interpolated.from_fields(fields)


class _Stream(NamedTuple):
    """The stream of the references."""

    key: int
    length: int  # 0: none came yet
    own: int  # its valid references so far, up to PATIENCE
    others: int  # valid references of other streams since its last one


class _Rows(NamedTuple):
    """Input of the kernel; the last four have one entry per reference."""

    time_ns: Ints
    kind: npt.NDArray[np.uint8]
    size: npt.NDArray[np.uint32]
    key: Words
    id: Words
    src: Words
    dst: Words
    src_port: npt.NDArray[np.uint16]
    dst_port: npt.NDArray[np.uint16]
    protocol: npt.NDArray[np.uint8]
    sequence: npt.NDArray[np.uint32]
    sent_ns: Ints
    previous_sent_ns: Ints
    previous_id: Words

    def part(self, start: int, end: int) -> _Rows:
        """A range of rows, with their references."""
        if start == 0 and end >= len(self.time_ns):
            return self
        first = int(np.count_nonzero(_refer(self.kind[:start])))
        last = first + int(np.count_nonzero(_refer(self.kind[start:end])))
        columns: list[Any] = [column[start:end] for column in self[:10]] + [column[first:last] for column in self[10:]]
        return _Rows(*columns)


class RliMeter:
    """Packets at the far end, with references among them. It keeps no batch.

    It learns the drain rate from the first LEARNING packets, which it keeps until then. At an earlier cut, it uses the
    estimate so far.
    """

    def __init__(self, estimator: Rli) -> None:
        self._estimator = estimator
        self._kernel: _kernels.Rli | None = None
        self._drain = Drain(0, 0.0)
        self._first: list[_Rows] = []  # rows kept until the drain rate is learned
        self._learns = 0  # packets still needed for that
        self._learned = False  # whether it is learned at all
        self._least_ns = FARTHEST_NS  # the shortest delay of these packets, but for a few that may be false
        self._trusting = PATIENT  # packets until it is learned again, if it is not trusted
        self._stream = _Stream(estimator.stream or 0, 0, 0, 0)
        self._sequence = 0  # sequence number for references without one
        self._records: list[Words] = []
        self._listed = 0
        self._packets = 0
        self._counts = dict.fromkeys(("rejected_foreign", "rejected_size", "rejected_malformed", "unlisted"), 0)
        self._counted: dict[str, int] = {}
        self._totals = [0] * 7
        self._errors = [0] * 96
        self._accepted = Picture()
        self._last: int | None = None  # sequence number of the last accepted reference
        self._missing = 0  # sequence numbers skipped
        self._sender = (0, 0)  # references with an error estimate, and the sum of their errors
        self._vague = False  # a reference has no error estimate
        known = estimator.bytes_per_s is not None and (estimator.noise_ns is not None or not estimator.bytes_per_s)
        if known or estimator.method != "busy":
            self._begin(Drain(estimator.bytes_per_s or 0, estimator.noise_ns or 0.0))
        else:
            self._learns, self._learned = LEARNING, True

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add packets; STAMP packets of the stream are the references."""
        keys = directed_keys(packets)
        stamps = self._estimator.possible(packets)
        read = parse(packets, stamps, anywhere=self._estimator.mark is not None)
        kinds = np.zeros(len(packets), np.uint8)
        of_stamps = self._kinds(keys[stamps], packets.payload_length[stamps], packets.time_ns[stamps], read.sent_ns)
        kinds[stamps] = of_stamps
        mine = _refer(of_stamps)
        if self._estimator.mark is None and mine.any():
            self._hear(packets, stamps[mine])
        self._take(
            self._rows(
                packets, kinds, keys,
                read.sequence[mine], read.sent_ns[mine], read.previous_sent_ns[mine], read.previous_id[mine],
            )
        )  # fmt: skip

    def observe_with(self, packets: PacketBatch, reference_rows: npt.NDArray[np.intp], sent_ns: Ints) -> None:
        """Add packets, some of which are references because both ends captured them; rows in rising order."""
        kinds = np.zeros(len(packets), np.uint8)
        kinds[reference_rows] = REFERENCE
        if len(sent_ns) != len(reference_rows) or (np.diff(reference_rows) <= 0).any():
            raise ValueError("every reference row needs a time, and rows must rise")
        sequence = (self._sequence + np.arange(1, len(sent_ns) + 1)).astype(np.uint32)
        self._sequence = (self._sequence + len(sent_ns)) % CERTAIN
        nothing = np.full(len(sent_ns), NONE, np.int64), np.zeros(len(sent_ns), np.uint64)
        self._take(self._rows(packets, kinds, directed_keys(packets), sequence, sent_ns.astype(np.int64), *nothing))

    def cut(self, interval: Interval, last: bool = True) -> Flows:
        """All flows of the interval; the state of the queue stays.

        If it is not the `last`, packets that wait for a reference keep waiting, and count in the next interval.
        """
        if not self._kernel:
            if not self._first:
                return Flows(self._estimator.method, self._drain, False, None, _no_records(), 0, 0, 0, 0, 0, NO_ERRORS)
            self._learn()
        kernel = self._kernel
        assert kernel
        records = self._all_records(kernel, last)
        counts, totals = kernel.counts(), kernel.totals()
        since = {name: n - self._counted.get(name, 0) for name, n in counts.items()}
        packets, size, timed = (now - before for now, before in zip(totals[:3], self._totals[:3], strict=True))
        sum_ns, squares = (_since(totals[i : i + 2], self._totals[i : i + 2]) for i in (3, 5))
        all_errors = kernel.errors()
        errors = tuple(
            (all_errors[i] - self._errors[i], _since(all_errors[i + 1 : i + 3], self._errors[i + 1 : i + 3]))
            for i in range(0, len(all_errors), 3)
        )
        flows = Flows(
            self._estimator.method,
            self._drain,
            kernel.trusted,
            kernel.base_ns,
            records,
            self._packets,
            size,
            timed,
            sum_ns - (WRAP**2 if sum_ns >> 127 else 0),
            squares,
            errors,
            since | self._counts | {"regular": packets},
            self._accepted.shown(),
            timed,
            lost=max(0, self._missing - since["rejected_time"] - since["rejected_sequence"]),
            sender_ns=-(-self._sender[1] // self._sender[0]) if self._sender[0] and not self._vague else None,
        ).judged()
        self._errors = all_errors
        self._counted, self._totals, self._records, self._listed, self._packets = counts, totals, [], 0, 0
        self._counts = dict.fromkeys(self._counts, 0)
        self._accepted = Picture()
        self._missing, self._sender, self._vague = 0, (0, 0), False
        return flows

    @property
    def memory(self) -> int:
        """Size of table and buffer in bytes."""
        return self._kernel.memory if self._kernel else 0

    def _hear(self, packets: PacketBatch, rows: npt.NDArray[np.intp]) -> None:
        """Record the errors that the sender states for its times. The error of a mean is at most their mean."""
        synchronised, found_ns = errors_ns(packets, rows)
        self._vague |= not synchronised.all()
        count, sum_ns = self._sender
        self._sender = count + len(rows), sum_ns + exact_sum(found_ns)

    def _count(self, sequence: npt.NDArray[np.uint32]) -> None:
        """Count skipped sequence numbers; a large jump is a restart, not loss."""
        first = sequence[:1] if self._last is None else np.array([self._last], np.uint32)
        steps = np.diff(np.concatenate((first, sequence)))  # modulo 2^32
        self._missing += int((steps[(steps > 0) & (steps <= AHEAD)] - 1).sum())
        self._last = int(sequence[-1])

    def _kinds(self, keys: Words, lengths: Array, times_ns: Ints, sent_ns: Ints) -> npt.NDArray[np.uint8]:
        """The kind of each possible reference: of the stream, or of another one (an ordinary packet)."""
        if not len(keys):
            return np.empty(0, np.uint8)
        readable = sent_ns != NONE
        near = np.abs(times_ns - sent_ns) <= FARTHEST_NS
        key, length, anew = self._streams(keys, lengths, readable & near)
        own = (keys == key) & (length > 0) if self._estimator.stream is None else keys == key
        sized = own & (lengths == length)
        if (sized & readable).all() and not anew:
            return np.full(len(keys), REFERENCE, np.uint8)
        self._counts["rejected_foreign"] += int((~own).sum())
        self._counts["rejected_size"] += int((own & ~sized).sum())
        self._counts["rejected_malformed"] += int((sized & ~readable).sum())
        kinds = np.where(own, np.where(sized & readable, REFERENCE, OTHER), REGULAR).astype(np.uint8)
        kinds[anew] = ANOTHER
        return kinds

    def _streams(
        self, keys: Words, lengths: Array, near: npt.NDArray[np.bool_]
    ) -> tuple[Words | np.uint64, Ints | int, list[int]]:
        """The pinned stream at each row (key and length), and the rows at which another stream replaces it."""
        key, length, own, others = self._stream
        valid = near & ((lengths == PAYLOAD_BYTES) | (lengths == STANDARD_BYTES))
        if self._estimator.stream is not None:
            valid &= keys == np.uint64(key)
        foreign = valid & ((keys != np.uint64(key)) | (lengths != length))
        if not foreign.any():
            count = int(np.count_nonzero(valid))
            self._stream = _Stream(key, length, min(own + count, PATIENCE), 0 if count else others)
            return np.uint64(key), length, []
        begins, pinned = [0], [(key, length)]
        rows = np.flatnonzero(valid)
        for row, one in zip(rows.tolist(), zip(keys[rows].tolist(), lengths[rows].tolist(), strict=True), strict=True):
            if one == pinned[-1]:
                own, others = min(own + 1, PATIENCE), 0
                continue
            others += 1
            if others >= min(PATIENCE, 2 * own):
                begins.append(row)
                pinned.append(one)
                own, others = 1, 0
        self._stream = _Stream(*pinned[-1], own, others)
        spans = np.diff([*begins, len(keys)])
        return (
            np.repeat(np.array([key for key, _ in pinned], np.uint64), spans),
            np.repeat(np.array([length for _, length in pinned], np.int64), spans),
            begins[1:] if length else begins[2:],  # the first replaces no other
        )

    def _rows(
        self,
        packets: PacketBatch,
        kinds: npt.NDArray[np.uint8],
        keys: Words,
        sequence: npt.NDArray[np.uint32],
        sent_ns: Ints,
        previous_sent_ns: Ints,
        previous_id: Words,
    ) -> _Rows:
        self._packets += len(packets)
        sizes = np.ascontiguousarray(packets.wire_length)
        if self._estimator.overhead:
            size = np.minimum(sizes, 1 << 20).astype(np.int64) + self._estimator.overhead
            sizes = np.maximum(size, 0).astype(np.uint32)
        return _Rows(
            np.ascontiguousarray(packets.time_ns), kinds, sizes, keys, np.ascontiguousarray(packets.packet_id),
            np.ascontiguousarray(packets.src), np.ascontiguousarray(packets.dst),
            np.ascontiguousarray(packets.src_port), np.ascontiguousarray(packets.dst_port),
            np.ascontiguousarray(packets.protocol), sequence, sent_ns, previous_sent_ns, previous_id,
        )  # fmt: skip

    def _take(self, rows: _Rows) -> None:
        while len(rows.time_ns) and self._learning():
            first, rows = rows.part(0, self._learns), rows.part(self._learns, len(rows.time_ns))
            self._learns -= len(first.time_ns)
            kept: list[Any] = [np.array(column) for column in first]
            self._first.append(_Rows(*kept))
            if self._kernel:
                self._feed(self._kernel, first)
            if not self._learns:
                self._learn()
                self._first, self._trusting = [], PATIENT
        if self._kernel and len(rows.time_ns):
            self._feed(self._kernel, rows)
            self._trusting -= len(rows.time_ns)

    def _learning(self) -> bool:
        """Whether the drain is being learned; again if it is not known or not trusted after many packets."""
        waited = not self._drain.bytes_per_s or self._trusting <= 0
        if self._learned and not self._learns and waited and self._kernel and not self._kernel.trusted:
            self._learns = LEARNING
        return self._learns > 0

    def _learn(self) -> None:
        """Start, or continue, with the drain estimated from packets."""
        estimator = self._estimator
        times, kinds, sizes = (np.concatenate([rows[i] for rows in self._first]) for i in range(3))
        told = (np.concatenate([rows[i] for rows in self._first]) for i in (4, 11, 12, 13))
        known, delays = known_delays(times, np.flatnonzero(_refer(kinds)), *told)
        if len(delays) > FALSE:
            self._least_ns = min(self._least_ns, int(np.partition(delays, FALSE)[FALSE]))
        drain = learn_queue(times, sizes, known, delays, self._least_ns)
        if estimator.bytes_per_s is not None:
            near = abs(drain.bytes_per_s - estimator.bytes_per_s) < estimator.bytes_per_s / 10
            drain = drain._replace(bytes_per_s=estimator.bytes_per_s, burst=drain.burst if near else 0)
        if estimator.noise_ns is not None:
            drain = drain._replace(noise_ns=estimator.noise_ns)
        if not self._kernel:
            kernel = self._begin(drain)
            for rows in self._first:
                self._feed(kernel, rows)
        elif drain.bytes_per_s and drain != self._drain:
            self._drain = drain
            self._kernel.drain(drain.bytes_per_s, _idle_ns(drain), drain.burst)

    def _begin(self, drain: Drain) -> _kernels.Rli:
        self._drain = drain
        self._kernel = self._estimator.kernel(drain)
        return self._kernel

    def _feed(self, kernel: _kernels.Rli, rows: _Rows) -> None:
        for start in range(0, len(rows.time_ns), FED):  # so that records are collected in time
            part = rows.part(start, start + FED)
            accepted = np.zeros(len(part.sent_ns), np.uint8)
            kernel.observe(
                part.time_ns, part.kind, part.size, part.key, part.id, part.sequence, part.sent_ns,
                part.previous_sent_ns, part.previous_id, *part[5:10], accepted,
            )  # fmt: skip
            if len(accepted):
                arrived_ns = part.time_ns[_refer(part.kind)][accepted > 0]
                self._accepted.add(arrived_ns, arrived_ns - part.sent_ns[accepted > 0])
            if accepted.any():
                self._count(part.sequence[accepted > 0])
            self._collect()

    def _all_records(self, kernel: _kernels.Rli, last: bool) -> Words:
        """Records that left and those of open flows; the table empties in steps, so that few are in memory twice."""
        kernel.cut(0, last)
        self._collect()
        records = np.empty((self._listed + kernel.open, len(RECORD)), np.uint64)
        if self._records:
            np.concatenate(self._records, out=records[: self._listed])
        more = True
        while more:
            more = kernel.cut(FED, False)
            self._listed += kernel.take(records[self._listed : self._listed + kernel.records])
        most = self._estimator.most_flows
        self._counts["unlisted"] += len(records) - len(records[:most])
        return records[:most]

    def _collect(self) -> None:
        """Keep records that left, as many as fit."""
        if not self._kernel or not self._kernel.records:
            return
        room = np.empty((self._kernel.records, len(RECORD)), np.uint64)
        self._kernel.take(room)
        listed = room[: max(0, self._estimator.most_flows - self._listed)]
        self._counts["unlisted"] += len(room) - len(listed)
        self._listed += len(listed)
        if len(listed):
            self._records.append(listed)


def directed_keys(packets: PacketBatch) -> Words:
    """Flow keys that distinguish directions."""
    return np.asarray(packets.flow_key ^ packets.has(Flag.REVERSE).astype(np.uint64))


def _refer(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Mask of the kinds that are references."""
    return np.asarray((kinds == REFERENCE) | (kinds == ANOTHER))


def _idle_ns(drain: Drain) -> int:
    return min(1 << 30, round(SIGMAS * drain.noise_ns) + ROUNDING_NS)


def _no_records() -> Words:
    return np.empty((0, len(RECORD)), np.uint64)


def _since(now: list[int], before: list[int]) -> int:
    """The increase of a two-word counter."""
    return (now[0] - before[0] + WRAP * (now[1] - before[1])) % WRAP**2
