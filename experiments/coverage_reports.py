"""Intervals of delays in total, of rows over time and of groups: the statistics of the commands, without captures.

coverage.py checks that a command says the same of a capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.stats.certainty import Certainty
from wirelag.stats.distribution import Distribution
from wirelag.stats.over_time import Alike, within_whole
from wirelag.synopses.connections import Connections
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.request_response import EXCHANGE, Exchanges
from wirelag.synopses.samples import SampleBatch, Samples, facts

FIRST_TAG = 2  # of groups

Ints = npt.NDArray[Any]
Bounds = Mapping[str, tuple[float, float]]
Kinds = dict[str, list[Bounds]]  # "total", "rows", "groups": the intervals of each report


def round_trips(times_ns: Ints, delays_ns: Ints, keys: Ints, group: Ints, row_ns: int) -> Kinds:
    """Of `rtt`: responses at these times, in order, each of a connection and a group; rows have this length."""
    whole = _samples(times_ns, delays_ns, keys)
    alike = whole.spread.of_leg(0).alike()
    rows = [
        _of_row(facts(_samples(times_ns[i], delays_ns[i], keys[i]).distribution(0)), alike, row_ns)
        for i in _rows(times_ns, row_ns)
    ]
    connections, legs = Connections(), np.zeros(len(keys), np.uint8)
    tags = (group + FIRST_TAG).astype(np.uint64)
    batch = PacketBatch({"time_ns": times_ns, "flow_key": keys})
    connections.add(batch, SampleBatch(np.arange(len(keys)), delays_ns, legs, ("icmp",), legs, None, tags))
    groups = []
    for one in np.unique(group):
        delays = Distribution()
        delays.add(delays_ns[group == one])
        delays.certainty = Certainty(delays, partial(connections.sources, int(one) + FIRST_TAG, 0, delays))
        groups.append(_intervals(delays))
    return {"total": [_intervals(whole.distribution(0))], "rows": rows, "groups": groups}


def _samples(times_ns: Ints, delays_ns: Ints, keys: Ints) -> Samples:
    found, legs = Samples(), np.zeros(len(keys), np.uint8)
    found.add(legs, delays_ns)
    found.spread.add(keys, times_ns, np.arange(len(keys), dtype=np.uint32), legs, delays_ns)
    return found


def responses(request_ns: Ints, last_ns: Ints, keys: Ints, group: Ints, row_ns: int) -> Kinds:
    """Of `response`: exchanges in order of their responses, each of a connection and a group."""
    rows = np.zeros(len(keys), EXCHANGE)
    rows["key"], rows["request_ns"], rows["first_ns"], rows["last_ns"] = keys, request_ns, last_ns, last_ns
    whole = Exchanges(rows)
    alike = whole.alike_over_time()
    return {
        "total": [_intervals(whole.delays)],
        "rows": [_of_row(facts(whole.of(i).delays), alike, row_ns) for i in _rows(last_ns, row_ns)],
        "groups": [_intervals(whole.of(group == one).delays) for one in np.unique(group)],
    }


def crossings(sent_ns: Ints, delays_ns: Ints, group: Ints, row_ns: int) -> Kinds:
    """Of `oneway` with `join`: packets in order of time, each of a group."""
    whole = _crossing(sent_ns, delays_ns)
    alike = whole.tail.alike_over_time()
    rows = [
        _of_row(_crossing(sent_ns[i], delays_ns[i]).report("join").to_json(), alike, row_ns)
        for i in _rows(sent_ns, row_ns)
    ]
    groups = [_crossing(sent_ns[group == one], delays_ns[group == one]) for one in np.unique(group)]
    return {
        "total": [whole.report("join").ci95],
        "rows": rows,
        "groups": [one.report("join").ci95 for one in groups],
    }


def _crossing(sent_ns: Ints, delays_ns: Ints) -> Crossing:
    found = Crossing()
    found.add_delays(sent_ns, delays_ns)
    return found


def _rows(times_ns: Ints, row_ns: int) -> Iterator[slice]:
    edges = np.flatnonzero(np.diff(times_ns // row_ns)) + 1
    for begin, end in zip([0, *edges], [*edges, len(times_ns)], strict=True):
        yield slice(int(begin), int(end))


def _of_row(figures: Mapping[str, Any], alike: Alike, row_ns: int) -> Bounds:
    known = {"mean": figures["mean"], "max": figures["max"], **figures["quantiles"]}
    return within_whole(figures["ci95"], known, row_ns, alike)[0]


def _intervals(delays: Distribution) -> Bounds:
    found: Bounds = facts(delays)["ci95"]
    return found
