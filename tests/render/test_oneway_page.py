"""The page of `wirelag oneway` in a browser: its contents, its gaps, and no network requests."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import Browser
from tests.support.html_pages import (
    HOSTILE,
    MOST_BYTES,
    Walk,
    asked_by_the_page,
    browse,
    drawn,
    drawn_well,
    figures,
    saved,
    series,
)
from wirelag.estimators.join import Join
from wirelag.packets.batch import PacketBatch
from wirelag.render.html.frame import SCRIPTS
from wirelag.render.html.oneway import ClockFit, OnewayPage, SpanEntry, render_oneway
from wirelag.render.html.oneway_charts import MOST_PARTS, MOST_POINTS, clocks, parts, share
from wirelag.render.html.scales import Scale, Times
from wirelag.report import Report
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample
from wirelag.twopoint.spans import spans_between, total

START_NS = 1_700_000_000 * 10**9
SECONDS = 40
PACKETS = 20_000
CHARTS = ("quantiles", "sample", "losses", "delays", "segments", "groups", "clocks")


def made(offset_ns: int = 0, seconds: float = SECONDS, interval_ns: int | None = 10**9) -> OnewayPage:
    """A page of packets between two points; 2% are lost and some overtake others."""
    random = np.random.default_rng(5)
    sent_ns = START_NS + np.sort(random.integers(0, int(seconds * 1e9), PACKETS))
    ids = np.arange(1, PACKETS + 1, dtype=np.uint64)
    arrived_ns = sent_ns + random.lognormal(np.log(1e6), 0.5, PACKETS).astype(np.int64) + offset_ns
    kept = np.flatnonzero(random.random(PACKETS) >= 0.02)
    kept = kept[np.argsort(arrived_ns[kept], kind="stable")]
    batches = {"upstream": [PacketBatch({"time_ns": sent_ns, "packet_id": ids})],
               "downstream": [PacketBatch({"time_ns": arrived_ns[kept], "packet_id": ids[kept]})]}  # fmt: skip
    spans = list(spans_between(Join(), batches, interval_ns))
    entries = [
        SpanEntry(span.interval.start_ns / 1e9, span.interval.end_ns / 1e9, span.whole.report("join")) for span in spans
    ]
    whole = total(spans)[0]
    report = whole.report("join")
    return OnewayPage(
        title="One-way delay",
        subject="a to b",
        command_line="wirelag oneway a b",
        total=report,
        tail=whole.tail,
        spans=entries if interval_ns else [],
        groups=[],
        by="",
        segments=[],
        clock=None,
        counts={"packets": PACKETS},
    )


def fit(offset_s: float = 0.02) -> ClockFit:
    random = np.random.default_rng(6)
    times_s = START_NS / 1e9 + np.arange(3_000) / 100
    delays_s = random.exponential(1e-3, (2, len(times_s)))
    line = np.full(len(times_s), offset_s)
    return ClockFit((times_s, delays_s[0] + line), (times_s, delays_s[1] - line), (times_s, line),
                    [(times_s[1_000], 0.004)], "ahead by 20 ms")  # fmt: skip


def nothing() -> Report:
    return Crossing(3, 0).report("join")


@pytest.fixture(scope="module")
def page() -> OnewayPage:
    page = made()
    slower = replace(page.total, mean=0.005, ci95={"mean": (0.004, 0.006)})
    return replace(page, groups=[("slow", slower), ("fast", page.total), ("none", nothing())], by="server",
                   segments=[("first", page.total), ("second", slower)], clock=fit(),
                   notes=["a note"], warnings=["a warning"])  # fmt: skip


def ticks(shown: str, name: str) -> list[str]:
    """The words at the marks of a chart's axes."""
    return re.findall(r'<text class="tick"[^>]*>([^<]*)', drawn(shown, name))


