"""The pages of `wirelag response` in a browser: one direction, both directions, small and large input."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wirelag
from tests.support import command
from tests.support.html_pages import HOSTILE, MOST_BYTES, Walk, asked_by_the_page, browse, figures, saved, series
from tests.support.html_pages import drawn as drawn_in
from tests.support.places import DATA, ROOT
from tests.support.simulated_captures import write_simulation
from wirelag.estimators.pirate import Pirate
from wirelag.measure.groups import Groups
from wirelag.measure.response import result_of
from wirelag.measure.response_heard import GROUPS as RESPONSE_GROUPS
from wirelag.measure.response_heard import ResponseSettings
from wirelag.render.html.frame import SCRIPTS
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
from wirelag.render.html.page import MOST_BARS
from wirelag.render.html.response import WAY_OUT, ResponsePage, render_response
from wirelag.render.html.response_charts import COLOURS, MOST_POINTS, SLOWEST, drawn, height, over_time
from wirelag.render.response_page import _own, parts_of
from wirelag.sim import Scenario, simulate
from wirelag.synopses.epochs import MEANING, REASONS, Epochs

MIRROR = DATA / "response.pcap.gz"
S = 10**9


@dataclass
class Run:
    page: Path
    log: Path
    shown: str
    found: dict[str, Any]


@pytest.fixture(scope="module")
def epochs() -> Epochs:
    meter = Pirate().meter("tap")
    for batch in wirelag.read(str(MIRROR)):
        meter.observe(batch)
    return meter.finish()


def made(epochs: Epochs, interval_ns: int | None = None, by: str = "server", **others: Any) -> ResponsePage:
    """A page of epochs, with the notes of the command."""
    groups = Groups(by, RESPONSE_GROUPS)
    result = result_of(epochs, ResponseSettings(groups=groups, interval_ns=interval_ns))
    nothing = replace(epochs, rows=epochs.rows[:0]).report()
    spans = [
        SpanEntry(when.start_ns / 1e9, when.end_ns / 1e9, entry.report if entry else nothing)
        for when, entry in parts_of(result)
    ]
    page = ResponsePage(
        title="Response latency",
        subject="mirror.pcap",
        command_line="wirelag response mirror.pcap",
        total=result.report,
        epochs=epochs,
        spans=spans,
        groups=[(entry.key, entry.report) for entry in result.groups],
        by=by,
        notes=["a note"],
        warnings=["a warning"],
        counts={"packets": epochs.packets},
    )
    return replace(page, **others)


def opened(folder: Path, chromium: str, capture: Path, *words: str) -> Run:
    """The command's page as a browser shows it, and the printed JSON."""
    page, log = folder / "page.html", folder / "net.json"
    found = json.loads(command.wirelag("response", capture, *words, "--html", page, "--format", "json").stdout)
    shown = browse(chromium, page, folder, "--dump-dom", f"--log-net-log={log}")
    return Run(page, log, shown, found)


# ---- one direction ----


def test_every_chart_is_drawn_without_requests(tool: Callable[[str], str], tmp_path: Path) -> None:
    ran = opened(tmp_path, tool("chromium"), MIRROR, "--interval", "1s")
    assert asked_by_the_page(ran.log) == []
    time = drawn_in(ran.shown, "time")
    assert COLOURS <= time.count('class="series points"') <= 2 * COLOURS  # some servers have no estimate of one kind
    assert time.count('class="series line"') == 2
    assert 'class="series heat"' in time
    assert 'class="series bars"' in drawn_in(ran.shown, "groups")

    text = ran.page.read_text(encoding="utf-8")
    walk, chart, found = Walk(text), figures(text), ran.found
    assert walk.addresses == []
    for value in (found["mean"], found["think"], found["network"], *found["ci95"]["mean"]):
        assert repr(value) in walk.values
    for group in found["groups"]:
        assert group["key"] in walk.text
        assert group["mean"] is None or repr(group["mean"]) in walk.values
    assert f"{found['answered']:,} of {found['epochs']:,} epochs" in walk.text
    for reason in found["abstained"]:
        assert MEANING[reason] in walk.text
        assert WAY_OUT[reason] in walk.text
    line = series(chart["time"])[-1]
    assert line["name"] == series(chart["time"], 1)[-1]["name"] == "mean over time"
    means = [part["mean"] for part in found["intervals"]]
    assert [y for y in line["y"] if y is not None] == pytest.approx([x for x in means if x is not None], rel=1e-5)


