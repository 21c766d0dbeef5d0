"""`wirelag flows --upstream` on real captures of two points: flows compared with the join of all packets."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.command import wirelag

EVERY = 20  # the default
FEWEST = 5  # fewest packets of a compared flow
FEWEST_FLOWS = 4  # fewest flows of a pair: the captures are short
MPTCP = "mptcpanalyzer-0.3.2"
HOME = "smart-home-firewall"
# Queues cause the delays here: neighbouring packets are alike.
ALIKE = [
    (f"{MPTCP}/{one}", f"{MPTCP}/{other}")
    for client, server in (
        ("client_1_tcp_only.pcap.gz", "server_1_tcp_only.pcap.gz"),
        ("client_2_filtered.pcapng.gz", "server_2_filtered.pcapng.gz"),
    )
    for one, other in ((client, server), (server, client))
]
DRAINED = ALIKE[2:4]  # the pair, in both directions, whose delays confirm a drain rate
# Not so here: a home router handles each packet by itself, which takes it 10 to 300 us.
UNLIKE = [
    (f"{HOME}/{device}/{rules}/wlan2.4.{ending}", f"{HOME}/{device}/{rules}/{other}.{ending}")
    for device, other, ending in (
        ("dlink-cam", "wan", "pcap.gz"),
        ("dlink-cam", "wlan5.0", "pcap.gz"),
        ("tplink-plug", "wan", "pcap"),
    )
    for rules in ("no-firewall", "my-firewall")
]


def name(pair: tuple[str, str]) -> str:
    return " > ".join(path.partition("/")[2] for path in pair)


@cache
def answer(*words: str | Path) -> dict[str, Any]:
    found = json.loads(wirelag(*words, "--format", "json", "--quiet").stdout)
    assert isinstance(found, dict)
    return found


def flows_of(folder: Path, pair: tuple[str, str], method: str = "busy") -> dict[str, Any]:
    up, down = (folder / "twopoint" / path for path in pair)
    return answer("flows", down, "--upstream", up, "--method", method)


def means_of(folder: Path, pair: tuple[str, str], method: str = "busy") -> tuple[dict[str, tuple[float, float]], float]:
    """For each comparable flow its reported mean and the join's mean; and the join's mean of all packets."""
    up, down = (folder / "twopoint" / path for path in pair)
    joined = answer("oneway", up, down, "--by", "flow", "--group-memory", "16GiB")
    true = {group["key"]: group["mean"] for group in joined["groups"] if group["mean"]}
    means = {
        key: (flow["mean"], true[key])
        for flow in flows_of(folder, pair, method)["flows"]
        if (key := flow["key"].rpartition(" ")[0]) in true and flow["packets"] >= FEWEST and flow["mean"] is not None
    }
    return means, joined["mean"]


def errors(means: Iterable[tuple[float, float]]) -> npt.NDArray[np.float64]:
    found, true = np.array(list(means)).T
    return np.asarray(np.abs(found / true - 1))


@pytest.mark.every(2)
@pytest.mark.parametrize("pair", ALIKE, ids=name)
def test_flows_are_near_the_join_where_neighbours_are_alike(shared_data: Path, pair: tuple[str, str]) -> None:
    """Within 15%, and twice as near as the mean of all packets: the method's promise for real queues."""
    means, all_packets = means_of(shared_data, pair)
    assert len(means) >= FEWEST_FLOWS
    error = np.median(errors(means.values()))
    assert error <= 0.15
    assert 2 * error <= np.median(errors((all_packets, true) for _, true in means.values()))


@pytest.mark.parametrize("pair", ALIKE + UNLIKE, ids=name)
def test_references_are_few_and_in_no_flow(shared_data: Path, pair: tuple[str, str]) -> None:
    found = flows_of(shared_data, pair)
    used, counts = found["references"]["accepted"], found["counts"]
    packets = used + sum(found["references"]["rejected"].values()) + counts["regular"]
    assert 0 < used <= packets / EVERY + 1
    assert sum(flow["packets"] for flow in found["flows"]) == counts["regular"]


@pytest.mark.parametrize("pair", UNLIKE, ids=name)
def test_a_warning_where_neighbours_differ(shared_data: Path, pair: tuple[str, str]) -> None:
    (note,) = [line for line in flows_of(shared_data, pair)["notes"] if "not alike here" in line]
    assert "no better than their mean" in note


@pytest.mark.parametrize("pair", ALIKE, ids=name)
def test_no_warning_where_neighbours_are_alike(shared_data: Path, pair: tuple[str, str]) -> None:
    assert not [line for line in flows_of(shared_data, pair)["notes"] if "not alike here" in line]


@pytest.mark.every(2)
@pytest.mark.parametrize("pair", [pair for pair in ALIKE + UNLIKE if pair not in DRAINED], ids=name)
def test_busy_is_linear_where_no_drain_rate_is_found(shared_data: Path, pair: tuple[str, str]) -> None:
    """A pacing sender leaves gaps like those behind a queue; a drain rate taken from them would mislead busy."""
    busy, linear = (flows_of(shared_data, pair, method) for method in ("busy", "linear"))
    assert busy["fallback"].startswith(
        ("the drain rate of the queue is not known", "too few references found an empty")
    )
    assert linear["fallback"] is None
    one, other = (
        {flow["key"]: (flow["packets"], flow["mean"], flow["std"]) for flow in found["flows"]}
        for found in (busy, linear)
    )
    assert one == other


@pytest.mark.parametrize("pair", DRAINED, ids=name)
def test_busy_does_no_worse_than_linear_with_a_drain_rate(shared_data: Path, pair: tuple[str, str]) -> None:
    """On one of its paths packets wait although its queue should be empty, so busy only subtracts their sizes."""
    assert "packets waited" in flows_of(shared_data, pair)["fallback"]
    (busy, _), (linear, _) = (means_of(shared_data, pair, method) for method in ("busy", "linear"))
    differ = [key for key in busy if busy[key] != linear[key]]
    assert len(differ) >= 2
    assert np.median(errors(busy[key] for key in differ)) <= 1.1 * np.median(errors(linear[key] for key in differ))
