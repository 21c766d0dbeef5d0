"""The whole command line: light imports, the version, and a progress bar at terminals."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import wirelag
from tests.support import command
from tests.support.simulated_captures import write_simulation
from wirelag.capture.files import Capture
from wirelag.cli import progress
from wirelag.sim import Scenario, simulate


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


def test_help_loads_neither_numpy_nor_polars() -> None:
    help_text = "from wirelag.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass"
    assert not modules_after(help_text) & {"numpy", "polars", "rich", "pydantic"}


def test_info_loads_no_table_library(tmp_path: Path) -> None:
    path = tmp_path / "small.pcap"
    write_simulation(simulate(Scenario(packets=1_000)), path)
    ask = f"from wirelag.cli import app\ntry: app(['info', {str(path)!r}])\nexcept SystemExit: pass"
    assert not modules_after(ask) & {"polars", "rich", "pydantic", "isal", "zstandard"}


def test_version_and_wrong_words() -> None:
    assert command.wirelag("--version").stdout == f"wirelag {wirelag.__version__}\n"
    for words in (["nonsense"], ["info"], ["info", "x.pcap", "--port", "x"], ["info", "x.pcap", "--format", "xml"]):
        command.wirelag(*words, code=2)


def test_an_internal_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wirelag import cli

    def broken() -> None:
        raise ZeroDivisionError("nothing to divide")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.delenv("WIRELAG_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 70
    told = capsys.readouterr().err
    assert told.startswith("wirelag: internal error: ZeroDivisionError: nothing to divide; ")
    assert told.count("\n") == 1


def test_a_terminal_shows_a_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "capture.pcap"
    write_simulation(simulate(Scenario(packets=20_000)), path)
    ours, theirs = pty.openpty()
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        list(progress.progress(quiet=True)(Capture([str(path)])))
        terminal.write("|")
        packets = sum(len(batch) for batch in progress.progress(quiet=False)(Capture([str(path)])))
    quiet, shown = everything(ours).split("|")
    assert packets == 20_000
    assert quiet == ""
    assert "packets" in shown
    assert "%" in shown
    assert shown.endswith("\r\x1b[K")


def everything(terminal: int) -> str:
    """What was written to a terminal that is closed now."""
    read = b""
    try:
        while part := os.read(terminal, 1 << 16):
            read += part
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        os.close(terminal)
    return read.decode()
