"""`wirelag path` from reports of other commands: what they contain, what they lack, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import wirelag
from tests.support.path_answers import AC, answer, report, run
from tests.support.router_captures import with_prefixes
from wirelag.network.localise import Figures
from wirelag.network.timeline import together


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_prefixes(tmp_path_factory.mktemp("net"))


@pytest.fixture
def whole(tmp_path: Path) -> list[Path]:
    """Reports of the path from A to C by F."""
    return [report(tmp_path / f"{i}.json", 2e-3, name, floor=1.9e-3) for i, name in enumerate(("A>F", "F[A>C]", "F>C"))]


def intervals(count: int, length: float = 1.0, start: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    return [
        {"start": start + i * length, "end": start + (i + 1) * length, "mean": 2e-3, "samples": 10} | more
        for i in range(count)
    ]


def test_an_untested_segment_is_not_called_innocent(net: Path, whole: list[Path], tmp_path: Path) -> None:
    bare = report(tmp_path / "bare.json", 9e-3, "F[A>C]", ci95={}, floor=1e-3)
    told = run(net, whole[0], bare, whole[2], *AC).stdout
    assert "no measured segment is slow" in told
    assert "cannot tell whether it is slow: F[A>C] adds 8 ms, but its report has no interval of the mean" in told
    assert answer(net, whole[0], bare, whole[2], *AC)["segments"][1]["basis"] is None
    assert "no segment is slow" not in run(net, bare, *AC).stdout


def test_errors_that_assume_independent_packets_say_so(net: Path, whole: list[Path], tmp_path: Path) -> None:
    told = run(net, *whole, *AC).stdout
    assert "* as if packets were independent" in told
    names = ("A>F", "F[A>C]", "F>C")
    timed = [report(tmp_path / f"t{i}.json", 2e-3, name, intervals=intervals(20)) for i, name in enumerate(names)]
    assert "independent" not in run(net, *timed, *AC).stdout
    assert {part["basis"] for part in answer(net, *timed, *AC)["segments"]} == {"intervals"}


def test_scattered_intervals_enlarge_the_error(net: Path, tmp_path: Path) -> None:
    steady = report(tmp_path / "a.json", 2e-3, "F>C", floor=1e-3, intervals=intervals(20))
    wild = [one | {"mean": 1e-3 if i % 8 < 4 else 3e-3} for i, one in enumerate(intervals(20))]
    varying = report(tmp_path / "b.json", 2e-3, "F>C", floor=1e-3, intervals=wild)
    widths = []
    for one in (steady, varying):
        low, high = answer(net, one, *AC)["segments"][0]["ci95"]["mean"]
        widths.append(high - low)
    assert widths[1] > 100 * widths[0]


def test_intervals_without_packets_have_no_mean(net: Path, tmp_path: Path) -> None:
    holes = [one | ({"mean": None, "samples": 0} if i % 2 else {}) for i, one in enumerate(intervals(40))]
    found = answer(net, report(tmp_path / "a.json", 2e-3, "F>C", floor=1e-3, intervals=holes), *AC)
    low, high = found["segments"][0]["ci95"]["mean"]
    assert high - low < 1e-5


def test_a_baseline_from_files(net: Path, whole: list[Path], tmp_path: Path) -> None:
    now = report(tmp_path / "now.json", 9e-3, "F[A>C]", floor=8.9e-3)
    assert answer(net, whole[0], now, whole[2], *AC)["culprits"] == []
    words = [word for one in whole for word in ("--baseline", one)]
    found = answer(net, whole[0], now, whole[2], *AC, *words)
    assert found["culprits"] == ["F[A>C]"]
    assert found["segments"][1]["adds"] == pytest.approx(7e-3)
    other = report(tmp_path / "other.json", 1e-3, "B>A")
    assert "no baseline report is of" in run(net, *whole, *AC, "--baseline", other, code=2).stderr


def test_a_report_of_flows_describes_a_segment(net: Path, tmp_path: Path) -> None:
    """References on a link: `wirelag flows` of a simulated queue."""

    files = [tmp_path / f"{name}.pcap" for name in ("up", "down")]
    wirelag("simulate", "--queue", "0.7", "--duration", "300ms", "-o", files[0], "-o", files[1], "--quiet")
    content = tmp_path / "F>C.json"
    wirelag("flows", files[1], "--format", "json", "-o", content, "--quiet")
    said = json.loads(content.read_text(encoding="utf-8"))
    (part,) = answer(net, content, *AC)["segments"]
    assert part["segment"] == "F>C"
    assert part["mean"] == pytest.approx(said["mean"])


def test_neighbouring_intervals_as_one() -> None:
    one = Figures(1.0, 0.3, 2.0, 0.5, 10, 20, 2, 0.0, 1.0)
    other = Figures(4.0, 0.4, 1.0, 0.2, 30, 40, 4, 1.0, 2.0)
    both = together([one, other])
    assert both.mean == pytest.approx((10 * 1 + 30 * 4) / 40)
    assert both.error == pytest.approx(math.hypot(0.25 * 0.3, 0.75 * 0.4))
    squares = (10 * (4 + 1) + 30 * (1 + 16)) / 40
    assert both.std == pytest.approx(math.sqrt(squares - (both.mean or 0.0) ** 2))
    assert (both.floor, both.samples, both.sent, both.lost, both.start, both.end) == (0.2, 40, 60, 6, 0.0, 2.0)
    assert together([one]) == one
    assert together([Figures(start=0.0, end=1.0), other]).mean == 4.0


def test_the_ends_of_a_path_without_reports_in_between(net: Path, whole: list[Path], tmp_path: Path) -> None:
    told = run(net, *whole, *AC).stdout
    assert "this is from A's egress to C's ingress: neither A nor C has a report of its inside" in told
    first = report(tmp_path / "first.json", 1e-3, "A[>F]")
    assert "this is from A's ingress to C's ingress: C has no report" in run(net, *whole, first, *AC).stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"std": 1e200}, '"std" is too large or too small'),
        ({"mean": 10**400}, '"mean" is too large or too small'),
        ({"std": -1.0}, '"std" is negative'),
        ({"intervals": intervals(3, 1e-200)}, '"end" is not after "start"'),
        ({"intervals": intervals(3, start=1e200)}, '"start" is too large or too small'),
        ({"command": "path"}, "is what wirelag path prints"),
        ({"floor": 3e-3}, "its shortest delay is longer than its mean"),
    ],
)
def test_reports_that_are_refused(net: Path, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    (told,) = run(net, report(tmp_path / "x.json", 2e-3, "F>C", **change), *AC, code=2).stderr.splitlines()
    assert "x.json: " in told
    assert says in told


@pytest.mark.parametrize("name", ["x" * 400, f"F>C={'x' * 400}", "F>C="])
def test_unknown_names(net: Path, name: str) -> None:
    assert len(run(net, name, *AC, code=2).stderr.splitlines()) == 1


@pytest.mark.parametrize(("length", "start", "says"), [(3.0, 0.0, "the same --interval"), (2.0, 0.5, "at other times")])
def test_intervals_must_be_the_same(net: Path, tmp_path: Path, length: float, start: float, says: str) -> None:
    one = report(tmp_path / "a.json", 2e-3, "A>F", estimator="rda", intervals=intervals(6, 2.0))
    other = report(tmp_path / "b.json", 2e-3, "F>C", estimator="rda", intervals=intervals(4, length, start))
    assert says in run(net, one, other, *AC, code=2).stderr


def test_all_paths_of_a_network_that_is_too_large(tmp_path: Path) -> None:
    rows = "\n".join(f"r{i},r{i + 1},1" for i in range(1500))
    (tmp_path / "long.csv").write_text(rows + "\n", encoding="utf-8")
    one = report(tmp_path / "a.json", 2e-3, "r3>r4")
    assert "give --from or --to" in run(tmp_path / "long.csv", one, code=2).stderr
    assert len(answer(tmp_path / "long.csv", one, "--to", "r5")["routes"]) == 4  # from r0 to r3
