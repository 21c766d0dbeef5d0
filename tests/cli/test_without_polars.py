"""Without the extra `tables`: what works, byte for byte as with it, and what says how to get it."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command import Ran, wirelag
from tests.support.places import ROOT
from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "polars":
            raise ModuleNotFoundError("No module named 'polars'", name="polars")
sys.meta_path.insert(0, Blocked())
"""
COMMANDS = f"""{BLOCKED}
import json
from tests.support.command import wirelag
for line in sys.stdin:
    print(json.dumps(wirelag(*json.loads(line), code=None)), flush=True)
"""
MOST_BYTES = 200_000_000

WORKS = [
    "info web.pcap",
    "rtt web.pcap --by server --interval 20s",
    "rtt web.pcap --format json",
    "rtt web.pcap --format jsonl --interval 20s",
    "rtt web.pcap --format csv --by flow --samples OUT.csv",
    "rtt web.pcap --html OUT.html",
    "response web.pcap --format csv --exchanges OUT.csv",
    "oneway up.pcap down.pcap --format csv --samples OUT.csv",
    "flows behind.pcap --format csv --interval 100ms",
    "flows behind.pcap --upstream before.pcap --format json",
    f"plan {ROOT}/tests/data/six.json --upgrade 2 --format csv",
    "simulate --packets 500 -o OUT.pcapng.gz",
    "simulate --queue 0.5 --duration 50ms -o OUT.pcap -o OUT2.pcap",
]
REFUSED = {
    "rtt web.pcap -o OUT.parquet": "Parquet",
    "rtt web.pcap --samples OUT.parquet": "Parquet",
    "response web.pcap --exchanges OUT.parquet": "Parquet",
    "response web.pcap --epochs OUT.parquet": "Parquet",
    "oneway up.pcap down.pcap --samples OUT.parquet": "Parquet",
    "flows behind.pcap --format parquet -o OUT": "Parquet",
    "simulate --packets 500 -o OUT.pcap --truth OUT.parquet": "Parquet",
    "score report.json truth.parquet": "wirelag score",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("polars")
    write_simulation(simulate(Scenario(packets=4_000, loss=0.01)), folder / "web.pcap")
    write_simulation(simulate(Scenario(packets=3_000, points=2)), folder / "up.pcap", folder / "down.pcap")
    queue = "simulate --queue 0.8 --duration 100ms -o before.pcap -o behind.pcap --quiet"
    wirelag(*queue.split(), cwd=folder)
    return folder


Without = Callable[[str], Ran]


@pytest.fixture(scope="module")
def without(folder: Path) -> Iterator[Without]:
    """Runs commands in a process without polars; one for all, since starting it takes longer than they do."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", COMMANDS], cwd=folder, env=environment, **pipes) as process:  # type: ignore[call-overload]

        def run(words: str) -> Ran:
            process.stdin.write(json.dumps(words.split()) + "\n")
            process.stdin.flush()
            return Ran(*json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


def taken(folder: Path) -> dict[str, bytes]:
    """The files that a command wrote, which are removed."""
    return {path.name: (path.read_bytes(), path.unlink())[0] for path in sorted(folder.glob("OUT*"))}


@pytest.mark.every(6)
@pytest.mark.parametrize("words", WORKS)
def test_works_as_with_polars(folder: Path, without: Without, words: str) -> None:
    ran = without(words)
    files = taken(folder)
    assert ran.returncode == 0, ran.stderr
    assert wirelag(*words.split(), cwd=folder).stdout == ran.stdout
    same = taken(folder)
    assert same.keys() == files.keys()
    assert "--html" in words or same == files  # a page says when it was made


@pytest.mark.every(2)
@pytest.mark.parametrize(("words", "what"), REFUSED.items())
def test_says_what_is_missing_before_it_measures(folder: Path, without: Without, words: str, what: str) -> None:
    done = without(words)
    assert done.returncode == 2
    assert done.stderr == f"wirelag: {what} needs polars: pip install 'wirelag[tables]'\n"
    assert not done.stdout
    assert not taken(folder)


def test_data_frames_say_what_is_missing(folder: Path) -> None:
    code = f"""{BLOCKED}
import wirelag
result = wirelag.rtt("web.pcap", samples=True)
for frame in (result.to_polars, result.samples.to_polars, next(iter(wirelag.read("web.pcap"))).to_polars):
    try:
        frame()
    except wirelag.WirelagError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "A data frame needs polars: pip install 'wirelag[tables]'\n" * 3, done.stderr


@pytest.mark.acceptance
def test_an_installation_without_extras_is_small(tmp_path: Path) -> None:
    """From the source tree, into an environment of its own; pip needs an index or a folder of packages."""
    venv.create(tmp_path / "env", with_pip=True)
    pip = [tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT]
    before = installed_bytes(tmp_path)
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "env").rglob("site-packages/polars"))
    assert installed_bytes(tmp_path) - before <= MOST_BYTES


def installed_bytes(folder: Path) -> int:
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.suffix != ".pyc"
    )