def test_points_are_the_answered_epochs_by_server(epochs: Epochs) -> None:
    chart = figures(render_response(made(epochs)))["time"]
    rows = epochs.rows[epochs.rows["count"] > 0]
    points = [one for one in series(chart) if one["draw"] == "points"]
    assert sum(len(one["x"]) for one in points) == len(rows)
    assert sorted(y for one in points for y in one["y"]) == pytest.approx(
        sorted(rows["sum_ns"] / rows["count"] / 1e9), rel=1e-5
    )
    assert len({one["colour"] for one in points}) == len(points) == 3  # servers
    for one in points:
        assert all(one["name"] in text for text in one["tips"])


def test_the_strip_accounts_for_every_epoch(epochs: Epochs) -> None:
    page = made(epochs)
    panel = figures(render_response(page))["time"]["panels"][-1]
    (strip,) = panel["series"]
    names = panel["y"]["names"]
    assert names[0] == "answered"
    assert set(names[1:]) == set(page.total.details["abstained"])
    shares = np.array(strip["z"], float)
    used = np.array([span.report.details["epochs"] > 0 for span in page.spans])
    assert np.nansum(shares, axis=0)[used] == pytest.approx(1, abs=1e-4)
    counted = sum(int(words.split()[1].replace(",", "")) for line in strip["tips"] for words in line if words)
    assert counted == len(epochs)
    assert len(strip["x"]) == len(page.spans) + 1


def test_every_reason_has_advice() -> None:
    assert set(WAY_OUT) == set(MEANING) == set(REASONS[1:])


# ---- few, none, many ----


@pytest.mark.acceptance
def test_a_page_without_results_says_why(epochs: Epochs, tool: Callable[[str], str], tmp_path: Path) -> None:
    silent = epochs.of(np.flatnonzero(epochs.rows["count"] == 0))
    text = render_response(made(silent))
    walk = Walk(text)
    assert "No latency could be estimated: no epoch has an estimate." in walk.text
    assert set(figures(text)) == {"time"}
    assert [one["draw"] for one in series(figures(text)["time"])] == ["heat"]
    assert "10.5.0.100:8443" in walk.text
    shown = browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    assert 'class="series heat"' in drawn_in(shown, "time")


def test_a_page_without_epochs(epochs: Epochs) -> None:
    text = render_response(made(replace(epochs, rows=epochs.rows[:0])))
    assert "no request was seen" in text
    assert 'id="figures"' not in text


@pytest.mark.acceptance
def test_a_page_of_one_epoch(epochs: Epochs, tool: Callable[[str], str], tmp_path: Path) -> None:
    text = render_response(made(epochs.of(np.flatnonzero(epochs.rows["count"] > 0)[:1])))
    assert "too few flows for an interval" in text
    assert "Every epoch has an estimate." in text
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")


def many(epochs: Epochs, count: int, seconds: int) -> Epochs:
    """`count` epochs made from a few: other flows and servers, spread over the time."""
    rng = np.random.default_rng(1)
    rows = epochs.rows[rng.integers(0, len(epochs), count)]
    rows["key"] = np.arange(count)
    rows["dst_low"] += rng.integers(0, 5_000, count).astype(np.uint64)
    later = rng.integers(0, seconds * S, count)
    rows["start_ns"] += later
    rows["end_ns"] += later
    return replace(epochs, rows=rows)


@pytest.mark.acceptance
def test_two_hundred_thousand_epochs_make_a_small_page(epochs: Epochs) -> None:
    crowd = many(epochs, 200_000, 86_400)
    page = made(crowd, 60 * S)
    text = render_response(page)
    assert len(text.encode()) < MOST_BYTES
    chart = figures(text)
    points = [one for one in series(chart["time"]) if one["draw"] == "points"]
    assert sum(len(one["x"]) for one in points) == MOST_POINTS
    assert points[0]["name"] == "other servers"
    assert len(points) == COLOURS + 1
    assert len(series(chart["groups"])[0]["x"]) == MOST_BARS
    assert len(page.spans) <= MOST_PARTS
    assert text == render_response(page)


def test_the_slowest_are_always_drawn(epochs: Epochs) -> None:
    crowd = many(epochs, 20_000, 60)
    rows = crowd.rows[crowd.rows["count"] > 0]
    slowest = rows["key"][np.argsort(-(rows["sum_ns"] / rows["count"]), kind="stable")[:SLOWEST]]
    chosen = drawn(crowd)
    assert len(chosen) == MOST_POINTS == len(np.unique(chosen.rows["key"]))
    assert set(slowest.tolist()) <= set(chosen.rows["key"].tolist())
    assert (chosen.rows["count"] > 0).all()


