"""The page of `--html` in a browser, and the delays of `--samples` compared with the truth."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support import command
from tests.support.browser import Browser
from tests.support.html_pages import (
    FLAGS,
    HOSTILE,
    MOST_BYTES,
    NO_NAMES,
    Walk,
    asked_by_the_page,
    browse,
    drawn,
    drawn_well,
    figures,
    saved,
)
from tests.support.simulated_captures import write_simulation
from wirelag import rtt
from wirelag.capture import sample_file
from wirelag.capture.files import Capture
from wirelag.estimators.match import Match
from wirelag.estimators.matchers import MATCHERS
from wirelag.measure.loop import cut
from wirelag.measure.result import Entry
from wirelag.packets.interval import Interval
from wirelag.render.html.charts import over_time, quantiles_of, rounded
from wirelag.render.html.frame import SCRIPTS
from wirelag.render.html.page import Page, View, render
from wirelag.render.rtt import parts_over_time
from wirelag.report import Report
from wirelag.sim import Scenario, simulate
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import LEGS, facts
from wirelag.synopses.timeline import Timeline
from wirelag.units import format_duration

CHARTS = ("cdf", "quantiles-server", "heat-server", "quantiles-client", "heat-client", "groups")


def wirelag(*words: object, code: int = 0) -> str:
    return command.wirelag(*words, code=code).stdout


@dataclass(frozen=True)
class Made:
    capture: Path
    page: Path
    report: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A page of a simulated capture, and the printed JSON."""
    folder = tmp_path_factory.mktemp("page")
    capture, page = folder / "<b>a & b.pcap", folder / "page.html"
    write_simulation(simulate(Scenario(packets=30_000, loss=0.01)), capture)
    printed = wirelag("rtt", capture, "--by", "server", "--above", "50ms", "--html", page, "--format", "json")
    return Made(capture, page, json.loads(printed))


def test_the_page_opens_in_a_browser_without_requests(made: Made, tool: Callable[[str], str], tmp_path: Path) -> None:
    chromium, log = tool("chromium"), tmp_path / "net.json"
    shown = browse(chromium, made.page, tmp_path, "--dump-dom", f"--log-net-log={log}")
    for chart in CHARTS:
        draw = "heat" if chart.startswith("heat") else "points" if chart == "groups" else "line"
        assert f'class="series {draw}"' in drawn(shown, chart), chart
    for q in ("0.5", "0.9", "0.99"):
        assert format_duration(made.report["quantiles"][q] * 1e9) in shown
    assert asked_by_the_page(log) == []


@pytest.mark.acceptance
def test_a_page_with_requests_would_be_found(tool: Callable[[str], str], tmp_path: Path) -> None:
    page, log = tmp_path / "asks.html", tmp_path / "net.json"
    page.write_text("<!DOCTYPE html><link rel=icon href=data:,><img src=http://one.invalid/a.png>"
                    "<script>new Image().src = 'https://two.invalid/'</script>")  # fmt: skip
    flags = [*" ".join(FLAGS).split(), NO_NAMES, f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}"]
    subprocess.run(
        [tool("chromium"), *flags, "--dump-dom", page.as_uri()], capture_output=True, timeout=120, check=True
    )
    assert set(asked_by_the_page(log)) == {"http://one.invalid/a.png", "https://two.invalid/"}


