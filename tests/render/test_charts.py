"""Charts in a browser: numbers, marks of axes, tooltips, zoom, legend, keys, colours, and room for every text."""

import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.html_pages import MOST_BYTES, saved
from wirelag.collector.serve import OWN
from wirelag.render.html.charts import spoken
from wirelag.render.html.frame import SCRIPTS, Frame, asset, chart, document
from wirelag.units import format_duration, format_size

NOON = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000  # ms, a day's noon in UTC
NAMES = ["a name that is far too long for the margin of any chart on a small screen", "<b>bold</b>", "short"]


def linear(low: float, high: float, kind: str = "count", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "range": [low, high], "title": kind, **more}


LINES: dict[str, Any] = {
    "x": linear(NOON, NOON + 9_000, "time"),
    "hover": "x",
    "panels": [
        {
            "y": {"kind": "delay", "scale": "log", "range": [1e-4, 1], "title": "delay"},
            "series": [
                {"draw": "line", "name": "p50", "colour": "c1", "mark": "circle",
                 "x": [NOON + 1_000 * i for i in range(10)],
                 "y": [1e-3, 2e-3, None, None, 5e-3, 6e-3, 7e-3, 8e-3, 9e-3, 1e-2],
                 "low": [5e-4, 1e-3, *[None] * 4, 6e-3, *[None] * 3],
                 "high": [2e-3, 4e-3, *[None] * 4, 9e-3, *[None] * 3]},
                {"draw": "line", "name": "p99", "colour": "c3", "x": [NOON, NOON + 9_000], "y": [0.1, 0.2]},
            ],
        },
    ],
}  # fmt: skip
BARS: dict[str, Any] = {
    "x": linear(0, 1, "delay"),
    "panels": [
        {
            "y": {"kind": "rows", "names": NAMES},
            "stack": True,
            "series": [
                {"draw": "bars", "along": "x", "name": "one", "colour": "c1", "x": [0.1, 0.2, None], "y": [0, 1, 2]},
                {"draw": "bars", "along": "x", "name": "two", "colour": "c2", "x": [0.5, 0.3, 0.25], "y": [0, 1, 2]},
            ],
        }
    ],
}
HEAT: dict[str, Any] = {
    "x": linear(0, 4, "seconds"),
    "panels": [
        {
            "y": {"kind": "delay", "scale": "log", "range": [1e-3, 8e-3], "title": "delay"},
            "series": [{"draw": "heat", "x": [0, 1, 2, 3, 4], "y": [1e-3, 2e-3, 4e-3, 8e-3], "log": True, "most": 100,
                        "unit": "packets", "z": [[0, 1, 2, 0], [100, 0, 0, 7], [0, 0, 1234, 0]]}],
        }
    ],
}  # fmt: skip
OVERLAPPING = """[...document.querySelectorAll('.plot')].flatMap(svg => {
const boxes = [...svg.querySelectorAll('.tick')].map(text => [text.textContent, text.getBoundingClientRect()]);
return boxes.filter(([, a], i) => boxes.some(([, b], j) => j > i && a.left < b.right && b.left < a.right &&
a.top + 4 < b.bottom && b.top + 4 < a.bottom)).map(([text]) => text)})"""
FIGURES = {"lines": LINES, "bars": BARS, "heat": HEAT}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    body = "".join(chart(name, f"Chart {name}", "") for name in FIGURES)
    text = document(Frame(title="t", subject="s"), body, FIGURES)
    assert len(text) < 100_000 < MOST_BYTES  # what every page costs, besides its data
    return saved(text, tmp_path_factory.mktemp("charts"))


