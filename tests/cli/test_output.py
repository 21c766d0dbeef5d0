"""Output files: commands never overwrite their input, report write errors in one line, and set exit codes."""

import json
import os
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest

from tests.support import needs
from tests.support.command import WIRELAG, Ran, wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.cli.options import check_outputs, speed_of
from wirelag.cli.parser import UsageError
from wirelag.errors import SettingError, WirelagError
from wirelag.sim import Scenario, simulate
from wirelag.stats.queue_drain import parse_drain
from wirelag.units import parse_duration_ns, parse_rate, parse_size, parse_speed

FULL = Path("/dev/full")
EMPTY = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, 1)  # a pcap header without packets
GONE = 141


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures of the same traffic, the truth about the first, and a capture without packets."""
    folder = tmp_path_factory.mktemp("captures")
    both = simulate(Scenario(packets=2_000, points=2))
    write_simulation(both, folder / "up.pcap", folder / "down.pcap")
    both.truth.write_parquet(folder / "truth.parquet")
    (folder / "empty.pcap").write_bytes(EMPTY)
    return folder


def run(folder: Path, words: str, code: int = 0, stdin: bytes | None = None) -> Ran:
    return wirelag(*shlex.split(words), code=code, stdin=stdin, cwd=folder)


def run_in_shell(folder: Path, words: str, tail: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a shell, with redirections; return the program's exit code, not that of its reader."""
    line = f"'{WIRELAG[0]}' {words} {tail}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=folder)


# ---- inputs are kept ----


