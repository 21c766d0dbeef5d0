"""The collector's page while the network changes: the map is current, and each change is listed with its time."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import Browser
from tests.support.collector_process import Running
from tests.support.m_sets import agents, config_of, post, write_network
from tests.support.places import SIX_ROUTERS
from wirelag.network.topology import read_topology
from wirelag.packets.interval import Interval
from wirelag.protocol.inside import ONE_CLOCK, message_of
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import Seen, encode
from wirelag.protocol.results import Rank, Result
from wirelag.synopses.crossing import Crossing

SIX = SIX_ROUTERS


@pytest.fixture
def browser(tool: Callable[[str], str], tmp_path: Path) -> Iterator[Browser]:
    with Browser(tool("chromium"), tmp_path) as browser:
        yield browser


def test_the_map_follows_the_network(browser: Browser, tmp_path: Path) -> None:
    network, six = tmp_path / "net.json", read_topology(SIX)
    write_network(network, six)
    with (
        Running(tmp_path, "--topology", str(network), "--follow", "50ms") as running,
        agents(running.url, config_of(tmp_path), {"C": 0, "F": 0}),
    ):
        running.until(lambda: running.get("/api/v1/topology")[0] == 200)  # the first plan may take long
        running.until(lambda: running.json("/api/v1/topology")["upgraded"] == ["C", "F"])
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        browser.until("document.querySelectorAll('#map line').length === 8")
        assert browser.ask("document.querySelectorAll('#map circle').length") == 6
        assert browser.ask("document.querySelectorAll('#map circle.measures').length") == 2
        assert browser.ask("[...document.querySelectorAll('#source option')].map(o => o.value)") == list(six.routers)
        write_network(network, six.without(("C", "F")))
        browser.until("document.querySelectorAll('#map line').length === 7")
        browser.until("document.querySelector('#changes tbody').innerText.includes('links down: C>F, F>C')")
        changes = browser.ask("[...document.querySelectorAll('#changes tbody tr')].map(r => r.cells[1].innerText)")
        assert "new segments: C>>F, F>>C; removed segments: C>F, F>C" in changes[0]


@pytest.mark.acceptance
def test_insides_of_routers_are_on_the_map_and_in_the_waterfall(browser: Browser, tmp_path: Path) -> None:
    """A queue in F towards C: results that agents have settled themselves."""
    means_ms = {"A[>F]": 0.1, "F[A>C]": 8.0, "F[A>E]": 0.2, "C[F>]": 0.1}
    config = config_of(tmp_path)
    start_ns = (time.time_ns() - 3 * 10**9) // 10**9 * 10**9
    with Running(tmp_path, "--topology", str(SIX)) as running:
        for segment, mean_ms in means_ms.items():
            crossing = Crossing(500, 500)
            delays_ns = np.random.default_rng(1).exponential(mean_ms * 1e6, 500).astype(np.int64)
            crossing.add_delays(np.arange(500), delays_ns)
            seen = Seen(500, 0, 10**9, 500)
            found = Result(
                *(segment, Interval(start_ns, start_ns + 10**9), Rank.SETTLED, "rda", {None: crossing}),
                *({None: Loss(0.0, 0.0, 0.0)}, (seen, seen), ONE_CLOCK),
            )
            post(running.url, encode(message_of(found, segment[0], config.terms, start_ns)))
        running.until(lambda: len(running.json("/api/v1/segments")["segments"]) == len(means_ms))
        assert 'segment="F[A>C]"' in running.get("/metrics")[1]
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        browser.until("document.querySelectorAll('#map circle.inside').length === 3")
        rings = "[...document.querySelectorAll('#map circle.inside')].map(c => c.dataset.segment)"
        assert browser.ask(rings) == ["A[>F]", "C[F>]", "F[A>C]"]  # the slowest of each router
        assert browser.ask("document.querySelectorAll('#map path[data-segment]').length") == 0
        for end, router in (("source", "A"), ("target", "C")):
            browser.ask(f"document.getElementById('{end}').value = '{router}'")
            browser.ask(f"document.getElementById('{end}').dispatchEvent(new Event('change'))")
        browser.until("document.getElementById('verdict').textContent.includes('Slow: F[A>C].')")
        assert "Without a report: A>F, F>C." in browser.ask("document.getElementById('verdict').textContent")
        shown = browser.until("document.getElementById('waterfall').innerText")
        assert all(name in shown for name in ("A[>F]", "F[A>C]", "C[F>]"))
        assert browser.problems == []
