"""The Python API: what a call returns is what the command prints, whatever form the packets come in."""

import io
import json
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import wirelag
from tests.support.command import wirelag as command
from tests.support.places import DATA
from tests.support.simulated_captures import write_simulation
from wirelag.errors import SettingError
from wirelag.measure.result import Entry, Result
from wirelag.sim import Scenario, simulate

MIRROR = DATA / "response.pcap.gz"
BOTH = DATA / "clients.pcap.gz"
SIX = DATA / "six.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    write_simulation(simulate(Scenario(packets=6_000, seed=1)), folder / "capture.pcap")
    two = simulate(Scenario(packets=6_000, seed=2, points=2, clock_offset_ns=2_000 * 10**9, loss=0.01))
    write_simulation(two, folder / "up.pcap", folder / "down.pcap")
    queue = ("simulate", "--queue", "0.8", "--duration", "100ms", "--quiet")
    command(*queue, "-o", folder / "before.pcap", "-o", folder / "behind.pcap")
    return folder


def printed(*words: Any) -> str:
    return command(*words, "--format", "json").stdout


def as_json(result: Result) -> str:
    return "".join(result.to_json_text())


CALLS: list[tuple[Callable[[Path], Result], tuple[str, ...]]] = [
    (lambda at: wirelag.rtt(at / "capture.pcap"), ("rtt", "capture.pcap")),
    (
        lambda at: wirelag.rtt(at / "capture.pcap", by="server", interval="10s", above=["1ms"], sla="p99<1s"),
        ("rtt", "capture.pcap", "--by", "server", "--interval", "10s", "--above", "1ms", "--sla", "p99<1s"),
    ),
    (lambda at: wirelag.rtt(at / "capture.pcap", memory="16KiB"), ("rtt", "capture.pcap", "--memory", "16KiB")),
    (lambda at: wirelag.response(MIRROR, interval="auto"), ("response", str(MIRROR), "--interval", "auto")),
    (lambda at: wirelag.response(BOTH, by="flow"), ("response", str(BOTH), "--by", "flow")),
    (lambda at: wirelag.oneway(at / "up.pcap", at / "down.pcap"), ("oneway", "up.pcap", "down.pcap")),
    (
        lambda at: wirelag.oneway(at / "up.pcap", at / "down.pcap", estimator="lda", interval=10**10, by="source"),
        ("oneway", "up.pcap", "down.pcap", "--estimator", "lda", "--interval", "10s", "--by", "source"),
    ),
    (
        lambda at: wirelag.flows(at / "behind.pcap", upstream=at / "before.pcap"),
        ("flows", "behind.pcap", "--upstream", "before.pcap"),
    ),
    (lambda at: wirelag.flows(at / "behind.pcap", by="client"), ("flows", "behind.pcap", "--by", "client")),
    (lambda at: wirelag.plan(SIX, upgrade=2, fail=["A-B"]), ("plan", str(SIX), "--upgrade", "2", "--fail", "A-B")),
    (lambda at: wirelag.info(at / "capture.pcap"), ("info", "capture.pcap")),
    (lambda at: wirelag.info(at / "up.pcap", at / "down.pcap"), ("info", "up.pcap", "down.pcap")),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_result_is_the_json_of_its_command(made: Path, number: int) -> None:
    """Byte for byte, but for the folder that captures are named with."""
    call, words = CALLS[number]
    result = call(made)
    placed = [str(made / word) if (made / word).is_file() else word for word in words]
    assert as_json(result) == printed(*placed)
    assert json.loads(json.dumps(result.to_dict())) == json.loads(as_json(result))


def test_the_clock_of_the_readmes_pair_is_found(made: Path) -> None:
    result = wirelag.oneway(made / "up.pcap", made / "down.pcap")
    assert abs(result.clock.offset_ns - 2_000 * 10**9) < 10**6
    assert 0 < (result.mean or 0) < 0.01
    assert as_json(result) == printed("oneway", made / "up.pcap", made / "down.pcap")


def test_path_and_compare(made: Path, tmp_path: Path) -> None:
    for segment in ("A>F", "F>C"):
        report = wirelag.oneway(made / "up.pcap", made / "down.pcap", segment=segment)
        (tmp_path / f"{segment}.json").write_text(as_json(report))
    reports = [tmp_path / "A>F.json", tmp_path / "F>C.json"]
    found = wirelag.path(reports, topology=SIX, source="A", target="C")
    assert as_json(found) == printed("path", SIX, *reports, "--from", "A", "--to", "C")
    again = wirelag.compare(reports[0], wirelag.oneway(made / "up.pcap", made / "down.pcap"))
    assert not again.is_worse
    assert as_json(again) == printed("compare", reports[0], reports[0])


# ---- sources ----


def test_whatever_holds_the_packets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made / "capture.pcap"
    plain = wirelag.rtt(str(path)).to_dict()
    assert len(plain["slowest"]) == 5
    with path.open("rb") as file:
        assert wirelag.rtt(file).to_dict() == plain
    assert wirelag.rtt(io.BytesIO(path.read_bytes())).to_dict() == json.loads(
        json.dumps(plain).replace(str(path), "open file")
    )
    assert wirelag.rtt([path]).to_dict() == plain
    assert wirelag.rtt(wirelag.read(str(path))).to_dict() == plain
    assert wirelag.rtt(list(wirelag.read(str(path)))).to_dict() == plain
    assert wirelag.rtt(batch for batch in wirelag.read(str(path))).to_dict() == plain
    monkeypatch.chdir(made)
    assert wirelag.rtt("capt*.pcap").to_dict() == json.loads(json.dumps(plain).replace(str(path), path.name))


def test_filters_are_for_packets_that_are_not_read_yet(made: Path) -> None:
    path, dns = str(made / "capture.pcap"), wirelag.Filter.parse(ports=(53,))
    some = wirelag.rtt(path, filter=dns)
    assert some.to_dict() == wirelag.rtt(wirelag.read(path, filter=dns)).to_dict()
    with pytest.raises(wirelag.WirelagError, match=r"pass filter and tunnels to wirelag\.read"):
        wirelag.rtt(wirelag.read(path), filter=dns)


@pytest.mark.parametrize("interval", ["20s", timedelta(seconds=20), 20 * 10**9])
def test_durations_have_three_forms(made: Path, interval: Any) -> None:
    assert wirelag.rtt(made / "capture.pcap", interval=interval).intervals[0].report.interval.length_ns == 20 * 10**9


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda at: wirelag.rtt(at / "capture.pcap", by="country"), "by: 'country' is not one of flow, client"),
        (lambda at: wirelag.rtt(at / "capture.pcap", interval=0), "interval: must be longer than 0"),
        (lambda at: wirelag.rtt(at / "capture.pcap", ipv4_prefix=33), "ipv4_prefix: 33 is not between 0 and 32"),
        (lambda at: wirelag.rtt(at / "capture.pcap", group_memory=0), "group_memory: must be at least 1MiB"),
        (lambda at: wirelag.rtt(at / "capture.pcap", sla="p99>1s"), "sla: 'p99>1s' is not a question"),
        (lambda at: wirelag.response(at / "capture.pcap", epoch="20s"), "epoch: must be at most 17s"),
        (lambda at: wirelag.oneway(at / "up.pcap", at / "down.pcap", estimator="best"), "estimator: 'best' is not"),
        (lambda at: wirelag.flows(at / "behind.pcap", hold=0.0), "hold: must be above 0 and at most 1"),
        (lambda at: wirelag.flows(at / "behind.pcap", hold=2.0), "hold: '2.0' is not a share"),
    ],
)
def test_a_wrong_value_is_named(made: Path, call: Callable[[Path], Result], says: str) -> None:
    with pytest.raises(SettingError) as error:
        call(made)
    assert str(error.value).startswith(says)


