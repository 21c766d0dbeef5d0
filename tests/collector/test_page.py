"""The collector's page in a real browser: everything is drawn, results arrive live, no other host is contacted."""

import base64
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.agent_messages import SECOND_NS, Agent, pair
from tests.support.browser import Browser
from tests.support.collector_process import RDA, Running, recent, send, settled
from tests.support.many_segments import SLOW, fill

TOKEN = "a-token-that-is-long-enough"
HOSTILE = "<img src=x onerror=alert(1)//"
MEANS = "document.getElementById('delay').chart.data.panels[0].series[0].y"  # null where there is a gap
PATIENT = "OLD.segment = OLD.any = 1e6"  # results are not old, however slow this machine is
TOPOLOGY = {
    "routers": ["A", "B", "C"],
    "links": [
        {"source": "A", "target": "B", "weight": 1},
        {"source": "B", "target": "C", "weight": 1},
        {"source": "B", "target": "A", "weight": 1},
        {"source": "C", "target": "B", "weight": 1},
    ],
}


@pytest.fixture
def browser(tool: Callable[[str], str], tmp_path: Path) -> Iterator[Browser]:
    with Browser(tool("chromium"), tmp_path) as browser:
        yield browser


def three(seconds: int, seed: int) -> tuple[list[Agent], Callable[[Running], Callable[[], bool]]]:
    """Agents at A, B and C, at the ends of their segments; and a test whether all their messages are settled."""
    first, second = recent(seconds, 400, seed), recent(seconds, 400, seed + 1, delay_ns=40e6)
    rda = replace(RDA, short=True, buckets=60)
    agents = [replace(agent, segment="A>B") for agent in pair(first, rda)]
    agents += [replace(agent, segment="B>C", point=point) for agent, point in zip(pair(second, rda), "BC", strict=True)]
    return (
        agents,
        lambda running: (
            lambda: all(settled(running, path, seconds - 1, name)() for name, path in (("A>B", first), ("B>C", second)))
        ),
    )


def picture(browser: Browser, path: Path) -> None:
    """Save a screenshot."""
    path.write_bytes(base64.b64decode(browser.call("Page.captureScreenshot")["data"]))


def test_everything_is_drawn_without_other_hosts(browser: Browser, tmp_path: Path) -> None:
    topology = tmp_path / "net.json"
    topology.write_text(json.dumps(TOPOLOGY))
    words = "--segment", "A>B", "--segment", "B>C", "--topology", str(topology), "--slo", "mean<20ms"
    with Running(tmp_path, *words) as running:
        agents, until = three(5, 1)
        send(running.url, agents, 5, until(running))
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        browser.until("document.body.dataset.drawn > 0")
        browser.until("at('foot').innerText.includes('keeps intervals for 2 d, minutes for 60 d and hours for 730 d')")
        asked = [one for one in browser.ask("performance.getEntries().map(one => one.name)") if "/reports?" in one]
        assert asked
        assert all("points=1200" in one for one in asked)  # no more than a screen shows
        browser.ask(PATIENT)
        drawn = "[...document.querySelectorAll('#map [data-segment]')].map(e => e.dataset.segment + e.dataset.state)"
        browser.until(f"String({drawn}.sort()) === 'A>Bholds,B>Cmissed'")
        widths = (
            "[...document.querySelectorAll('#map [data-segment]')].map(e => Number(e.getAttribute('stroke-width')))"
        )
        assert min(browser.ask(widths)) > 4  # thickness is loss: that of the last minute is known
        cells = "[...document.querySelectorAll('#segments tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
        rows = browser.ask(cells)
        assert [row[0] for row in rows] == ["B>C", "A>B"]  # worst first
        assert "mean<20ms" in rows[0][1]
        assert all("ms" in row[2] and "%" in row[4] for row in rows)
        assert browser.ask("document.getElementById('name').innerText") == "B>C"
        assert browser.ask("document.querySelectorAll('#delay .series.line').length") >= 3
        assert browser.ask("document.querySelectorAll('#delay .band').length") == 1
        assert browser.ask("document.querySelectorAll('#loss .series.line').length") == 2
        browser.until("document.querySelectorAll('#waterfall .bars rect').length === 3")
        assert "B>C" in browser.ask("document.getElementById('verdict').innerText")
        assert browser.ask("[...document.querySelectorAll('#agents tbody tr')].map(r => r.cells[0].innerText)") == [
            "A",
            "B",
            "C",
        ]
        picture(browser, tmp_path / "page.png")
        browser.ask("document.querySelector('#map [data-segment=\"A>B\"]').dispatchEvent(new Event('click'))")
        browser.until("document.getElementById('name').innerText === 'A>B'")
        browser.until("document.getElementById('about').innerText.includes('mean')")
        assert "of packets arrived right after a later one" in browser.ask("document.getElementById('about').innerText")
        before = int(browser.ask("document.body.dataset.drawn"))
        browser.ask("document.getElementById('range').value = 86400")
        browser.ask("document.getElementById('range').dispatchEvent(new Event('change'))")
        # A day is drawn by the minute, which exists only if a minute has just ended.
        browser.until(f"document.body.dataset.drawn > {before}")
        assert browser.ask("location.search") == "?segment=A%3EB&range=86400"
        browser.ask("AGAIN.minute = AGAIN.interval = 0")
        browser.until(f"document.body.dataset.drawn > {before + 1}")  # minutes are read again, too
        browser.ask("history.back()")
        browser.until("document.getElementById('name').innerText === 'B>C'")
        assert {url.split("/")[2] for url in browser.requests if not url.startswith("data:")} == {
            running.url.split("/")[2]
        }
        assert browser.problems == []


