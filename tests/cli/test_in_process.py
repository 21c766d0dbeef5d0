"""The command in the tests' own process equals the program: same output, errors and exit code."""

from pathlib import Path

import pytest

from tests.support.command import as_process, wirelag
from tests.support.shell import shell
from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    write_simulation(simulate(Scenario(packets=2_000)), folder / "web.pcap")
    (folder / "cut.pcap").write_bytes((folder / "web.pcap").read_bytes()[:10_000])
    return folder


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("rtt web.pcap --by server", 0),
        ("info cut.pcap --format json", 0),  # with a warning
        ("rtt nowhere.pcap", 2),
        ("rtt web.pcap --sla p50<1ns", 3),
        ("rtt web.pcap --fromat json", 2),
        ("rtt web.pcap --format xml", 2),
        ("", 2),
        ("info -", 0),
    ],
)
def test_it_equals_the_program(folder: Path, words: str, code: int) -> None:
    stdin = (folder / "web.pcap").read_bytes() if words.endswith("-") else None
    here = wirelag(*words.split(), code=code, stdin=stdin, cwd=folder)
    assert here == as_process(*words.split(), code=code, stdin=stdin, cwd=folder)
    assert here.stdout or here.stderr


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "text",
    [
        "wirelag rtt web.pcap --interval 1s --format csv | head -3; echo ${PIPESTATUS[0]}",
        "wirelag info cut.pcap nowhere.pcap --format jsonl 2>&1 > answer.txt | tail -1; wc -l answer.txt; echo $?",
        'for name in web \'no where\'; do wirelag info < web.pcap - "$name.pcap" || echo "$name: $?"; done',
        "cat web.pcap | wirelag rtt - --sla 'p50<1ns' 2> /dev/null | sed -n 2p; echo ${PIPESTATUS[*]}",
    ],
)
def test_a_shell_cannot_tell_the_difference(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    here = shell(text)
    assert here == shell(text.replace("wirelag", "command wirelag"))  # `command` starts the program
    assert here


def test_a_closed_pipe_ends_it_with_141(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert shell("{ sleep 0.3; wirelag rtt web.pcap; } | true; echo ${PIPESTATUS[0]}") == "141\n"
