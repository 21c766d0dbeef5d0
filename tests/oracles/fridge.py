"""Fridges in plain Python: packets in, weighted samples of delay out.

The independent twin of `kernels/fridge.h`, and the tests' oracle for it. Both follow `docs/reference/fridge.md`,
section by section, and not each other. After Zheng, Chen, Braverman and Rexford, *Unbiased Delay Measurement in the
Data Plane*. Only clarity counts here: a dict holds the occupied slots, by place.

What a packet asks and answers depends only on the packet; the outcome depends only on the slots. So functions do the
former, and `Fridge` the latter.
"""

from decimal import Decimal, localcontext
from itertools import accumulate
from typing import NamedTuple

from tests.oracles.hashing import MASK, mix, step
from tests.oracles.match import (
    ACK,
    CLIENT,
    DNS_RESPONSE,
    FIN,
    FLOW_DURATION,
    HAS_TIMESTAMPS,
    ICMPV6,
    LONGEST_NS,
    RST,
    SERVER,
    SYN,
    Match,
    Packet,
    request_id,
    rows,
)
from tests.oracles.roles import by_client
from wirelag.packets.batch import PacketBatch

VARIANTS = ("union", "overwrite", "expiry")
UNION, OVERWRITE, EXPIRY = range(len(VARIANTS))

CERTAIN = 2**32  # the probability 1
EXPONENT_BITS = 48  # fractional bits of c and e
NO_CHANCE = 40 << EXPONENT_BITS  # an exponent from which on a fridge adds nothing
DIGITS = 100  # more than any probability / slots has: every rounding is that of the exact number


class Sample(NamedTuple):
    """A delay, the row of the response that ended it, and the number of delays that it stands for."""

    row: int
    delay_ns: int
    leg: int
    kind: int
    fridge: int
    x: int  # requests that it survived
    weight: int


class Slot(NamedTuple):
    """A waiting request, and its number among all requests."""

    id: int
    time_ns: int
    arrival: int


class Place(NamedTuple):
    """The position of a slot: fridge (or stage, with expiry) and index."""

    fridge: int
    slot: int


class Turn(NamedTuple):
    """A packet's meaning, as words of ids: first it answers a request of this leg, then it asks."""

    answers: int | None = None
    leg: int = SERVER
    asks: int | None = None
    resets: tuple[int | None, int] | None = None  # what nothing answers any more: of the other side, and of its own


