"""What a page of a capture tells on request: a time that is marked, one server on its own, changes, a network."""

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.command import wirelag
from tests.support.html_pages import MOST_BYTES, drawn_well, figures, series
from tests.support.simulated_captures import write_simulation
from wirelag import compare
from wirelag.network.topology import Link, Topology
from wirelag.render.html.network_map import layout
from wirelag.render.html.response_charts import cut_at, split
from wirelag.sim import Scenario, simulate


@pytest.fixture(scope="module")
def browser(tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tool("chromium"), tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "a.pcap"
    write_simulation(simulate(Scenario(packets=6_000)), path)
    return path


def test_a_marked_time_has_its_command_and_filter(
    browser: Browser, capture: Path, tool: Callable[[str], str], tmp_path: Path
) -> None:
    """The command measures what the filter shows; keys mark as a pointer does."""
    tshark, page = tool("tshark"), tmp_path / "page.html"
    wirelag("rtt", capture, "--by", "server", "--html", page)
    drawn_well(browser, page, 5)
    browser.ask(f"document.querySelector('main').dataset.command = {json.dumps(f'wirelag rtt {capture}')}")
    assert browser.ask("document.querySelectorAll('.marked').length") == 0
    plot = "document.querySelector('#quantiles-server .plot')"
    browser.ask(f"{plot}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))")
    command, shown = browser.ask("[...document.querySelectorAll('.marked code')].map(one => one.textContent)")
    words = shlex.split(command)
    assert words[:3] == ["wirelag", "rtt", str(capture)]
    start, end = words[words.index("--from") + 1], words[words.index("--to") + 1]
    assert shown == f"frame.time_epoch >= {start} && frame.time_epoch < {end}"
    listed = subprocess.run([tshark, "-r", capture, "-Y", shown], capture_output=True, text=True, check=True).stdout
    told = json.loads(wirelag("info", capture, *words[-4:], "--format", "json").stdout)
    assert told["packets"] - told["filtered"] == len(listed.splitlines()) > 100
    part, whole = (json.loads(wirelag(*some, "--format", "json").stdout) for some in (words[1:], ("rtt", capture)))
    assert 0 < part["samples"] < whole["samples"]
    browser.ask(f"{plot}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape'}}))")
    assert browser.ask("document.querySelectorAll('.marked').length") == 0
    assert "--html" not in browser.ask("document.body.innerText.split('Measure it alone')[1] ?? ''")

    # A server on its own, chosen by its name in the table.
    names = browser.ask("[...document.querySelectorAll('[data-own]')].map(one => one.textContent)")
    assert browser.ask("[...document.getElementById('own').options].map(one => one.text)") == names[::2]
    browser.ask("document.querySelectorAll('[data-own]')[4].click()")
    legend = "document.querySelector('#own-delays .legend').innerText.trim()"
    assert browser.ask(legend) == names[4] == browser.ask("document.getElementById('own').selectedOptions[0].text")
    assert browser.ask("document.querySelectorAll('#own-time .series.line').length") == 3
    assert page.stat().st_size < MOST_BYTES
    made = figures(page.read_text(encoding="utf-8"))
    rows = json.loads(wirelag("rtt", capture, "--by", "server", "--format", "json").stdout)["groups"]
    p50 = {row["key"]: row["legs"]["server"]["quantiles"]["0.5"] for row in rows}[names[0]]
    (line,) = series(made["own-delays-0"])
    middle = next(x for x, y in zip(line["x"], line["y"], strict=True) if y >= 0.5)
    assert middle == pytest.approx(p50, rel=0.1)
    assert browser.problems == []


def test_a_comparison_has_a_page(browser: Browser, capture: Path, tmp_path: Path) -> None:
    before, after, page = (tmp_path / name for name in ("before.json", "after.json", "page.html"))
    wirelag("rtt", capture, "--by", "server", "--format", "json", "-o", before)
    report = json.loads(before.read_text())
    for one in (report, *report["groups"], *(leg for group in report["groups"] for leg in group["legs"].values())):
        one["mean"] = one["mean"] and 3 * one["mean"]
        one["ci95"] = {name: [3 * end for end in ends] for name, ends in one["ci95"].items()}
        one["quantiles"] = {q: value and 3 * value for q, value in one["quantiles"].items()}
    after.write_text(json.dumps(report))
    wirelag("compare", before, after, "--html", page)
    drawn_well(browser, page, 1)
    found = compare(before, after)
    called = sum(part.main.verdict == "slower" for part in found.comparison.groups[:30])
    shown = {one["name"]: one for one in series(figures(page.read_text(encoding="utf-8"))["groups"])}
    assert called
    assert shown["worse"]["x"] == pytest.approx([3.0] * called)
    assert browser.ask("document.querySelector('.lead').textContent").startswith("To the server: slower")
    assert found.to_html() != page.read_text()  # the command line is on the page
    assert browser.ask("document.querySelectorAll('tbody .bad').length") > called


def test_one_outlier_leaves_other_bars_readable() -> None:
    class Told:
        def __init__(self, server: float) -> None:
            self.details = {"network": 0.02, "server": server, "transfer": 0.0, "first_byte": server}

    class Named:
        def __init__(self, key: str, server: float) -> None:
            self.key, self.report = key, Told(server)

    usual = [Named(str(i), 0.01 * i) for i in range(1, 8)]
    whole = split(usual)  # type: ignore[arg-type]
    assert all(one["draw"] == "bars" for one in series(whole))
    cut = split([*usual, Named("slow", 9.0)])  # type: ignore[arg-type]
    *_, words = series(cut)
    assert (words["draw"], words["y"], words["text"]) == ("words", [7], ["9.02 s >"])
    assert whole["x"]["range"][1] < 2 * cut["x"]["range"][1] < 1
    assert cut_at([]) == 0.0


def test_routers_are_where_the_topology_says() -> None:
    links = tuple(Link(one, other, 1) for pair in ("AB", "BC", "CD") for one, other in (pair, pair[::-1]))
    places = {"A": (10.0, 50.0), "B": (12.0, 48.0), "D": (2.0, 40.0)}
    at, is_real = layout(Topology(tuple("ABCD"), links, places=places))
    assert is_real
    assert {name: tuple(at[name]) for name in "ABD"} == places
    assert tuple(at["C"]) == (7.0, 44.0)  # between its neighbours
    assert not layout(Topology(tuple("ABCD"), links, places={"A": (1.0, 1.0)}))[1]
