"""The release before, built from its commit: its agent with today's collector, and today's agent with its collector."""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector_process import Running
from tests.support.command import WIRELAG
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S

# Before agents kept what a collector does not know. Once there are releases: the tag of the one before.
PREVIOUS = "3f18ae9c2a"
pytestmark = pytest.mark.acceptance
INTERVALS = 8


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The words that start it; it uses the packages of this environment, but not its wirelag."""
    there = subprocess.run(["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], cwd=ROOT, capture_output=True)
    if there.returncode:
        pytest.skip(f"this clone does not have commit {PREVIOUS}: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("previous")
    subprocess.run(["git", "worktree", "add", "--detach", folder / "tree", PREVIOUS], cwd=ROOT, check=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # A path that a .pth file names is not searched for .pth files: the editable wirelag of this environment is out.
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        build = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--ignore-installed"]
        subprocess.run([python, "-m", *build, "--prefix", folder / "venv", folder / "tree"], check=True)
        where = subprocess.run(
            [python, "-c", "import wirelag; print(wirelag.__file__)"], check=True, capture_output=True, text=True
        )
        assert where.stdout.startswith(str(packages))
        yield str(python), "-m", "wirelag.cli"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder / "tree"], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("captures")
    up, down = folder / "up.pcap", folder / "down.pcap"
    words = ("--points", "2", "--packets", "20000", "--duration", f"{INTERVALS}s", "--seed", "3", "--loss", "1%")
    subprocess.run([*WIRELAG, "simulate", *words, "-o", up, "-o", down, "--quiet"], check=True)
    return up, down


def measured(agents: list[tuple[str, ...]], collector: Running, captures: tuple[Path, Path], estimator: str) -> int:
    """Let an agent of each program replay its capture; returns the number of intervals that both have measured."""
    started = []
    for agent, point, capture in zip(agents, "AB", captures, strict=True):
        words = (
            "agent",
            "--point",
            point,
            "-r",
            capture,
            "--speed",
            "4x",
            "--segment",
            "A>B",
            "--estimator",
            estimator,
        )
        more = ("--cut", "clock", "--collector", collector.url, "--spool", capture.parent / f"{estimator}-{point}")
        started.append(subprocess.Popen([*agent, *words, *more], stderr=subprocess.PIPE, text=True))
    for process in started:
        _, said = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0, said
        assert "messages wait" not in said.splitlines()[-1], said
    collector.until(lambda: len(collector.reports()) >= INTERVALS - 1)
    return sum(one["sent"] > 0 and one["used"] > 0 for one in collector.reports())


@pytest.mark.parametrize("estimator", ["lda", "rda"])
@pytest.mark.parametrize("which", ["old agents", "one old agent", "old collector"])
def test_versions_meet(
    which: str, estimator: str, previous: tuple[str, ...], captures: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = previous, (sys.executable, "-m", "wirelag.cli")
    agents = {"old agents": [old, old], "one old agent": [old, new], "old collector": [new, new]}[which]
    running = Running(tmp_path, "--segment", "A>B")
    if which == "old collector":
        running._command = [*old, *running._command[len(WIRELAG) :]]
    with running:
        assert measured(agents, running, captures, estimator) >= INTERVALS - 2