@pytest.fixture(scope="module")
def shared(tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tool("chromium"), tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(shared: Browser, page: Path) -> Iterator[Browser]:
    """The page as when it is first opened, 1,000 pixels wide."""
    narrowed(shared, 1_000)
    shared.call("Emulation.setEmulatedMedia", features=[])
    shared.open(page.as_uri())
    shared.until("document.readyState === 'complete' && document.querySelectorAll('.plot .series').length === 5")
    yield shared
    assert shared.problems == []


def narrowed(browser: Browser, width: int) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=1_400, deviceScaleFactor=1, mobile=False)


def at(browser: Browser, name: str, x: float, y: float) -> dict[str, float]:
    """The place of two values in the first panel of a chart, on the screen."""
    place: dict[str, float] = browser.ask(
        f"""(() => {{const c = document.getElementById('{name}').chart, box = c.svg.getBoundingClientRect();
        return {{x: box.left + c.left + c.x.at({x}), y: box.top + c.panels[0].top + c.panels[0].y.at({y})}}}})()"""
    )
    return place


def mouse(browser: Browser, kind: str, place: dict[str, float], clicks: int = 1, held: int = 0) -> None:
    button = "none" if kind == "mouseMoved" and not held else "left"
    browser.call("Input.dispatchMouseEvent", type=kind, button=button, buttons=held, clickCount=clicks, **place)


def dragged(browser: Browser, start: dict[str, float], end: dict[str, float]) -> None:
    mouse(browser, "mousePressed", start)
    mouse(browser, "mouseMoved", end, held=1)
    mouse(browser, "mouseReleased", end)


def tip(browser: Browser, name: str) -> list[str] | None:
    """The lines of a tooltip; None if there is none."""
    lines: list[str] | None = browser.ask(
        f"(t => t.hidden ? null : [...t.children].map(one => one.textContent))(document.querySelector('#{name} .tip'))"
    )
    return lines


def ends(browser: Browser, name: str) -> list[float]:
    """The first and last x that a chart shows."""
    found: list[float] = browser.ask(f"(c => [c.x.back(0), c.x.back(c.wide)])(document.getElementById('{name}').chart)")
    return found


# ---- numbers and marks ----


def test_numbers_are_written_as_in_tables(browser: Browser) -> None:
    delays = [1e-9, 9.994e-7, 9.996e-7, 1.5e-6, 1.234567e-3, 0.0999, 0.9996, 1.0, 99.96, 119.9, 120.0, 7_199.0, 2e5]
    delays += [0.0, *(-x for x in delays)]
    assert browser.ask(f"{delays}.map(duration)") == [format_duration(x * 1e9) for x in delays]
    ends = [
        (12.5094e-3, 12.5157e-3),
        (0.0, 1.05e-3),
        (9.5e-4, 1.05e-3),
        (9.996e-7, 1.0002e-6),
        (59.0, 59.001),
        (0.21204, 0.2156),
    ]
    ends += [(-5e-3, -3e-6), (1.0, 1.0), (1e-3, 2e-3), (1.1e-7, 1.1002e-7)]
    said = [spoken((low + high) / 2, (low, high)) for low, high in ends]
    assert browser.ask(f"{[list(pair) for pair in ends]}.map(([a, b]) => withInterval((a + b) / 2, a, b))") == said
    sizes = [0, 1, 12.5, 999, 1_000, 65_536, 999_499, 1e6, 5.5e9, 1.2e12]
    assert browser.ask(f"{sizes}.map(x => SAY.bytes(x))") == [format_size(x) for x in sizes]


