"""Make the pictures of the documentation from real output: `python -m tests.support.pictures` (make pictures).

A page is written by the commands below and photographed in Chromium (PNG); what a terminal shows is drawn as SVG. Tests
do not compare pictures: fonts differ between machines. They check that each is used, and is of its kind.
"""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.html_pages import browse
from tests.support.places import ROOT
from tests.support.shell import shell

FOLDER = ROOT / "docs" / "guides" / "pictures"
WIDE, HIGH = 1100, 900  # of a page
COLUMNS = 118  # of a terminal
WEB = "cp $WIRELAG/docs/guides/data/web.pcap.gz ."
PAGES = {  # the commands, of which the last names the page
    "rtt": (
        "wirelag simulate --packets 20000 --seed 1 -o capture.pcap --quiet",
        "wirelag rtt capture.pcap --by server --interval 2s --html page.html",
    ),
    "oneway": (
        "wirelag simulate --packets 20000 --seed 2 --points 2 --clock-offset 2000s -o up.pcap -o down.pcap",
        "wirelag oneway up.pcap down.pcap --interval 2s --html page.html",
    ),
    "response": (WEB, "wirelag response web.pcap.gz --html page.html"),
    "report": (
        f"mkdir captures; {WEB}; mv web.pcap.gz captures; wirelag simulate --packets 20000 -o captures/office.pcap",
        "wirelag report captures; mv wirelag-report/index.html page.html",
    ),
    "flows": (
        "wirelag simulate --queue 0.7 --duration 200ms -o before.pcap -o behind.pcap",
        "wirelag flows behind.pcap --most-flows 5 --html page.html",
    ),
    "path": (
        "tar -xJf $WIRELAG/tests/data/routers.tar.xz",
        "wirelag path before/ospf.json before/captures --html page.html",
    ),
    "plan": ("wirelag plan $WIRELAG/tests/data/six.json --upgrade 2 --html page.html",),
}
TERMINALS = {  # commands that come before, and the one that is shown
    "rtt": (WEB, "wirelag rtt web.pcap.gz"),
}


def photograph(name: str, folder: Path) -> None:
    """Write a page, and take its picture."""
    for command in PAGES[name]:
        shell(command, {"WIRELAG": str(ROOT)})
    chromium = shutil.which("chromium")
    assert chromium, "apt-get install chromium"
    picture = FOLDER / f"{name}.png"
    words = (
        f"--screenshot={picture}",
        f"--window-size={WIDE},{HIGH}",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    )
    browse(chromium, folder / "page.html", folder, *words)
    pngquant = shutil.which("pngquant")
    assert pngquant, "apt-get install pngquant"
    # A page has few colours: a palette makes its picture a third as large.
    subprocess.run([pngquant, "--force", "--strip", "--speed", "1", "--output", picture, picture], check=True)


def draw(name: str) -> None:
    """Draw what a terminal shows, with no font from elsewhere."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    before, command = TERMINALS[name]
    environment = os.environ | {"WIRELAG": str(ROOT), "COLUMNS": str(COLUMNS)}
    subprocess.run(before, shell=True, check=True, env=environment)
    shown = shell(command, environment)
    lines = [line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..." for line in shown.splitlines()]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi("\n".join(lines)), highlight=False)
    own = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    text = console.export_svg(title="wirelag", code_format=own, unique_id=f"wirelag-{name}")
    (FOLDER / f"terminal-{name}.svg").write_text(text, encoding="utf-8")


def main(names: list[str]) -> None:
    for name in names or [*PAGES, *(f"terminal-{one}" for one in TERMINALS)]:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            draw(name.removeprefix("terminal-")) if name.startswith("terminal-") else photograph(name, Path(folder))
            os.chdir(ROOT)
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