class Fridge:
    """Fridges of `slots` slots and entry probabilities in units of 2^-32, for the matchers whose bits are set."""

    def __init__(
        self,
        matchers: int,
        slots: tuple[int, ...],
        probabilities: tuple[int, ...],
        seed: int = 0,
        variant: int = UNION,
        stages: int = 1,
        expiry_ns: int = 0,
    ) -> None:
        self.sizes = slots  # M
        self.probabilities = probabilities  # p
        self.bounds = tuple(accumulate(probabilities))  # P
        self.exponents = tuple(exponent(p, m) for p, m in zip(probabilities, slots, strict=True))  # c
        self.seed = seed & MASK
        self.variant = variant
        self.stages = stages  # S
        self.expiry_ns = expiry_ns  # E
        self.matcher = Match(matchers).matcher
        self.held: dict[Place, Slot] = {}
        self.arrivals = 0  # X
        self.backwards = 0
        self.too_long = 0

    def observe(self, packets: PacketBatch) -> list[Sample]:
        samples = []
        for row, packet in enumerate(rows(packets)):
            matcher = self.matcher(packet)
            if matcher is None:
                continue
            turn = turn_of(matcher, packet)
            if turn.resets is not None:
                for direction, word in zip((1 - packet.direction, packet.direction), turn.resets, strict=True):
                    place = None if word is None else self.find(id_of(matcher, packet, direction, word))
                    if place is not None:
                        del self.held[place]
            # The response comes first: it has not survived its own packet's request.
            if turn.answers is not None:
                # Either side may end what one side began; everything else is answered by the other side.
                directions = (0, 1) if matcher == FLOW_DURATION else (1 - packet.direction,)
                ids = [id_of(matcher, packet, direction, turn.answers) for direction in directions]
                sample = self.response(row, packet.time_ns, turn.leg, matcher, ids)
                if sample is not None:
                    samples.append(sample)
            if turn.asks is not None:
                self.request(id_of(matcher, packet, packet.direction, turn.asks), packet.time_ns)
        return samples

    # Slots

    def places(self, waits_as: int) -> list[Place]:
        """The possible places of this id, in search order; it is in at most one."""
        if self.variant == EXPIRY:
            size = self.sizes[0] // self.stages
            return [Place(s, mix((waits_as ^ self.seed) + s) & (size - 1)) for s in range(self.stages)]
        coin = mix(waits_as + self.seed) >> 32
        for fridge, bound in enumerate(self.bounds):
            if coin < bound:
                return [Place(fridge, mix(waits_as ^ self.seed) & (self.sizes[fridge] - 1))]
        return []

    def find(self, waits_as: int) -> Place | None:
        """The place that holds this id."""
        for place in self.places(waits_as):
            slot = self.held.get(place)
            if slot is not None and slot.id == waits_as:
                return place
        return None

    def may_take(self, place: Place, now_ns: int) -> bool:
        """A fridge allows any slot to be overwritten; the array with expiry only those that have waited too long."""
        slot = self.held.get(place)
        return self.variant != EXPIRY or slot is None or now_ns - slot.time_ns > self.expiry_ns

    def request(self, waits_as: int, now_ns: int) -> None:
        """The first copy counts, if it is still held. All others count as arrivals, even those without a place."""
        if self.find(waits_as) is not None:
            return
        self.arrivals += 1
        for place in self.places(waits_as):
            if self.may_take(place, now_ns):
                self.held[place] = Slot(waits_as, now_ns, self.arrivals)
                return

    def response(self, row: int, now_ns: int, leg: int, kind: int, ids: list[int]) -> Sample | None:
        """Remove the first of these ids that is held; return its sample, if time went forward."""
        for waits_as in ids:
            place = self.find(waits_as)
            if place is None:
                continue
            slot = self.held.pop(place)
            delay_ns = now_ns - slot.time_ns
            if delay_ns < 0:
                self.backwards += 1
                return None
            if delay_ns > LONGEST_NS:
                self.too_long += 1
                return None
            fridge = 0 if self.variant == EXPIRY else place.fridge
            x = self.arrivals - slot.arrival
            return Sample(row, delay_ns, leg, kind, fridge, x, self.weight(waits_as, x))
        return None

    # Weights

    def weight(self, waits_as: int, x: int) -> int:
        """One over the probability of surviving x requests in any fridge, randomly rounded to keep the mean right."""
        if self.variant != UNION:
            return 1
        chances = (chance(p, c, x) for p, c in zip(self.probabilities, self.exponents, strict=True))
        q = max(1, sum(chances))
        exact = 2**48 // q  # W, in units of 2^-16
        return (exact + (mix(waits_as ^ step(self.seed, self.arrivals)) & 65535)) >> 16


# Requests and responses


def id_of(matcher: int, packet: Packet, direction: int, word: int) -> int:
    """The id under which a request in this direction waits: as in matching, but 0 is reserved for the empty slot."""
    return request_id(matcher, packet, direction, word) or 1


def turn_of(matcher: int, packet: Packet) -> Turn:
    in_order_of_bits = (tcp, tcp_timestamps, handshake, flow_duration, dns, ntp, icmp, quic_spin)
    return in_order_of_bits[matcher](packet)