MARKS = (
    ("{kind: 'delay', scale: 'log'}", (1e-4, 1), 8, ["100 us", "1 ms", "10 ms", "100 ms", "1 s"]),
    ("{kind: 'delay', scale: 'log'}", (8e-4, 2e-2), 8, ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]),
    ("{kind: 'delay', scale: 'log'}", (1e-9, 1e3), 5, ["1 ns", "1 us", "1 ms", "1 s", "1,000 s"]),
    ("{kind: 'delay', scale: 'log'}", (2.8e-3, 0.5), 6, ["3 ms", "10 ms", "30 ms", "100 ms", "300 ms"]),
    ("{kind: 'delay', scale: 'log'}", (8e-4, 4.6e-3), 5, ["1 ms", "2 ms", "3 ms", "4 ms"]),
    ("{kind: 'delay', scale: 'log'}", (1.01, 1.04), 4, ["1.01 s", "1.02 s", "1.03 s", "1.04 s"]),
    ("{kind: 'delay'}", (0, 1.7e-3), 4, ["0", "0.5 ms", "1.0 ms", "1.5 ms"]),
    ("{kind: 'delay'}", (-3_600.001, -3_600), 2, ["-3,600.0010 s", "-3,600.0005 s", "-3,600.0000 s"]),
    ("{kind: 'delay', scale: 'signed', linear: 1e-3}", (-0.02, 1), 6, ["-10 ms", "0", "10 ms", "100 ms", "1 s"]),
    ("{kind: 'share'}", (0, 1.02), 6, ["0%", "20%", "40%", "60%", "80%", "100%"]),
    ("{kind: 'share'}", (0, 0.0042), 5, ["0.0%", "0.1%", "0.2%", "0.3%", "0.4%"]),
    ("{kind: 'bytes', scale: 'log'}", (80, 3e6), 6, ["100 B", "1 kB", "10 kB", "100 kB", "1 MB"]),
    ("{kind: 'count', whole: true}", (-0.04, 2.04), 9, ["0", "1", "2"]),
    ("{kind: 'count'}", (0, 25_000), 6, ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]),
    ("{kind: 'seconds'}", (0, 0.21), 5, ["0", "0.05", "0.10", "0.15", "0.20"]),
    ("{kind: 'time'}", (NOON, NOON + 900), 4, ["12:00:00.000", "12:00:00.500"]),
    ("{kind: 'time'}", (NOON, NOON + 40_000), 5, ["12:00:00", "12:00:10", "12:00:20", "12:00:30", "12:00:40"]),
    ("{kind: 'time'}", (NOON - 6e7, NOON + 3.6e7), 5, ["00:00", "06:00", "12:00", "18:00"]),
    ("{kind: 'time'}", (NOON, NOON + 3e8), 4, ["2023-11-15", "2023-11-16", "2023-11-17"]),
    ("{kind: 'time'}", (NOON, NOON + 1.1e10), 5, ["2023-12-01", "2024-01-01", "2024-02-01", "2024-03-01"]),
)


@pytest.mark.parametrize(("axis", "between", "most", "expected"), MARKS)
def test_marks_are_round_and_fit(
    browser: Browser, axis: str, between: tuple[float, float], most: int, expected: list[str]
) -> None:
    marks = browser.ask(f"makeAxis({axis}, {list(between)}, 0, 500, {most}).marks")
    assert [mark["text"] for mark in marks] == expected
    room = 1e-6 * (between[1] - between[0])
    assert all(between[0] - room <= mark["value"] <= between[1] + room for mark in marks)


def test_a_day_is_named_where_it_begins(browser: Browser) -> None:
    marks = browser.ask(f"makeAxis({{kind: 'time'}}, [{NOON}, {NOON + 86_400_000}], 0, 500, 5).marks")
    assert [(mark["text"], mark["below"]) for mark in marks] == [
        ("12:00", "2023-11-14"),
        ("18:00", ""),
        ("00:00", "2023-11-15"),
        ("06:00", ""),
        ("12:00", ""),
    ]


# ---- shapes ----


def test_a_gap_breaks_line_and_band(browser: Browser) -> None:
    paths = browser.ask("['line', 'band'].map(c => document.querySelector(`#lines .series .${c}`).getAttribute('d'))")
    assert paths[0].count("M") == 2
    assert paths[0].count("L") == 6
    assert paths[1].count("M") == 2
    assert paths[1].count("L") == 3
    assert "h6V" in paths[1]  # an interval alone is wide enough to be seen