@pytest.mark.acceptance
def test_the_page_is_drawn_in_colour(made: Made, tool: Callable[[str], str], tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(tool("chromium"), made.page, tmp_path, f"--screenshot={picture}", "--window-size=1400,2400")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 100_000  # an empty page has 10 kB


def test_the_page_is_self_contained(made: Made) -> None:
    text = made.page.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    walk = Walk(text)
    assert walk.addresses == []
    assert not {tag for tag, _ in walk.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"@import|url\(", (text.split("<style>")[1].split("</style>")[0]))
    policies = [
        attrs["content"] or "" for _, attrs in walk.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policies[0]


def test_the_numbers_are_readable_without_scripts(made: Made) -> None:
    walk, report = Walk(made.page.read_text(encoding="utf-8")), made.report
    lines = [report, *report["groups"], *report["legs"].values()]
    assert len(report["groups"]) > 20
    for line in lines:
        expected = [line["mean"], line["min"], line["max"], *(line["quantiles"][q] for q in ("0.5", "0.9", "0.99"))]
        expected += line["ci95"].get("mean", [])
        assert {repr(value) for value in expected} <= walk.values
        assert f"{line['samples']:,}" in walk.text
    assert all(group["key"] in walk.text for group in report["groups"])
    assert f"{report['packets']:,}" in walk.text
    assert "above 50 ms" in walk.text


def test_names_and_the_command_line_are_escaped(made: Made) -> None:
    text = made.page.read_text(encoding="utf-8")
    walk = Walk(text)
    assert "<b>" not in text.split("<script>")[0]
    assert made.capture.name in walk.text
    assert f"--html {made.page} --format json" in walk.text


def _entry(name: str, delays_ns: list[int]) -> Entry:
    delays = Distribution()
    delays.add(np.array(delays_ns, np.int64))
    return Entry("group", name, Report("match", "round_trip", **facts(delays)), delays)


def _page(groups: list[Entry], total: Entry) -> str:
    words = "\n".join(HOSTILE)
    second = Interval(10**18, 10**18 + 10**9)
    views = [View("", total, [(second, total.delays)]), *(View(one.key, one) for one in groups)]
    page = Page(title=words, subject=words, views=views, command_line=words, version=words, by=words, notes=HOSTILE)
    return render(replace(page, groups=groups, warnings=HOSTILE, counts=dict.fromkeys(HOSTILE, 7)))


def test_hostile_text_is_escaped(tool: Callable[[str], str], tmp_path: Path) -> None:
    groups = [_entry(name, [10**6 * (i + 1), 2 * 10**6]) for i, name in enumerate(HOSTILE)]
    text = _page(groups, _entry(HOSTILE[0], [10**6, 3 * 10**6]))
    walk = Walk(text)
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)
    assert not {tag for tag, _ in walk.tags} & {"img", "svg", "a", "b"}
    assert not {name for _, attrs in walk.tags for name in attrs if name.startswith("on")}
    for word in HOSTILE:
        assert word in walk.text
    page = tmp_path / "hostile.html"
    page.write_text(text, encoding="utf-8")
    shown = browse(tool("chromium"), page, tmp_path, "--dump-dom")
    ticks = shown.split('id="groups"')[1]
    assert "&lt;img src=x onerror=alert(1)&gt;" in ticks
    assert "example.org" in ticks
    assert not re.search(r"<(img|a)[ >][^<]*(onerror|example)", shown)


def test_bands_are_the_intervals_of_the_rows(made: Made, tmp_path: Path) -> None:
    """Not those of independent samples: the same as JSON has, or none."""
    page = tmp_path / "bands.html"
    printed = wirelag("rtt", made.capture, "--interval", "20s", "--html", page, "--format", "json")
    rows = [row["ci95"]["0.5"] for row in json.loads(printed)["intervals"] if "0.5" in row["ci95"]]
    parts, intervals = parts_over_time(rtt(made.capture, interval="20s"), "server")
    figure = over_time([when for when, _ in parts], quantiles_of(parts), intervals)
    assert rows
    median = figure["panels"][0]["series"][-1]
    assert median["name"] == "p50"
    drawn = {end for end in (*median["low"], *median["high"]) if end is not None}
    assert drawn == {rounded(end) for ends in rows for end in ends}
    assert "Bands are 95% intervals" in page.read_text()
    assert "There are no 95% intervals: these parts are too short" in made.page.read_text()


def test_any_delays_make_a_page(tool: Callable[[str], str], tmp_path: Path) -> None:
    with Browser(tool("chromium"), tmp_path) as browser:
        for i, delays_ns in enumerate(([0], [0, 0, 0], [5], [10**6] * 50, [1, 2**43], [2**62])):
            total = _entry("all", delays_ns)
            text = _page([total], total)
            assert text == _page([total], total)
            drawn_well(browser, saved(text, tmp_path, str(i)), len(figures(text)))
    nothing = _page([], _entry("all", []))
    Walk(nothing)
    assert 'id="figures"' not in nothing


def test_an_empty_page_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    write_simulation(simulate(Scenario(packets=1)), empty)
    wirelag("rtt", empty, "--html", tmp_path / "page.html", "--samples", tmp_path / "none.parquet")
    walk = Walk((tmp_path / "page.html").read_text())
    assert "Nothing could be measured: no request was seen together with its response." in walk.text
    rows = pl.read_parquet(tmp_path / "none.parquet")
    assert rows.height == 0
    assert rows.schema["delay_ns"] == pl.Int64


def test_the_printed_result_does_not_depend_on_the_page(made: Made, tmp_path: Path) -> None:
    for words in (["--format", "json"], ["--interval", "5s"], ["--by", "port", "--format", "csv"]):
        extra = ["--html", tmp_path / "p.html", "--samples", tmp_path / "s.parquet"]
        assert wirelag("rtt", made.capture, *words) == wirelag("rtt", made.capture, *words, *extra)


# ---- over time ----


def _timeline(capture: Path, interval_ns: int | None) -> tuple[Timeline, list[Any]]:
    timeline = Timeline(interval_ns)
    estimator = Match(sinks=(timeline.add,))
    return timeline, list(cut(estimator, {"tap": Capture([str(capture)])}, interval_ns))


@pytest.mark.parametrize("interval_ns", [10**9, 7 * 10**8])
def test_requested_intervals_are_those_of_the_chart(made: Made, interval_ns: int) -> None:
    timeline, expected = _timeline(made.capture, interval_ns)
    for place, leg in enumerate(LEGS):
        parts = [(when, delays) for when, delays in timeline.parts(leg) if delays.samples]
        found = [(when, part.distribution(leg=place)) for when, (part,) in expected]
        found = [(when, delays) for when, delays in found if delays.samples]
        assert [when for when, _ in parts] == [when for when, _ in found]
        for (_, mine), (_, theirs) in zip(parts, found, strict=True):
            assert (mine.weights == theirs.weights).all()


@pytest.mark.every(2)
@pytest.mark.parametrize("duration_s", [0.02, 0.7, 3.0, 60.0, 5_000.0])
def test_any_duration_has_a_good_number_of_parts(tmp_path: Path, duration_s: float) -> None:
    path = tmp_path / "capture.pcap"
    scenario = Scenario(packets=20_000, duration_ns=round(duration_s * 1e9), rtt="constant:1ms")
    write_simulation(simulate(scenario), path)
    timeline, ((_, (total,)),) = _timeline(path, None)
    parts = timeline.parts("server")
    assert 30 <= len(parts) <= 120
    assert len({when.length_ns for when, _ in parts}) == 1
    assert str(parts[0][0].length_ns).rstrip("0") in ("1", "2", "5")
    assert all(one.end_ns == other.start_ns for (one, _), (other, _) in pairwise(parts))
    whole = Distribution()
    for leg in LEGS:
        for _, delays in timeline.parts(leg):
            whole.merge(delays)
    assert (whole.weights == total.distribution().weights).all()


# ---- every sample ----


NETWORKS: tuple[dict[str, float], ...] = (
    {},
    {"loss": 0.02},
    {"reorder": 0.03},
    {"duplicate": 0.05},
    {"loss": 0.02, "reorder": 0.02, "duplicate": 0.02},
    {"loss": 0.1, "reorder": 0.1, "duplicate": 0.1, "ipv6": 0.5},
)


@pytest.mark.every(2)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: "-".join(network) or "clean")
def test_samples_equal_the_truth(tmp_path: Path, network: dict[str, float]) -> None:
    """Every response that the truth can time is timed, from the same request, and no other."""
    simulation = simulate(Scenario(packets=40_000, seed=3, **network))  # type: ignore[arg-type]
    capture, path = tmp_path / "capture.pcap", tmp_path / "samples.parquet"
    write_simulation(simulation, capture)
    wirelag("rtt", capture, "--samples", path, "--quiet")
    samples = pl.read_parquet(path)
    assert samples["response_number"].n_unique() == samples.height
    ends = ["response_number", "response_ns", "leg", "client", "server", "client_port", "server_port"]
    same = [*ends, "request_ns", "delay_ns"]
    truth = simulation.truth.filter(~pl.col("retransmitted"))
    assert samples.join(truth, on=same, how="anti").height == 0  # none wrong
    assert truth.join(samples, on=same, how="anti").height == 0  # none missing


