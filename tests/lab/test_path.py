"""`wirelag path` on real routers: which segments are blamed, for how much, and none when nothing is slow.

The truth is the captures: every packet at both taps of a segment, joined without the package.
"""

import json
import random
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.routers import Routers
from lab.traffic import Traffic
from tests.support import command
from tests.support.effort import ALONE
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.places import SIX_ROUTERS as SIX
from tests.support.router_taps import WITH_ROUTERS, delays_ms, passed
from wirelag.network.topology import read_topology

pytestmark = [IN_LAB, WITH_ROUTERS]
ESTIMATORS = ("lda", "rda")
SHORT = Traffic(seconds=1.5)
RUNS = 20
SLOW_S = 1e-3  # a segment may add this
CLOSE = 0.1  # relative error of what a culprit adds


@pytest.fixture(scope="module")
def routers() -> Iterator[Routers]:
    with Routers("path", read_topology(SIX)) as routers:
        yield routers


@pytest.fixture(scope="module")
def slow(routers: Routers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    routers.record(folder, 1, [("F", "C")], SHORT)
    return folder


@pytest.fixture(scope="module")
def quiet(routers: Routers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiet")
    routers.record(folder, 1, traffic=SHORT)
    return folder


def wirelag(folder: Path, *options: str, database: Path | None = None, code: int = 0) -> str:
    return command.wirelag("path", database or folder / "ospf.json", folder / "captures", *options, code=code).text


def answer(folder: Path, estimator: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wirelag(folder, "--estimator", estimator, "--format", "json", *options))
    return found


def parts(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The segments of every route, by name."""
    return {part["segment"]: part for route in found.get("routes", [found]) for part in route["segments"]}


def taps(segment: str) -> tuple[str, str]:
    """The two taps of a segment: `F[A>C]`, `F>C`."""
    router, _, inside = segment.rstrip("]").partition("[")
    if not inside:
        source, target = router.split(">")
        return f"{source}.out.{target}", f"{target}.in.{source}"
    before, after = inside.split(">")
    return f"{router}.in.{before}".rstrip("."), f"{router}.out.{after}".rstrip(".")


def adds_s(folder: Path, segment: str) -> float:
    """The mean delay beyond the minimum, by the exact join."""
    delays = delays_ms(folder, *taps(segment)) / 1e3
    return float(delays.mean() - delays.min())


def no_other_blamed(folder: Path, blamed: Iterable[str], queued: Collection[str] = ()) -> None:
    """No other segment is blamed, unless a busy machine was slow itself and the captures show it."""
    others = {name: adds_s(folder, name) for name in set(blamed) - set(queued)}
    assert not [name for name, added in others.items() if ALONE or added < (1 - CLOSE) * SLOW_S], others


def blamed_right(folder: Path, estimator: str, queues: list[tuple[str, str]]) -> None:
    """Every segment with a queue is blamed, for the delay of the exact join; no other is."""
    found = parts(answer(folder, estimator))
    queued = {
        name
        for name in found
        for router, neighbour in queues
        if name.startswith(f"{router}[") and name.endswith(f">{neighbour}]")
    }
    assert queued
    assert queued <= {name for name, part in found.items() if part["blamed"]}
    no_other_blamed(folder, (name for name, part in found.items() if part["blamed"]), queued)
    for name in queued:
        exact = adds_s(folder, name)
        print(f"{estimator} {name}: {found[name]['adds']:.6f} s, exactly {exact:.6f} s")
        assert found[name]["adds"] == pytest.approx(exact, rel=CLOSE)


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_slow_hop_is_named(estimator: str, slow: Path) -> None:
    blamed_right(slow, estimator, [("F", "C")])
    found = answer(slow, estimator, "--from", "A", "--to", "C")
    assert found["culprits"][0] == "F[A>C]"
    no_other_blamed(slow, found["culprits"], ["F[A>C]"])
    assert found["missing"] == []
    assert all(told["share"] == 0 for told in found["unassigned"].values())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_paths_are_taken_apart(estimator: str, slow: Path) -> None:
    """From A to D: after F by C, which is slow, or by E."""
    found = answer(slow, estimator, "--from", "A", "--to", "D")
    assert found["culprits"][0] == "F[A>C]"
    no_other_blamed(slow, found["culprits"], ["F[A>C]"])
    whole = passed(slow, "A.in").join(passed(slow, "D.out"), on="packet_id", suffix="_out")
    by_path = {tuple(path["routers"]): path for path in found["paths"]}
    assert set(by_path) == {("A", "F", "C", "D"), ("A", "F", "E", "D")}
    for routers, path in by_path.items():
        took = whole.join(passed(slow, f"F.out.{routers[2]}"), on="packet_id", how="semi")
        assert path["share"] == pytest.approx(len(took) / len(whole), abs=1e-9)
        means = [delays_ms(slow, *taps(segment)).mean() / 1e3 for segment in path["segments"]]
        assert path["mean"] == pytest.approx(sum(means), rel=0.02)
    end_to_end = (whole["time_ns_out"] - whole["time_ns"]).to_numpy() / 1e9
    assert found["mean"] == pytest.approx(sum(path["share"] * path["mean"] for path in by_path.values()))
    # The segments' means include other packets, which a busy machine delays by other amounts.
    assert not ALONE or found["mean"] == pytest.approx(end_to_end.mean(), rel=0.25)


@pytest.mark.acceptance
@pytest.mark.every(3)
@pytest.mark.parametrize("estimator", [*ESTIMATORS, "join"])
def test_nothing_is_blamed_when_nothing_is_slow(estimator: str, quiet: Path) -> None:
    found = answer(quiet, estimator)
    assert len(found["routes"]) == 30
    no_other_blamed(quiet, (name for name, part in parts(found).items() if part["blamed"]))


@pytest.mark.acceptance
def test_a_link_fails(slow: Path, tmp_path: Path) -> None:
    """A new database and new captures give new segments; a mix of old and new is reported."""
    command = [sys.executable, "-m", "lab", "routers", str(SIX), "-o", str(tmp_path), "--seed", "2", "--seconds", "1.5"]
    subprocess.run([*command, "--fail", "C", "F", "--slow", "F", "E"], cwd=ROOT, check=True)
    for estimator in ESTIMATORS:
        blamed_right(tmp_path, estimator, [("F", "E")])
    found = answer(tmp_path, "lda", "--from", "A", "--to", "C")
    assert [path["routers"] for path in found["paths"]] == [["A", "F", "E", "C"]]
    assert "E[F>C]" in parts(found)
    old = wirelag(tmp_path, "--from", "A", "--to", "C", database=slow / "ospf.json")
    assert "no report of F[A>C], F>C" in old
    new = wirelag(slow, "--from", "A", "--to", "C", database=tmp_path / "ospf.json", code=2)
    assert len(new.splitlines()) == 1
    assert "has no link from F to C" in new


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_queue_at_a_random_port_is_found(seed: int, routers: Routers, tmp_path: Path) -> None:
    port = random.Random(seed).choice(sorted(Traffic().loads(routers.topology)))
    routers.record(tmp_path, 100 + seed, [port])
    for estimator in ESTIMATORS:
        blamed_right(tmp_path, estimator, [port])


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(5))
def test_two_queues_are_both_found(seed: int, routers: Routers, tmp_path: Path) -> None:
    ports = random.Random(seed).sample(sorted(Traffic().loads(routers.topology)), 2)
    routers.record(tmp_path, 200 + seed, ports)
    for estimator in ESTIMATORS:
        blamed_right(tmp_path, estimator, ports)


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_drops_packets_is_found(seed: int, routers: Routers, tmp_path: Path) -> None:
    routers.record(tmp_path, 400 + seed, [("F", "C")], busy=0.8, longest_ms=15)
    entered, left = (
        {
            number
            for tap in (tmp_path / "captures").glob(f"F.{way}*")
            for number in passed(tmp_path, tap.stem)["packet_id"]
        }
        for way in ("in", "out")
    )
    assert len(entered - left) > 50
    for estimator in ESTIMATORS:
        blamed_right(tmp_path, estimator, [("F", "C")])
        found = parts(answer(tmp_path, estimator))
        assert sum(found[f"F[{before}>C]"]["lost"] for before in ("", "A", "B")) == len(entered - left)


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(5))
def test_quiet_networks_never_have_a_culprit(seed: int, routers: Routers, tmp_path: Path) -> None:
    routers.record(tmp_path, 300 + seed)
    for estimator in ESTIMATORS:
        blamed = [name for name, part in parts(answer(tmp_path, estimator)).items() if part["blamed"]]
        assert blamed == []
