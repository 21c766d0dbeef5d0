"""`wirelag report`: captures of a folder, worst first, with pages that a browser shows."""

import gzip
import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest

import wirelag
from tests.support import needs
from tests.support.browser import Browser
from tests.support.command import wirelag as command
from tests.support.places import ROOT
from tests.support.simulated_captures import write_simulation
from wirelag.measure.overview import find_captures
from wirelag.sim import Scenario, simulate

SCHEMA = json.loads((ROOT / "docs" / "reference" / "schema" / "report.json").read_text())
NO_FOLDER = "cannot be a folder (File exists); choose another with -o"
ROWS = "[...document.querySelectorAll('main tbody tr:not([hidden]) th')]"
NAMES = ROWS + ".map((one) => one.innerText.split(' ')[0]).filter((one) => one.endsWith('.pcap')).join()"
DELAYS = {"fast.pcap": "constant:5ms", "slow.pcap": "constant:80ms", "below/medium.pcap.gz": "constant:20ms"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three captures, one that is damaged, and files that are no captures."""
    folder = tmp_path_factory.mktemp("captures")
    for name, delay in DELAYS.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        write_simulation(simulate(Scenario(packets=4_000, seed=3, rtt=delay)), plain)
        if plain != path:
            path.write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
    shutil.copy(folder / "fast.pcap", folder / "without-a-suffix")
    (folder / "damaged.pcap").write_bytes(b"not a capture at all, but long enough for one")
    (folder / "notes.pcap.txt").write_text("not a capture")
    return folder


def test_captures_are_found_by_content_or_by_name(folder: Path) -> None:
    found = [Path(path).relative_to(folder).as_posix() for path in find_captures(str(folder))]
    assert found == ["damaged.pcap", "fast.pcap", "slow.pcap", "without-a-suffix", "below/medium.pcap.gz"]


def test_the_worst_comes_first_and_figures_are_those_of_rtt(folder: Path, tmp_path: Path) -> None:
    ran = command("report", folder, "-o", tmp_path, "--format", "json", code=2)
    told = json.loads(ran.stdout)
    jsonschema.validate(told, SCHEMA)
    names = [Path(one["file"]).name for one in told["captures"]]
    assert names == ["slow.pcap", "medium.pcap.gz", "fast.pcap", "without-a-suffix", "damaged.pcap"]
    assert "damaged.pcap: this is neither a pcap nor a pcapng file" in ran.stderr
    for one in told["captures"][:-1]:
        alone = json.loads(command("rtt", one["file"], "--format", "json").stdout)
        assert one["server"]["quantiles"] == alone["legs"]["server"]["quantiles"]
        assert one["server"]["ci95"] == alone["legs"]["server"]["ci95"]
        assert one["client"]["mean"] == alone["legs"]["client"]["mean"]
        assert (tmp_path / one["pages"]["rtt"]).stat().st_size < 1_000_000
        assert (tmp_path / one["pages"]["response"]).stat().st_size < 1_000_000
    assert wirelag.overview(folder).to_dict()["captures"][0]["server"] == told["captures"][0]["server"]


def test_an_agreement_must_hold_in_every_capture(folder: Path, tmp_path: Path) -> None:
    files = [folder / "fast.pcap", folder / "slow.pcap"]
    broken = command("report", *files, "-o", tmp_path, "--sla", "server.p50<40ms", code=3).stdout
    assert "1 breaks an agreement" in broken
    assert broken.splitlines()[2].startswith("slow.pcap")
    assert "server.p50<40ms: does not hold" in broken.splitlines()[2]
    assert "hold" not in broken.splitlines()[3]
    page = (tmp_path / "index.html").read_text()
    assert re.search(r"<li>slow\.pcap: server\.p50&lt;40ms: does not hold", page), "named at the top"
    assert page.count("breaks server.p50&lt;40ms") == 1
    command("report", *files, "-o", tmp_path, "--sla", "server.p50<400ms", code=0)
    assert command("report", *files, "-o", tmp_path, "--sla", "p50<<1", code=2).stderr.startswith("wirelag: --sla: ")


def test_what_cannot_be_done_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for words, line in (
        ([tmp_path / "empty"], f"{tmp_path}/empty: no capture in here; name a folder with captures"),
        ([tmp_path / "gone"], f"{tmp_path}/gone: no such folder"),
        ([folder, "-o", tmp_path / "file"], f"{tmp_path}/file: {NO_FOLDER}"),
    ):
        output = [] if "-o" in words else ["-o", tmp_path / "pages"]
        assert command("report", *words, *output, code=2).stderr == f"wirelag: {line}\n"


def test_tables_sort_filter_and_lead_to_pages(folder: Path, tmp_path: Path) -> None:
    program = needs.find("chromium")
    if program is None:
        pytest.skip(needs.program("chromium"))
    many = tmp_path / "many"
    many.mkdir()
    for i in range(8):
        shutil.copy(folder / "fast.pcap", many / f"copy-{i}.pcap")
    shutil.copy(folder / "slow.pcap", many / "slow.pcap")
    command("report", many, "-o", tmp_path / "pages")
    press = "document.querySelectorAll('main thead button')[{}].click()"
    with Browser(program, tmp_path) as browser:
        browser.open((tmp_path / "pages" / "index.html").as_uri())
        browser.until("document.readyState == 'complete'")
        first = browser.ask(NAMES).split(",")
        assert first[0] == "slow.pcap"
        browser.ask(press.format(0))  # by name, the largest first
        assert browser.ask(NAMES).split(",") == sorted(first, reverse=True)
        browser.ask(press.format(0))
        assert browser.ask(NAMES).split(",") == sorted(first)
        assert browser.ask("document.querySelector('main th[aria-sort]').getAttribute('aria-sort')") == "ascending"
        browser.ask(press.format(0))
        assert browser.ask(NAMES).split(",") == first
        browser.ask(press.format(1))  # p50 to the server: by value, not as text
        assert browser.ask(NAMES).split(",")[0] == "slow.pcap"
        field = "const field = document.querySelector('.find input'); field.value = '{}';"
        browser.ask(field.format("COPY-3") + "field.dispatchEvent(new Event('input')); 1")
        assert browser.ask(NAMES) == "copy-3.pcap"
        assert browser.ask("document.querySelector('.find [role=status]').innerText") == f"1 of {len(first)}"
        browser.ask("document.querySelector('main tbody tr:not([hidden]) a').click()")
        browser.until("document.querySelector('h1')?.innerText == 'Round-trip delay'")
        browser.until("document.querySelector('svg') != null")
