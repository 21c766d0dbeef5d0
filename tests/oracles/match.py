"""Matching requests and responses in plain Python: packets in, samples of delay out.

The independent twin of `kernels/match.h`, and the tests' oracle for it. Both follow `docs/reference/matching.md`,
section by section, and not each other. Only clarity counts here: waiting requests are kept in dicts and lists, bounded
only as that page demands for a single connection.

A matcher decides which request, if any, a packet answers. Only `Match.observe` turns that into a sample, so it counts
negative delays, and the matchers ignore them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from tests.oracles.hashing import mix, step
from tests.oracles.roles import by_client
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag

MATCHERS = ("tcp", "tcp-timestamps", "handshake", "flow-duration", "dns", "ntp", "icmp", "quic-spin")
TCP, TIMESTAMPS, HANDSHAKE, FLOW_DURATION, DNS, NTP, ICMP, QUIC_SPIN = range(len(MATCHERS))
SERVER, CLIENT = 0, 1  # legs

# Plain integers: combining members of an IntFlag makes a new member each time.
FIN, SYN, RST, ACK = int(TcpFlag.FIN), int(TcpFlag.SYN), int(TcpFlag.RST), int(TcpFlag.ACK)
PASSED_OVER = int(Flag.SHORT | Flag.LATER)
REVERSE, HAS_TIMESTAMPS = int(Flag.REVERSE), int(Flag.TIMESTAMPS)

ICMPV6 = 58
LONG_HEADER, SPIN = 0x80, 0x20
DNS_RESPONSE = 0x80

MAX_SEGMENTS = 65_535
MAX_LOOKED = 1024
MAX_TIMESTAMPS = 32
LONGEST_NS = 2**43 - 1


class Sample(NamedTuple):
    """A delay, and the row of the response that ended it."""

    row: int
    delay_ns: int
    leg: int
    kind: int


class Request(NamedTuple):
    """The time of a request, the leg of the delay until its response, and whether it was repeated."""

    time_ns: int
    leg: int
    ip_id: int = 0
    again: bool = False


class Packet(NamedTuple):
    """One row: the columns that matching uses."""

    time_ns: int
    flow_key: int
    transaction: int
    payload_length: int
    seq: int
    ack: int
    tsval: int
    tsecr: int
    src_port: int
    dst_port: int
    window: int
    ip_id: int
    flags: int
    protocol: int
    kind: int
    message: int

    @property
    def direction(self) -> int:
        return 1 if self.flags & REVERSE else 0

    def has(self, *tcp_flags: int) -> bool:
        """Whether any of these TCP flags is set."""
        return any(self.message & flag for flag in tcp_flags)


@dataclass
class Segment:
    """Sequence numbers in flight, from `start` up to, but excluding, `end`."""

    start: int
    end: int
    time_ns: int
    ip_id: int
    syn: bool
    seen: int  # the packet that last carried it, by count
    again: bool = False
    sacked: bool = False


@dataclass
class Direction:
    """The state of one direction of a connection, which a SYN/ACK resets."""

    segments: list[Segment] = field(default_factory=list)  # in order of start, never overlapping
    next: int | None = None  # the end of the data sent
    acked: int | None = None  # the other side's cumulative acknowledgement
    tsval: int | None = None  # the largest seen
    waiting: list[tuple[int, int]] = field(default_factory=list)  # timestamps without an echo: (tsval, time), in order

    def beyond(self, seq: int) -> bool:
        """Whether anything after this number was acknowledged."""
        return self.acked is not None and after(self.acked, seq)


@dataclass
class Connection:
    """Everything that shares a flow key. Pairs are by direction."""

    client: int  # the client's direction
    syn: tuple[int, int] | None = None  # the SYN that opened it: (direction, seq)
    syn_acks: list[int | None] = field(default_factory=lambda: [None, None])  # seq of the last one
    directions: list[Direction] = field(default_factory=lambda: [Direction(), Direction()])
    closed: list[bool] = field(default_factory=lambda: [False, False])  # the last packet: window 0 and no SYN
    spin: list[int | None] = field(default_factory=lambda: [None, None])
    flip_ns: list[int | None] = field(default_factory=lambda: [None, None])
    quic: bool = False  # a long header was seen

    def leg(self, direction: int) -> int:
        """The leg of a request sent in this direction."""
        return SERVER if direction == self.client else CLIENT

    def reset(self, direction: int) -> None:
        """The sender of this direction answers nothing any more: what the other sent is given up."""
        self.syn, self.syn_acks, self.closed = None, [None, None], [False, False]
        self.directions[1 - direction] = Direction()


class Match:
    """The matchers whose bits are set in `matchers`, and the requests that wait in each."""

    def __init__(self, matchers: int, first_copy: bool = False) -> None:
        self.matchers = matchers
        self.first_copy = first_copy
        self.evicted = 0
        self.backwards = 0
        self.too_long = 0
        self.again = 0
        self.packets = 0
        self.waiting: dict[int, Request] = {}
        self.connections: dict[int, Connection] = {}

    def observe(self, packets: PacketBatch) -> list[Sample]:
        samples = []
        for row, packet in enumerate(rows(packets)):
            self.packets += 1
            matcher = self.matcher(packet)
            if matcher is None:
                continue
            request = self.answered(matcher, packet)
            if request is None:
                continue
            if request.again and not self.first_copy:
                self.again += 1
                continue
            delay_ns = packet.time_ns - request.time_ns
            if delay_ns < 0:
                self.backwards += 1
            elif delay_ns > LONGEST_NS:
                self.too_long += 1
            else:
                samples.append(Sample(row, delay_ns, request.leg, matcher))
        return samples

    # Matchers

    def matcher(self, packet: Packet) -> int | None:
        """The one matcher for a packet."""
        if packet.flags & PASSED_OVER:
            return None
        match packet.kind:
            case Kind.TCP:
                wanted = [TCP, TIMESTAMPS, HANDSHAKE, FLOW_DURATION]
            case Kind.DNS:
                wanted = [DNS]
            case Kind.NTP:
                wanted = [NTP]
            case Kind.ICMP:
                wanted = [ICMP]
            case Kind.QUIC | Kind.UDP:
                wanted = [QUIC_SPIN]
            case _:
                wanted = []
        return next((matcher for matcher in wanted if self.matchers >> matcher & 1), None)

    def answered(self, matcher: int, packet: Packet) -> Request | None:
        """The request that this packet answers, if any."""
        in_order_of_bits = (
            *(self.tcp, self.tcp_timestamps, self.handshake, self.flow_duration),
            *(self.dns, self.ntp, self.icmp, self.quic_spin),
        )
        return in_order_of_bits[matcher](packet)

    # By id

    def request(self, matcher: int, packet: Packet, word: int, leg: int = SERVER) -> None:
        """If a request is repeated, it is unknown which copy is answered, unless the network made the copy."""
        waits_as = request_id(matcher, packet, packet.direction, word)
        first = self.waiting.get(waits_as)
        if first is None:
            self.waiting[waits_as] = Request(packet.time_ns, leg, packet.ip_id)
        elif packet.ip_id != first.ip_id or packet.ip_id == 0:
            self.waiting[waits_as] = first._replace(again=True)

    def response(self, matcher: int, packet: Packet, word: int, direction: int | None = None) -> Request | None:
        """Remove the request that this answers; by default it went in the other direction."""
        if direction is None:
            direction = 1 - packet.direction
        return self.waiting.pop(request_id(matcher, packet, direction, word), None)

    def handshake(self, packet: Packet) -> Request | None:
        """2^32 separates requests that wait for the ACK after a SYN/ACK from those that wait for a SYN/ACK."""
        expected = (packet.seq + 1) % 2**32
        if packet.has(RST):
            # Without a sample: nothing of the handshake is answered any more.
            for second in (0, 2**32):
                self.response(HANDSHAKE, packet, second + packet.seq, direction=packet.direction)
                if packet.has(ACK):
                    self.response(HANDSHAKE, packet, second + packet.ack)
            return None
        if packet.has(SYN) and not packet.has(ACK):
            self.request(HANDSHAKE, packet, expected)
            return None
        if packet.has(SYN):
            request = self.response(HANDSHAKE, packet, packet.ack)
            self.request(HANDSHAKE, packet, 2**32 + expected, CLIENT)
            return request
        if packet.has(ACK) and not packet.has(FIN):
            return self.response(HANDSHAKE, packet, 2**32 + packet.ack)
        return None

    def flow_duration(self, packet: Packet) -> Request | None:
        """Either side may end what one side began."""
        if packet.has(SYN) and not packet.has(ACK):
            self.request(FLOW_DURATION, packet, 0)
            return None
        if packet.has(FIN, RST):
            request = self.response(FLOW_DURATION, packet, 0, direction=0)
            return request or self.response(FLOW_DURATION, packet, 0, direction=1)
        return None

    def dns(self, packet: Packet) -> Request | None:
        if packet.message & DNS_RESPONSE:
            return self.response(DNS, packet, packet.transaction)
        self.request(DNS, packet, packet.transaction)
        return None

    def ntp(self, packet: Packet) -> Request | None:
        if packet.message in (2, 4):
            return self.response(NTP, packet, packet.transaction)
        if packet.message in (1, 3):
            self.request(NTP, packet, packet.transaction)
        return None

    def icmp(self, packet: Packet) -> Request | None:
        """The identifier is already in the flow key."""
        request, response = (128, 129) if packet.protocol == ICMPV6 else (8, 0)
        if packet.message == response:
            return self.response(ICMP, packet, packet.seq)
        if packet.message == request:
            self.request(ICMP, packet, packet.seq)
        return None

    # By connection

    def connection(self, packet: Packet) -> Connection:
        """The connection of a TCP packet, after a SYN has reset it."""
        known = self.connections.get(packet.flow_key)
        start = (packet.direction, packet.seq)
        if packet.has(SYN) and not packet.has(ACK):
            # Any SYN but a copy starts anew, so the one that opened it is the only one seen.
            if known is None or known.syn != start or known.directions[packet.direction].beyond(packet.seq + 1):
                known = self.connections[packet.flow_key] = Connection(client=packet.direction, syn=start)
            return known
        if known is None:
            known = self.connections[packet.flow_key] = Connection(client=client(packet))
        if packet.has(SYN) and known.syn_acks[packet.direction] != packet.seq:
            known.syn_acks[packet.direction] = packet.seq
            known.directions[packet.direction] = Direction()
        return known

    # By connection: tcp

    def tcp(self, packet: Packet) -> Request | None:
        connection = self.connection(packet)
        d, o = packet.direction, 1 - packet.direction
        sender, receiver = connection.directions[d], connection.directions[o]

        if packet.has(RST):
            refuses = [segment.syn for segment in receiver.segments] == [True]
            refused = self.acknowledge(receiver, packet.ack, connection.leg(o)) if packet.has(ACK) and refuses else None
            connection.reset(d)
            return refused

        request = None
        if packet.has(ACK):
            request = self.acknowledge(receiver, packet.ack, connection.leg(o))
            if not packet.has(SYN):  # a SYN has its MSS there
                self.sack(receiver, packet.transaction)
        self.data(sender, packet, closed=connection.closed[o])
        connection.closed[d] = packet.window == 0 and not packet.has(SYN)
        return request

    def acknowledge(self, sent: Direction, ack: int, leg: int) -> Request | None:
        """Remove what `ack` covers; the request is the segment that may be timed, if any."""
        if sent.acked is not None and not after(ack, sent.acked):
            repeated = self.first_copy and ack == sent.acked and ends_first(sent, ack)
            if not repeated:
                return None
        sent.acked = ack
        taken = list(takewhile(lambda segment: not after(segment.end, ack), sent.segments))
        sent.segments = sent.segments[len(taken) :]
        if sent.next is not None and after(ack, sent.next):
            # Something was sent that was not seen.
            sent.next = ack
            sent.segments = []
            return None
        if not taken or taken[-1].end != ack:
            # The last acknowledged data was not seen, or is part of a segment: its send time is unknown.
            return None
        if self.first_copy:
            return Request(taken[-1].time_ns, leg)
        # The segment seen last triggered the acknowledgement; the newer end wins if one packet carried both.
        trigger = max(reversed(taken), key=lambda segment: segment.seen)
        # Karn's rule: if a segment was sent twice, it is unknown which copy was acknowledged.
        untimed = trigger.sacked and not trigger.again
        return None if untimed else Request(trigger.time_ns, leg, again=trigger.again)

    def data(self, sent: Direction, packet: Packet, closed: bool) -> None:
        """Record the data of a packet; `closed`: the other side has closed its window."""
        size = (packet.payload_length + packet.has(SYN) + packet.has(FIN)) % 2**32
        if size == 0:
            return
        start, end = packet.seq, (packet.seq + size) % 2**32

        if size == 1 and packet.payload_length == 1 and start == sent.next and closed:
            # A probe: the receiver's window, not the network, decides when it is answered.
            sent.next = end
        elif sent.next is None or not before(start, sent.next):
            self.put(sent, len(sent.segments), self.segment_of(packet, start, end))
            sent.next = end
        elif sent.acked is not None and not after(end, sent.acked):
            # Old data, or a keep-alive.
            if self.first_copy and end == sent.acked and not ends_first(sent, end):
                self.put(sent, 0, self.segment_of(packet, start, end))
        else:
            self.copy_or_late(sent, packet, start, end)

    def segment_of(self, packet: Packet, start: int, end: int) -> Segment:
        return Segment(start, end, packet.time_ns, packet.ip_id, packet.has(SYN), self.packets)

    def copy_or_late(self, sent: Direction, packet: Packet, start: int, end: int) -> None:
        """Data that begins before the end of what was sent, and is not completely acknowledged."""
        assert sent.next is not None
        unknown = self.too_far(sent, end)
        overlapping = [s for s in sent.segments if before(s.start, end) and before(start, s.end)]
        for segment in overlapping:
            # If the IP id is also the same, the network made the copy, and the first counts.
            same = (segment.start, segment.end, segment.ip_id) == (start, end, packet.ip_id)
            if not (same and packet.ip_id != 0):
                segment.again = True
                segment.seen = self.packets

        if after(end, sent.next):
            self.put(sent, len(sent.segments), self.segment_of(packet, sent.next, end))
            sent.next = end
        elif not unknown and not overlapping and (sent.acked is None or not before(start, sent.acked)):
            # Late, and seen for the first time.
            place = next((i for i, s in enumerate(sent.segments) if after(s.start, start)), len(sent.segments))
            self.put(sent, place, self.segment_of(packet, start, end))

    def put(self, sent: Direction, place: int, segment: Segment) -> None:
        """If there would be too many segments, the existing ones are forgotten; the new one stays."""
        if len(sent.segments) == MAX_SEGMENTS:
            self.give_up(sent)
        sent.segments.insert(place, segment)

    def sack(self, sent: Direction, block: int) -> None:
        """Mark the segments inside the block, left edge * 2^32 + right edge; 0: none."""
        left, right = divmod(block, 2**32)
        if block == 0 or self.too_far(sent, right):
            return
        for segment in takewhile(lambda segment: before(segment.start, right), sent.segments):
            if not before(segment.start, left) and not after(segment.end, right):
                segment.sacked = True

    def too_far(self, sent: Direction, end: int) -> bool:
        """Whether too many segments begin before this number to look at them all; then all are forgotten."""
        begun = sum(1 for _ in takewhile(lambda segment: before(segment.start, end), sent.segments[: MAX_LOOKED + 1]))
        if begun > MAX_LOOKED:
            self.give_up(sent)
        return begun > MAX_LOOKED

    def give_up(self, sent: Direction) -> None:
        self.evicted += len(sent.segments)
        sent.segments.clear()

    # By connection: tcp-timestamps

    def tcp_timestamps(self, packet: Packet) -> Request | None:
        has_timestamps = bool(packet.flags & HAS_TIMESTAMPS)
        if not has_timestamps and not packet.has(RST):
            return None
        connection = self.connection(packet)
        d, o = packet.direction, 1 - packet.direction
        request = None
        if has_timestamps and packet.has(ACK):
            time_ns = echo(connection.directions[o], packet.tsecr)
            if time_ns is not None:
                request = Request(time_ns, connection.leg(o))
        if packet.has(RST):
            connection.reset(d)
        else:
            self.timestamp(connection.directions[d], packet)
        return request

    def timestamp(self, sent: Direction, packet: Packet) -> None:
        """Only a packet that is answered at once makes its timestamp wait."""
        if sent.tsval is not None and not after(packet.tsval, sent.tsval):
            return
        sent.tsval = packet.tsval
        if packet.payload_length == 0 and not packet.has(SYN, FIN):
            return
        if len(sent.waiting) == MAX_TIMESTAMPS:
            self.evicted += 1
            del sent.waiting[0]
        sent.waiting.append((packet.tsval, packet.time_ns))

    # By connection: quic-spin

    def quic_spin(self, packet: Packet) -> Request | None:
        connection = self.connections.get(packet.flow_key)
        if packet.kind == Kind.UDP:
            # The top bits of a short header are 01; many other datagrams' are, too.
            if connection is None or not connection.quic or packet.message >> 6 != 1:
                return None
        elif connection is None:
            connection = self.connections[packet.flow_key] = Connection(client=client_by_ports(packet))
        if packet.message & LONG_HEADER:
            connection.quic = True
            return None
        d, o = packet.direction, 1 - packet.direction
        spin = packet.message & SPIN
        request = None
        if connection.spin[d] not in (None, spin):
            # A flip reflects the other side's: it counts as that side's request.
            last_ns = connection.flip_ns[d]
            if last_ns is not None:
                request = Request(last_ns, connection.leg(o))
            connection.flip_ns[d] = packet.time_ns
        connection.spin[d] = spin
        return request


def rows(packets: PacketBatch) -> Iterator[Packet]:
    columns = [getattr(packets, name).tolist() for name in Packet._fields]
    return map(Packet._make, zip(*columns, strict=True))


def ends_first(sent: Direction, end: int) -> bool:
    """Whether the first segment in flight ends here."""
    return bool(sent.segments) and sent.segments[0].end == end


def after(a: int, b: int) -> bool:
    """Sequence numbers and timestamps wrap; at half the circle neither is after the other."""
    return 0 < (a - b) % 2**32 < 2**31


def before(a: int, b: int) -> bool:
    return after(b, a)


# By id


def request_id(matcher: int, packet: Packet, direction: int, word: int) -> int:
    """The id under which a request in this direction waits."""
    return mix(step(packet.flow_key, word) + matcher + 16 * direction)


# By connection


def client(packet: Packet) -> int:
    """The client's direction, from the first packet of a TCP connection."""
    if packet.has(SYN):
        return 1 - packet.direction if packet.has(ACK) else packet.direction
    return client_by_ports(packet)


def client_by_ports(packet: Packet) -> int:
    return packet.direction if by_client(packet.src_port, packet.dst_port) else 1 - packet.direction


def echo(sent: Direction, tsecr: int) -> int | None:
    """The send time of the echoed timestamp; it and all before it stop waiting."""
    for i, (tsval, time_ns) in enumerate(sent.waiting):
        if tsval == tsecr:
            del sent.waiting[: i + 1]
            return time_ns
    return None
