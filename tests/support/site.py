"""Build the site of the documentation: `python -m tests.support.site [FOLDER]` (make site).

The pages are those of the repository. They are put into a folder of their own, with all files that they link
to: so relative links hold, and what is linked to from a page is on the site. A warning is an error, and so is anything
that a page would load from elsewhere.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.places import ROOT

FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)|(?:src|href)=\"([^\"#]+)\"")


def linked(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield (page.parent / target).resolve()


def sources() -> set[Path]:
    """The pages of the site: the first, all of docs/, and what is reached from them."""
    found: set[Path] = set()
    waiting = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    while waiting:
        one = waiting.pop()
        if one not in found and one.is_file():
            found.add(one)
            waiting += linked(one) if one.suffix == ".md" else ()
    return found


class Loaded(HTMLParser):
    """What a page loads from elsewhere. Links that a reader follows are not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.remote: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loads = name in ("src", "srcset", "poster", "data") or (tag == "link" and name == "href")
            if loads and value and re.match(r"(https?:)?//", value):
                self.remote.append(value)


def remote(folder: Path) -> list[str]:
    """What the site would load from elsewhere."""
    found = [f"{page}: {one}" for page in folder.rglob("*.html") for one in Loaded(page.read_text("utf-8")).remote]
    for style in [*folder.rglob("*.css"), *folder.rglob("*.svg")]:
        found += [
            f"{style}: {one}" for one in re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", style.read_text("utf-8"))
        ]
    return found


def build(target: Path) -> None:
    """Build the site into a new folder; raises an error if anything is wrong with it."""
    with TemporaryDirectory() as scratch:
        tree = Path(scratch) / "pages"
        for page in sources():
            place = tree / page.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, place)
        words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-j", "auto", "-b", "html"]
        words += ["-c", str(ROOT / "docs" / "site"), "-d", f"{scratch}/state", str(tree), f"{scratch}/site"]
        if subprocess.run(words, check=False).returncode:
            raise SystemExit("the site has warnings, above: nothing was written")
        if found := remote(Path(scratch) / "site"):
            raise SystemExit("\n".join(["the site would load from elsewhere:", *found]))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path(scratch) / "site", target)
    (target / "index.html").write_text('<!DOCTYPE html><meta http-equiv="refresh" content="0; url=README.html">\n')
    print(f"{len(list(target.rglob('*.html')))} pages: open {target}/index.html")


if __name__ == "__main__":
    build(Path(sys.argv[1] if sys.argv[1:] else ROOT / "build" / "site"))