def test_a_cell_is_drawn_for_every_count(browser: Browser) -> None:
    cells = browser.ask("[...document.querySelectorAll('#heat .cells')].map(one => one.getAttribute('d')).join('')")
    assert cells.count("M") == 5
    shades = browser.ask("[...document.querySelectorAll('#heat .cells')].map(one => getComputedStyle(one).fill)")
    assert len(set(shades)) == len(shades) == 4  # 100 and more are the darkest


def test_bars_follow_each_other(browser: Browser) -> None:
    boxes = browser.ask(
        "[...document.querySelectorAll('#bars .bars rect')].map(r => [r.x.baseVal.value, r.width.baseVal.value])"
    )
    assert len(boxes) == 5
    scale = browser.ask("(c => c.wide)(document.getElementById('bars').chart)")
    assert [
        pytest.approx([a * scale, b * scale]) for a, b in ((0, 0.1), (0, 0.2), (0.1, 0.5), (0.2, 0.3), (0, 0.25))
    ] == boxes


# ---- tooltips ----


def test_values_at_one_time_are_told_together_with_their_intervals(browser: Browser) -> None:
    mouse(browser, "mouseMoved", at(browser, "lines", NOON + 1_100, 0.01))
    assert tip(browser, "lines") == ["2023-11-14 12:00:01", "p50 2 ms (1 to 4 ms)"]
    mouse(browser, "mouseMoved", at(browser, "lines", NOON + 8_900, 0.01))
    assert tip(browser, "lines") == ["2023-11-14 12:00:09", "p50 10 ms", "p99 200 ms"]
    mouse(browser, "mouseMoved", {"x": 5, "y": 5})
    assert tip(browser, "lines") is None


def test_rows_and_cells_are_told(browser: Browser) -> None:
    mouse(browser, "mouseMoved", at(browser, "bars", 0.9, 1))
    assert tip(browser, "bars") == ["<b>bold</b>", "one 200 ms", "two 300 ms"]
    mouse(browser, "mouseMoved", at(browser, "bars", 0.9, 0))
    assert (tip(browser, "bars") or [])[0] == NAMES[0]
    mouse(browser, "mouseMoved", at(browser, "heat", 2.5, 6e-3))
    assert tip(browser, "heat") == ["2 s to 3 s", "1,234 packets: 4 ms to 8 ms"]
    mouse(browser, "mouseMoved", at(browser, "heat", 0.5, 6e-3))
    assert tip(browser, "heat") is None
    assert browser.ask("document.querySelectorAll('b').length") == 0


def test_a_finger_leaves_what_it_asked_for(browser: Browser) -> None:
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at(browser, "bars", 0.9, 1)])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert tip(browser, "bars") == ["<b>bold</b>", "one 200 ms", "two 300 ms"]


# ---- zoom, legend, keys ----


def test_a_drag_zooms_and_a_double_click_shows_everything(browser: Browser) -> None:
    dragged(browser, at(browser, "lines", NOON + 2_000, 0.01), at(browser, "lines", NOON + 4_000, 0.01))
    assert ends(browser, "lines") == pytest.approx([NOON + 2_000, NOON + 4_000], abs=20)
    assert browser.ask("document.getElementById('lines').chart.panels[0].y.back(0)") == pytest.approx(1)  # x alone
    assert "12:00:02.500" in browser.ask("[...document.querySelectorAll('#lines .tick')].map(t => t.textContent)")
    middle = at(browser, "lines", NOON + 3_000, 0.01)
    for clicks in (1, 2):
        mouse(browser, "mousePressed", middle, clicks)
        mouse(browser, "mouseReleased", middle, clicks)
    assert ends(browser, "lines") == pytest.approx([NOON, NOON + 9_000])
    dragged(browser, at(browser, "lines", NOON + 2_000, 0.1), at(browser, "lines", NOON + 4_000, 0.001))
    shown = browser.ask("(p => [p.y.back(p.tall), p.y.back(0)])(document.getElementById('lines').chart.panels[0])")
    assert shown == pytest.approx([0.001, 0.1], rel=0.05)
    browser.ask("document.querySelector('#lines .reset').click()")
    assert ends(browser, "lines") == pytest.approx([NOON, NOON + 9_000])
    assert browser.ask("document.querySelector('#lines .reset').hidden")


