"""A release: pins with hashes, and what `make release` leaves."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from packaging.specifiers import SpecifierSet

from tests.support import needs
from tests.support.arm import ArmRoot
from tests.support.clean_root import CleanRoot, container_steps
from tests.support.command import wirelag
from tests.support.hashes import read, text, wanted
from tests.support.places import ROOT
from tests.support.release import notes

PINS, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"


def test_every_pin_has_hashes() -> None:
    """If this fails after a change of constraints.txt: make hashes."""
    pins, found = read(PINS), read(HASHED)
    assert {name: version for name, (version, _) in found.items()} == {name: one for name, (one, _) in pins.items()}
    for name, (_, hashes) in found.items():
        assert hashes, name
        assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in hashes), name
    assert text(found) == HASHED.read_text(), "as make hashes writes it"


def test_every_pin_accepts_the_oldest_python() -> None:
    """Debian's is 3.11.2: some packages ask for a later 3.11."""
    installed = {re.sub(r"[-_.]+", "-", one.name).lower(): one.metadata for one in distributions()}
    pinned = [installed[name] for name in read(PINS) if name in installed]
    asked = {facts["Name"]: facts["Requires-Python"] for facts in pinned if "Requires-Python" in facts}
    assert len(asked) > 100
    assert {name: one for name, one in asked.items() if not SpecifierSet(one).contains("3.11.2")} == {}


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


def test_notes_are_those_of_the_version() -> None:
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\nNew.\n\n## [1.0] - 2026-01-01\n\nFirst.\n\n## [0.9] - 2025-01-01\n\nOld.\n"
    )
    assert notes(changelog, "1.0") == "# wirelag 1.0\n\nFirst.\n"
    assert notes(changelog, "2.0") == "# wirelag 2.0\n\nNew.\n", "a rehearsal"
    with pytest.raises(SystemExit, match=r"neither a heading \[3\.0\]"):
        notes("# Changelog\n", "3.0")


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_cibuildwheel_accepts_its_settings(processor: str) -> None:
    words = ["--platform", "linux", "--archs", processor, "--print-build-identifiers", str(ROOT)]
    asked = subprocess.run([sys.executable, "-m", "cibuildwheel", *words], capture_output=True, text=True)
    assert asked.stdout.split() == [f"cp311-manylinux_{processor}", f"cp312-manylinux_{processor}"], asked.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minutes: all tools are installed anew, and only files whose hash is known."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    made = subprocess.run(["make", "deb", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.mark.acceptance
def test_make_release(dist: Path, tmp_path: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True)
    (wheel,), (sdist,), (deb,) = dist.glob("*.whl"), dist.glob("*.tar.gz"), dist.glob("*.deb")
    assert "-manylinux_2_" in wheel.name
    others = {"wirelag.cdx.json", "NOTES.md", "SHA256SUMS"}
    assert {one.name for one in dist.iterdir()} == {wheel.name, sdist.name, deb.name, *others}
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("wirelag/_kernels") for name in names)
    assert {"wirelag/bpf/balance.bpf.o", "wirelag/deploy/wirelag-agent@.service"} <= set(names)
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"kernels/maglev.h", "constraints-hashed.txt", "SECURITY.md"} <= inside
    assert {f"bpf/prebuilt/{one}/balance.bpf.o" for one in ("x86_64", "aarch64")} <= inside
    bill = json.loads((dist / "wirelag.cdx.json").read_text())
    assert {"numpy", "starlette"} <= {one["name"] for one in bill["components"]}

    (tmp_path / "wrong.txt").write_text(f"mdurl=={read(PINS)['mdurl'][0]} --hash=sha256:{'0' * 64}\n")
    pip = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-deps", "-r", str(tmp_path / "wrong.txt")]
    refused = subprocess.run([*pip, "--target", str(tmp_path / "none")], capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "none").exists()


CAPTURE = "share/doc/wirelag/web.pcap.gz"


