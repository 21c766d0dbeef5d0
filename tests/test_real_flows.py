"""`wirelag flows --upstream` on real captures of two points: flows against the join of all packets."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EVERY = 20  # the default
FEWEST = 5  # packets of a flow whose mean is compared
MPTCP = "mptcpanalyzer-0.3.2"
HOME = "smart-home-firewall"
# Delays keep from packet to packet here: they come from queues.
ALIKE = [
    (f"{MPTCP}/{one}", f"{MPTCP}/{other}")
    for client, server in (
        ("client_1_tcp_only.pcap.gz", "server_1_tcp_only.pcap.gz"),
        ("client_2_filtered.pcapng.gz", "server_2_filtered.pcapng.gz"),
    )
    for one, other in ((client, server), (server, client))
]
# And not here: a router at home that looks at each packet by itself, which takes it 10 to 300 us.
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
    done = subprocess.run(
        [sys.executable, "-m", "wirelag.cli", *map(str, words), "--format", "json", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def flows_of(folder: Path, pair: tuple[str, str], method: str = "busy") -> dict[str, Any]:
    up, down = (folder / "twopoint" / path for path in pair)
    return answer("flows", down, "--upstream", up, "--method", method)


def errors_of(folder: Path, pair: tuple[str, str], method: str = "busy") -> tuple[float, float]:
    """In the median over flows: how wrong their means are, and how wrong the mean of all would be."""
    up, down = (folder / "twopoint" / path for path in pair)
    joined = answer("oneway", up, down, "--by", "flow", "--most-groups", "100000")
    true = {group["key"]: group["mean"] for group in joined["groups"] if group["mean"]}
    means = [
        (flow["mean"], true[key])
        for flow in flows_of(folder, pair, method)["flows"]
        if (key := flow["key"].rpartition(" ")[0]) in true and flow["packets"] >= FEWEST and flow["mean"] is not None
    ]
    assert means
    found, known = np.array(means).T
    return float(np.median(np.abs(found / known - 1))), float(np.median(np.abs(joined["mean"] / known - 1)))


@pytest.mark.parametrize("pair", ALIKE, ids=name)
def test_flows_are_near_the_join_where_neighbours_are_alike(shared_data: Path, pair: tuple[str, str]) -> None:
    """Within 15%, and twice as near as the mean of all packets: what the method promises of real queues."""
    error, of_the_mean = errors_of(shared_data, pair)
    assert error <= 0.15
    assert 2 * error <= of_the_mean


@pytest.mark.parametrize("pair", ALIKE + UNLIKE, ids=name)
def test_references_are_few_and_in_no_flow(shared_data: Path, pair: tuple[str, str]) -> None:
    found = flows_of(shared_data, pair)
    used, counts = found["references"]["accepted"], found["counts"]
    packets = used + sum(found["references"]["rejected"].values()) + counts["regular"]
    assert 0 < used <= packets / EVERY + 1
    assert sum(flow["packets"] for flow in found["flows"]) == counts["regular"]


@pytest.mark.parametrize("pair", UNLIKE, ids=name)
def test_where_neighbours_are_not_alike_it_is_said(shared_data: Path, pair: tuple[str, str]) -> None:
    (note,) = [line for line in flows_of(shared_data, pair)["notes"] if "near each other" in line]
    assert "no better than their mean" in note


@pytest.mark.parametrize("pair", ALIKE, ids=name)
def test_where_they_are_alike_nothing_is_said(shared_data: Path, pair: tuple[str, str]) -> None:
    assert not [line for line in flows_of(shared_data, pair)["notes"] if "near each other" in line]


@pytest.mark.parametrize("pair", ALIKE + UNLIKE, ids=name)
def test_busy_does_no_worse_than_linear(shared_data: Path, pair: tuple[str, str]) -> None:
    """A sender that paces leaves gaps like those behind a queue: a drain rate read off them would mislead busy."""
    busy, linear = (errors_of(shared_data, pair, method)[0] for method in ("busy", "linear"))
    assert busy <= 1.1 * linear