@pytest.mark.parametrize(
    "words",
    [
        "rtt up.pcap -o up.pcap",
        "rtt up.pcap down.pcap --html ./down.pcap",
        "rtt up.pcap --samples ../{name}/up.pcap",
        "oneway up.pcap down.pcap -o down.pcap",
        "oneway up.pcap down.pcap --html link.pcap",
        "cut up.pcap -o up.pcap",
        "cut up.pcap --answer down.pcap -o hard.pcap",
    ],
)
def test_no_output_overwrites_an_input(folder: Path, words: str) -> None:
    for name, make in (("link.pcap", os.symlink), ("hard.pcap", os.link)):
        if not (folder / name).exists():
            make(folder / "down.pcap", folder / name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    told = run(folder, words.format(name=folder.name), code=2).stderr
    assert "is also an input, which would be overwritten; choose another file" in told
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_no_output_overwrites_standard_input(folder: Path) -> None:
    before = (folder / "up.pcap").read_bytes()
    ran = run_in_shell(folder, "rtt - -o up.pcap", "< up.pcap")
    assert ran.returncode == 2
    assert "is also an input, which would be overwritten; choose another file" in ran.stderr
    assert (folder / "up.pcap").read_bytes() == before


@pytest.mark.parametrize(
    "outputs",
    [
        {"-o": "a.txt", "--html": "./a.txt"},
        {"-o": ["s.pcap", "../{name}/s.pcap"]},
        {"-o": ["s.pcap", "t.pcap"], "--truth": "./t.pcap"},
        {"-o": ["-", "-"]},
        {"-o": "there.txt", "--html": "link.txt"},
        {"-o": "nowhere.txt", "--html": "dangling.txt"},
    ],
)
def test_outputs_must_differ_however_spelled(
    outputs: dict[str, str | list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.txt").touch()
    Path("link.txt").symlink_to("there.txt")
    Path("dangling.txt").symlink_to("nowhere.txt")

    def spelled(given: str | list[str]) -> str | list[str]:
        if isinstance(given, str):
            return given.format(name=tmp_path.name)
        return [path.format(name=tmp_path.name) for path in given]

    with pytest.raises(UsageError, match="every output needs its own file"):
        check_outputs("table", {option: spelled(given) for option, given in outputs.items()})
    assert len(list(tmp_path.iterdir())) == 3


def test_devices_may_be_shared(tmp_path: Path) -> None:
    free: dict[str, str | Iterable[str] | None] = {"-o": ["/dev/null", "/dev/null"], "--html": None}
    check_outputs("table", free, ["/dev/null", "-", str(tmp_path / "missing.pcap")])
    check_outputs("table", {"-o": str(tmp_path / "a"), "--html": str(tmp_path / "b")}, [str(tmp_path / "c")])
    with pytest.raises(UsageError, match="needs the name of a file"):
        check_outputs("table", {"-o": None, "--html": "-"})


# ---- write errors ----


def test_an_unwritable_place_is_reported_first(folder: Path, tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no" / "x", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(WirelagError) as told:
            check_outputs("table", {"-o": None, "--html": str(path)})
        assert str(told.value) == f"{path}: cannot write ({why}); choose another file with --html"
    ran = run(tmp_path, "simulate --packets 100 -o x.pcap --truth no/x.parquet", code=2)
    assert ran.stdout == ""
    assert ran.stderr == (
        "wirelag: no/x.parquet: cannot write (No such file or directory); choose another file with --truth\n"
    )
    assert not list(tmp_path.iterdir())


PRINTING = ("info up.pcap", "rtt up.pcap", "rtt up.pcap --format parquet -o -", "simulate -o -", "--help")


@pytest.mark.every(4)
@pytest.mark.parametrize("words", PRINTING)
def test_closed_or_full_standard_output_is_one_line(folder: Path, words: str) -> None:
    wanted = {">&-": "Bad file descriptor"}
    if FULL.exists():
        wanted[f"> {FULL}"] = "No space left on device"
    for tail, why in wanted.items():
        ran = run_in_shell(folder, words, tail)
        assert ran.stderr == f"wirelag: standard output: cannot write ({why}); redirect it elsewhere\n"
        assert ran.returncode == 2


@pytest.mark.every(4)
@pytest.mark.parametrize("words", PRINTING)
def test_a_closed_pipe_is_silent(folder: Path, words: str) -> None:
    # The reader ends first: we wait for it, and standard output is its pipe.
    script = (
        "import os, runpy, sys\n"
        "ours, theirs = os.pipe()\n"
        "os.dup2(theirs, 1)\nos.close(ours)\nos.close(theirs)\n"
        f"sys.argv = {['wirelag', *words.split()]!r}\n"
        "runpy.run_module('wirelag.cli', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False, cwd=folder)
    assert (ran.returncode, ran.stderr) == (GONE, "")


def test_closed_unused_streams_do_no_harm(folder: Path, tmp_path: Path) -> None:
    ran = run_in_shell(folder, f"rtt up.pcap -o {tmp_path}/answer.txt", ">&-")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "2,000 packets" in (tmp_path / "answer.txt").read_text()
    ran = run_in_shell(folder, "rtt missing.pcap", "2>&-")
    assert (ran.returncode, ran.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("simulate --packets 100 --quiet -o {folder}/s.pcap --truth /dev/full", "--truth"),
        ("rtt up.pcap --format parquet -o /dev/full", "-o"),
        ("rtt up.pcap --format json -o /dev/full", "-o"),
        ("rtt up.pcap --html /dev/full", "--html"),
    ],
)
def test_a_full_disk_is_one_line(folder: Path, tmp_path: Path, words: str, option: str) -> None:
    if not FULL.exists():
        pytest.skip(needs.needs("/dev/full"))
    assert run(folder, words.format(folder=tmp_path), code=2).stderr == (
        f"wirelag: /dev/full: cannot write (No space left on device); choose another file with {option}\n"
    )


def test_ctrl_c_during_imports_is_one_line() -> None:
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'wirelag.cli.score':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "from wirelag.cli import main\n"
        "sys.argv[1:] = ['score', 'report.json', 'truth.parquet']\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "wirelag: stopped\n")


# ---- messages ----


@pytest.mark.parametrize("text", ["1e400", "9" * 5_000])
def test_infinite_numbers_are_too_large(text: str) -> None:
    units = ((parse_rate, "Gbps", "rate"), (parse_duration_ns, "s", "duration"), (parse_size, "", "size"))
    for parse, unit, what in units:
        with pytest.raises(ValueError, match=f"is too large a {what}$") as told:
            parse(text + unit)
        assert len(str(told.value)) < 100
    with pytest.raises(SettingError, match="is too large a rate"):
        parse_drain(text + "Gbps")


def test_all_commands_read_speeds_alike() -> None:
    assert [parse_speed(text) for text in ("1x", "0.5x", "10")] == [1, 0.5, 10]
    assert [speed_of(text) for text in ("2x", "max")] == [2, None]
    for text in ("fast", "0x", "-1x", "nan", "inf", "1e7x", "max"):
        with pytest.raises(ValueError, match="is not a speed: write 1x"):
            parse_speed(text)
    with pytest.raises(UsageError, match=r"'fast' is not a speed.*\(or max\)"):
        speed_of("fast")


@pytest.mark.parametrize("name", ["s.txt", "s", "s.pcap.xz", "s.gz", "pcap"])
def test_a_capture_needs_a_known_extension(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    told = wirelag("simulate", "--packets", "100", "-o", path, code=2).stderr
    assert f"{path}: unknown ending: use .pcap or .pcapng" in told
    assert not path.exists()


def test_a_device_needs_no_extension(tmp_path: Path) -> None:
    run(tmp_path, "simulate --packets 100 -o /dev/null --quiet")
    ran = run_in_shell(tmp_path, "simulate --packets 100 -o /dev/stdout --quiet", "| wc -c")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 100 * 16  # more than the headers of its records


def test_score_and_compare_read_standard_input(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(folder, f"oneway up.pcap down.pcap --format json -o {report}")
    stdin = report.read_bytes()
    named, piped = (run(folder, f"score {words} truth.parquet", stdin=stdin) for words in (report, "-"))
    assert (named.stdout, named.stderr) == (piped.stdout, "")
    named, piped = (run(folder, f"compare {words} {report}", stdin=stdin) for words in (report, "-"))
    assert named.stdout == piped.stdout
    told = run(folder, "compare - -", code=2, stdin=stdin).stderr
    assert told == "wirelag: standard input is one report: name a file for the other\n"


@pytest.mark.parametrize("command", ["score {} truth.parquet", "compare {} {}"])
def test_a_binary_file_is_not_a_report(folder: Path, command: str) -> None:
    assert run(folder, command.format("up.pcap", "up.pcap"), code=2).stderr == (
        "wirelag: up.pcap: binary data, not JSON; write it with --format json -o FILE\n"
    )


def test_a_capture_without_packets_is_reported(folder: Path) -> None:
    ran = run(folder, "rtt empty.pcap")
    assert ran.stderr == ""
    assert "no packets" in ran.stdout
    assert "packets   0," in run(folder, "info empty.pcap").stdout
    told = run(folder, "oneway up.pcap empty.pcap").stderr
    assert told == "warning: empty.pcap holds no packets to compare\n"


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@pytest.mark.parametrize("command", ["rtt {0}", "response {0}", "oneway {0} {1}"])
def test_a_capture_without_packets_gives_a_file_of_the_same_schema(folder: Path, command: str, kind: str) -> None:
    """Before, `response` and `oneway` wrote none: a job that reads many files failed on the quiet hour."""
    schemas = []
    for captures in (("empty.pcap", "empty.pcap"), ("up.pcap", "down.pcap")):
        out = folder / f"{captures[0]}.{kind}"
        run(folder, f"{command.format(*captures)} -o {out}")
        if kind == "json":
            said = json.loads(out.read_text())
            schemas.append({name for name in said if name in ("samples", "mean", "quantiles", "groups", "intervals")})
        elif kind == "csv":
            schemas.append(set(out.read_text().splitlines()[0].split(",")))
        else:
            schemas.append(pl.read_parquet_schema(out))
    assert schemas[0] == schemas[1]


# ---- agreements that cannot be checked ----


def test_an_agreement_without_a_measurement_does_not_hold(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    run(folder, f"rtt empty.pcap --sla 'p99<1s' --format json -o {out}", code=3)
    assert json.loads(out.read_text())["sla"] == [{"question": "p99<1s", "holds": None, "value": None, "legs": {}}]
    assert "p99<1s: cannot say" in run(folder, "rtt empty.pcap --sla 'p99<1s'", code=3).stdout
    # Sums have no maximum.
    words = "oneway up.pcap down.pcap --estimator lda --sla 'mean<1s'"
    run(folder, words)
    assert "max<1s: cannot say" in run(folder, f"{words} --sla 'max<1s'", code=3).stdout
