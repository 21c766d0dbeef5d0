"""`wirelag path`: from captures at routers, and from reports of segments."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import jsonschema
import polars as pl
import pytest

from tests.support import command
from tests.support.html_pages import browse, drawn, series
from tests.support.path_answers import AC, AD, SCHEMA, SLOW, report
from tests.support.router_captures import START_NS, Truth, with_prefixes, write_network
from wirelag.network.captures import Folder
from wirelag.network.forwarding import ELSEWHERE, NO_PREFIX, OWN, TWO_WAYS, Forwarding, Prefixes, flows_of
from wirelag.network.routes import Routes
from wirelag.network.segments import Segment, parse_segment
from wirelag.network.topology import read_topology


def wirelag(*words: object, code: int = 0) -> str:
    return command.wirelag(*words, code=code).text


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_prefixes(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def slow(net: Path) -> tuple[Path, Truth]:
    folder = net.parent / "slow"
    return folder, write_network(folder, net, service={SLOW: 0.004})


@pytest.fixture(scope="module")
def quiet(net: Path) -> Path:
    write_network(net.parent / "quiet", net)
    return net.parent / "quiet"


@pytest.fixture(scope="module")
def valid() -> Callable[[str], dict[str, Any]]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    def check(text: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(text)
        validator.validate(content)
        assert not validator.is_valid(content | {"more": 1})
        return content

    return check


# ---- captures ----


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", ["join", "lda", "finecomb", "rda"])
def test_the_slow_hop_is_named(
    valid: Callable[[str], dict[str, Any]], net: Path, slow: tuple[Path, Truth], estimator: str
) -> None:
    folder, truth = slow
    found = valid(wirelag("path", net, folder, *AD, "--estimator", estimator, "--format", "json"))
    assert found["culprits"] == ["F[A>C]"]
    delays = truth.delays[Segment.inside("F", "A", "C")]
    culprit = next(one for one in found["segments"] if one["blamed"])
    assert culprit["adds"] == pytest.approx(fmean(delays) - min(delays), rel=0.1)
    assert found["complete"]
    assert found["estimators"] == [estimator]


def test_join_measures_every_segment_to_the_nanosecond(net: Path, slow: tuple[Path, Truth]) -> None:
    folder, truth = slow
    found = json.loads(wirelag("path", net, folder, "--format", "json"))
    parts = {one["segment"]: one for route in found["routes"] for one in route["segments"]}
    assert len(found["routes"]) == 30
    assert set(parts) == {str(segment) for segment in truth.delays}
    for segment, delays in truth.delays.items():
        part = parts[str(segment)]
        assert part["samples"] == len(delays), segment  # both ends counted the same packets
        assert part["mean"] == pytest.approx(fmean(delays), abs=2e-9)
        assert part["floor"] == pytest.approx(min(delays), abs=2e-9)
    assert all(told["share"] == 0 for told in found["unassigned"].values())


def test_equal_paths_mix_by_the_observed_shares(net: Path, slow: tuple[Path, Truth]) -> None:
    folder, truth = slow
    found = json.loads(wirelag("path", net, folder, *AD, "--format", "json"))
    assert found["shares"] == "seen"
    assert {tuple(one["routers"]) for one in found["paths"]} == {("A", "F", "C", "D"), ("A", "F", "E", "D")}
    assert sum(one["share"] for one in found["paths"]) == pytest.approx(1)
    whole = fmean(truth.routes["A", "D"])
    low, high = found["ci95"]["mean"]
    assert low < whole < high
    assert found["mean"] == pytest.approx(whole, rel=0.05)


@pytest.mark.acceptance
def test_nothing_is_blamed_where_nothing_is_slow(net: Path, quiet: Path) -> None:
    for estimator in ("join", "lda", "rda"):
        found = json.loads(wirelag("path", net, quiet, "--estimator", estimator, "--format", "json"))
        assert all(route["culprits"] == [] for route in found["routes"])
    assert "no segment is slow" in wirelag("path", net, quiet, *AD)


def test_two_slow_hops_are_both_named(net: Path, tmp_path: Path) -> None:
    write_network(tmp_path / "two", net, service={("A", "F"): 0.003, ("E", "D"): 0.007})
    found = json.loads(wirelag("path", net, tmp_path / "two", *AD, "--estimator", "rda", "--format", "json"))
    assert set(found["culprits"]) == {"A[>F]", "E[F>D]"}


def test_losses_are_counted_where_they_happen(net: Path, tmp_path: Path) -> None:
    truth = write_network(tmp_path / "lossy", net, loss={("F", "E"): 0.2})
    found = json.loads(wirelag("path", net, tmp_path / "lossy", *AD, "--format", "json"))
    lost = {one["segment"]: one["lost"] for one in found["segments"] if one["lost"]}
    assert set(lost) == {"F>E"}
    # Losses before the first and after the last packet that arrives are outside of the covered time.
    assert lost["F>E"] == pytest.approx(truth.lost[Segment.link("F", "E")], abs=3)
    assert found["loss"] == pytest.approx(
        0.2 * next(p["share"] for p in found["paths"] if "E" in p["routers"]), rel=0.3
    )


def test_routers_without_captures_are_crossed_by_virtual_links(
    net: Path, slow: tuple[Path, Truth], tmp_path: Path
) -> None:
    for file in slow[0].glob("[AED].*"):
        shutil.copy(file, tmp_path)
    found = json.loads(wirelag("path", net, tmp_path, *AD, "--format", "json"))
    assert found["culprits"] == ["A>>D"]
    by_path = {tuple(one["routers"]): one["segments"] for one in found["paths"]}
    assert by_path["A", "F", "C", "D"] == ["A[>F]", "A>>D", "D[C>]"]
    assert by_path["A", "F", "E", "D"] == ["A[>F]", "A>>E", "E[F>D]", "E>D", "D[E>]"]
    assert found["complete"]


def test_a_baseline_shows_what_a_floor_hides(net: Path, quiet: Path, slow: tuple[Path, Truth]) -> None:
    found = json.loads(wirelag("path", net, slow[0], *AD, "--baseline", quiet, "--format", "json"))
    (culprit,) = (one for one in found["segments"] if one["blamed"])
    assert culprit["above"] == "baseline"
    delays = slow[1].delays[Segment.inside("F", "A", "C")]
    assert culprit["adds"] == pytest.approx(fmean(delays), rel=0.01)  # the service time of 4 ms is no longer a floor


@pytest.mark.acceptance
def test_a_changed_delay_is_reported(net: Path, tmp_path: Path) -> None:
    """The second half has a queue that the first has not: two captures, one after the other, in the same files."""
    early, late, whole = tmp_path / "early", tmp_path / "late", tmp_path / "whole"
    write_network(early, net, seed=1, packets=10_000)
    write_network(late, net, seed=2, packets=10_000, service={SLOW: 0.004}, begins_ns=START_NS + 10 * 10**9)
    whole.mkdir()
    for file in early.iterdir():
        (whole / file.name).write_bytes(file.read_bytes() + (late / file.name).read_bytes()[24:])
    found = json.loads(wirelag("path", net, whole, *AD, "--interval", "1s", "--format", "json"))
    first = found["changes"][0]
    assert first["segment"] == "F[A>C]"
    assert START_NS / 1e9 + 10 <= first["at"] <= START_NS / 1e9 + 12
    assert first["difference"] > 0.005
    assert {change["segment"] for change in found["changes"]} == {"F[A>C]"}
    assert len(found["intervals"]) > 5
    assert "moved: F[A>C] got slower" in wirelag("path", net, whole, *AD, "--interval", "1s")


def test_packets_that_leave_the_topology_s_paths(net: Path, tmp_path: Path) -> None:
    """Captures after a link failed, with the earlier topology."""
    truth = read_topology(net).without(("F", "C"))
    write_network(tmp_path / "failed", truth)
    assert "A to C: mean at least" in wirelag("path", net, tmp_path / "failed", "--from", "A", "--to", "C")
    found = json.loads(wirelag("path", net, tmp_path / "failed", *AD, "--format", "json"))
    strays = found["unassigned"]["F"]["reasons"]
    assert strays[ELSEWHERE] > 0
    assert any("routes have changed" in note for note in found["notes"])
    new = tmp_path / "new.json"
    new.write_text(json.dumps(truth.to_json()), encoding="utf-8")
    after = json.loads(wirelag("path", new, tmp_path / "failed", *AD, "--format", "json"))
    assert all(told["share"] == 0 for told in after["unassigned"].values())
    assert [one["routers"] for one in after["paths"]] == [["A", "F", "E", "D"]]


def test_a_topology_that_changes_half_way(net: Path, tmp_path: Path) -> None:
    early, late, whole = tmp_path / "early", tmp_path / "late", tmp_path / "whole"
    write_network(early, net, seed=1)
    write_network(late, read_topology(net).without(("F", "C")), seed=2, begins_ns=START_NS + 10 * 10**9)
    whole.mkdir()
    for file in early.iterdir():
        more = late / file.name
        (whole / file.name).write_bytes(file.read_bytes() + (more.read_bytes()[24:] if more.exists() else b""))
    told = wirelag("path", net, whole, *AD)
    assert "left by several ports" in told
    (note,) = (line for line in told.splitlines() if line.startswith("note: ") and " F " in line)
    assert "routes have changed; use captures and a topology of the same time" in note


def test_a_path_that_the_topology_does_not_have(tmp_path: Path) -> None:
    links = [{"source": "A", "target": "B"}, {"source": "C", "target": "D"}]
    (tmp_path / "net.json").write_text(json.dumps({"links": links}), encoding="utf-8")
    told = wirelag("path", tmp_path / "net.json", report(tmp_path / "a.json", 1e-3, "A>B"), *AD, code=2)
    assert "there is no path from A to D" in told
    assert len(told.splitlines()) == 1


# ---- from ingress to egress ----


def test_flows_are_assigned_to_ports_by_forwarding_and_sightings(net: Path, slow: tuple[Path, Truth]) -> None:
    from wirelag import read

    topology = read_topology(net)
    folder, routes = Folder(str(slow[0]), topology), Routes(topology)
    forwarding = Forwarding("F", topology, routes, Prefixes(topology))
    for way in ("in", "out"):
        for port in folder.ports("F", way):
            for batch in read(folder.files[port]):
                forwarding.observe(way, port.neighbour, batch)
    for port in folder.ports("F", "in"):
        for batch in read(folder.files[port]):
            for flow in set(flows_of(batch).tolist()):
                told = forwarding.passage(flow)
                assert isinstance(told, tuple)
                assert told[0] == port.neighbour
    assert forwarding.reasons().keys() == {""}


def test_reasons_for_packets_without_a_port(net: Path, tmp_path: Path) -> None:
    from tests.support.captures import ethernet, ipv4, pcap, udp
    from wirelag import read

    def seen(name: str, *ends: tuple[str, int]) -> Path:
        frames = []
        for address, port in ends:
            target = bytes(map(int, address.split(".")))
            frames.append(ethernet(ipv4(udp(b"x" * 20, (port, 9)), 17, src=b"\x0a\0\1\1", dst=target)))
        path = tmp_path / name
        path.write_bytes(pcap([(i, frame, len(frame)) for i, frame in enumerate(frames)]))
        return path

    topology = read_topology(net)
    forwarding = Forwarding("F", topology, Routes(topology), Prefixes(topology))
    to_c, to_d, nowhere, hello = "10.0.3.1", "10.0.4.1", "192.0.2.1", "224.0.0.5"
    entering = seen("in", (to_c, 1), (to_c, 2), (to_c, 3), (to_d, 4), (to_d, 5), (nowhere, 6), (hello, 7))
    for batch in read(str(entering)):
        forwarding.observe("in", "A", batch)
    for batch in read(str(seen("c", (to_c, 1), (to_c, 3), (to_d, 5)))):
        forwarding.observe("out", "C", batch)
    for batch in read(str(seen("e", (to_c, 2), (to_c, 3)))):
        forwarding.observe("out", "E", batch)
    reasons = forwarding.reasons()
    assert reasons[""] == 2  # (to_c, 1) by forwarding; (to_d, 5), with two equal next hops, by where it was seen
    assert reasons[ELSEWHERE] == 1
    assert reasons[TWO_WAYS] == 1
    assert reasons[NO_PREFIX] == 1
    assert reasons[OWN] == 1
    assert reasons.total() == 7


# ---- reports ----


@pytest.fixture
def reports(tmp_path: Path) -> list[str]:
    """Reports of the path from A to C by F, whose link F>C is slow."""
    return [
        str(report(tmp_path / "a.json", 2e-3, "A>F", floor=1.99e-3)),
        f"F[A>C]={report(tmp_path / 'b.json', 1e-4, min=0.99e-4)}",
        str(report(tmp_path / "F>C.json", 7e-3, min=1e-3)),
    ]


def test_a_report_names_its_segment_in_three_ways(
    valid: Callable[[str], dict[str, Any]], net: Path, reports: list[str]
) -> None:
    found = valid(wirelag("path", net, *reports, *AC, "--format", "json"))
    assert [one["segment"] for one in found["segments"]] == ["A>F", "F[A>C]", "F>C"]
    assert found["mean"] == pytest.approx(9.1e-3)
    assert found["culprits"] == ["F>C"]
    assert found["complete"]
    assert found["shares"] == "even"


def test_every_format(net: Path, reports: list[str], tmp_path: Path) -> None:
    table = wirelag("path", net, *reports, *AC)
    assert "slow: F>C adds 6 ms" in table
    rows = [json.loads(line) for line in wirelag("path", net, *reports, *AC, "--format", "jsonl").splitlines()]
    assert [row["segment"] for row in rows] == ["A>F", "F[A>C]", "F>C"]
    wirelag("path", net, *reports, *AC, "--format", "csv", "-o", tmp_path / "x.csv")
    wirelag("path", net, *reports, *AC, "--format", "parquet", "-o", tmp_path / "x.parquet")
    for frame in (pl.read_csv(tmp_path / "x.csv"), pl.read_parquet(tmp_path / "x.parquet")):
        assert frame["adds"].to_list() == pytest.approx([1e-5, 1e-6, 6e-3])
    assert "-o" in wirelag("path", net, *reports, *AC, "--format", "parquet", code=2)


def test_agreements(net: Path, reports: list[str]) -> None:
    assert "mean<10ms: holds" in wirelag("path", net, *reports, *AC, "--sla", "mean<10ms")
    assert "does not hold" in wirelag("path", net, *reports, *AC, "--sla", "mean<5ms", code=3)
    assert "only the mean" in wirelag("path", net, *reports, *AC, "--sla", "p99<5ms", code=2)
    wirelag("path", net, *reports, "--sla", "mean<5ms", code=2)
    lower_bound = wirelag("path", net, *reports[:1], *AC, "--sla", "mean<10ms", "--sla", "mean<1ms", code=3)
    assert "mean<10ms: cannot say" in lower_bound
    assert "mean<1ms: does not hold" in lower_bound


def test_a_missing_part_makes_the_sum_a_lower_bound(net: Path, reports: list[str]) -> None:
    told = wirelag("path", net, *reports[:1], *AC)
    assert "at least 2 ms" in told
    assert "no report of F[A>C], F>C: the sum is a lower bound" in told


def test_every_path_that_reports_cover(valid: Callable[[str], dict[str, Any]], net: Path, reports: list[str]) -> None:
    found = valid(wirelag("path", net, *reports, "--to", "C", "--format", "json"))
    assert [(one["from"], one["complete"]) for one in found["routes"]] == [("A", True), ("B", False), ("F", False)]
    assert "slow: F>C adds 6 ms" in wirelag("path", net, *reports)


def test_a_page_is_written(net: Path, reports: list[str], slow: tuple[Path, Truth], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    wirelag("path", net, *reports, *AC, "--html", page)
    assert "<strong>F&gt;C</strong> adds the delay" in page.read_text(encoding="utf-8")
    wirelag("path", net, slow[0], *AD, "--interval", "500ms", "--html", page)
    text = page.read_text(encoding="utf-8")
    figures = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    assert set(figures) == {"network", "segments", "segments1", "time"}
    classes = {one["name"]: one["tips"] for one in series(figures["network"]) if "name" in one}
    assert [tip.split("\n")[0] for tip in classes["slow"]] == ["F[A>C]"]  # the queue is towards C
    assert set(classes["on the path"]) == set("ACDEF")
    steps = series(figures["segments"])
    total = sum(steps[0]["x"]) + sum(steps[1]["x"])
    assert total == pytest.approx(steps[1]["base"][-1] + steps[1]["x"][-1], rel=1e-4)  # steps follow one another
    wirelag("path", net, slow[0], "--html", page)
    assert "Every path" in page.read_text(encoding="utf-8")


def test_the_page_opens_in_a_browser_whatever_routers_are_called(tool: Callable[[str], str], tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>".replace(">", "\N{FULLWIDTH GREATER-THAN SIGN}") + "</script"
    network, page = tmp_path / "net.json", tmp_path / "page.html"
    links = [{"source": "A", "target": evil, "weight": 1}, {"source": evil, "target": "C", "weight": 1}]
    network.write_text(json.dumps({"links": links}), encoding="utf-8")
    times = [{"start": float(i), "end": i + 1.0, "mean": 0.002, "ci95": {"mean": [1e-3, 3e-3]}} for i in range(40)]
    files = [
        report(tmp_path / f"{i}.json", 2e-3, segment, intervals=times)
        for i, segment in enumerate((f"A>{evil}", f"{evil}[A>C]", f"{evil}>C"))
    ]
    wirelag("path", network, *files, *AC, "--html", page)
    shown = browse(tool("chromium"), page, tmp_path, "--dump-dom")
    for name in ("segments", "time"):
        assert 'class="series ' in drawn(shown, name), name
    assert "<img" not in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "A", "--to", "Q"], "there is no router Q"),
        (["--from", "A", "--to", "B"], "no report is of a segment on the path from A to B"),
        (["--slow", "0s"], "longer than 0"),
        (["--interval", "1s"], "reports have their own intervals"),
        (["--estimator", "best"], "is not one of"),
    ],
)
def test_wrong_arguments(net: Path, reports: list[str], words: list[str], says: str) -> None:
    assert says in wirelag("path", net, *reports, *words, code=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"segment": "A>Z"}, "there is no router Z"),
        ({"segment": "A>C"}, "has no link from A to C"),
        ({"segment": "A=C"}, "is not a segment"),
        ({"segment": None}, "does not name its segment"),
        ({"quantity": "round_trip", "command": "rtt"}, "is what wirelag rtt prints"),
        ({"quantity": None}, "not a report of a segment"),
        ({"mean": None, "reason": "one point saw no packet"}, "one point saw no packet"),
        ({"mean": "fast"}, '"mean" is not a number'),
        ({"sent": -1}, '"sent" is not a count'),
        ({"intervals": [1]}, "is not an object"),
        ({"segment": "F>C"}, "are both of segment F>C"),
    ],
)
def test_reports_that_do_not_fit(
    net: Path, reports: list[str], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    bad = report(tmp_path / "bad.json", 1e-3, "A>B", **change)
    told = wirelag("path", net, *reports, bad, *AC, code=2)
    assert says in told
    assert len(told.splitlines()) == 1


def test_reports_of_different_times(net: Path, tmp_path: Path) -> None:
    def at(name: str, segment: str, start: float, length: float) -> Path:
        ends = [{"start": start + i * length, "end": start + (i + 1) * length, "mean": 1e-3} for i in range(3)]
        return report(tmp_path / name, 1e-3, segment, intervals=ends)

    first, later = at("a.json", "A>F", 0.0, 1.0), at("b.json", "F>C", 100.0, 1.0)
    assert "ends before" in wirelag("path", net, first, later, *AC, code=2)
    longer = at("c.json", "F>C", 0.0, 10.0)
    assert "the same --interval" in wirelag("path", net, first, longer, *AC, code=2)


def test_invalid_folders(net: Path, quiet: Path, tmp_path: Path) -> None:
    assert "holds no captures of ports" in wirelag("path", net, tmp_path, *AC, code=2)
    assert "name nothing else" in wirelag("path", net, quiet, quiet, *AC, code=2)
    for name, says in (
        ("A.in.Z.pcap", "there is no router Z"),
        ("A.out.C.pcap", "has no link from A to C"),
        ("all.pcap", "does not tell the port"),
    ):
        folder = tmp_path / name.removesuffix(".pcap")
        folder.mkdir()
        (folder / name).write_bytes(b"")
        assert says in wirelag("path", net, folder, *AC, code=2)
    bare = tmp_path / "bare.json"
    content = json.loads(net.read_text(encoding="utf-8"))
    bare.write_text(json.dumps({"routers": content["routers"], "links": content["links"]}), encoding="utf-8")
    assert "has no prefixes" in wirelag("path", bare, quiet, *AC, code=2)


def test_oneway_writes_what_path_reads(net: Path, slow: tuple[Path, Truth], tmp_path: Path) -> None:
    folder, truth = slow
    ends = str(folder / "F.out.C.pcap"), str(folder / "C.in.F.pcap")
    for estimator in ("join", "lda"):
        file = tmp_path / f"{estimator}.json"
        words = ("--direction", "10.0.0.0/8>", "--clock", "none", "--estimator", estimator, "--format", "json")
        wirelag("oneway", *ends, *words, "--segment", "F>C", "-o", file)
        content = json.loads(file.read_text(encoding="utf-8"))
        delays = truth.delays[parse_segment("F>C")]
        assert content["segment"] == "F>C"
        assert content["floor"] == pytest.approx(min(delays), abs=1e-7)
        found = json.loads(wirelag("path", net, file, *AC, "--format", "json"))
        assert found["segments"][0]["mean"] == pytest.approx(fmean(delays), abs=1e-7)
    assert "is not a segment" in wirelag("oneway", *ends, "--segment", "F-C", code=2)
