"""The collector's page with a thousand segments, and with one whose results have a gap, in a real browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.browser import Browser
from tests.support.collector_process import Running
from tests.support.many_segments import SLOW, fill

ROWS = "[...document.querySelectorAll('#segments tbody tr')].map(row => row.cells[0].innerText)"
TALLEST = 3500  # pixels of the whole page


@pytest.fixture
def browser(tool: Callable[[str], str], tmp_path: Path) -> Iterator[Browser]:
    with Browser(tool("chromium"), tmp_path) as browser:
        yield browser


def test_a_slow_segment_of_a_thousand_is_the_first_row(browser: Browser, tmp_path: Path) -> None:
    names = fill(tmp_path / "store.db", 1000)
    with Running(tmp_path, "--slo", "p99<45ms", "--slo", "*>vie-03: p99<50ms") as running:
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        shown = browser.ask(ROWS)
        assert shown[0] == SLOW
        assert len(shown) == 25
        figures = browser.ask("[...at('segments').tBodies[0].rows[0].cells].map(cell => cell.innerText)")
        assert ["ms" in figures[2], "ms" in figures[3], "%" in figures[4]] == [True] * 3  # mean, p99 and loss
        assert browser.ask("document.documentElement.scrollHeight") < TALLEST
        assert browser.ask("document.querySelectorAll('*').length") < 2000
        assert browser.ask("at('drawn').hidden")  # a thousand curves cannot be read
        assert "1 to 25 of 1,000 segments" in browser.ask("at('pages').innerText")

        browser.ask("[...document.querySelectorAll('#pages button')].find(one => one.innerText === 'last').click()")
        assert "976 to 1,000" in browser.ask("at('pages').innerText")
        browser.ask("document.querySelector('#segments thead button').click()")  # by name
        assert browser.ask(ROWS) == sorted(names)[:25]
        browser.ask("at('rows').value = '10'; at('rows').dispatchEvent(new Event('change'))")
        assert len(browser.ask(ROWS)) == 10

        browser.ask("at('q').value = 'vie-03 par'; at('q').dispatchEvent(new Event('input'))")
        found = [name for name in names if "vie-03" in name and "par" in name]
        assert browser.ask(ROWS) == sorted(found)[:10]
        browser.ask("at('q').value = ''; at('q').dispatchEvent(new Event('input'))")

        browser.ask("at('by').value = 'pair'; at('by').dispatchEvent(new Event('change'))")
        assert browser.ask(ROWS)[0] == "par > vie"  # the sites of the slow one
        browser.ask("document.querySelector('#segments tbody a').click()")
        assert browser.ask(ROWS)[0] == SLOW
        assert all(name.startswith("par-") and ">vie-" in name for name in browser.ask(ROWS))
        wanted = {"by": ["pair"], "in": ["par > vie"], "rows": ["10"], "segment": [SLOW]}
        assert parse_qs(browser.ask("location.search").removeprefix("?")) == wanted

        link, rows = browser.ask("location.href"), browser.ask(ROWS)
        browser.open("about:blank")
        browser.open(link)  # as somebody else would
        browser.until("document.body.dataset.ready === 'yes'")
        assert browser.ask(ROWS) == rows
        assert browser.ask("at('by').value") == "pair"

        browser.open("about:blank")
        browser.open(f"{running.url}/?from=9e99&to=1&range=-5&rows=1e9&sort=nothing&page=x")  # typed by hand, and wrong
        browser.until("document.body.dataset.ready === 'yes'")
        assert browser.ask(ROWS) == shown
        assert "Worst first: 1 to 25 of 1,000 segments" in browser.ask("at('pages').innerText")
        assert browser.ask("at('range').value") == "600"
        assert browser.problems == []


@pytest.mark.acceptance
def test_a_gap_has_no_band_and_times_can_be_absolute(browser: Browser, tmp_path: Path) -> None:
    fill(tmp_path / "store.db", 1, 20, before_s=3000, without=(9, 10, 11))
    with Running(tmp_path) as running:
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        assert "No new results for 50" in browser.until("at('stale').innerText")
        assert "The latest was 50" in browser.ask("at('about').innerText")
        assert browser.ask("at('pages').innerText").strip() == "Worst first: 1 to 1 of 1 segment"
        start = running.json("/api/v1/reports", segment=SLOW)["reports"][0]["start"]
        browser.ask("at('range').value = 'between'; at('range').dispatchEvent(new Event('change'))")
        local = f"localText({start} + 2), localText({start} + 16)"
        browser.ask(f"[at('from').value, at('to').value] = [{local}]; at('to').dispatchEvent(new Event('change'))")
        browser.until("at('delay').chart !== undefined")
        drawn = browser.ask("at('delay').chart.data.panels[0].series[0].y")
        assert drawn.count(None) == 1
        assert len(drawn) == 12  # fourteen seconds without three, and the gap
        assert browser.ask("document.querySelector('#delay .band').getAttribute('d').match(/M/g).length") == 2
        link = browser.ask("location.search")
        assert set(parse_qs(link.removeprefix("?"))) == {"segment", "from", "to"}
        browser.open("about:blank")
        browser.open(f"{running.url}/{link}")
        browser.until("at('delay').chart !== undefined")
        assert browser.ask("at('delay').chart.data.panels[0].series[0].y") == drawn
        assert browser.problems == []