def test_results_arrive_live_and_what_is_zoomed_stays(browser: Browser, tmp_path: Path) -> None:
    with Running(tmp_path, "--segment", "A>B") as running:
        browser.open(running.url)
        browser.until("document.getElementById('said').innerText === 'waiting for results'")
        browser.ask(PATIENT)
        path = recent(6, 300, 3)
        agents = pair(path, RDA)
        send(running.url, agents, 4, settled(running, path, 3))
        browser.until(f"{MEANS}.filter(y => y !== null).length >= 4")
        browser.until("document.getElementById('said').innerText === 'live'")
        browser.until("document.querySelector('#segments tbody tr').innerText.includes('ms')")
        drawn = browser.ask(f"{MEANS}[0]")
        truth = path.delays_ns[path.during(path.start_ns, path.start_ns + SECOND_NS) & ~path.lost].mean()
        assert drawn == pytest.approx(truth / 1e9)
        browser.ask("document.querySelector('#delay .plot').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))")
        zoomed = browser.ask("at('delay').chart.zoom.x")
        assert browser.ask("at('loss').chart.zoom.x") == zoomed  # both show the same time
        assert "zoom=" in browser.ask("location.search")
        send(running.url, agents, 6, settled(running, path, 5))
        browser.until(f"{MEANS}.filter(y => y !== null).length >= 6")
        assert browser.ask("at('delay').chart.zoom.x") == zoomed
        browser.ask("view.range = String(now() - one.reports[4].start), trimReports()")
        assert browser.ask("one.reports.length") <= 2  # what is older than the time shown goes
        assert browser.problems == []


def test_what_came_while_the_collector_was_away_is_read(browser: Browser, tmp_path: Path) -> None:
    """Results live are those from now on: the page asks for the others as soon as it is connected again."""
    fill(tmp_path / "store.db", 1, 5)
    running = Running(tmp_path)
    with running:
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        browser.until("one.source.readyState === EventSource.OPEN")
        browser.ask("AGAIN.interval = 1e6")
        last = browser.ask("one.reports[one.reports.length - 1].start")
        running.end(signal.SIGKILL)
    fill(tmp_path / "store.db", 1, 5, before_s=-60)  # another collector's
    with running:
        browser.until(f"one.reports[one.reports.length - 1].start > {last} + 30")


@pytest.mark.acceptance
def test_a_pause_is_a_gap(browser: Browser, tmp_path: Path) -> None:
    with Running(tmp_path, "--segment", "A>B") as running:
        path = recent(6, 300, 4)
        agents = pair(path, RDA)
        made = [agent.messages(0, 7) for agent in agents]
        for agent, messages in zip(agents, made, strict=True):
            kept = [message for i, message in enumerate(messages) if i not in (2, 3)]
            agent.__dict__["messages"] = lambda first, count, kept=kept: kept
        send(running.url, agents, 7, lambda: len(running.reports()) == 5)
        browser.open(running.url)
        browser.until("document.body.dataset.drawn > 0")
        drawn = browser.ask(MEANS)
        assert drawn[2] is None
        assert None not in drawn[:2] + drawn[3:5]
        assert running.json("/api/v1/reports", segment="A>B")["gaps"] == [
            [path.start_ns / 1e9 + 2, path.start_ns / 1e9 + 4]
        ]


@pytest.mark.acceptance
def test_a_login_leads_to_the_link_and_survives_a_restart(browser: Browser, tmp_path: Path) -> None:
    """Meanwhile the page says that what it shows is old, and ages go on."""
    (tmp_path / "tokens").write_text(TOKEN)
    fill(tmp_path / "store.db", 1)
    running = Running(tmp_path, "--token-file", str(tmp_path / "tokens"), token=TOKEN)
    with running:
        browser.open(f"{running.url}/?segment={quote(SLOW)}&range=3600")
        browser.until("document.querySelector('input[name=token]') !== null")
        browser.ask("document.querySelector('input[name=token]').value = 'wrong'; document.forms[0].submit()")
        browser.until("document.body && document.body.innerText.includes('That token is wrong')")
        browser.ask(f"document.querySelector('input[name=token]').value = '{TOKEN}'; document.forms[0].submit()")
        browser.until("document.body && document.body.dataset.ready === 'yes'")
        assert browser.ask("[view.segment, at('range').value]") == [SLOW, "3600"]
        age = browser.ask("document.querySelector('#segments [data-end]').innerText")
        running.end(signal.SIGKILL)
        browser.until("at('stale').innerText.includes('The collector has not answered for')")
        assert browser.ask("at('said').innerText") == "cannot reach the collector"
        browser.until(f"document.querySelector('#segments [data-end]').innerText !== '{age}'")
    with running:
        browser.until("at('said').innerText !== 'cannot reach the collector'")
        assert browser.ask("document.querySelectorAll('#segments tbody tr').length") == 1


def test_an_empty_page_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        assert browser.ask("at('overview').hidden && !at('empty').hidden")
        assert "No agent has reported to this collector" in browser.ask("at('why').innerText")
        assert f"--collector {running.url}" in browser.ask("at('how').innerText")


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        path = recent(3, 200, 5)
        agents = [
            replace(agent, segment=f"{HOSTILE}>B", point=point)
            for agent, point in zip(pair(path, RDA), (HOSTILE, "B"), strict=True)
        ]
        send(running.url, agents, 4, settled(running, path, 3, f"{HOSTILE}>B"))
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        assert browser.ask("document.querySelectorAll('img').length") == 0
        assert HOSTILE in browser.ask("document.getElementById('segments').innerText")
        assert browser.problems == []
