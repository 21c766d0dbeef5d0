"""What a perfect observer would report of a simulated capture; times are integer ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from wirelag import _kernels
from wirelag.sim.addresses import address_text, client_ipv4, server_ipv4
from wirelag.sim.packets import Packets
from wirelag.sim.traffic import ANSWER, CLIENT, DATA, QUERY, SERVER, SYN, SYN_ACK, Bools, Connections, Ints

if TYPE_CHECKING:
    import polars as pl

START_NS: Final = 1_767_225_600 * 10**9  # a simulation begins on 2026-01-01 00:00 UTC
ACK_FLAG: Final = 0x10


@dataclass(frozen=True)
class _Ranges:
    """Sequence ranges seen at the vantage point, in order of connection, side and end."""

    key: Ints
    row: Ints  # first occurrence
    last: Ints  # last occurrence
    once: Bools  # seen only once


def _ranges(packets: Packets, connections: Connections) -> _Ranges:
    # The IP id distinguishes a copy made by the network from a retransmission; IPv6 has none.
    known_copy = packets.copy & ~connections.ipv6[packets.connection]
    rows = np.flatnonzero(packets.consumes & ~known_copy)
    key = _side(packets, rows, own=True) << 32 | packets.end[rows].astype(np.int64)
    order = _kernels.stable_order(key)
    key, rows = key[order], rows[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    last = np.append(first[1:], len(key))[: len(first)] - 1
    return _Ranges(key[first], rows[first], rows[last], first == last)


def _seen_last(ranges: _Ranges, lowest: Ints, highest: Ints) -> Ints:
    """Of the ranges from lowest to highest (one row of disjoint, ascending pairs), the one seen last."""
    if not len(lowest):
        return lowest
    edges = np.column_stack((lowest, highest + 1)).reshape(-1)
    rows = np.maximum.reduceat(np.append(ranges.last, -1), edges)[::2]
    place = np.empty(int(ranges.last.max()) + 1, np.int64)
    place[ranges.last] = np.arange(len(ranges.last))
    return place[rows]


def _side(packets: Packets, rows: Ints, own: bool) -> Ints:
    """The half-connection that a packet belongs to, or acknowledges."""
    sender = packets.sender[rows].astype(np.int64)
    return packets.connection[rows].astype(np.int64) * 2 + (sender if own else 1 - sender)


def round_trips(packets: Packets, connections: Connections) -> pl.DataFrame:
    """One row per packet that advances the acknowledgement seen so far; `packets` are a whole capture in order."""
    import polars as pl

    ranges = _ranges(packets, connections)
    rows = np.flatnonzero(packets.flags & ACK_FLAG)
    side = _side(packets, rows, own=False)
    order = _kernels.stable_order(side)
    rows, side = rows[order], side[order]
    ack = side << 32 | packets.ack[rows].astype(np.int64)
    before = np.append(0, np.maximum.accumulate(ack)[:-1])[: len(ack)]
    before = np.maximum(before, side << 32)  # a connection's first acknowledgement has no predecessor
    advances = ack > before
    rows, ack, before = rows[advances], ack[advances], before[advances]

    last = np.searchsorted(ranges.key, ack, side="right") - 1
    lowest = np.searchsorted(ranges.key, before, side="right")
    seen = (last >= lowest) & (ranges.key[last] == ack)
    rows, lowest, last = rows[seen], lowest[seen], last[seen]
    chosen = _seen_last(ranges, lowest, last)
    order = _kernels.stable_order(rows)
    rows, chosen = rows[order], chosen[order]
    request, once = ranges.row[chosen], ranges.once[chosen]
    del ranges, side, ack, before, advances, last, lowest, seen, chosen, order  # millions of each

    kind = packets.kind[request]
    names = pl.Series(["tcp", "handshake", "dns"])
    name = np.where(kind == QUERY, 2, np.where((kind == SYN) | (kind == SYN_ACK), 1, 0))
    return pl.DataFrame(
        {
            "kind": names.gather(name),
            "leg": pl.Series(["client", "server"]).gather(packets.sender[rows].astype(np.int64)),
            **_endpoints(connections, packets.connection[rows].astype(np.int64)),
            "request_number": request + 1,
            "response_number": rows + 1,
            "request_ns": START_NS + packets.time_ns[request],
            "response_ns": START_NS + packets.time_ns[rows],
            "delay_ns": packets.time_ns[rows] - packets.time_ns[request],
            "payload_length": packets.length[request].astype(np.int64),
            "retransmitted": ~once,
            "held": packets.trigger[rows] != packets.end[request],
            "duplicated": packets.again_ns[request] > 0,
        }
    )


def responses(packets: Packets, connections: Connections, number: Ints, end_ns: int) -> pl.DataFrame:
    """One row per request: when it was complete, when its response began and was complete.

    `packets` hold both directions in order of time; `number` is each one's number in the capture of client packets
    only, 0 if it is not in it. A row needs the whole exchange before `end_ns`.
    """
    import polars as pl

    ranges = _ranges(packets, connections)
    kind = packets.kind[ranges.row]
    talk = (kind == DATA) | (kind == QUERY) | (kind == ANSWER)
    row, once = ranges.row[talk], ranges.once[talk]
    del ranges, kind, talk  # millions of each, as below
    order = _kernels.stable_order(row)
    row, once = row[order], once[order]
    turn = packets.connection[row].astype(np.int64) * 256 + packets.turn[row]
    key = turn * 2 + packets.sender[row]
    del turn
    order = _kernels.stable_order(key)  # by time within a request or response
    key, row, once = key[order], row[order], once[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    last = np.append(first[1:], len(key)) - 1
    pair = np.flatnonzero((key[first][:-1] % 2 == CLIENT) & (key[first][1:] == key[first][:-1] + 1))
    again = np.add.reduceat(~once, first, dtype=np.int64) if len(first) else np.zeros(0, np.int64)
    request, response, whole = row[last[pair]], row[first[pair + 1]], row[last[pair + 1]]
    del row, once, key, order
    kept = (number[request] > 0) & (packets.time_ns[whole] <= end_ns)
    pair, request, response, whole = pair[kept], request[kept], response[kept], whole[kept]
    order = _kernels.stable_order(request)
    pair, request, response, whole = pair[order], request[order], response[order], whole[order]
    return pl.DataFrame(
        {
            "kind": pl.Series(["tcp", "dns"]).gather((packets.kind[request] == QUERY).astype(np.int64)),
            **_endpoints(connections, packets.connection[request].astype(np.int64)),
            "request_number": number[request],
            "request_ns": START_NS + packets.time_ns[request],
            "response_ns": START_NS + packets.time_ns[response],
            "delay_ns": packets.time_ns[response] - packets.time_ns[request],
            "last_ns": START_NS + packets.time_ns[whole],
            "retransmitted": again[pair] > 0,
        }
    )


def crossings(
    forward: Bools, sent: Ints, arrival: Ints, lost: Bools, kept: Bools, up_row: Ints, down_row: Ints
) -> pl.DataFrame:
    """One row per packet between two points, in order of `sent`, its time at the first point it passes.

    `up_row` and `down_row` are the packets of the two captures, in order; only `kept` packets get a row.
    """
    import polars as pl

    up_number, up_copies = _numbers(up_row, len(sent))
    down_number, down_copies = _numbers(down_row, len(sent))
    reordered = np.zeros(len(sent), np.bool_)
    for way, second in ((True, down_number), (False, up_number)):
        rows = np.flatnonzero(kept & ~lost & (forward == way))
        reordered[rows] = _overtaken(second[rows])
    rows = np.flatnonzero(kept)
    truth = pl.DataFrame(
        {
            "direction": pl.Series(["reverse", "forward"]).gather(forward[rows].astype(np.int64)),
            "upstream_number": up_number[rows],
            "downstream_number": down_number[rows],
            "upstream_ns": START_NS + np.where(forward, sent, arrival)[rows],
            "downstream_ns": START_NS + np.where(forward, arrival, sent)[rows],
            "delay_ns": (arrival - sent)[rows],
            "lost": lost[rows],
            "duplicated": (np.where(forward, down_copies, up_copies) > 1)[rows],
            "reordered": reordered[rows],
        }
    )
    # A packet that a point did not see has no number and no time there.
    blanks = {
        "upstream_number": pl.col("upstream_number") == 0,
        "upstream_ns": pl.col("upstream_number") == 0,
        "downstream_number": pl.col("downstream_number") == 0,
        "downstream_ns": pl.col("downstream_number") == 0,
        "delay_ns": pl.col("lost"),
    }
    return truth.with_columns(pl.when(~blank).then(pl.col(name)).alias(name) for name, blank in blanks.items())


def _numbers(row: Ints, count: int) -> tuple[Ints, Ints]:
    """Each packet's number (from 1) in a capture, 0 if it is not there, and how often it occurs."""
    number = np.zeros(count, np.int64)
    number[row[::-1]] = np.arange(len(row), 0, -1)  # the last assignment wins: the first copy
    return number, np.bincount(row, minlength=count)


def _overtaken(number: Ints) -> Bools:
    """Arrived after a packet that was sent later (RFC 4737); numbers of arrival, in sending order.

    >>> _overtaken(np.array([1, 3, 2, 4])).tolist()
    [False, True, False, False]
    """
    least_later = np.append(np.minimum.accumulate(number[::-1])[::-1][1:], np.iinfo(np.int64).max)[: len(number)]
    return number > least_later


def _endpoints(connections: Connections, row: Ints) -> dict[str, pl.Series]:
    import polars as pl

    client, server, ipv6 = connections.client[row], connections.server[row], connections.ipv6[row]
    return {
        "client": address_text(client_ipv4(client), CLIENT, client, ipv6),
        "server": address_text(server_ipv4(server), SERVER, server, ipv6),
        "client_port": pl.Series(connections.client_port[row].astype(np.uint16)),
        "server_port": pl.Series(connections.server_port[row].astype(np.uint16)),
    }