def test_what_is_not_there(made: Path) -> None:
    with pytest.raises(wirelag.WirelagError, match="there is no such file"):
        wirelag.rtt(made / "nowhere.pcap")
    with pytest.raises(wirelag.WirelagError, match="no file has such a name"):
        wirelag.rtt(str(made / "*.none"))
    with pytest.raises(wirelag.WirelagError, match="needs two points"):
        wirelag.oneway(made / "up.pcap")


# ---- what a result offers ----


def test_figures_rows_and_samples(made: Path) -> None:
    result = wirelag.rtt(made / "capture.pcap", by="server", samples=True)
    assert result.quantile(0.5) == result.report.quantiles["0.5"]
    assert result.report.quantiles["0.5"] < (result.quantile(0.75) or 0) < result.report.quantiles["0.9"]
    rows = result.to_polars()
    assert rows.filter(scope="group").height == sum(len(group.legs) for group in result.groups)
    assert set(rows["leg"]) == {"server", "client"}
    assert result.samples is not None
    assert result.samples.to_polars().filter(leg="server").height == result.report.samples
    assert str(result) == "\n".join(result.table())


def test_a_page_and_a_cell_of_a_notebook(made: Path, tmp_path: Path) -> None:
    result = wirelag.rtt(made / "capture.pcap", interval="10s")
    page = result.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    assert "Over time" in page
    assert result._repr_html_().startswith("<iframe srcdoc=")
    assert "&lt;pre&gt;" in wirelag.info(made / "capture.pcap")._repr_html_()


