"""The page of `wirelag flows` in a browser: few flows, a million flows, and no network requests."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wirelag
from tests.support import command
from tests.support.frame_captures import write
from tests.support.html_pages import HOSTILE, MOST_BYTES, Walk, asked_by_the_page, browse, figures, saved, series
from tests.support.html_pages import drawn as drawn_in
from wirelag.estimators.rli import Rli
from wirelag.measure.flow_rows import flow_rows
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.render.flows_page import _entry as entry
from wirelag.render.html.flow_charts import MOST_POINTS, NAMED, SLOWEST, Points, drawn, over_time
from wirelag.render.html.flows import FlowsPage, render_flows
from wirelag.render.html.frame import SCRIPTS
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
from wirelag.render.html.scales import Scale
from wirelag.report import Report
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames
from wirelag.synopses.flows import COLUMN, SHOWN, Flows

CHARTS = ("size", "time", "worst", "groups")
SCALE = Scale(None)


@dataclass
class Seen:
    capture: Path
    packets: PacketBatch
    flows: Flows


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    capture = tmp_path_factory.mktemp("flows") / "<b>behind & behind.pcap"
    write(capture, downstream_frames(run(QueueScenario(0.7, seed=3, seconds=0.2))))
    packets = PacketBatch.concatenate(list(wirelag.read(str(capture))))
    return Seen(capture, packets, measured(packets))


def measured(packets: PacketBatch) -> Flows:
    meter = Rli().meter("downstream")
    meter.observe(packets)
    return meter.cut(Interval(0, 1)).merged()


def made(flows: Flows, **others: Any) -> FlowsPage:
    """A page of flows, with the notes of the command."""
    entries = [entry(row) for row in flow_rows(drawn(flows))]
    page = FlowsPage(
        title="Delay of flows",
        subject="behind.pcap",
        command_line="wirelag flows behind.pcap",
        total=flows.report(),
        flows=flows,
        points=entries,
        spans=[],
        groups=[],
        by="flow",
        refused={"repeated": 7},
        rate="2.02 Gbps",
        notes=["a note"],
        warnings=["a warning"],
        counts={"packets": flows.packets},
    )
    return replace(page, **others)


def some(flows: Flows, count: int) -> Flows:
    """A copy of the first records."""
    return replace(flows, records=flows.records[:count].copy())


def many(flows: Flows, count: int) -> Flows:
    """`count` flows made from a few: other keys and sizes, and delays up to twice as long."""
    random = np.random.default_rng(1)
    records = flows.records[random.integers(0, len(flows), count)]
    records[:, COLUMN["key"]] = np.arange(1, count + 1, dtype=np.uint64)
    records[:, COLUMN["bytes"]] *= random.integers(1, 1_000, count).astype(np.uint64)
    records[:, COLUMN["sum_ns"]] += (records[:, COLUMN["sum_ns"]] * random.random(count)).astype(np.uint64)
    return replace(flows, records=records)


# ---- a real run ----


def test_every_chart_is_drawn_without_requests(seen: Seen, tool: Callable[[str], str], tmp_path: Path) -> None:
    path, log = tmp_path / "page.html", tmp_path / "net.json"
    words = ["--interval", "20ms", "--by", "server", "--html", path, "--format", "json"]
    found = json.loads(command.wirelag("flows", seen.capture, *words).stdout)
    shown = browse(tool("chromium"), path, tmp_path, "--dump-dom", f"--log-net-log={log}")
    for name in CHARTS:
        draw = "points" if name in ("size", "time") else "bars"
        assert f'class="series {draw}"' in drawn_in(shown, name), name
    assert asked_by_the_page(log) == []

    text = path.read_text(encoding="utf-8")
    walk, chart = Walk(text), figures(text)
    assert walk.addresses == []
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)
    slowest = found["flows"][0]
    for value in (found["mean"], found["std"], *found["ci95"]["mean"], slowest["mean"], *slowest["ci95"]):
        assert repr(value) in walk.values
    assert f"{found['references']['accepted']:,}" in walk.text
    assert f"the slowest was {slowest['key']} with" in walk.text
    assert all(group["key"] in walk.text for group in found["groups"])
    means = next(one for one in series(chart["time"]) if one.get("name") == "mean of an interval")
    assert means["y"] == pytest.approx([part["mean"] for part in found["intervals"]], rel=1e-5)
    references = next(one for one in series(chart["time"]) if one.get("name") == "references")
    assert len(references["x"]) == found["references"]["accepted"] < SHOWN


def ranked(flows: Flows) -> list[int]:
    """Flows by their mean, the largest first; of fewer than 6 packets it leads no list."""
    figures = zip(flows.column("timed").tolist(), np.nan_to_num(flows.table()["mean"], nan=-1.0).tolist(), strict=True)
    places = [(timed == 0, timed < 6, -mean, row) for row, (timed, mean) in enumerate(figures)]
    return [row for *_, row in sorted(places)]


def test_bars_and_points_are_the_slowest_flows_with_their_intervals(seen: Seen) -> None:
    page = made(seen.flows)
    chart = figures(render_flows(page))
    delays = seen.flows.table()
    order = ranked(seen.flows)[:NAMED]
    assert series(chart["worst"])[0]["x"] == pytest.approx(delays["mean"][order].tolist(), rel=1e-5)
    points = next(one for one in series(chart["size"]) if one["name"] == f"the {NAMED} slowest")
    assert points["y"] == pytest.approx(delays["mean"][order].tolist(), rel=1e-5)
    assert points["high"] == pytest.approx(delays["high"][order], rel=1e-5)
    assert [text.split("\n")[0] for text in points["tips"]] == [name for name, _ in page.points[:NAMED]]
    at = Points.of(drawn(seen.flows))
    assert at.delays_s.tolist() == [report.mean for _, report in page.points]


# ---- few, none, many ----


@pytest.mark.acceptance
def test_a_page_without_flows_says_why(seen: Seen, tool: Callable[[str], str], tmp_path: Path) -> None:
    flows = some(seen.flows, 0)
    total = replace(flows.report(), mean=None, std=None, ci95={}, samples=0, reason="no such flow")
    text = render_flows(made(flows, total=total))
    assert "No delay could be measured: no such flow." in Walk(text).text
    assert set(figures(text)) == {"time"}
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    flows = replace(flows, references_ns=np.empty((0, 2), np.int64))
    assert "figures" not in render_flows(made(flows, total=total))


@pytest.mark.acceptance
@pytest.mark.parametrize("count", [1, 2])
def test_a_page_of_few_flows(seen: Seen, count: int, tool: Callable[[str], str], tmp_path: Path) -> None:
    text = render_flows(made(some(seen.flows, count)))
    chart = figures(text)
    assert set(chart) == {"size", "time", "worst"}
    assert len(series(chart["size"])[0]["x"]) == count
    assert ("the slowest was" in text) == (count > 1)
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")


def test_flows_without_a_delay_are_counted(seen: Seen) -> None:
    flows = some(seen.flows, 50)
    flows.records[:, COLUMN["timed"]] = np.maximum(flows.records[:, COLUMN["timed"]], 1)
    flows.records[:30, COLUMN["timed"]] = 0
    text = render_flows(made(flows))
    assert "30 more had no references around them" in text
    assert len(series(figures(text)["worst"])[0]["x"]) == NAMED


@pytest.mark.acceptance
def test_a_million_flows_make_a_small_page(seen: Seen) -> None:
    flows = many(seen.flows, 1_000_000)
    text = render_flows(made(flows))
    assert len(text.encode()) < MOST_BYTES
    assert sum(len(one["x"]) for one in series(figures(text)["size"])[:2]) == MOST_POINTS
    assert text == render_flows(made(flows))


def test_a_selection_of_many_includes_the_slowest_and_the_largest(seen: Seen) -> None:
    flows = many(seen.flows, 50_000)
    chosen = drawn(flows)
    assert len(chosen) == MOST_POINTS
    keys = set(chosen.column("key").tolist())
    assert len(keys) == MOST_POINTS
    mean = np.nan_to_num(flows.table()["mean"], nan=-1.0)
    assert set(flows.column("key")[ranked(flows)[:SLOWEST]].tolist()) <= keys
    known = np.flatnonzero(mean >= 0)
    largest = known[np.argsort(flows.column("bytes")[known])[::-1][:SLOWEST]]
    assert set(flows.column("key")[largest].tolist()) <= keys
    few = some(flows, 100)
    assert len(drawn(few)) == np.isfinite(few.table()["mean"]).sum()


def test_many_neighbouring_intervals_are_merged(seen: Seen) -> None:
    """Two intervals of 10 and 30 packets: the mean of 40, with independent errors."""
    start = 1_700_000_000.0
    pair = [
        Report("rli", "one_way", samples=10, mean=1e-3, ci95={"mean": (0.9e-3, 1.1e-3)}),
        Report("rli", "one_way", samples=30, mean=2e-3, ci95={"mean": (1.9e-3, 2.1e-3)}),
    ]
    spans = [SpanEntry(start + i, start + i + 1, pair[i % 2]) for i in range(2 * MOST_PARTS)]
    points = Points.of(some(seen.flows, 0))
    empty = np.empty(0)
    (line,) = series(over_time(points, (empty, empty), spans, SCALE, []))
    assert line["y"] == [pytest.approx(1.75e-3)] * MOST_PARTS
    half = np.hypot(10, 30) / 40 * 1e-4
    assert line["high"] == [pytest.approx(1.75e-3 + half)] * MOST_PARTS
    assert line["low"] == [pytest.approx(1.75e-3 - half)] * MOST_PARTS


# ---- clocks ----


@pytest.mark.acceptance
def test_clocks_far_apart_hide_nothing(seen: Seen, tool: Callable[[str], str], tmp_path: Path) -> None:
    apart = 600 * 10**9
    flows = measured(seen.packets.at_times(seen.packets.time_ns + apart))
    assert flows.base_ns == pytest.approx(apart, abs=1_000)
    text = render_flows(made(flows))
    walk = Walk(text)
    assert re.search(r"(599\.99999|600\.00000)\d+ s is subtracted from all delays", walk.text)
    near = series(figures(render_flows(made(seen.flows)))["worst"])[0]["x"]
    far = series(figures(text)["worst"])[0]["x"]
    assert far == pytest.approx(near, abs=(abs(seen.flows.base_ns or 0) + 1) / 1e9 + 1e-6)
    assert repr(flows.report().details["base"]) in walk.values
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")


def test_negative_delays_are_shown(seen: Seen) -> None:
    flows = measured(seen.packets.at_times(seen.packets.time_ns - 500_000))
    below = int((flows.table()["high"] < 0).sum())
    assert 0 < below < len(flows)
    text = render_flows(made(flows))
    assert f'<p class="bad">{below:,} of {len(flows):,} flows are below 0' in text
    axis = figures(text)["size"]["panels"][0]["y"]
    assert axis["scale"] == "signed"
    assert axis["range"][0] < 0 < axis["range"][1]


# ---- foreign text ----


def test_hostile_text_is_escaped(seen: Seen, tool: Callable[[str], str], tmp_path: Path) -> None:
    words = "\n".join(HOSTILE)
    page = made(some(seen.flows, 30))
    assert page.points
    names = [*HOSTILE, words] * 30
    points = [(name, report) for name, (_, report) in zip(names, page.points, strict=False)]
    details = {**page.total.details, "method": words, "fallback": words}
    text = render_flows(
        replace(page, title=words, subject=words, command_line=words, version=words, points=points, groups=points,
                by=words, refused=dict.fromkeys(HOSTILE, 5), rate=words, notes=HOSTILE, warnings=HOSTILE,
                counts=dict.fromkeys(HOSTILE, 7), total=replace(page.total, reason=words, details=details))
    )  # fmt: skip
    walk = Walk(text)
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)
    assert not {tag for tag, _ in walk.tags} & {"img", "svg", "a", "b"}
    assert not {name for _, attrs in walk.tags for name in attrs if name.startswith("on")}
    for word in HOSTILE:
        assert word in walk.text
    shown = browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown.split('id="worst"')[1]
    assert not re.search(r"<(img|a)[ >][^<]*(onerror|example)", shown)