def test_a_pause_is_a_gap(epochs: Epochs) -> None:
    """The same epochs twice, an hour apart: no line joins them."""
    later = epochs.rows.copy()
    later["start_ns"] += 3_600 * S
    later["end_ns"] += 3_600 * S
    page = made(replace(epochs, rows=np.concatenate([epochs.rows, later])))
    assert 2 < len(page.spans) <= MOST_PARTS
    assert {round(b.start_s - a.end_s, 6) for a, b in pairwise(page.spans)} == {0.0}
    figure = over_time(page.epochs, page.spans)
    line = next(one for one in series(figure) if one["name"] == "mean over time")
    known = [y is not None for y in line["y"]]
    assert known[0]
    assert known[-1]
    assert sum(known) <= 4
    assert height(page.epochs) > 400


# ---- both directions ----


def test_a_page_of_both_directions_shows_the_parts_of_times(tool: Callable[[str], str], tmp_path: Path) -> None:
    capture = tmp_path / "<b>both & both.pcap"
    write_simulation(simulate(Scenario(packets=8_000)), capture)
    ran = opened(tmp_path, tool("chromium"), capture)
    assert ran.found["estimator"] == "pairs"
    assert asked_by_the_page(ran.log) == []
    for name in ("cdf", "split", "quantiles", "heat", "groups"):
        assert 'class="series ' in drawn_in(ran.shown, name), name
    text = ran.page.read_text(encoding="utf-8")
    walk = Walk(text)
    assert "round trips" not in walk.text
    timed, exchanges = ran.found["samples"], ran.found["exchanges"]
    of = f" (of {exchanges:,} exchanges)" if exchanges > timed else ""
    assert f"{timed:,} responses{of} took at most" in walk.text
    for name in ("network", "server", "transfer", "think"):
        assert repr(ran.found[name]) in walk.values
    bars = {one["name"]: one["x"] for one in series(figures(text)["split"])}
    known = [ran.found, *ran.found["groups"]][: MOST_BARS + 1]
    for name in ("network", "server", "transfer"):
        assert bars[name][0] == pytest.approx(known[0][name], rel=1e-5)
        assert len(bars[name]) == len([one for one in known if one["samples"]])


# ---- foreign text ----


def test_hostile_text_is_escaped(epochs: Epochs, tool: Callable[[str], str], tmp_path: Path) -> None:
    words = "\n".join(HOSTILE)
    page = made(epochs)
    groups = [(name, page.groups[0][1]) for name in (*HOSTILE, words)]
    abstained = {**page.total.details["abstained"], **dict.fromkeys(HOSTILE, 3)}
    text = render_response(
        replace(page, title=words, subject=words, command_line=words, version=words, groups=groups, by=words,
                notes=HOSTILE, warnings=HOSTILE, counts=dict.fromkeys(HOSTILE, 7),
                total=replace(page.total, reason=words, details={**page.total.details, "abstained": abstained}))
    )  # fmt: skip
    walk = Walk(text)
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)
    assert not {tag for tag, _ in walk.tags} & {"img", "svg", "a", "b"}
    assert not {name for _, attrs in walk.tags for name in attrs if name.startswith("on")}
    for word in HOSTILE:
        assert word in walk.text
    shown = browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    assert "&lt;img src=x onerror=alert(1)&gt;" in drawn_in(shown, "groups")
    assert not re.search(r"<(img|a)[ >][^<]*(onerror|example)", shown)


def test_each_server_has_its_own_charts() -> None:
    """A server of the list shows its own distribution and time line: of its responses, and no others."""
    result = wirelag.response(str(ROOT / "docs" / "guides" / "data" / "web.pcap.gz"), by="server")
    shown = [entry for entry in result.groups if entry.report.samples and entry.report.estimator == "pairs"]
    assert len(shown) > 1
    own = _own(result, {entry.key for entry in shown})
    assert own is not None
    for entry in shown:
        parts = own(entry)
        assert parts is not None
        assert parts.whole.samples == entry.report.samples
        assert (parts.whole.mean_ns or 0) / 1e9 == pytest.approx(entry.report.mean)
    page = result.to_html()
    names = re.findall(r'<option value="\d+">([^<]+)</option>', page)
    assert names == [entry.key for entry in shown[:MOST_BARS]]
    assert page.count('data-own="') == len(names)
    assert f'"own-time-{len(names) - 1}"' in page
