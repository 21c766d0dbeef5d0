"""The collector's page while the network changes: the map is current, and each change is listed with its time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.collector_process import Running
from tests.support.m_sets import agents, config_of, write_network
from tests.support.places import SIX_ROUTERS
from wirelag.network.topology import read_topology

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
