"""A release: pins with hashes, and what `make release` leaves."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.hashes import read, text, wanted
from tests.support.places import ROOT

PINS, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"


def test_every_pin_has_hashes() -> None:
    """If this fails after a change of constraints.txt: make hashes."""
    pins, found = read(PINS), read(HASHED)
    assert {name: version for name, (version, _) in found.items()} == {name: one for name, (one, _) in pins.items()}
    for name, (_, hashes) in found.items():
        assert hashes, name
        assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in hashes), name
    assert text(found) == HASHED.read_text(), "as make hashes writes it"


@pytest.mark.parametrize(
    ("file", "is_wanted"),
    [
        ("some_thing-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("some_thing-1.0-cp314-cp314-musllinux_1_2_aarch64.whl", True),
        ("some_thing-1.0-cp38-abi3-manylinux_2_17_x86_64.whl", True),
        ("some_thing-1.0-py3-none-any.whl", True),
        ("some.thing-1.0.tar.gz", True),
        ("some_thing-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("some_thing-1.0-cp311-cp311-win_amd64.whl", False),
        ("some_thing-1.0-cp311-cp311-macosx_11_0_arm64.whl", False),
        ("some_thing-1.0.1-py3-none-any.whl", False),
        ("some_thing_else-1.0-py3-none-any.whl", False),
    ],
)
def test_which_files_have_a_hash(file: str, is_wanted: bool) -> None:
    assert wanted(file, "some-thing", "1.0") == is_wanted


@pytest.mark.acceptance
def test_hashes_are_those_of_the_index(tmp_path: Path) -> None:
    page = tmp_path / "some-thing" / "index.html"
    page.parent.mkdir()
    files = {"some_thing-1.0-py3-none-any.whl": "a" * 64, "some_thing-1.0.tar.gz": "b" * 64}
    files |= {"some_thing-2.0-py3-none-any.whl": "c" * 64}
    links = "".join(f'<a href="{name}#sha256={digest}">{name}</a>' for name, digest in files.items())
    page.write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    environment = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": tmp_path.as_uri()}

    def ask(pins: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pins").write_text(pins)
        words = [sys.executable, "-m", "tests.support.hashes", str(tmp_path / "pins"), str(tmp_path / "hashed")]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)

    (tmp_path / "hashed").write_text(text({"some-thing": ("1.0", {"d" * 64})}))
    assert ask("# pins\nsome-thing==1.0\n").returncode == 0
    assert read(tmp_path / "hashed")["some-thing"][1] == {"a" * 64, "b" * 64, "d" * 64}, "those known before stay"
    assert ask("some-thing==2.0\n").returncode == 0
    assert read(tmp_path / "hashed")["some-thing"] == ("2.0", {"c" * 64})
    assert "some-thing==3.0: the index has no file with a hash" in ask("some-thing==3.0\n").stderr
    assert read(tmp_path / "hashed")["some-thing"][0] == "2.0", "nothing is written"


@pytest.mark.acceptance
def test_make_release(tmp_path: Path) -> None:
    """Minutes: all tools are installed anew, and only files whose hash is known."""
    made = subprocess.run(["make", "release", f"DIST={tmp_path}/dist"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    dist = tmp_path / "dist"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert {one.name for one in dist.iterdir()} == {wheel.name, sdist.name, "wirelag.cdx.json", "SHA256SUMS"}
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("wirelag/_kernels") for name in names)
    assert "wirelag/bpf/balance.bpf.o" in names
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"kernels/maglev.h", "constraints-hashed.txt", "SECURITY.md"} <= inside
    bill = json.loads((dist / "wirelag.cdx.json").read_text())
    assert {"numpy", "starlette"} <= {one["name"] for one in bill["components"]}

    (tmp_path / "wrong.txt").write_text(f"mdurl=={read(PINS)['mdurl'][0]} --hash=sha256:{'0' * 64}\n")
    pip = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-deps", "-r", str(tmp_path / "wrong.txt")]
    refused = subprocess.run([*pip, "--target", str(tmp_path / "none")], capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "none").exists()