def test_rows_are_not_zoomed(browser: Browser) -> None:
    dragged(browser, at(browser, "bars", 0.2, 0), at(browser, "bars", 0.6, 2))
    assert ends(browser, "bars") == pytest.approx([0.2, 0.6], abs=0.01)
    assert browser.ask("document.querySelectorAll('#bars .bars rect').length") == 5


def test_the_legend_hides_and_shows(browser: Browser) -> None:
    def shown() -> list[str]:
        names: list[str] = browser.ask("[...document.querySelectorAll('#bars .series')].map(one => one.dataset.name)")
        return names

    def press(name: str) -> None:
        browser.ask(f"document.querySelector('#bars .legend button[data-name={name}]').click()")

    assert shown() == ["one", "two"]
    press("one")
    assert shown() == ["two"]
    assert browser.ask("document.querySelector('#bars .bars rect').x.baseVal.value") == 0  # nothing is below it
    assert browser.ask("document.querySelector('#bars .legend button').ariaPressed") == "false"
    press("one")
    assert shown() == ["one", "two"]
    box = browser.ask("document.querySelector('#bars .legend [data-name=two]').getBoundingClientRect().toJSON()")
    second = {"x": box["left"] + 9, "y": box["top"] + 9}
    for clicks in (1, 2):
        mouse(browser, "mousePressed", second, clicks)
        mouse(browser, "mouseReleased", second, clicks)
    assert shown() == ["two"]


def test_keys_do_what_the_pointer_does(browser: Browser) -> None:
    def press(name: str, key: str) -> None:
        browser.ask(f"document.querySelector('#{name} .plot').focus()")
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    press("lines", "ArrowRight")
    assert tip(browser, "lines") == ["2023-11-14 12:00:00", "p50 1 ms (500 us to 2 ms)", "p99 100 ms"]
    press("lines", "End")
    assert (tip(browser, "lines") or [])[0] == "2023-11-14 12:00:09"
    press("lines", "+")
    assert ends(browser, "lines")[1] - ends(browser, "lines")[0] < 5_000
    press("lines", "Escape")
    assert ends(browser, "lines") == pytest.approx([NOON, NOON + 9_000])
    press("bars", "ArrowDown")
    press("bars", "ArrowDown")
    assert tip(browser, "bars") == ["<b>bold</b>", "one 200 ms", "two 300 ms"]
    press("heat", "Home")
    press("heat", "ArrowDown")
    assert tip(browser, "heat") == ["0 s to 1 s", "100 packets: 2 ms to 4 ms"]
    assert browser.ask("document.querySelector('#bars .tip').role") == "status"  # a screen reader says it
    assert browser.ask("document.querySelector('#lines .plot').ariaLabel").startswith("Chart lines. Arrow keys")


# ---- screens ----


@pytest.mark.parametrize("width", [320, 600, 1_400])
def test_every_text_has_room(browser: Browser, width: int) -> None:
    narrowed(browser, width)
    browser.until(f"document.querySelector('.plot').viewBox.baseVal.width < {width}")
    outside = browser.ask(
        """[...document.querySelectorAll('.plot')].flatMap(svg => {const around = svg.getBoundingClientRect();
        return [...svg.querySelectorAll(':scope > text')].filter(text => {const box = text.getBoundingClientRect();
        return box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1})
        .map(text => text.textContent)})"""
    )
    assert outside == []
    assert browser.ask(OVERLAPPING) == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    wide = browser.ask("(c => c.wide)(document.getElementById('bars').chart)")
    assert wide > width / 3  # names leave room for the bars


