"""`wirelag path` on imperfect captures: losses, holes, floods, damage, missing captures."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest

from tests.support.captures import ethernet, ipv4, pcap, udp
from tests.support.path_answers import AC, AD, SLOW, answer, run
from tests.support.router_captures import START_NS, with_prefixes, write_network
from tests.support.topologies import grid
from wirelag import read
from wirelag.network.forwarding import (
    NO_ROUTE,
    NOT_ENTERED,
    NOT_KEPT,
    TWO_ENTRIES,
    UNSEEN,
    Forwarding,
    Prefixes,
    flows_of,
)
from wirelag.network.routes import Routes
from wirelag.network.segments import Segment
from wirelag.network.topology import Topology, read_topology


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_prefixes(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def quiet(net: Path) -> Path:
    write_network(net.parent / "quiet", net)
    return net.parent / "quiet"


def without(folder: Path, target: Path, *gone: str) -> Path:
    """A copy of captures, without some."""
    shutil.copytree(folder, target)
    for name in gone:
        for file in target.glob(name):
            file.unlink()
    return target


# ---- loss ----


def test_packets_that_a_router_drops_count_once(net: Path, tmp_path: Path) -> None:
    """F loses half of its packets to C: paths' shares count packets that entered, not those that left."""
    truth = write_network(tmp_path / "drop", net, packets=12_000, drop={("F", "C"): 0.5})
    found = answer(net, tmp_path / "drop", *AD)
    gone, arrived = truth.gone["A", "D"], len(truth.routes["A", "D"])
    assert found["loss"] == pytest.approx(gone / (gone + arrived), abs=0.03)
    (by_c,) = (path for path in found["paths"] if "C" in path["routers"])
    assert by_c["loss"] == pytest.approx(0.5, abs=0.06)
    (dropped,) = (part for part in found["segments"] if part["segment"] == "F[A>C]")
    assert dropped["lost"] == pytest.approx(truth.lost[Segment.inside("F", "A", "C")], abs=3)


def test_a_black_hole_loses_everything(net: Path, tmp_path: Path) -> None:
    write_network(tmp_path / "hole", net, loss={("F", "C"): 1.0})
    empty = pcap([], magic=0xA1B23C4D)
    (tmp_path / "hole" / "C.in.F.pcap").write_bytes(empty)
    found = answer(net, tmp_path / "hole", *AC)
    (hole,) = (part for part in found["segments"] if part["segment"] == "F>C")
    assert hole["loss"] == found["loss"] == 1
    assert hole["mean"] is None is found["mean"]
    told = run(net, tmp_path / "hole", *AC).stdout
    assert f"F>C: all {hole['sent']:,} packets were lost" in told
    assert "100.00% lost" in told


def test_a_branch_on_which_all_is_lost_stays_a_branch(net: Path, tmp_path: Path) -> None:
    write_network(tmp_path / "hole", net, drop={("F", "C"): 1.0})
    (tmp_path / "hole" / "F.out.C.pcap").write_bytes(pcap([], magic=0xA1B23C4D))
    found = answer(net, tmp_path / "hole", *AD)
    (by_c,) = (path for path in found["paths"] if "C" in path["routers"])
    assert by_c["share"] == pytest.approx(0.25, abs=0.1)  # where the lost packets would have gone is unknown
    assert found["unassigned"]["F"]["reasons"][UNSEEN] > 0


def test_a_path_with_a_gap_reports_no_loss(net: Path, quiet: Path, tmp_path: Path) -> None:
    folder = without(quiet, tmp_path / "gap", "F.out.C.pcap")
    found = answer(net, folder, *AC)
    assert found["loss"] is None
    assert found["missing"] == ["F[A>C]", "F>C"]


# ---- missing captures ----


def test_the_ends_belong_to_a_path_of_captures(net: Path, quiet: Path, tmp_path: Path) -> None:
    folder = without(quiet, tmp_path / "headless", "A.in.pcap")
    found = answer(net, folder, *AC)
    assert (found["complete"], found["missing"]) == (False, ["A[>F]"])


def test_changed_routes_show_also_without_captures_of_a_segment(
    net: Path,
    quiet: Path,
    tmp_path: Path,
) -> None:
    write_network(tmp_path / "failed", read_topology(net).without(("F", "C")))
    assert "left where" in run(net, tmp_path / "failed", *AC).stdout
    told = run(net, quiet, *AC, "--baseline", tmp_path / "failed").stdout
    assert "note: baseline: " in told
    assert "routes have changed" in told


def test_virtual_links_name_what_their_loss_excludes(net: Path, quiet: Path, tmp_path: Path) -> None:
    folder = without(quiet, tmp_path / "few", "[BCF].*")
    told = run(net, folder, *AD).stdout
    assert "A>>D, A>>E: flows of which no packet arrived are not counted as loss" in told or "A>>E, A>>D" in told


def test_warnings_and_what_was_skipped(
    net: Path,
    quiet: Path,
    tmp_path: Path,
) -> None:
    folder = without(quiet, tmp_path / "cut")
    capture = folder / "A.out.F.pcap"
    capture.write_bytes(capture.read_bytes()[:-7])
    found = answer(net, folder, *AC)
    assert found["packets"] > 1000
    assert found["skipped"] == {}
    (warning,) = run(net, folder, *AC).stderr.splitlines()
    assert warning.startswith("warning: ")
    assert "A.out.F.pcap" in warning
    capture.write_bytes(b"no capture at all, but some text")
    told = run(net, folder, *AC, code=2).stderr
    assert "A.out.F.pcap" in told
    assert "leave it out" in told