def test_samples_add_up_to_the_report(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    report = json.loads(wirelag("rtt", made.capture, "--samples", path, "--format", "json"))
    samples = pl.read_parquet(path)
    delays = Distribution()
    delays.add(samples.filter(leg="server")["delay_ns"].to_numpy())
    assert {name: report[name] for name in ("samples", "mean", "std", "min", "max", "quantiles")} == {
        name: value for name, value in facts(delays).items() if name != "ci95"
    }
    for leg, numbers in report["legs"].items():
        assert samples.filter(pl.col("leg") == leg).height == numbers["samples"]
    assert set(samples["kind"]) == {"tcp", "dns"} <= set(MATCHERS)
    assert set(samples["capture"]) == {str(made.capture)}
    assert (samples["weight"] == 1).all()
    assert (samples["response_ns"] - samples["request_ns"] == samples["delay_ns"]).all()


def test_many_parts_are_one_file(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_file, "PART_ROWS", 1_000)
    with sample_file.SampleFile(str(tmp_path / "parts.parquet")) as file:
        (_, (total,)), = cut(Match(sinks=(file.add,)), {"tap": Capture([str(made.capture)])})  # fmt: skip
    rows = pl.read_parquet(tmp_path / "parts.parquet")
    assert rows.height == total.distribution().samples > 5_000
    assert rows["response_number"].is_sorted()
    assert [path.name for path in tmp_path.iterdir()] == ["parts.parquet"]


def test_an_unwritable_file_is_one_line(made: Made, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "where"
    for words in (["--html", nowhere], ["--samples", nowhere], ["--html", tmp_path], ["--samples", tmp_path]):
        (line,) = command.wirelag("rtt", made.capture, *words, code=2).stderr.splitlines()
        assert line.startswith(f"wirelag: {words[1]}: ")
    wirelag("rtt", made.capture, "--html", "-", code=2)
    wirelag("rtt", made.capture, "--html", nowhere, "--samples", nowhere, code=2)
    assert list(tmp_path.iterdir()) == []
