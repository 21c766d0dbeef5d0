"""From planned flights to packets at the vantage point: loss and retransmission, acknowledgements, timestamps.

Within a flight all times count from its start and do not depend on it. So all flights are computed at once, and a
connection's flights are then laid end to end. The laws:

- The cumulative acknowledgement passes segment k at the running maximum of the first arrivals up to k.
- A receiver acknowledges every second segment in order, or after 40 ms; at once if it is out of order, fills a hole or
  is a duplicate. An acknowledgement is piggybacked if data is sent before its 40 ms are over.
- The next flight of the other side starts when the flight is complete there; the next one of the same side when its
  acknowledgement has come back. So flights of a connection never overlap.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from wirelag.sim.packets import BARE, Packets, concatenate
from wirelag.sim.scenario import Scenario
from wirelag.sim.scramble import scramble
from wirelag.sim.traffic import (
    ANSWER,
    CLIENT,
    DATA,
    FIN,
    LAST_FIN,
    QUERY,
    SYN,
    SYN_ACK,
    Bools,
    Connections,
    Flights,
    Ints,
    count_up,
)

DELAYED_ACK_NS: Final = 40_000_000
LEAST_GAP_NS: Final = 12_000  # between two segments: 1500 bytes at 1 Gbit/s
LONE_SLACK_NS: Final = 50_000
LEAST_TIMEOUT_NS: Final = 200_000_000
FIRST_TIMEOUT_NS: Final = 1_000_000_000  # for SYNs and DNS queries
MOST_LOSSES: Final = 5  # losses of one segment in a row
TRIES_IN_VAIN: Final = 4  # transmissions of a SYN or query without a response
FAR_FUTURE_NS: Final = 2**62

ACK_FLAG: Final = 0x10
FLAGS: Final = {SYN: 0x02, SYN_ACK: 0x12, DATA: 0x10, FIN: 0x11, LAST_FIN: 0x11, QUERY: 0x00, ANSWER: 0x10}
PUSH_FLAG: Final = 0x08


@dataclass(frozen=True)
class _Way:
    """The path properties of a flight's packets; one row per flight, times in ns."""

    one_way: Ints
    to_point: Ints  # from the sender to the first vantage point
    back_to_point: Ints  # the same for the receiver
    gap: Ints  # between two segments
    slack: Ints  # the time in which a held packet is overtaken: a gap, or the slack of a lone packet
    timeout: Ints
    base: Ints  # sequence number of the first segment
    other_base: Ints  # what the sender has received from the other side: its acknowledgement number
    first: Ints  # row of the first segment
    turns: Bools  # the next flight of the connection comes from the other side
    goes_on: Bools  # ... from the same side
    wait: Ints  # delay before the next flight


@dataclass(frozen=True)
class _Segments:
    """One row per segment and, under `copy_`, one per transmission of a segment."""

    flight: Ints
    index: Ints
    length: Ints
    seq: Ints
    end: Ints
    arrival: Ints  # first arrival at the receiver
    sent: Ints  # transmission of that copy
    complete: Ints  # when all segments of the flight up to this one have arrived
    late: Bools  # lost at first, or held back
    copy_segment: Ints
    copy_sent: Ints
    copy_hold: Ints
    copy_again: Ints
    copy_lost: Bools
    copy_seen: Bools


@dataclass(frozen=True)
class _Acks:
    """One row per bare acknowledgement, and the state of a flight's receiver at its end."""

    flight: Ints
    sent: Ints
    number: Ints  # segments acknowledged
    trigger: Ints  # row of the segment that caused it
    sack_from: Ints  # row of the first segment of the SACK block
    sacks: Bools
    hold: Ints
    rides: Bools  # per flight: its last acknowledgement is piggybacked on the next flight


@dataclass(frozen=True)
class Sent:
    """Flights as sent: every random choice is made, and the columns of packets are not filled in yet.

    Packets are the transmissions that reach the point, then the bare acknowledgements.
    """

    scenario: Scenario
    connections: Connections
    flights: Flights
    way: _Way
    segments: _Segments
    acks: _Acks
    start: Ints  # per flight
    copies: Ints  # transmissions that reach the point
    ack_again: Ints
    first_connection: int
    time_ns: Ints  # per packet, at the point
    sender: Ints  # per packet

    @property
    def consumes(self) -> Bools:
        """Per packet: whether it is not a bare acknowledgement."""
        return np.arange(len(self.time_ns)) < len(self.copies)

    def packets(self, kept: Bools) -> Packets:
        """The packets that are kept, in no particular order. Draws nothing, so it may run beside the next `send`."""
        data_echo, ack_echo = _echoes(self.flights, self.way, self.segments, self.acks, self.start)
        transmitted, bare = kept[: len(self.copies)], np.flatnonzero(kept[len(self.copies) :])
        return concatenate([_data_packets(self, data_echo, transmitted), _ack_packets(self, ack_echo, bare)])