def test_every_chart_is_drawn_without_requests(page: OnewayPage, tool: Callable[[str], str], tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    text = render_oneway(page)
    path = saved(text, tmp_path)
    shown = browse(tool("chromium"), path, tmp_path, "--dump-dom", f"--log-net-log={log}")
    for name in CHARTS:
        draw = {"sample": "heat", "losses": "bars", "segments": "bars", "groups": "bars", "clocks": "points"}
        assert f'class="series {draw.get(name, "line")}"' in drawn(shown, name), name
    rectangles = re.findall(r"<rect [^>]*>", drawn(shown, "losses"))
    assert len(rectangles) == sum(
        y is not None for panel in (0, 1) for y in series(figures(text)["losses"], panel)[0]["y"]
    )
    assert asked_by_the_page(log) == []


def test_the_page_is_self_contained(page: OnewayPage) -> None:
    text = render_oneway(page)
    assert text == render_oneway(page)
    walk = Walk(text)
    assert walk.addresses == []
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)


def test_the_numbers_have_their_intervals(page: OnewayPage) -> None:
    walk, report = Walk(render_oneway(page)), page.total
    expected = [report.mean, report.std, report.min, report.max, *report.quantiles.values()]
    expected += [end for low_high in report.ci95.values() for end in low_high]
    assert len(report.ci95) == 6
    assert {repr(value) for value in expected} <= walk.values
    for name in ("sent", "received", "lost", "reordered", "duplicated", "used"):
        assert f"{report.details[name]:,}" in walk.text
    for words in ("a note", "a warning", "wirelag oneway a b", "ahead by 20 ms", "no packet was seen"):
        assert words in walk.text
    order = [walk.text.rindex(name) for name in ("slow", "fast")]
    assert order == sorted(order)
    assert '<p class="bad">' not in render_oneway(page)


@pytest.mark.acceptance
def test_negative_delays_are_shown(tool: Callable[[str], str], tmp_path: Path) -> None:
    page = made(offset_ns=-900_000)
    below = page.tail.negative
    assert 0 < below < page.tail.weight
    text = render_oneway(page)
    assert f'<p class="bad">{below:,} of {page.tail.weight:,} delays' in text
    chart = figures(text)
    (red,) = [one for one in series(chart["delays"]) if one.get("name") == "below 0"]
    assert max(red["to"]) == 0
    assert min(red["from"]) < 0
    assert sum(red["y"]) == pytest.approx(below / page.tail.weight, abs=1e-6)
    shown = browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    for name in ("quantiles", "sample"):
        axis = chart[name]["panels"][0]["y"]
        assert axis["scale"] == "signed"
        assert axis["range"][0] < 0 < axis["range"][1]
        assert "0" in ticks(shown, name)
    assert any(word.startswith("-") for word in ticks(shown, "sample"))