@pytest.mark.parametrize("seconds", [0.3, 1.5, 3, 4.2, 9, 45])
def test_times_at_the_edge_have_room(browser: Browser, seconds: float) -> None:
    """Whatever lies at the right edge, where a text is moved inwards; midnight, where each day is named, too."""
    overlapping = browser.ask(
        f"""(chart => {{const found = new Set(), {{wide}} = chart;
        for (let end = {NOON}; end < {NOON} + 2e3; end += 130) {{
        for (const high of [end, end + 12 * HOUR]) {{ chart.zoom.x = [high - {seconds} * 1e3, high]; render(chart);
        for (const text of {OVERLAPPING}) found.add(text); }} }} return [wide > 500, ...found]}})
        (document.getElementById('lines').chart)"""
    )
    assert overlapping == [True]
    assert browser.ask("document.querySelectorAll('#lines .tick').length") > 6


def test_dark_mode_and_print_change_colours_without_a_script(browser: Browser) -> None:
    stroke = "getComputedStyle(document.querySelector('#lines .series .line')).stroke"
    fill = "getComputedStyle(document.querySelector('#heat .cells')).fill"
    light = [browser.ask(stroke), browser.ask(fill)]
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = [browser.ask(stroke), browser.ask(fill)]
    assert light[0] == "rgb(0, 114, 178)"
    assert not set(light) & set(dark)
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.ask(stroke) == light[0]
    box = "document.querySelector('#lines .plot').getBoundingClientRect()"
    assert browser.ask(f"{box}.height") > 200
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_colours_stand_out_from_their_ground() -> None:
    """WCAG 2: 4.5 for text, 3 for shapes that have a meaning."""

    def light(colour: str) -> float:
        shares = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dark = asset("charts.css").split("prefers-color-scheme:dark")
    for part in (bright, dark):
        found = dict(re.findall(r"--(\w+):#(\w{3,6})", part))
        colours = {name: value * 2 if len(value) == 3 else value for name, value in found.items()}
        for name in ("text", "soft", "all", "bad", "c1", "c2", "c3", "c4"):
            low, high = sorted((light(colours[name]), light(colours["card"])))
            assert (high + 0.05) / (low + 0.05) >= (4.5 if name in ("text", "soft", "bad") else 3), name


def test_scripts_share_no_name() -> None:
    """All scripts of a page have one scope: a name that two of them define would be the last one's in both."""
    collector = [(resources.files("wirelag.collector") / name).read_text() for name in OWN if name.endswith(".js")]
    shared = [asset(name) for name in SCRIPTS if name != "page.js"]
    for texts in ([*shared, asset("page.js")], [*shared, *collector]):
        names = [name for text in texts for name in re.findall(r"^(?:async )?(?:function|const|let) (\w+)", text, re.M)]
        assert len(names) > 50
        assert sorted(set(names)) == sorted(names)


def test_colours_can_be_told_from_their_background() -> None:
    """WCAG 2.2, level AA: text 4.5, marks 3, on both cards and the page, light and dark."""

    def light(colour: str) -> float:
        whole = "".join(2 * one for one in colour) if len(colour) == 3 else colour
        parts = [one / 255 for one in bytes.fromhex(whole)]
        red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
        return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)

    def contrast(one: str, two: str) -> float:
        low, high = sorted((light(one), light(two)))
        return (high + 0.05) / (low + 0.05)

    for block in re.findall(r":root\{([^}]*)\}", asset("charts.css")):
        colours = dict(re.findall(r"--(\w+):#(\w+)", block))
        for behind in ("bg", "card"):
            for name, least in {"text": 7, "soft": 4.5, "bad": 4.5, "c1": 4.5, "c2": 3, "c3": 3, "c4": 3}.items():
                assert contrast(colours[name], colours[behind]) >= least, (name, behind, block)
