"""What people do by mistake or out of malice: odd names, full disks, closed streams, folders that are not theirs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.command import WIRELAG, wirelag
from tests.support.places import ROOT

WEB = ROOT / "docs" / "guides" / "data" / "web.pcap.gz"


def test_names_of_files_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """A capture comes from a stranger, and so does its name."""
    odd = tmp_path / "a\nb\x1b[31m\x9b.pcap.gz"
    shutil.copy(WEB, odd)
    told = wirelag("info", odd.name, cwd=tmp_path).stdout
    assert told.startswith("a\\nb\\x1b[31m\\x9b.pcap.gz (pcap, gzip)\n")
    warned = wirelag("info", odd.name, "no\x1b]0;.pcap", cwd=tmp_path, code=2).stderr
    assert "no\\x1b]0;.pcap: there is no such file" in warned
    assert "\x1b" not in told + warned


@pytest.mark.skipif(shutil.which("prlimit") is None, reason=needs.program("prlimit"))
@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        (("rtt", str(WEB)), "--html", "page.html"),
        (("rtt", str(WEB)), "--samples", "page.csv"),
        (("rtt", str(WEB), "--by", "flow"), "-o", "page.json"),
        (("cut", str(WEB), "--interval", "100ms"), "-o", "A.syn"),
        *((("simulate", "--packets", "2000"), "-o", f"s.{ending}") for ending in ("pcap", "pcapng.gz", "pcap.zst")),
    ],
)
def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path, command: tuple[str, ...], option: str, name: str) -> None:
    words = ["prlimit", "--fsize=10000", *WIRELAG, *command, option, name]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == f"wirelag: {name}: cannot write (File too large); choose another file with {option}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_opened_stays(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    assert "Is a directory" in wirelag("rtt", WEB, "--html", tmp_path / "page.html", code=2).stderr
    assert (tmp_path / "page.html").is_dir()


def test_errors_name_what_was_given() -> None:
    assert wirelag("rtt", "", code=2).stderr == "wirelag: '' is not the name of a file\n"
    said = "wirelag: lo: there is no such file; to measure at the interface: wirelag watch lo rtt\n"
    assert wirelag("rtt", "lo", code=2).stderr == said
    closed = subprocess.run(["sh", "-c", '"$0" rtt - <&-', *WIRELAG], capture_output=True, text=True)
    assert closed.stderr.startswith("wirelag: standard input is closed: pipe a capture into it")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason=needs.program("setpriv"))
def test_a_report_names_folders_that_it_cannot_read(tmp_path: Path) -> None:
    shutil.copy(WEB, tmp_path / "web.pcap.gz")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    plain = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if plain:
        os.chown(locked, 65534, 65534)
    else:
        locked.chmod(0)
    command = [*plain, *WIRELAG, "report", str(tmp_path), "-o", str(tmp_path / "pages")]
    ran = subprocess.run(command, capture_output=True, text=True)
    locked.chmod(0o700)
    assert ran.returncode == 2
    assert f"{locked}: permission denied" in ran.stderr
    assert "2 captures" in ran.stdout
    assert "1 cannot be read" in ran.stdout