def test_without_charts_less_is_kept(made: Path) -> None:
    peaks = []
    for charts in (True, False):
        tracemalloc.start()
        wirelag.rtt(made / "capture.pcap", charts=charts)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0]


# ---- agreements, of everything and of each group ----


def test_agreements_are_asked_of_both_legs_of_every_group(made: Path) -> None:
    limit_s = 0.040
    result = wirelag.rtt(made / "capture.pcap", by="server", sla="p90<40ms", above="20ms")

    def slow(legs: dict[str, Entry]) -> bool:
        return any((leg.report.quantiles["0.9"] or 0) >= limit_s for leg in legs.values())

    failing = {entry.key for entry in result.groups if slow(entry.legs)}
    assert {entry.key for entry in result.groups if entry.verdicts.fail} == failing
    assert 0 < len(failing) < len(result.groups)
    assert result.total.verdicts.fail is slow(result.total.legs)
    plain = {group["key"]: group for group in result.to_dict()["groups"]}
    assert all(plain[key]["sla"][0]["holds"] is (key not in failing) for key in plain)
    assert all(len(plain[key]["above"]) == 1 for key in plain)
    assert any(f"does not hold for {len(failing)} of {len(plain)} groups" in note for note in result.notes)


def test_groups_fail_an_agreement_that_holds_in_total(made: Path) -> None:
    plain = wirelag.rtt(made / "capture.pcap", by="server")
    total = max(leg.report.quantiles["0.5"] or 0 for leg in plain.total.legs.values())
    slowest = plain.groups[0].legs["server"].report.quantiles["0.5"] or 0
    limit = f"p50<{(total + slowest) / 2 * 1e6:.0f}us"
    command("rtt", made / "capture.pcap", "--sla", limit, code=0)
    command("rtt", made / "capture.pcap", "--sla", limit, "--by", "server", code=3)


def test_agreements_of_responses_are_of_all_unless_groups_are_asked_for() -> None:
    plain = wirelag.response(BOTH)
    slowest = max(entry.report.mean or 0 for entry in plain.groups)
    limit = f"mean<{((plain.mean or 0) + slowest) / 2 * 1e6:.0f}us"
    assert wirelag.response(BOTH, sla=limit).holds
    assert not wirelag.response(BOTH, sla=limit, by="server").holds


@pytest.mark.parametrize(
    "words",
    [("rtt", "capture.pcap"), ("response", str(MIRROR)), ("oneway", "up.pcap", "down.pcap"), ("flows", "behind.pcap")],
)
def test_values_of_agreements_are_seconds(made: Path, words: tuple[str, ...]) -> None:
    placed = [made / word if (made / word).is_file() else word for word in words]
    found = json.loads(printed(*placed, "--sla", "mean<1h"))
    assert found["sla"][0]["value"] == pytest.approx(found["mean"])
