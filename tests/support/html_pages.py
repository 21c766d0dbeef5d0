"""HTML pages: parsed, shown in a browser, and their network requests."""

import html.parser
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.browser import Browser

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking",
    "--disable-component-update --disable-sync --disable-extensions --virtual-time-budget=10000",
)
MOST_BYTES = 1_000_000  # of any page
NO_NAMES = "--host-resolver-rules=MAP * ~NOTFOUND"  # blocks the browser's own requests


class Walk(html.parser.HTMLParser):
    """The contents of a page; an end tag without its start is an error."""

    void = frozenset({"meta", "br", "link", "img", "input", "hr", "base"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.values: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "data":
            self.values.add(dict(attrs)["value"] or "")
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    @property
    def addresses(self) -> list[str]:
        names = ("src", "href", "action", "srcset", "data", "poster", "background", "formaction")
        return [value for tag, attrs in self.tags for name, value in attrs.items() if value and name in names]


def browse(chromium: str, page: Path, folder: Path, *words: str) -> str:
    """The browser's output for a page, which must be small and whose scripts must run without errors."""
    assert page.stat().st_size < MOST_BYTES
    flags = [*" ".join(FLAGS).split(), NO_NAMES, f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command = [chromium, *flags, *words, page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in ran.stderr.splitlines() if ":CONSOLE" in line] == []
    return ran.stdout


def asked_by_the_page(log: Path) -> list[str]:
    """The addresses that a page requested, from the browser's log; the browser's own requests have no origin."""
    record = json.loads(log.read_text(encoding="utf-8"))
    start = record["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    begun = [event["params"] for event in record["events"] if event["type"] == start and "url" in event["params"]]
    return [params["url"] for params in begun if params["initiator"] != "not an origin"]


HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "'\"><svg/onload=x>",
           '<a href="http://example.org/">x</a>', "]]>\u2028--><!--", "${x}`{{y}}")  # fmt: skip


def figures(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    return found


def series(figure: dict[str, Any], panel: int = 0) -> list[dict[str, Any]]:
    """What a panel of a chart draws."""
    found: list[dict[str, Any]] = figure["panels"][panel]["series"]
    return found


def drawn(shown: str, name: str) -> str:
    """What the browser made of a chart: it has a legend, axes with marks, and shapes."""
    inside = shown.split(f'id="{name}"')[1].split("<section")[0]
    assert 'class="plot"' in inside, name
    assert inside.count("<path") + inside.count("<rect") > 1, name
    assert "NaN" not in inside, name
    assert "undefined" not in inside, name
    return inside


def drawn_well(browser: Browser, page: Path, charts: int) -> None:
    """The browser draws every chart of a page, finds a place for everything in them, and fits a telephone."""
    browser.open(page.as_uri())
    browser.until(f"document.readyState === 'complete' && location.href === '{page.as_uri()}'")
    assert browser.ask("document.querySelectorAll('.plot .series').length") >= charts
    plots = "[...document.querySelectorAll('.plot')]"
    assert browser.ask(f"{plots}.filter(one => /NaN|Infinity|undefined/.test(one.outerHTML)).length") == 0
    assert browser.problems == []
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.ask("document.documentElement.scrollWidth") <= 360
    browser.call("Emulation.clearDeviceMetricsOverride")


def saved(text: str, folder: Path, name: str = "page") -> Path:
    path = folder / f"{name}.html"
    path.write_text(text, encoding="utf-8")
    return path
