"""Law: a group has the intervals that its delays alone would have, whatever chose them: a grouping, or a filter.

So a group that holds all of a capture has the intervals of the whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.support.pings import write_pings
from wirelag.measure.response_entries import GroupParts
from wirelag.packets.batch import PacketBatch
from wirelag.synopses.connections import Connections
from wirelag.synopses.request_response import Exchanges
from wirelag.synopses.samples import SampleBatch


@pytest.mark.every(2)
@pytest.mark.parametrize("leg", ["server", "client", "both", "mixed"])
def test_of_round_trips(shared_data: Path, leg: str) -> None:
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    result = wirelag.rtt(capture, by="subnet", ipv4_prefix=0, ipv6_prefix=0, leg=leg, charts=False)
    (only,) = result.groups
    assert only.report.ci95 == result.report.ci95
    assert only.report.ci95["mean"][0] < only.report.ci95["mean"][1]
    assert {name: one.report.ci95 for name, one in only.legs.items()} == {
        name: one.report.ci95 for name, one in result.total.legs.items()
    }


def test_of_responses(shared_data: Path) -> None:
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    many = max(wirelag.response(capture, by="server").groups, key=lambda entry: entry.report.samples)
    result = wirelag.response(capture, by="server", server=many.key)
    (only,) = result.groups
    assert only.report.ci95 == result.report.ci95
    assert only.report.ci95


@pytest.mark.parametrize("estimator", ["join", "lda", "finecomb", "rda"])
def test_of_packets_between_two_points(tmp_path: Path, estimator: str) -> None:
    rng, n = np.random.default_rng(1), 4_000
    sent = 10**18 + np.sort(rng.integers(0, 20 * 10**9, n))
    level = np.repeat(rng.lognormal(15, 0.5, 100), n // 100)  # delays that change slowly
    names = [tmp_path / "up.pcap", tmp_path / "down.pcap"]
    for name, late in zip(names, (0, (level + rng.exponential(10**5, n)).astype(np.int64)), strict=True):
        write_pings(name, np.full(n, 0x0A010001), sent + late, np.full(n, 10**12))
    result = wirelag.oneway(*names, estimator=estimator, by="destination", clock="none", filter="icmp and dst 10.1.0.1")
    (only,) = result.groups
    assert only.report.ci95 == result.report.ci95
    assert only.report.ci95


@pytest.mark.every(2)
@pytest.mark.parametrize("leg", ["server", "client"])
def test_the_same_round_trips_have_the_same_intervals_by_any_grouping_and_filter(shared_data: Path, leg: str) -> None:
    """Before, slow delays of other groups made an interval wider, and which others there were depended on `by`."""
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    found: dict[object, list[object]] = {}
    for by in ("server", "client", "subnet", "port", "flow"):
        for entry in wirelag.rtt(capture, by=by, leg=leg, charts=False).groups:
            report = entry.report
            if report.samples >= 64:
                found.setdefault((report.samples, report.mean, report.max), []).append(report.ci95)
    several = [intervals for intervals in found.values() if len(intervals) > 1]
    assert len(several) >= 2
    assert all(one == intervals[0] for intervals in several for one in intervals)
    assert any(intervals[0] for intervals in several)


def slow_and_steady(tmp_path: Path) -> Path:
    """Pings to a server with delays that change slowly, and to one with steady ones."""
    rng, n = np.random.default_rng(6), 6_000
    sent, server = 10**18 + np.sort(rng.integers(0, 30 * 10**9, n)), rng.integers(0, 2, n)
    level = np.where(server == 0, np.repeat(rng.lognormal(16, 0.5, 40), n // 40), 10**7)
    path = tmp_path / "two.pcap"
    write_pings(path, 0x0A010001 + server, sent, (level + rng.exponential(10**6, n)).astype(np.int64))
    return path


def test_a_group_of_round_trips_has_the_interval_of_a_filter(tmp_path: Path) -> None:
    path = slow_and_steady(tmp_path)
    groups = {entry.key: entry.report for entry in wirelag.rtt(path, by="server").groups}
    assert len(groups) == 2
    for server, report in groups.items():
        alone = wirelag.rtt(path, filter=f"host {server}").report
        assert (report.samples, report.ci95) == (alone.samples, alone.ci95)
        assert report.ci95["mean"]


def test_a_group_of_many_connections_has_nearly_the_interval_of_a_filter(shared_data: Path) -> None:
    """The whole has delays of connections in steps of 4%, a group has their sums.

    Between two delays there may be a gap: the share of delays below an end of a quantile's interval is compared.
    """
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    (entry,) = (e for e in wirelag.rtt(capture, by="server").groups if e.key == "100.25.231.167")
    result = wirelag.rtt(capture, filter="host 100.25.231.167", samples=True)
    assert result.samples is not None
    rows, alone = result.samples.to_polars(), result.report
    delays = np.sort(rows.filter(rows["leg"] == "server")["delay_ns"].to_numpy()) / 1e9
    assert entry.report.samples == alone.samples == len(delays)
    assert entry.report.ci95.keys() == alone.ci95.keys() >= {"mean", "0.5", "0.9"}
    for name, (low, high) in alone.ci95.items():
        mine = entry.report.ci95[name]
        if name == "mean":
            assert mine == pytest.approx((low, high), abs=0.02 * (high - low))
        else:
            shares = [np.searchsorted(delays, ends) / len(delays) for ends in (mine, (low, high))]
            assert shares[0] == pytest.approx(shares[1], abs=0.02), name


@pytest.mark.parametrize("estimator", ["join", "rda"])
def test_a_group_of_packets_has_the_interval_of_a_filter(tmp_path: Path, estimator: str) -> None:
    path, late = tmp_path / "up.pcap", tmp_path / "late.pcap"
    rng, n = np.random.default_rng(7), 1_500
    sent, server = 10**18 + np.sort(rng.integers(0, 30 * 10**9, n)), rng.integers(0, 2, n)
    level = np.where(server == 0, np.repeat(rng.lognormal(16, 0.5, 30), n // 30), 10**7)
    for name, by in ((path, 0), (late, (level + rng.exponential(10**6, n)).astype(np.int64))):
        write_pings(name, 0x0A010001 + server, sent + by, np.full(n, 10**12))
    options = {"estimator": estimator, "clock": "none", "direction": ">10.1.0.0/16"}
    for entry in wirelag.oneway(path, late, by="destination", **options).groups:  # type: ignore[arg-type]
        alone = wirelag.oneway(path, late, filter=f"host {entry.key}", **options).report  # type: ignore[arg-type]
        assert (entry.report.samples, entry.report.ci95) == (alone.samples, alone.ci95)
        assert entry.report.ci95["mean"]


def test_a_group_of_responses_has_the_interval_of_a_filter(shared_data: Path) -> None:
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    groups = [e for e in wirelag.response(capture, by="server").groups if e.report.ci95]
    assert groups
    for entry in groups[:3]:
        alone = wirelag.response(capture, server=entry.key).report
        assert (entry.report.samples, entry.report.ci95) == (alone.samples, alone.ci95)


def test_groups_of_both_legs_as_one_are_no_surer_than_their_connections(tmp_path: Path) -> None:
    """200 delays of each of 8 connections, whose levels differ: not 1,600 independent delays."""
    rng, each = np.random.default_rng(2), 200
    flows = np.repeat(np.arange(8), each)
    delays = (rng.lognormal(15, 1, 8)[flows] * rng.lognormal(0, 0.05, 8 * each)).astype(np.int64)
    order = rng.permutation(8 * each)
    flows, delays = flows[order], delays[order]
    packets = PacketBatch(
        {"time_ns": np.arange(8 * each) * 10**7, "flow_key": flows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)}
    )
    legs, tags = (flows % 2).astype(np.uint8), np.full(8 * each, 5, np.uint64)
    connections = Connections()
    rows = np.arange(8 * each, dtype=np.uint32)
    connections.add(packets, SampleBatch(rows, delays, legs, ("x",), np.zeros(8 * each, np.uint8), tags=tags))
    from wirelag.stats.distribution import Distribution

    mixed = Distribution()
    mixed.add(delays)
    alone = mixed.mean_error_ns() or 0.0
    of_connections = connections.sources(5, None, mixed).connections
    assert of_connections is not None
    error = of_connections.mean
    assert error is not None
    assert error[0] > 5 * alone


def test_the_page_has_groups_in_the_order_of_the_table(tmp_path: Path) -> None:
    """Before, it put them in order of their mean again: one slow packet led it."""
    of, names = np.repeat([1, 2], [40, 1]), [tmp_path / "up.pcap", tmp_path / "down.pcap"]
    sent = 10**18 + np.arange(41) * 10**8
    for name, late in zip(names, (0, np.where(of == 1, 10**7, 5 * 10**7)), strict=True):
        write_pings(name, 0x0A010000 + of, sent + late, np.full(41, 10**12))
    result = wirelag.oneway(*names, by="destination", clock="none", filter="icmp and src 10.0.0.1")
    assert [entry.key for entry in result.groups] == ["10.1.0.1", "10.1.0.2"]
    page = result.to_html()
    table = page[page.index("Delays by destination, largest mean first") :]
    assert table.index("10.1.0.1") < table.index("10.1.0.2")


def test_the_rest_of_groups_is_as_unsure_as_each_of_them(shared_data: Path) -> None:
    """Of three flows the last is "other": it has the interval that it has by its own name."""
    found = wirelag.response(shared_data / "rtt/zeek/modbusBig.pcap.gz", by="flow", method="pairs").found
    assert isinstance(found, Exchanges)
    own, other = (GroupParts(found, "flow", most).entry(2) for most in (3, 2))
    assert (own.key == "other", other.key) == (False, "other")
    assert other.report.ci95 == own.report.ci95
    assert other.report.ci95
    alone = Exchanges(list(found.groups("flow"))[2][1].rows).report()
    assert other.report.ci95 == alone.ci95, "it has the interval of its own exchanges"