def send(
    scenario: Scenario,
    connections: Connections,
    flights: Flights,
    middle_ns: int,
    rng: np.random.Generator,
    first_connection: int = 0,
) -> Sent:
    """Send the flights; `Sent.packets` has what passes the vantage point."""
    way = _way(connections, flights, middle_ns)
    segments = _transmit(scenario, connections, flights, way, rng)
    acks = _acknowledge(scenario, flights, way, segments, rng)
    start = _lay_end_to_end(connections, flights, way, segments, acks, rng)
    copies = np.flatnonzero(segments.copy_seen)
    flight = segments.flight[segments.copy_segment[copies]]
    data_ns = (start + way.to_point)[flight] + segments.copy_sent[copies] + segments.copy_hold[copies]
    ack_ns = (start + way.back_to_point)[acks.flight] + acks.sent + acks.hold
    return Sent(
        scenario,
        connections,
        flights,
        way,
        segments,
        acks,
        start,
        copies,
        ack_again=_again(scenario, len(acks.flight), rng),
        first_connection=first_connection,
        time_ns=np.append(data_ns, ack_ns),
        sender=np.append(flights.sender[flight], 1 - flights.sender[acks.flight]),
    )


def _way(connections: Connections, flights: Flights, middle_ns: int) -> _Way:
    near, far = connections.near_ns[flights.connection], connections.far_ns[flights.connection]
    by_client = flights.sender == CLIENT
    one_way = near + far + middle_ns
    gap = np.maximum(one_way // flights.segments, LEAST_GAP_NS)
    first_try = (flights.kind == SYN) | (flights.kind == QUERY)
    same = np.append(flights.connection[1:] == flights.connection[:-1], False)
    same_side = np.append(flights.sender[1:] == flights.sender[:-1], False)
    consumed = np.where(flights.kind == DATA, flights.size, 1)
    by_side = [_sum_before(np.where(by_client == side, consumed, 0), flights.connection) for side in (True, False)]
    return _Way(
        one_way=one_way,
        to_point=np.where(by_client, near, far),
        back_to_point=np.where(by_client, far, near),
        gap=gap,
        slack=np.where(flights.segments > 1, gap, LONE_SLACK_NS),
        timeout=np.where(first_try, FIRST_TIMEOUT_NS, np.maximum(4 * one_way, LEAST_TIMEOUT_NS)),
        base=np.where(by_client, by_side[0], by_side[1]),
        other_base=np.where(by_client, by_side[1], by_side[0]),
        first=np.cumsum(flights.segments) - flights.segments,
        turns=same & ~same_side,
        goes_on=same & same_side,
        wait=np.append(flights.wait_ns[1:], 0),
    )


def _sum_before(values: Ints, group: Ints) -> Ints:
    """Sum of the values before this one in its group; groups are contiguous."""
    before = np.cumsum(values) - values
    first = np.searchsorted(group, group)
    return before - before[first]


def _transmit(
    scenario: Scenario, connections: Connections, flights: Flights, way: _Way, rng: np.random.Generator
) -> _Segments:
    flight = np.repeat(np.arange(len(flights)), flights.segments)
    index = count_up(flights.segments)
    kind = flights.kind[flight]
    size = connections.segment_size[flights.connection[flight]]
    data = kind == DATA
    length = np.where(data, np.minimum(size, flights.size[flight] - index * size), 0)
    seq = way.base[flight] + index * np.where(data, size, 1)

    dead = connections.dead[flights.connection[flight]]
    losses = np.where(dead, TRIES_IN_VAIN - 1, 0)
    if scenario.loss:
        drawn = np.minimum(rng.geometric(1 - scenario.loss, len(flight)) - 1, MOST_LOSSES)
        losses = np.where(dead, losses, np.where(data | (kind == SYN) | (kind == QUERY), drawn, 0))

    tries = losses + 1
    segment = np.repeat(np.arange(len(flight)), tries)
    number = count_up(tries)
    of = flight[segment]
    # Fast retransmit if three later segments follow in the flight, else a timeout, which doubles.
    fast = data[segment] & (index[segment] + 3 < flights.segments[of])
    gap, timeout = way.gap[of], way.timeout[of]
    later = np.where(
        fast, 3 * gap + 2 * way.one_way[of] + timeout * (2 ** np.maximum(number - 1, 0) - 1), timeout * (2**number - 1)
    )
    sent = index[segment] * gap + np.where(number > 0, later, 0)
    lost = (number < losses[segment]) & ~dead[segment]  # packets without a response are not lost
    # With one vantage point, half of the losses happen before it. With two, all happen between them.
    seen = ~lost | (scenario.points == 2) | (rng.random(len(lost)) < 0.5)
    hold = _hold(scenario, way.slack[of], rng)
    again = np.where(lost, 0, _again(scenario, len(lost), rng))
    arrival = sent + way.one_way[of] + hold

    last = np.cumsum(tries) - 1
    stride = int(arrival.max(initial=0)) + 1
    complete = np.maximum.accumulate(flight * stride + arrival[last]) - flight * stride
    return _Segments(
        flight=flight,
        index=index,
        length=length,
        seq=seq,
        end=seq + np.where(data, length, 1),
        arrival=arrival[last],
        sent=sent[last],
        complete=complete,
        late=(losses > 0) | (hold[last] > 0),
        copy_segment=segment,
        copy_sent=sent,
        copy_hold=hold,
        copy_again=again,
        copy_lost=lost,
        copy_seen=seen,
    )


def _hold(scenario: Scenario, slack: Ints, rng: np.random.Generator) -> Ints:
    """Hold packets back until one or two later ones pass, not the three that cause a fast retransmit."""
    if not scenario.reorder:
        return np.zeros(len(slack), np.int64)
    held = rng.random(len(slack)) < scenario.reorder
    return np.where(held, slack * rng.uniform(1.2, 2.8, len(slack)), 0).astype(np.int64)


def _again(scenario: Scenario, count: int, rng: np.random.Generator) -> Ints:
    if not scenario.duplicate:
        return np.zeros(count, np.int64)
    return np.where(rng.random(count) < scenario.duplicate, rng.integers(5_000, 200_000, count), 0)


def _acknowledge(
    scenario: Scenario, flights: Flights, way: _Way, segments: _Segments, rng: np.random.Generator
) -> _Acks:
    count = flights.segments
    complete = segments.complete[way.first + count - 1]
    turn_time = np.where(way.turns, complete + way.wait, FAR_FUTURE_NS)
    listens = (flights.kind < QUERY) & (way.turns | way.goes_on | (flights.kind == LAST_FIN))

    # Arrivals: the first one of every segment, and exact copies while the receiver only listens.
    copied = np.flatnonzero(segments.copy_again)
    copy_of = segments.copy_segment[copied]
    copy_time = segments.arrival[copy_of] + segments.copy_again[copied]
    copy_flight = segments.flight[copy_of]
    useful = (flights.kind[copy_flight] != SYN) & (copy_time <= turn_time[copy_flight])
    row = np.concatenate([np.arange(len(segments.flight)), copy_of[useful]])
    time = np.concatenate([segments.arrival, copy_time[useful]])
    twice = np.arange(len(row)) >= len(segments.flight)
    heard = listens[segments.flight[row]]
    row, time, twice = row[heard], time[heard], twice[heard]
    stride = int(max(segments.complete.max(initial=0), time.max(initial=0))) + 1
    order = np.argsort(segments.flight[row] * stride + time, kind="stable")
    row, time, twice = row[order], time[order], twice[order]
    flight = segments.flight[row]

    # After each arrival: segments in order so far (`number`), and one more than the highest received (`highest`).
    number = (
        np.searchsorted(segments.flight * stride + segments.complete, flight * stride + time, side="right")
        - way.first[flight]
    )
    width = int(count.max(initial=0)) + 2
    highest = np.maximum.accumulate(flight * width + segments.index[row] + 1) - flight * width
    opens = np.append(True, flight[1:] != flight[:-1])[: len(flight)]
    closes = np.append(opens[1:], True)[: len(flight)]
    before = np.where(opens, 0, np.roll(number, 1))
    in_order = ~twice & (number == highest) & (number == before + 1)

    # A run of arrivals in order is acknowledged at every second one; 40 ms of silence or anything else ends a run.
    silence = np.append(time[1:] - time[:-1] > DELAYED_ACK_NS, False)[: len(time)]
    begins = opens | ~in_order | np.roll(~in_order | silence, 1)
    position = np.arange(len(row)) - np.maximum.accumulate(np.where(begins, np.arange(len(row)), 0))
    pending = in_order & (position % 2 == 0)
    patience = np.where((flights.kind == SYN_ACK) | (flights.kind == LAST_FIN), 0, DELAYED_ACK_NS)[flight]
    rides = closes & pending & (turn_time[flight] <= time + patience)
    timer = pending & ~rides & (closes | silence)
    sends = ~pending | timer
    late_before = np.maximum.accumulate(np.where(segments.late, np.arange(len(segments.late)), -1))
    hole = np.append(-1, late_before)[row]  # the nearest late segment before this one
    whole = (hole >= way.first[flight]) & (segments.arrival[hole] > time)
    ridden = np.zeros(len(flights), np.bool_)
    ridden[flight[rides]] = True
    return _Acks(
        flight=flight[sends],
        sent=(time + np.where(timer, patience, 0))[sends],
        number=number[sends],
        # A copy triggers an acknowledgement of everything not yet acknowledged.
        trigger=np.where(twice & (number == highest), way.first[flight] + number - 1, row)[sends],
        sack_from=np.where(whole, hole + 1, row)[sends],
        sacks=((number < highest) & (segments.index[row] > number))[sends],
        hold=_hold(scenario, way.slack[flight[sends]], rng),
        rides=ridden,
    )


def _lay_end_to_end(
    connections: Connections,
    flights: Flights,
    way: _Way,
    segments: _Segments,
    acks: _Acks,
    rng: np.random.Generator,
) -> Ints:
    """Start of every flight. A repeated connection starts when the row before it has ended."""
    last = way.first + flights.segments - 1
    complete = segments.complete[last]
    # When the acknowledgement of the last segment is back at the sender: the earliest one.
    back = np.full(len(flights), FAR_FUTURE_NS)
    all_of_it = acks.number == flights.segments[acks.flight]
    arrival = acks.sent + way.one_way[acks.flight] + acks.hold
    np.minimum.at(back, acks.flight[all_of_it], arrival[all_of_it])
    lasts = np.where(way.goes_on, back, complete) + way.wait
    relative = _sum_before(np.where(way.turns | way.goes_on, lasts, 0), flights.connection)
    closing = np.flatnonzero(~(way.turns | way.goes_on))
    span = relative[closing] + complete[closing] + 2 * way.one_way[closing] + DELAYED_ACK_NS
    start = connections.start_ns.copy()
    again = np.flatnonzero(connections.again)
    start[again] = start[again - 1] + span[again - 1] + rng.integers(100_000_000, 2_000_000_000, len(again))
    return start[flights.connection] + relative


def _echoes(flights: Flights, way: _Way, segments: _Segments, acks: _Acks, start: Ints) -> tuple[Ints, Ints]:
    """Send time of the packet whose timestamp data and bare acknowledgements echo (RFC 7323); -1: none.

    A receiver echoes the segment that began where its last acknowledgement ended, so the first of two.
    """
    flight = acks.flight
    opens = np.append(True, flight[1:] != flight[:-1])[: len(flight)]
    before = np.where(opens, 0, np.roll(acks.number, 1))
    advances = acks.number > before
    answered = start[flight] + segments.sent[np.minimum(way.first[flight] + before, len(segments.sent) - 1)]
    filled = np.maximum.accumulate(np.where(opens | advances, np.arange(len(flight)), 0))

    last_ack = np.full(len(flights), -1)
    last_ack[flight] = np.arange(len(flight))  # the last assignment stays
    any_ack = last_ack >= 0
    acked = np.where(any_ack, acks.number[last_ack] if len(flight) else 0, 0)
    pending = start + segments.sent[np.minimum(way.first + acked, len(segments.sent) - 1)]
    heard = np.where(acks.rides | ~any_ack, pending, answered[filled][last_ack] if len(flight) else -1)
    ack_time = np.where(any_ack, start + acks.sent[last_ack] if len(flight) else 0, -1)

    data_echo = np.where(np.append(False, way.turns[:-1]), np.roll(heard, 1), np.roll(ack_time, 1))
    data_echo[(flights.kind == SYN) | (flights.kind == QUERY)] = -1
    # The last packet the receiver heard before the flight: needed if the very first segment is missing.
    previous = np.where(np.roll(ack_time, 1) >= 0, np.roll(ack_time, 1), np.roll(data_echo, 1))
    heard_before = np.where(np.append(False, way.goes_on[:-1]), np.roll(heard, 1), previous)
    return data_echo, np.where(advances, answered, heard_before[flight])[filled]


def _packets(sent: Sent, connection: Ints, sender: Ints, sent_ns: Ints, echo: Ints, **columns: Ints | Bools) -> Packets:
    """Fill in the columns common to all packets, with the right types."""
    scenario, connections = sent.scenario, sent.connections
    hosts = np.stack([connections.client, scenario.clients + connections.server])
    # A host's timestamp clock shows ms from a base of its own; 0: there is nothing to echo.
    base = (scramble(np.arange(scenario.clients + scenario.servers), scenario.seed) >> np.uint64(33)).astype(np.int64)
    echoed = base[hosts[1 - sender, connection]] + echo // 1_000_000
    return Packets(
        time_ns=columns["time"].astype(np.int64, copy=False),
        sent_ns=sent_ns,
        connection=(connection + sent.first_connection).astype(np.int32),
        sender=sender.astype(np.uint8),
        kind=columns["kind"].astype(np.uint8),
        flags=columns["flags"].astype(np.uint8),
        seq=columns["seq"].astype(np.uint32),
        ack=columns["ack"].astype(np.uint32),
        trigger=columns["trigger"].astype(np.uint32),
        sack_start=columns["sack_start"].astype(np.uint32),
        sack_end=columns["sack_end"].astype(np.uint32),
        length=columns["length"].astype(np.uint16),
        ticks=(base[hosts[sender, connection]] + sent_ns // 1_000_000).astype(np.uint32),
        echo=np.where(echo < 0, 0, echoed).astype(np.uint32),
        turn=columns["turn"].astype(np.uint8),
        lost=columns["lost"].astype(np.bool_),
        again_ns=columns["again"].astype(np.uint32),
        copy=np.zeros(len(sent_ns), np.bool_),
        ip_id=np.zeros(len(sent_ns), np.uint16),
    )


def _data_packets(sent: Sent, echo: Ints, kept: Bools) -> Packets:
    flights, way, segments = sent.flights, sent.way, sent.segments
    copies = sent.copies[kept]
    row = segments.copy_segment[copies]
    flight = segments.flight[row]
    kind = flights.kind[flight]
    flags = np.array([FLAGS[kind] for kind in sorted(FLAGS)])[kind]
    ends = (kind == DATA) & (segments.index[row] + 1 == flights.segments[flight])
    ack = np.where((kind == SYN) | (kind == QUERY), 0, way.other_base[flight])
    nothing = np.zeros(len(row), np.int64)
    return _packets(
        sent,
        flights.connection[flight],
        flights.sender[flight],
        sent.start[flight] + segments.copy_sent[copies],
        echo[flight],
        time=sent.time_ns[: len(kept)][kept],
        kind=kind,
        flags=flags | (ends * PUSH_FLAG),
        seq=segments.seq[row],
        ack=ack,
        trigger=ack,
        sack_start=nothing,
        sack_end=nothing,
        length=segments.length[row],
        turn=flights.turn[flight],
        lost=segments.copy_lost[copies],
        again=segments.copy_again[copies],
    )


def _ack_packets(sent: Sent, echo: Ints, kept: Ints) -> Packets:
    flights, way, segments, acks = sent.flights, sent.way, sent.segments, sent.acks
    flight = acks.flight[kept]
    number, trigger, sacks = acks.number[kept], acks.trigger[kept], acks.sacks[kept]
    up_to = way.first[flight] + number - 1  # row of the last segment acknowledged, if any
    nothing = np.zeros(len(flight), np.int64)
    return _packets(
        sent,
        flights.connection[flight],
        1 - flights.sender[flight],
        sent.start[flight] + acks.sent[kept],
        echo[kept],
        time=sent.time_ns[len(sent.copies) :][kept],
        kind=nothing + BARE,
        flags=nothing + ACK_FLAG,
        seq=way.other_base[flight],
        ack=np.where(number > 0, segments.end[up_to], way.base[flight]),
        trigger=segments.end[trigger],
        sack_start=np.where(sacks, segments.seq[acks.sack_from[kept]], 0),
        sack_end=np.where(sacks, segments.end[trigger], 0),
        length=nothing,
        turn=flights.turn[flight],
        lost=nothing,
        again=sent.ack_again[kept],
    )
