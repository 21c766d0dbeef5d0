"""Build a release from the last commit: `python -m tests.support.release FOLDER` (make release).

The folder gets the sources (sdist), a wheel that is built from them, the bill of materials (CycloneDX), and SHA256SUMS
of the three. Times in them are that of the commit, so that the same commit and tools give the same sources.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import sbom
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
    when = run("git", "log", "-1", "--format=%ct").strip()
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(folder), cwd=scratch, SOURCE_DATE_EPOCH=when)
    return next(folder.glob("*.tar.gz"))


def wheel(folder: Path, sdist: Path) -> Path:
    """Build the wheel from the sdist, without any package that is not installed here; run what is in it."""
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder), str(sdist))
    found = next(folder.glob("*.whl"))
    if not any(name.endswith(".o") for name in zipfile.ZipFile(found).namelist()):
        raise SystemExit("the wheel has no eBPF programs: install clang (apt-get install clang), and start again")
    return found


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
        files = sorted(folder.iterdir())
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (folder / SUMS).write_text("".join(sums))
        shutil.rmtree(target, ignore_errors=True)
        Path(target).mkdir(parents=True)
        for file in folder.iterdir():
            shutil.copy(file, target)
    print("".join(sums), end="")
    print(f"wirelag {__version__}, {run('git', 'log', '-1', '--format=%h').strip()}: in {target}")


if __name__ == "__main__":
    main(sys.argv[1])
