"""Requests and responses of connections seen in both directions, in plain Python: packets in, exchanges out.

The independent twin of `kernels/pairs.h`, and the tests' oracle for it. Both follow `docs/reference/pairs.md`, section
by section, and not each other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.join import coin, scaled
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag

PIPELINED, RETRANSMITTED, JOINED, CUT, UNSEEN = 1, 2, 4, 8, 16
FIN, SYN, RST, PSH, ACK = (int(flag) for flag in (TcpFlag.FIN, TcpFlag.SYN, TcpFlag.RST, TcpFlag.PSH, TcpFlag.ACK))
PASSED_OVER = int(Flag.SHORT | Flag.LATER | Flag.TUNNEL)
REVERSE = int(Flag.REVERSE)
DATAGRAMS = (Kind.UDP, Kind.DNS, Kind.NTP)
CIRCLE = 2**32
FAR = 2**28
LONGEST = 2**24
HOLES = 3
SET_BACK_NS = 10**9
SLOTS, SLOT_BYTES = 8, 280
TIMES = range(2**62)
TRIPS = range(CIRCLE - 1)
FLOW_COIN = 8

Ends = tuple[int, int, int, int, int]
Hole = tuple[int, int]


class Packet(NamedTuple):
    """One row: the columns that are used."""

    time_ns: int
    flow_key: int
    transaction: int
    payload_length: int
    seq: int
    ack: int
    flags: int
    kind: int
    message: int
    number: int

    @property
    def direction(self) -> int:
        return int(bool(self.flags & REVERSE))

    def has(self, flag: int) -> bool:
        return bool(self.message & flag)


class Exchange(NamedTuple):
    """A request with its response."""

    key: int
    begin_ns: int
    request_ns: int
    first_ns: int
    last_ns: int
    idle_ns: int
    network_server_ns: int
    network_client_ns: int
    request_bytes: int
    response_bytes: int
    flags: int
    begin_frame: int
    last_frame: int
    ends: Ends


@dataclass
class Request:
    """A request that the server has not begun to answer."""

    begin: int
    last: int
    size: int
    start: int
    flags: int
    frame: int
    pushed: bool = False
    several: bool = False


@dataclass
class Answering:
    """The exchange being answered."""

    request: Request
    idle: int
    first: int
    last: int
    size: int
    frame: int  # the last packet's
    replied: bool = False


@dataclass
class Side:
    """The packets sent by one end."""

    trip: int | None = None
    high: int | None = None
    syn_seen: bool = False
    timed: tuple[int, int] | None = None  # when, up to where
    holes: list[Hole] = field(default_factory=list)

    def begins(self, high: int) -> None:
        self.high, self.syn_seen, self.timed, self.holes = high, False, None, []

    def acknowledge(self, ack: int) -> bool:
        """Forget acknowledged holes; return whether there were any."""
        before = len(self.holes)
        self.holes = [hole for hole in self.holes if after(hole[1], ack)]
        return len(self.holes) < before

    def fill(self, start: int, size: int) -> int:
        """Add data; return the number of new bytes."""
        assert self.high is not None
        place = distance(self.high, start)
        data = range(place, distance(self.high, (start + size) % CIRCLE))
        fresh, left, fronts = 0, [], []
        for hole in self.holes:
            missing = range(distance(self.high, hole[0]), distance(self.high, hole[1]))
            common = range(max(data.start, missing.start), min(data.stop, missing.stop))
            if not common:
                left.append(hole)
                continue
            fresh += len(common)
            pieces = [(hole[0], start)] if common.start > missing.start else []
            pieces += [((start + size) % CIRCLE, hole[1])] if common.stop < missing.stop else []
            left += pieces[-1:]
            fronts += pieces[:-1]
        self.holes = left + fronts[-1:]
        if data.stop > 0:
            fresh += data.stop - max(place, 0)
            if place > 0:
                self.holes.append((self.high, start))
            self.high = (start + size) % CIRCLE
        return fresh


def after(a: int, b: int) -> bool:
    return 0 < (a - b) % CIRCLE < 2**31


def distance(of: int, to: int) -> int:
    """The distance between two sequence numbers, the shorter way round."""
    return (to - of + 2**31) % CIRCLE - 2**31


class Flow:
    """One connection."""

    def __init__(self, pairs: "Pairs", key: int, packet: Packet, client: int, ends: Ends) -> None:
        self.pairs, self.key, self.used = pairs, key, 0
        self.now, self.frame = packet.time_ns, packet.number
        self.joined = packet.kind == Kind.TCP and not packet.has(SYN)
        self.begins_anew(client, ends)

    def begins_anew(self, client: int, ends: Ends) -> None:
        self.client, self.ends = client, ends
        self.sides = Side(), Side()
        self.asked: Request | None = None
        self.current: Answering | None = None
        self.rested_ns: int | None = None  # the last byte of the exchange that ended
        self.acked = self.behind = self.is_tcp = self.pushed = False

    # Events

    @property
    def under_way(self) -> bool:
        return self.is_tcp and (not self.acked or bool(self.sides[1 - self.client].holes))

    def end(self, cut: bool = False) -> None:
        if self.current is None:
            return
        one, asked = self.current, self.current.request
        to_server, to_client = (self.sides[side].trip for side in (self.client, 1 - self.client))
        self.pairs.exchanges.append(
            Exchange(
                self.key, asked.begin, asked.last, one.first, one.last, one.idle,
                -1 if to_server is None else to_server, -1 if to_client is None else to_client,
                asked.size, one.size, asked.flags | (CUT if cut else 0), asked.frame, one.frame, self.ends,
            )
        )  # fmt: skip
        self.current, self.rested_ns = None, one.last

    def drop(self) -> None:
        self.pairs.counts["unanswered"] += self.asked is not None
        self.asked = None

    def leave(self) -> None:
        self.end(cut=self.under_way and self.asked is None)
        self.drop()

    def begin(self, size: int, start: int) -> None:
        self.asked = Request(self.now, self.now, size, start, JOINED if self.joined else 0, self.frame)
        self.joined = False

    def answer(self, size: int) -> None:
        assert self.asked is not None
        self.end()
        idle = -1 if self.rested_ns is None else self.asked.begin - self.rested_ns
        self.current = Answering(self.asked, idle, self.now, self.now, size, self.frame)
        self.asked = None

    def mark(self, flag: int) -> None:
        if self.asked is not None:
            self.asked.flags |= flag
        elif self.current is not None:
            self.current.request.flags |= flag

    def goes_on(self) -> Request | None:
        """The pending request, unless it was abandoned by now."""
        if self.asked is not None and self.now - self.asked.last > self.pairs.silence_ns:
            self.drop()
        return self.asked

    def unasked(self) -> None:
        self.pairs.counts["unasked"] += 1
        if self.current is not None:
            self.end()
            self.rested_ns = None

    # TCP

    def tcp(self, packet: Packet, client: int, ends: Ends) -> None:
        self.is_tcp = True
        d = packet.direction
        start = (packet.seq + packet.has(SYN)) % CIRCLE
        if packet.has(SYN) and not packet.has(ACK):
            untouched = self.asked is None and self.current is None and self.rested_ns is None
            if self.sides[d].syn_seen and (packet.time_ns < self.now or (self.sides[d].high == start and untouched)):
                self.sides[d].timed = None
                return
            self.leave()
            self.begins_anew(client, ends)
            self.is_tcp, self.joined = True, False
            self.opens(d, start)
        elif packet.has(SYN):
            if self.sides[d].syn_seen and (packet.time_ns < self.now or self.sides[d].high == start):
                self.sides[d].timed = None
            else:
                self.opens(d, start)
        elif packet.has(RST):
            self.leave()
            self.rested_ns = None
            return
        if packet.has(ACK):
            self.acknowledgement(packet, d)
        if packet.payload_length:
            self.data(packet, d, start)
        if packet.has(FIN):
            self.fin(d, (start + packet.payload_length) % CIRCLE)

    def opens(self, d: int, high: int) -> None:
        self.sides[d].begins(high)
        self.sides[d].syn_seen = True
        self.sides[d].timed = self.now, high

    def acknowledgement(self, packet: Packet, d: int) -> None:
        other = self.sides[1 - d]
        if other.high is None:
            other.high = packet.ack
            self.acked |= d == self.client
            return
        ahead = distance(other.high, packet.ack)
        if abs(ahead) > FAR:
            return
        if ahead > 0:
            unseen = True
            other.high, other.holes, other.timed = packet.ack, [], None
        else:
            unseen = other.acknowledge(packet.ack)
            if other.timed is not None and not after(other.timed[1], packet.ack):
                trip = self.now - other.timed[0]
                other.timed = None
                if packet.payload_length == 0 and trip in TRIPS and (other.trip is None or trip < other.trip):
                    other.trip = trip
        if unseen:
            self.mark(UNSEEN)
        if ahead > 0 and d != self.client and self.asked is None and self.current is not None:
            self.end()
            self.rested_ns = None
        if d == self.client:
            self.acked = ahead >= 0

    def data(self, packet: Packet, d: int, start: int) -> None:
        side, size = self.sides[d], packet.payload_length
        if side.high is None:
            side.high = start
        if abs(distance(side.high, start)) > FAR:
            self.pairs.counts["jumps"] += 1
            self.leave()
            self.joined, self.rested_ns = True, None
            side.begins(start)
        before = side.high
        in_order = start == before and not side.holes
        fresh = side.fill(start, size)
        if len(side.holes) > HOLES:
            side.holes = side.holes[-HOLES:]
            self.mark(UNSEEN)
        if not in_order:
            side.timed = None
        elif side.timed is None:
            side.timed = self.now, (start + size) % CIRCLE
        if fresh == 0:
            if size == 1 and (start + size) % CIRCLE == side.high:
                return
            if d == self.client:
                self.mark(RETRANSMITTED)
            elif self.current is not None:
                self.current.request.flags |= RETRANSMITTED
        elif d == self.client:
            self.from_client(fresh, start, side.high != before)
            if self.asked is not None:
                self.asked.pushed |= packet.has(PSH)
        else:
            self.from_server(packet, fresh, side.high != before, in_order)

    def from_client(self, fresh: int, start: int, advanced: bool) -> None:
        request = self.goes_on()
        if request is None and self.current is not None and (self.under_way or self.behind):
            request = self.current.request
            request.flags |= PIPELINED
            self.behind = True
        if request is None:
            self.begin(fresh, start)
            return
        request.several |= advanced and request.pushed and request is self.asked
        request.size += fresh
        if advanced:
            request.last = self.now

    def from_server(self, packet: Packet, fresh: int, advanced: bool, in_order: bool) -> None:
        high = self.sides[self.client].high
        if self.asked is not None and self.acked and in_order and packet.has(ACK) and not after(high or 0, packet.ack):
            self.asked.flags &= ~JOINED
        self.acked = False
        self.pushed = packet.has(PSH)
        if self.asked is not None and packet.has(ACK) and after(packet.ack, self.asked.start):
            self.answer(fresh)
        elif self.current is None or self.now - self.current.last > self.pairs.silence_ns:
            self.unasked()
            return
        else:
            if self.asked is not None:
                request = self.current.request
                request.last = self.asked.last
                request.size += self.asked.size
                request.flags |= self.asked.flags | PIPELINED
                self.asked = None
            self.current.last, self.current.frame = self.now, self.frame
            self.current.size += fresh
        assert self.current is not None
        assert high is not None
        self.behind = not packet.has(ACK) or after(high, packet.ack)
        if self.behind or (advanced and self.current.request.several and self.current.replied):
            self.current.request.flags |= PIPELINED
        self.current.replied |= packet.has(PSH)

    def fin(self, d: int, end: int) -> None:
        side = self.sides[d]
        if side.high != end:
            return
        side.high = (end + 1) % CIRCLE
        if d != self.client and not side.holes:
            self.end()
            self.drop()
        elif d == self.client and self.asked is None and not self.under_way:
            self.end()

    # UDP

    def udp(self, packet: Packet) -> None:
        self.is_tcp = False
        side, size = self.sides[packet.direction], packet.payload_length
        name = (packet.transaction ^ packet.transaction >> 32) % CIRCLE
        is_copy = packet.kind != Kind.UDP and side.high == name
        side.high = name
        if packet.direction == self.client:
            if is_copy and self.asked is not None:
                self.mark(RETRANSMITTED)
                return
            request = self.goes_on()
            if request is None:
                self.begin(size, 0)
                return
            request.flags |= PIPELINED
            request.size += size
            request.last = self.now
        elif self.asked is not None:
            self.answer(size)
        elif self.current is None or self.now - self.current.last > self.pairs.silence_ns:
            self.unasked()
        elif is_copy:
            self.mark(RETRANSMITTED)
        else:
            self.current.last, self.current.frame = self.now, self.frame
            self.current.size += size


class Pairs:
    """All flows, in groups of eight slots."""

    def __init__(self, memory: int, silence_ns: int) -> None:
        self.silence_ns = silence_ns
        self.groups = min(memory // (SLOTS * SLOT_BYTES), CIRCLE - 1)
        self.table: dict[int, list[Flow]] = {}
        self.exchanges: list[Exchange] = []
        self.counts: Counter[str] = Counter()
        self.packets = 0

    def observe(self, packets: PacketBatch, from_client: Sequence[bool], ends: Iterable[Ends]) -> None:
        for packet, is_clients, names in zip(rows(packets), from_client, ends, strict=True):
            if not is_wanted(packet):
                self.counts["passed"] += 1
            elif packet.time_ns not in TIMES:
                self.counts["bad_time"] += 1
            else:
                self.packet(packet, bool(is_clients), names)

    def packet(self, packet: Packet, is_clients: bool, names: Ends) -> None:
        client = packet.direction if is_clients else 1 - packet.direction
        ends = names if is_clients else turned(names)
        key = packet.flow_key or 1
        group = self.table.setdefault(scaled(coin(key, 0, FLOW_COIN), self.groups), [])
        found = [flow for flow in group if flow.key == key]
        flow = found[0] if found else Flow(self, key, packet, client, ends)
        if not found and len(group) < SLOTS:
            group.append(flow)
        elif not found:
            oldest = min(group, key=lambda one: one.used)
            self.counts["evicted"] += 1
            oldest.leave()
            group[group.index(oldest)] = flow
        self.packets += 1
        flow.used = self.packets
        self.counts["backwards"] += packet.time_ns < flow.now
        if packet.time_ns < flow.now - SET_BACK_NS:
            flow.leave()
            flow.begins_anew(flow.client, flow.ends)
            flow.now, flow.joined = packet.time_ns, packet.kind == Kind.TCP and not packet.has(SYN)
        flow.now, flow.frame = max(flow.now, packet.time_ns), packet.number
        if packet.kind == Kind.TCP:
            flow.tcp(packet, client, ends)
        else:
            flow.udp(packet)

    def cut(self, now_ns: int) -> None:
        """An exchange ends whose server has been silent for long."""
        for _, group in sorted(self.table.items()):
            for flow in group:
                silent = flow.current is not None and now_ns - flow.current.last > self.silence_ns
                if silent and (flow.asked is not None or not flow.under_way):
                    flow.end()

    def finish(self) -> None:
        """Nothing will be acknowledged any more: a response whose last bytes were pushed is taken for whole."""
        for _, group in sorted(self.table.items()):
            for flow in group:
                pushed = flow.pushed and not flow.sides[1 - flow.client].holes
                flow.end(cut=flow.asked is None and flow.under_way and not pushed)
                flow.drop()


def is_wanted(packet: Packet) -> bool:
    if packet.flags & PASSED_OVER or packet.payload_length > LONGEST:
        return False
    return packet.kind == Kind.TCP or (packet.kind in DATAGRAMS and packet.payload_length > 0)


def turned(ends: Ends) -> Ends:
    """The same seen from the other end."""
    src_port, dst_port, protocol = ends[4] >> 32 & 0xFFFF, ends[4] >> 16 & 0xFFFF, ends[4] & 0xFF
    return (ends[2], ends[3], ends[0], ends[1], dst_port << 32 | src_port << 16 | protocol)


def rows(packets: PacketBatch) -> Iterator[Packet]:
    columns = [getattr(packets, name).tolist() for name in Packet._fields]
    return map(Packet._make, zip(*columns, strict=True))
