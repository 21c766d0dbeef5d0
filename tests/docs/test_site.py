"""The site: every page has its place, links and pictures are there, and nothing comes from elsewhere."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from tests.support import needs, pictures, site
from tests.support.browser import Browser
from tests.support.places import ROOT

SOURCES = site.sources()
PICTURES = sorted((ROOT / "docs" / "guides" / "pictures").iterdir())


def test_every_page_that_the_contents_name_exists() -> None:
    names = [name for group in runpy.run_path(str(ROOT / "docs/site/conf.py"))["PAGES"].values() for name in group]
    pages = {str(page.relative_to(ROOT).with_suffix("")) for page in SOURCES if page.suffix == ".md"}
    assert {name for name in names if "*" not in name} <= pages
    assert len(names) == len(set(names))


def test_pages_link_to_files_of_the_project() -> None:
    for page in SOURCES:
        for target in site.linked(page) if page.suffix == ".md" else ():
            assert target in SOURCES, f"{page}: {target} is no file"
            assert target.is_relative_to(ROOT)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: str(one.name))
def test_every_picture_is_shown_and_is_what_it_says(picture: Path) -> None:
    assert picture in SOURCES, "no page shows it"
    start = picture.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if picture.suffix == ".png" else start.startswith(b"<svg")
    assert picture.stat().st_size < 300_000
    if picture.suffix == ".svg":
        assert re.findall(r"url\((?!#)", picture.read_text()) == [], "it loads nothing"


def test_pictures_can_be_made_again() -> None:
    made = {f"{name}.png" for name in pictures.PAGES} | {f"terminal-{name}.svg" for name in pictures.TERMINALS}
    assert made <= {one.name for one in PICTURES}


def test_what_a_page_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="https://x.example">x</a><img src="b.png"><link href="c.css">')
    (tmp_path / "c.css").write_text("a { background: url(d.png) }")
    assert site.remote(tmp_path) == []
    (tmp_path / "a.html").write_text('<script src="https://x.example/y.js"></script>')
    (tmp_path / "c.css").write_text("@font-face { src: url('//x.example/f.woff') }")
    assert len(site.remote(tmp_path)) == 2


@pytest.mark.acceptance
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site.build(tmp_path / "site")
    first = (tmp_path / "site" / "README.html").read_text()
    assert "docs/guides/tutorial.html" in first
    assert (tmp_path / "site" / "searchindex.js").exists()
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip(needs.program("chromium"))
    with Browser(chromium, tmp_path) as browser:
        for width in (360, 800, 1000, 1280, 1440):
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            for page in ("README", "docs/guides/tutorial", "docs/concepts/comparison"):
                place = (tmp_path / "site" / f"{page}.html").as_uri()
                browser.open(place)
                browser.until(f"document.readyState === 'complete' && location.href === '{place}'")
                assert browser.ask("document.documentElement.scrollWidth") <= width, (page, width)
        assert browser.problems == []