def test_a_clock_that_is_an_hour_off_does_not_fill_the_screen(net: Path, tmp_path: Path) -> None:
    def at(name: str, mean: float) -> Path:
        content = {"command": "oneway", "quantity": "one_way", "estimator": "join", "samples": 100, "mean": mean}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content | {"std": 1e-6, "min": mean, "ci95": {"mean": [mean, mean]}}))
        return path

    told = run(net, at("A>F", 3600.0), at("F[A>C]", 1e-3), at("F>C", -3600.0), *AC).stdout
    assert all(len(line) < 200 for line in told.splitlines())


@pytest.mark.acceptance
def test_too_many_equal_paths_are_not_listed(tmp_path: Path) -> None:
    square = grid(8)  # 3,432 from corner to corner
    prefixes = {router: [f"10.0.{i}.0/24"] for i, router in enumerate(square.routers)}
    (tmp_path / "net.json").write_text(json.dumps(square.to_json() | {"prefixes": prefixes}), encoding="utf-8")
    write_network(tmp_path / "captures", tmp_path / "net.json", packets=300, pairs=[("0.0", "0.1")])
    told = run(tmp_path / "net.json", tmp_path / "captures", "--from", "0.0").stdout
    assert "0.0 to 0.1" in told
    assert "and 2 more pairs like this: left out" in told


# ---- from ingress to egress ----


def seen(folder: Path, name: str, *flows: tuple[str, int]) -> str:
    """A capture with one packet of each flow, from 10.0.1.1."""
    frames = []
    for address, port in flows:
        target = bytes(map(int, address.split(".")))
        frames.append(ethernet(ipv4(udp(b"x" * 20, (port, 9)), 17, src=b"\x0a\0\1\1", dst=target)))
    path = folder / name
    path.write_bytes(pcap([(START_NS // 10**9 + i, frame, len(frame)) for i, frame in enumerate(frames)]))
    return str(path)


def test_more_reasons_for_packets_without_a_port(net: Path, tmp_path: Path) -> None:
    whole = read_topology(net)
    links = tuple(link for link in whole.links if "B" not in (link.source, link.target))
    topology = Topology(whole.routers, links, whole.prefixes, name="parted")
    forwarding = Forwarding("F", topology, Routes(topology), Prefixes(topology))
    to_b, to_c, to_d = "10.0.2.1", "10.0.3.1", "10.0.4.1"
    for port, flows in (("A", [(to_d, 1), (to_c, 2), (to_b, 3), (to_d, 4)]), ("E", [(to_c, 2)])):
        for batch in read(seen(tmp_path, port, *flows)):
            forwarding.observe("in", port, batch)
    for batch in read(seen(tmp_path, "out", (to_d, 4), (to_c, 5))):
        forwarding.observe("out", "C", batch)
    assert forwarding.reasons() == {"": 1, UNSEEN: 1, TWO_ENTRIES: 2, NO_ROUTE: 1}
    (last,) = read(seen(tmp_path, "last", (to_c, 5)))
    assert forwarding.passage(int(flows_of(last)[0])) == NOT_ENTERED
    assert forwarding.shares("A", "D") == {("F", "C"): 1.5, ("F", "E"): 0.5}  # the whole first flow was lost somewhere


def test_too_many_flows_are_thinned_alike_at_both_ends(net: Path, tmp_path: Path) -> None:
    topology = read_topology(net)
    most, many = 256, 5000
    forwarding = Forwarding("F", topology, Routes(topology), Prefixes(topology), most)
    capture = seen(tmp_path, "many", *(("10.0.3.1", 1 + i) for i in range(many)))
    for way, port in (("in", "A"), ("out", "C")):
        for batch in read(capture):
            forwarding.observe(way, port, batch)
    reasons = forwarding.reasons()
    assert 0 < reasons[""] <= most
    assert reasons[""] + reasons[NOT_KEPT] == many
    passing = sum(len(forwarding.select(batch, "A", "C")) for batch in read(capture))
    assert passing == reasons[""]


def test_memory_per_flow_is_as_documented(net: Path, tmp_path: Path) -> None:
    topology, count = read_topology(net), 20_000
    forwarding = Forwarding("F", topology, Routes(topology), Prefixes(topology))
    batches = list(read(seen(tmp_path, "many", *(("10.0.3.1", 1 + i) for i in range(count)))))
    tracemalloc.start()
    for way, port in (("in", "A"), ("out", "C")):
        for batch in batches:
            forwarding.observe(way, port, batch)
    forwarding.reasons()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 300


def test_slow_segments_before_one_egress_are_reported_as_one(net: Path, tmp_path: Path) -> None:
    write_network(tmp_path / "slow", net, packets=8000, service={SLOW: 0.004})
    (line,) = (one for one in run(net, tmp_path / "slow").stdout.splitlines() if one.startswith("slow: "))
    assert line.startswith("slow: F towards C, on 6 paths: ")
    assert all(name in line for name in ("F[>C] adds", "F[A>C] adds", "F[B>C] adds"))
