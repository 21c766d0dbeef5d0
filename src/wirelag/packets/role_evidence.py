"""What the first packets of the input tell about who is the client, where neither SYNs nor ports do.

docs/reference/roles.md is the law. Everything here is for the packets of `roles.ahead`, all at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import address_keys
from wirelag.packets.batch import Flag, PacketBatch
from wirelag.packets.distinct import distinct

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_ENDPOINTS: Final = 12  # purpose of a coin that only hashes
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


def endpoint_keys(packets: PacketBatch) -> tuple[Words, Words]:
    """Address and port of the receiver, and of the sender, as one word each."""
    to, of = (
        _kernels.coins(address_keys(addresses) + ports.astype(np.uint64) * _SPREAD, 0, _ENDPOINTS)
        for addresses, ports in ((packets.dst, packets.dst_port), (packets.src, packets.src_port))
    )
    return to, of


def popular_endpoints(to: Words, of: Words) -> Words:
    """Endpoints with several peers, in rising order."""
    pairs = distinct(np.stack([np.concatenate([to, of]), np.concatenate([of, to])], axis=1)).rows[:, 0]
    again = np.flatnonzero(pairs[1:] == pairs[:-1])  # in rising order: the same endpoint with the next peer
    return distinct(pairs[again]).rows


def ways_of_clients(packets: PacketBatch, rows: Places) -> tuple[Words, Bools, npt.NDArray[np.uint8]]:
    """Conversations of these rows by time, whether the client's packets are REVERSE, and the kind of the first one."""
    packets = packets[rows]
    keys, first, flow = distinct(packets.flow_key)
    backwards = packets.has(Flag.REVERSE)
    one_way = np.bincount(flow, backwards) % np.bincount(flow) == 0
    data = np.flatnonzero(packets.payload_length > 1)  # a keep-alive probe has one byte at most
    order = data[np.argsort(flow[data], kind="stable")]
    flow, time_ns = flow[order], packets.time_ns[order]
    speaks = backwards[first].copy()  # of the first packet, or of the first with data
    heads = np.flatnonzero(np.diff(flow, prepend=-1))
    speaks[flow[heads]] = backwards[order[heads]]
    sent = packets.payload_length[order].astype(np.int64)
    back = backwards[order].astype(np.intp)
    bytes_sent = np.bincount(flow * 2 + back, sent, minlength=2 * len(keys)).astype(np.int64).reshape(-1, 2)
    turns = np.flatnonzero((np.diff(back, prepend=-1) != 0) & (np.diff(flow, prepend=-1) == 0))
    spread = _spread(flow[turns] * 2 + back[turns], np.maximum(0, time_ns[turns] - time_ns[turns - 1]), len(keys))
    # The client sends less, and replies promptly but for its pauses.
    score = _bits(bytes_sent[:, 1]) - _bits(bytes_sent[:, 0]) + spread[:, 0] - spread[:, 1]
    unclear = one_way | (score == 0)
    by_time = np.argsort(first, kind="stable")
    return keys[by_time], np.where(unclear, speaks, score < 0)[by_time], packets.kind[first[by_time]]


def _spread(sides: Places, gaps_ns: npt.NDArray[np.int64], flows: int) -> npt.NDArray[np.int64]:
    """For both sides of each flow: how much longer its longest turn is than its median one, as a power of two."""
    order = np.lexsort((gaps_ns, sides))
    counts = np.bincount(sides, minlength=2 * flows)
    ends = np.cumsum(counts)
    some = np.flatnonzero(counts)
    gaps_us = gaps_ns[order] // 1000
    spread = np.zeros(2 * flows, np.int64)
    median = ends[some] - counts[some] + (counts[some] - 1) // 2
    spread[some] = _bits(gaps_us[ends[some] - 1]) - _bits(gaps_us[median])
    return spread.reshape(-1, 2)


def _bits(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many binary digits each number has."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