@pytest.mark.acceptance
@pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT)
def test_an_ordinary_user_with_the_wheel_alone_gets_a_page(dist: Path) -> None:
    """An empty environment, a user without a home of root's: from `pip install` to a page in one command each."""
    with TemporaryDirectory() as place:
        home = Path(place)
        wheel = shutil.copy(next(dist.glob("*.whl")), home)
        shutil.chown(home, 65534, 65534)

        def user(*words: str) -> str:
            me = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            environment = os.environ | {"HOME": place}
            return subprocess.run(
                [*me, *words], cwd=home, env=environment, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        user("/usr/bin/python3", "-m", "venv", "empty")
        user("empty/bin/pip", "install", "-q", "--only-binary", ":all:", str(wheel))
        user("empty/bin/wirelag", "rtt", f"empty/{CAPTURE}", "--html", "page.html")
        page = (home / "page.html").read_text()
        assert page.startswith("<!DOCTYPE html>")
        assert "web.pcap.gz" in page
        assert "wirelag-rtt" in user("man", "-M", "empty/share/man", "wirelag-rtt").lower()
        assert "yes      captures" in user("empty/bin/wirelag", "doctor")


@pytest.mark.acceptance
@pytest.mark.parametrize("tools", ["cc c++ gcc g++ as ld ar ranlib", ""], ids=["compiler alone", "no compiler"])
def test_the_sources_without_clang(dist: Path, tmp_path: Path, tools: str) -> None:
    """With a compiler they bring the eBPF programs along; without one they say so in a line."""
    (tmp_path / "bin").mkdir()
    for one in ["sh", "env", "uname", *tools.split()]:
        os.symlink(str(shutil.which(one)), tmp_path / "bin" / one)
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent)])
    words = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    words += ["--config-settings=cmake.define.WIRELAG_CLANG=OFF"]  # CMake looks for it beyond PATH
    words += [str(next(dist.glob("*.tar.gz")))]
    plain = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX") and "LAUNCHER" not in name}
    made = subprocess.run(
        [sys.executable, "-m", "pip", *words], env=plain | {"PATH": path}, capture_output=True, text=True
    )
    if not tools:
        assert made.returncode != 0
        assert "wirelag: no compiler for C and C++ was found. As root: apt-get install g++" in " ".join(
            made.stderr.split()
        )
        return
    assert made.returncode == 0, made.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel, tarfile.open(next(dist.glob("*.tar.gz"))) as packed:
        program = next(
            one for one in packed.getmembers() if one.name.endswith(f"prebuilt/{os.uname().machine}/lda.bpf.o")
        )
        brought = packed.extractfile(program)
        assert brought is not None
        assert wheel.read("wirelag/bpf/lda.bpf.o") == brought.read()


def test_the_container_file_has_only_steps_that_the_clean_root_runs() -> None:
    kinds = [kind for kind, _ in container_steps()]
    assert kinds[:2] == ["FROM", "COPY"]
    assert set(kinds) == {"FROM", "COPY", "RUN", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}


@pytest.mark.acceptance
@pytest.mark.skipif(bool(needs.absent("mmdebstrap")), reason=needs.program("mmdebstrap"))
@pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT)
def test_the_debian_package_in_a_clean_root(dist: Path, tmp_path: Path) -> None:
    """The steps of the container file install it where nothing else is; a user's command gives a page."""
    with CleanRoot(tmp_path / "root") as root:
        for kind, words in container_steps():
            if kind == "COPY":
                root.copy(dist.parent, *words.split())
            elif kind == "RUN":
                root.run(words)
        capture = "/usr/share/doc/wirelag/examples/web.pcap.gz"
        root.run(f"cd /tmp && wirelag rtt {capture} --html page.html", user=65534)
        assert (root.path / "tmp/page.html").read_text().startswith("<!DOCTYPE html>")
        assert "yes      extra live" in root.run("wirelag doctor", user=65534)
        have = set(root.run("dpkg -L wirelag").split())
        assert {"/usr/share/man/man1/wirelag-rtt.1.gz", "/lib/systemd/system/wirelag-agent@.service"} <= have
        completions = {"bash-completion/completions/wirelag", "zsh/vendor-completions/_wirelag"}
        assert {f"/usr/share/{one}" for one in (*completions, "fish/vendor_completions.d/wirelag.fish")} <= have
        assert "yes      captures" in root.run("wirelag doctor", user=65534)
        assert "the Debian package cannot be added to" in root.run("wirelag doctor", user=65534)
        unit = (root.path / "lib/systemd/system/wirelag-collect.service").read_text()
        assert "ExecStart=/usr/bin/wirelag collect" in unit
        assert "/opt/" not in unit
        root.run("rm /tmp/page.html && dpkg --purge wirelag")
        assert root.run("find / -xdev -iname '*wirelag*'") == "", "nothing is left"


def _rounded(report: str) -> object:
    """To 12 digits: sums and powers of numpy for another processor may differ in the last bit."""
    return json.loads(report, parse_float=lambda one: float(f"{float(one):.12g}"))


@pytest.mark.acceptance
@pytest.mark.skipif(bool(needs.absent("mmdebstrap")), reason=needs.program("mmdebstrap"))
@pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT)
def test_a_wheel_for_aarch64_gives_the_same_figures(dist: Path, tmp_path: Path) -> None:
    """It is built from the same sources by a cross compiler, and run under qemu, with a Python for aarch64."""
    with ArmRoot(tmp_path / "root") as root:
        wheel = root.build(next(dist.glob("*.tar.gz")), tmp_path)
        assert re.search(r"-manylinux_2_\d+_aarch64\.whl$", wheel.name)
        with zipfile.ZipFile(wheel) as inside, tarfile.open(next(dist.glob("*.tar.gz"))) as packed:
            program = next(one for one in packed.getmembers() if one.name.endswith("prebuilt/aarch64/lda.bpf.o"))
            brought = packed.extractfile(program)
            assert brought is not None
            assert inside.read("wirelag/bpf/lda.bpf.o") == brought.read()
        root.install(wheel)
        assert root.wirelag("--version").startswith("wirelag ")
        shutil.copy(ROOT / "docs/guides/data/web.pcap.gz", root.path / "web.pcap.gz")
        shutil.copy(ROOT / "docs/guides/data/web.pcap.gz", tmp_path / "web.pcap.gz")
        for question in ("rtt", "response"):
            words = (question, "web.pcap.gz", "--format", "json")
            assert _rounded(root.wirelag(*words)) == _rounded(wirelag(*words, cwd=tmp_path).stdout)