@pytest.mark.every(4)
@pytest.mark.parametrize("offset_ns", [-(10**9), -3_600 * 10**9, 10**9, -999_000])
def test_any_offset_has_a_readable_axis(offset_ns: int, tool: Callable[[str], str], tmp_path: Path) -> None:
    text = render_oneway(made(offset_ns, interval_ns=None))
    assert "losses" not in figures(text)
    words = ticks(browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom"), "delays")
    found = [word for word in words if not word.endswith("%")]
    assert 2 <= len(found) <= 20
    assert len(set(found)) == len(found)


@pytest.mark.acceptance
def test_an_empty_page_says_why(tool: Callable[[str], str], tmp_path: Path) -> None:
    empty = OnewayPage(
        title="t",
        subject="s",
        total=nothing(),
        tail=DelaySample.empty(),
        spans=[],
        groups=[],
        by="",
        segments=[],
        clock=None,
    )
    text = render_oneway(empty)
    walk = Walk(text)
    assert "No delay could be measured: no packet was seen downstream." in walk.text
    assert 'id="figures"' not in text
    assert "cannot say" in walk.text
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    unknown = replace(empty, total=Report("lda", "one_way"), segments=[("a", nothing()), ("b", nothing())])
    spans = [SpanEntry(i, i + 1, replace(nothing(), details={})) for i in range(3)]
    text = render_oneway(replace(unknown, spans=spans, groups=[("g", nothing())], clock=replace(fit(), text="why")))
    assert set(figures(text)) == {"losses", "segments", "groups", "clocks"}
    browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")


def test_the_limits_of_a_method_are_stated() -> None:
    page = made()
    details = {**page.total.details, "reordered": None, "duplicated": None}
    spans = [replace(span, report=replace(span.report, details={**span.report.details, "reordered": None}))
             for span in page.spans]  # fmt: skip
    text = render_oneway(replace(page, total=replace(page.total, estimator="lda", details=details), spans=spans))
    assert "lda does not identify packets" in Walk(text).text
    summed = Walk(render_oneway(replace(page, total=replace(page.total, min=None, max=None)))).text
    assert "from sums of delays: uncertainty unknown" in summed
    assert "single delays are unknown" in summed
    lost, reordered = figures(text)["losses"]["panels"]
    assert "note" not in lost
    assert reordered["note"] == "cannot say: lda does not identify packets"
    one = [*spans[:3], page.spans[3], *spans[4:]]
    _, reordered = figures(render_oneway(replace(page, spans=one)))["losses"]["panels"]
    assert "note" not in reordered
    (marks,) = [known for known in reordered["series"] if known["draw"] == "words"]
    assert len(marks["x"]) == len(one) - 1


def test_hostile_text_is_escaped(tool: Callable[[str], str], tmp_path: Path) -> None:
    words = "\n".join(HOSTILE)
    page = made(seconds=3)
    entries = [(word, replace(page.total, reason=word)) for word in HOSTILE]
    entries.append((words, replace(nothing(), reason=words)))
    spans = [replace(span, report=replace(span.report, estimator=words, details={})) for span in page.spans]
    report = replace(page.total, estimator=words, details={"sent": 5})
    hostile = OnewayPage(
        title=words,
        subject=words,
        command_line=words,
        version=words,
        total=report,
        tail=page.tail,
        spans=spans,
        groups=entries,
        by=words,
        segments=entries,
        clock=replace(fit(), text=words),
        notes=HOSTILE,
        warnings=HOSTILE,
        counts=dict.fromkeys(HOSTILE, 7),
    )
    text = render_oneway(hostile)
    walk = Walk(text)
    assert sorted(tag for tag, _ in walk.tags).count("script") == 1 + len(SCRIPTS)
    assert not {tag for tag, _ in walk.tags} & {"img", "svg", "a", "b"}
    assert not {name for _, attrs in walk.tags for name in attrs if name.startswith("on")}
    for word in HOSTILE:
        assert word in walk.text
    shown = browse(tool("chromium"), saved(text, tmp_path), tmp_path, "--dump-dom")
    for name in ("groups", "segments"):
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown.split(f'id="{name}"')[1]
    assert not re.search(r"<(img|a)[ >][^<]*(onerror|example)", shown)


# ---- large input ----


@pytest.mark.acceptance
def test_millions_of_delays_and_a_day_of_seconds_make_a_small_page() -> None:
    random = np.random.default_rng(7)
    count = 1 << 20
    sent_ns = START_NS + np.sort(random.integers(0, 86_400 * 10**9, count))
    delays_ns = random.lognormal(np.log(1e6), 1.0, count).astype(np.int64)
    whole = Crossing(count, count, only_upstream=0)
    whole.add_delays(sent_ns, delays_ns)
    report = whole.report("join")
    second = replace(report, samples=12, details={**report.details, "sent": 12, "lost": 1, "share": 0.25})
    start_s = START_NS / 1e9
    spans = [SpanEntry(start_s + i, start_s + i + 1, second) for i in range(86_400)]
    page = replace(made(interval_ns=None), total=report, tail=whole.tail, spans=spans, clock=fit())
    text = render_oneway(page)
    assert len(text.encode()) < MOST_BYTES / 2
    assert series(figures(text)["sample"])[0]["draw"] == "heat"
    shown = parts(spans, whole.tail)
    assert len(shown) <= MOST_PARTS
    assert shown[0].report.details["sent"] == 12 * 360
    assert shown[0].report.details["lost"] == 360
    assert shown[0].report.details["share"] == 0.25
    assert shown[0].report.mean == pytest.approx(report.mean, abs=0.5e-9 / 12)  # sums are whole ns
    assert shown[0].report.std == pytest.approx(report.std, rel=1e-6)
    mine = delays_ns[sent_ns < START_NS + 360 * 10**9]
    assert shown[0].report.quantiles["0.5"] == np.sort(mine)[len(mine) // 2] / 1e9
    few = figures(render_oneway(replace(page, tail=DelaySample.of(sent_ns[:MOST_POINTS], delays_ns[:MOST_POINTS], 1))))
    assert series(few["sample"])[0]["draw"] == "points"


def test_shares_of_a_sample_have_its_sampling_interval() -> None:
    """Of 10,000 lost packets, a cache that keeps a quarter sees 2,500 +/- 43, and scales them: +/- 173."""
    report = Report("join", "one_way", details={"sent": 10**6, "lost": 10_000, "share": 0.25})
    known = share(report, "lost")
    assert known is not None
    assert known[0] == 0.01
    assert known[1] == pytest.approx(1.96 * np.sqrt(10_000 * 3) / 10**6, rel=1e-3)
    assert share(replace(report, details={"sent": 10**6, "lost": 0}), "lost") == (0.0, 0.0)
    assert share(replace(report, details={"sent": 0, "lost": 0}), "lost") is None
    page = made()
    sampled = [replace(s, report=replace(s.report, details={**s.report.details, "share": 0.5})) for s in page.spans]
    assert ", exact" in render_oneway(page)
    assert "+/-" in Walk(render_oneway(replace(page, spans=sampled))).text.split("All figures")[0]


@pytest.mark.acceptance
def test_any_delays_make_a_page(tool: Callable[[str], str], tmp_path: Path) -> None:
    with Browser(tool("chromium"), tmp_path) as browser:
        for i, delays_ns in enumerate(([0], [-5], [-5, 5], [5] * 40, [-(2**62), 2**62], [0, 0, 7], [-1, 2**50])):
            drawn_well(browser, saved(page_of(delays_ns), tmp_path, str(i)), 5)


def page_of(delays_ns: list[int]) -> str:
    whole = Crossing(len(delays_ns), len(delays_ns))
    whole.add_delays(np.full(len(delays_ns), START_NS), np.array(delays_ns, np.int64))
    report = whole.report("join")
    spans = [SpanEntry(0.0, 1.0, report), SpanEntry(1.0, 2.0, nothing())]
    page = replace(made(), total=report, tail=whole.tail, spans=spans, groups=[("g", report)])
    text = render_oneway(page)
    assert {"quantiles", "sample", "losses", "delays", "groups"} == set(figures(text))
    return text


def test_the_scale_is_linear_around_zero_and_logarithmic_beyond() -> None:
    edges = Scale(1e-3).edges(-0.002, 5.0, 400)
    assert 0.0 in edges
    assert edges[0] <= -0.002
    assert edges[-1] >= 5.0
    small = edges[np.abs(edges) < 1e-4]
    assert np.diff(small) == pytest.approx(np.diff(small)[0], rel=1e-2)
    large = edges[edges > 0.1]
    assert large[1:] / large[:-1] == pytest.approx(large[1] / large[0], rel=1e-3)


def test_a_clock_is_drawn_from_its_own_offset() -> None:
    assert "less" not in clocks(fit())["panels"][0]["y"]["title"]
    far = clocks(fit(offset_s=3_600.0))
    assert far["panels"][0]["y"]["title"].startswith("difference minus ")
    assert max(abs(y) for y in series(far)[0]["y"]) < 0.1
    forward, backward, line = (one["y"] for one in series(clocks(fit())))
    assert min(forward) >= max(line) >= max(backward)
    assert len(forward) <= MOST_POINTS
    nowhere = np.array([np.nan])
    assert clocks(ClockFit((nowhere, nowhere), (nowhere, nowhere), (nowhere, nowhere), [], "")) == {}


def test_a_short_time_is_in_seconds_and_a_long_one_has_a_date() -> None:
    start = START_NS / 1e9
    assert Times(start, start + 100).axis()["kind"] == "time"
    assert Times(start, start + 100).places([start]) == [START_NS / 10**6]
    assert Times(start, start + 1).places([start + 0.25]) == [0.25]
    assert "since 2023-11-14 22:13:20" in Times(start, start + 1).axis()["title"]
