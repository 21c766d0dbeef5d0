"""Law: groups are in the order that their own delays give, one by one, in every order and on every leg."""

from __future__ import annotations

import numpy as np
import pytest

from wirelag.measure.group_order import failing, order
from wirelag.measure.groups import FIGURES
from wirelag.packets.batch import PacketBatch
from wirelag.stats.distribution import Distribution
from wirelag.stats.sla import Sla
from wirelag.synopses.connections import Connections
from wirelag.synopses.group_delays import AT_ONCE, GroupDelays
from wirelag.synopses.samples import LEGS, SampleBatch


def filled(groups: int, samples: int, memory: int) -> tuple[GroupDelays, Connections]:
    """Groups that are large and small, some with delays of one leg only; each has a few connections."""
    rng = np.random.default_rng(groups)
    keys = (groups * rng.random(samples) ** 2).astype(np.int64)
    legs = np.where(keys % 5 == 0, keys % 2, rng.integers(0, 2, samples)).astype(np.uint8)
    delays = (rng.lognormal(15, 1, groups)[keys] * rng.lognormal(0, 0.5, samples)).astype(np.int64)
    ports = {"src_port": keys.astype(np.uint16), "dst_port": keys.astype(np.uint16)}
    flow = (keys * 7 + rng.integers(0, 4, samples)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    packets = PacketBatch({"time_ns": np.arange(samples) * 10**6, "flow_key": flow, **ports})
    rows, found, connections = np.arange(samples), GroupDelays("port", memory=memory), Connections()
    tags = found.add(packets, rows, legs, delays)
    connections.add(packets, SampleBatch(rows, delays, legs, ("x",), np.zeros(samples, np.uint8), tags=tags))
    if not found.complete:
        connections.keep(found.tags_and_before()[0])
    return found, connections


def plain_figure(delays: Distribution, name: str) -> float | None:
    if not delays.samples:
        return None
    if name == "samples":
        return delays.samples
    found = delays.quantile_ns(float(f"{float(name[1:]) / 100:g}")) if name[0] == "p" else getattr(delays, f"{name}_ns")
    return float(found) / 1e9


def plain_order(groups: GroupDelays, leg: str, sort: str, connections: Connections) -> list[int]:
    """One group after the other: by its leg, else by the larger of both; those with few samples come later."""
    values = {}
    for group in groups.groups():
        each = groups.delays(group.place)
        mixed = Distribution()
        for one in each:
            mixed.merge(one)
        named = dict(zip(LEGS, each, strict=True)) | {"mixed": mixed, "both": connections.distribution(group.tag)}
        own = plain_figure(named[leg], sort)
        other = max(plain_figure(one, sort) or 0.0 for one in each)
        samples = max(one.samples for one in each) if own is None else named[leg].samples
        few = samples < 6 and sort not in ("samples", "max")
        values[group.place] = group.place == 0, own is None, few, -(other if own is None else own), group.tag
    return sorted(values, key=lambda place: values[place])


@pytest.mark.every(2)
@pytest.mark.parametrize("leg", [*LEGS, "both", "mixed"])
def test_every_figure_gives_the_order_that_groups_one_by_one_give(leg: str) -> None:
    groups, connections = filled(300, 4_000, 1 << 23)
    assert groups.complete
    orders = {sort: order(groups, leg, sort, connections)[0].tolist() for sort in FIGURES}
    assert orders == {sort: plain_order(groups, leg, sort, connections) for sort in FIGURES}
    assert len({tuple(one) for one in orders.values()}) > 6


@pytest.mark.every(2)
@pytest.mark.parametrize("leg", ["server", "both"])
def test_the_same_of_many_groups_that_do_not_all_fit(leg: str) -> None:
    groups, connections = filled(9_000, 60_000, 1 << 21)
    assert not groups.complete
    assert len(groups) > AT_ONCE  # so that they are read in parts
    found = order(groups, leg, "p99", connections)[0].tolist()
    assert found == plain_order(groups, leg, "p99", connections)
    assert found[-1] == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("complete", [True, False])
def test_groups_that_break_an_agreement(complete: bool) -> None:
    groups, connections = filled(300, 4_000, 1 << 23) if complete else filled(9_000, 20_000, 1 << 20)
    assert groups.complete == complete
    texts = ("p99<9ms", "client.mean<=3ms", "server.above(5ms)<30%", "min<1h", "both.p50<5ms")
    slas = [Sla.parse(text) for text in texts]
    found = failing(groups, slas, connections)

    def broken(sla: Sla, place: int) -> list[tuple[float, int]]:
        """The values that break it, and how many samples have them."""
        each = dict(zip(LEGS, groups.delays(place), strict=True))
        each["both"] = connections.distribution(groups.group(place).tag)
        wrong = [one for leg, one in each.items() if sla.asks(leg) and sla.holds(one) is False]
        return [(sla.value(one) or 0.0, one.samples) for one in wrong]

    for sla in slas:
        worst = {place: max(some) for place in groups.places().tolist() if (some := broken(sla, place))}
        places, values, samples = found.get(sla.text, ((), (), ()))
        assert dict(zip(places, values, strict=True)) == pytest.approx({place: one[0] for place, one in worst.items()})
        told = {place: count for place, count in zip(places, samples, strict=True) if place}
        assert told == {place: worst[place][1] for place in told}
        order_of = [(worst[place][1] < 6, -worst[place][0]) for place in map(int, places) if place]
        assert order_of == sorted(order_of)
    assert len(found) == 4
    assert any(0 in some for some, *_ in found.values()) != complete
