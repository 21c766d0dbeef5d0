"""Every command of the cookbook and of the questions runs, on captures that are simulated or shipped."""

import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.command import wirelag
from tests.support.effort import FULL
from tests.support.places import ROOT
from wirelag import cli

PAGES = ("cookbook.md", "faq.md")
PARSED: tuple[str, ...] = ("wirelag watch", "wirelag stamp", "wirelag doctor", "wirelag rtt capture.pcap --on")
"""They need an interface or a peer, or take long, and have tests of their own: their words are only parsed."""
PARSED += () if FULL else ("wirelag path",)
PLAIN = r"`((?:sudo )?wirelag [^`\n]+|--[^`\n]+)`"
NAMED = {"--direction": "--direction '>'", "--export": "", "--on dask://HOST:8786": ""}  # named in passing
FILTERS = "--host --net --port --proto --from --to --filter"
WHOLE = {"wirelag cut", "wirelag oneway", "wirelag simulate", "wirelag score", "wirelag info"}  # without arguments


def recipes() -> list[str]:
    """The commands of the pages, in order, each once; an option stands for a command with it."""
    found: dict[str, None] = {}
    for page in PAGES:
        for text in re.findall(PLAIN, (ROOT / "docs" / "guides" / page).read_text()):
            plain = text.removeprefix("sudo ")
            if plain.startswith("--"):
                plain = NAMED.get(plain, plain)
                plain = f"wirelag rtt capture.pcap {plain}" if plain and "direction" not in plain else ""
            if plain and plain not in WHOLE and FILTERS not in plain:
                found[plain] = None
    return list(found)


def later(capture: bytes) -> bytes:
    """The same packets a second later."""
    at, parts = 24, [capture[:24]]
    while at < len(capture):
        seconds, _, length, _ = struct.unpack_from("<IIII", capture, at)
        parts.append(struct.pack("<I", seconds + 1) + capture[at + 4 : at + 16 + length])
        at += 16 + length
    return b"".join(parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name."""
    place = tmp_path_factory.mktemp("recipes")
    wirelag("simulate", "--packets", 600, "-o", place / "capture.pcap")
    words = ("--points", 2, "--packets", 600, "--direction", "client", "--marking", "1s")
    wirelag("simulate", *words, "-o", place / "here.pcap", "-o", place / "there.pcap")
    for name, like in (("a", "here"), ("b", "there")):
        shutil.copy(place / f"{like}.pcap", place / f"{name}.pcap")
    (place / "c.pcap").write_bytes(later((place / "there.pcap").read_bytes()))
    (place / "FOLDER").mkdir()
    shutil.copy(place / "capture.pcap", place / "FOLDER")
    for name in ("before", "after"):
        wirelag("rtt", place / "capture.pcap", "--format", "json", "-o", place / f"{name}.json")
    if not FULL:
        shutil.copy(ROOT / "tests" / "data" / "six.json", place / "topology.json")
        return place
    subprocess.run(["tar", "-xJf", ROOT / "tests" / "data" / "routers.tar.xz", "-C", place], check=True)
    (place / "before" / "captures").rename(place / "captures")
    (place / "before" / "ospf.json").rename(place / "topology.json")
    return place


@pytest.mark.every(4)
@pytest.mark.parametrize("line", recipes())
def test_a_recipe_works(line: str, folder: Path) -> None:
    name, *words = shlex.split(line)[1:]
    cli.command(name).values(words)
    if not line.startswith(PARSED):
        ran = wirelag(name, *words, cwd=folder, code=None)
        assert ran.returncode in (0, 3), ran.stderr
        assert ran.stdout or "-o" in words


def test_the_pages_have_recipes() -> None:
    found = recipes()
    assert len(found) > 25
    assert {name for name in cli.NAMES if any(line.startswith(f"wirelag {name} ") for line in found)} >= {
        *("info", "rtt", "response", "telemetry", "report", "oneway", "flows", "marking", "path", "plan", "compare"),
        *("watch", "stamp"),
    }