def tcp(packet: Packet) -> Turn:
    """Of the packets covered by one acknowledgement, only the last is answered."""
    if packet.has(RST):
        return Turn(resets=(packet.ack if packet.has(ACK) else None, packet.seq))
    size = (packet.payload_length + packet.has(SYN) + packet.has(FIN)) % 2**32
    return Turn(
        answers=packet.ack if packet.has(ACK) else None,
        leg=leg_by_ports(packet),
        asks=(packet.seq + size) % 2**32 if size != 0 else None,
    )


def tcp_timestamps(packet: Packet) -> Turn:
    if not packet.flags & HAS_TIMESTAMPS:
        return Turn()
    waits = (packet.payload_length != 0 or packet.has(SYN, FIN)) and not packet.has(RST)
    return Turn(
        answers=packet.tsecr if packet.has(ACK) else None,
        leg=leg_by_ports(packet),
        asks=packet.tsval if waits else None,
    )


def leg_by_ports(packet: Packet) -> int:
    """The leg of what this packet answers. A slot does not store it, but the request had the same ports, swapped."""
    return SERVER if by_client(packet.dst_port, packet.src_port) else CLIENT


def handshake(packet: Packet) -> Turn:
    """2^32 separates requests that wait for the ACK after a SYN/ACK from those that wait for a SYN/ACK."""
    expected = (packet.seq + 1) % 2**32
    if packet.has(RST):
        return Turn(resets=(packet.ack if packet.has(ACK) else None, 2**32 + packet.seq))
    if packet.has(SYN) and not packet.has(ACK):
        return Turn(asks=expected)
    if packet.has(SYN):
        return Turn(answers=packet.ack, asks=2**32 + expected)
    if packet.has(ACK) and not packet.has(FIN):
        return Turn(answers=2**32 + packet.ack, leg=CLIENT)
    return Turn()


def flow_duration(packet: Packet) -> Turn:
    if packet.has(SYN) and not packet.has(ACK):
        return Turn(asks=0)
    return Turn(answers=0) if packet.has(FIN, RST) else Turn()


def dns(packet: Packet) -> Turn:
    if packet.message & DNS_RESPONSE:
        return Turn(answers=packet.transaction)
    return Turn(asks=packet.transaction)


def ntp(packet: Packet) -> Turn:
    if packet.message in (2, 4):
        return Turn(answers=packet.transaction)
    return Turn(asks=packet.transaction) if packet.message in (1, 3) else Turn()


def icmp(packet: Packet) -> Turn:
    """The identifier is already in the flow key."""
    request, response = (128, 129) if packet.protocol == ICMPV6 else (8, 0)
    if packet.message == response:
        return Turn(answers=packet.seq)
    return Turn(asks=packet.seq) if packet.message == request else Turn()


def quic_spin(packet: Packet) -> Turn:
    """Ignored: a flip has no id."""
    return Turn()


# Weights


def exponent(probability: int, slots: int) -> int:
    """By how much one request reduces the log2 of survival, -log2(1 - p/M), with 48 fractional bits."""
    if probability == CERTAIN and slots == 1:
        return 2**54
    with localcontext(prec=DIGITS):
        survival = 1 - Decimal(probability) / (CERTAIN * slots)
        return max(1, round(-survival.ln() / Decimal(2).ln() * (1 << EXPONENT_BITS)))


def powers() -> tuple[int, ...]:
    """2^(-j/256) for j = 0..256, in units of 2^-31."""
    with localcontext(prec=DIGITS):
        return tuple(round(2**31 * Decimal(2) ** (Decimal(-j) / 256)) for j in range(257))


TABLE = powers()


def chance(probability: int, exponent: int, x: int) -> int:
    """The probability of entering a fridge and surviving x requests there, p (1 - p/M)^x, in units of 2^-32."""
    e = min(x, 2**32) * exponent
    if e >= NO_CHANCE:
        return 0
    i, f = divmod(e, 1 << EXPONENT_BITS)
    here, there = TABLE[f >> 40], TABLE[(f >> 40) + 1]
    power = here - ((here - there) * ((f >> 24) & 65535) >> 16)  # T
    return probability * power >> 31 >> i
