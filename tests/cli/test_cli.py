"""The whole command line: light imports, the version, and a progress bar at terminals."""

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wirelag
from tests.support import command, needs
from tests.support.simulated_captures import write_simulation
from wirelag import cli
from wirelag.capture.files import Capture
from wirelag.cli import progress
from wirelag.cli.examples import EXAMPLES
from wirelag.sim import Scenario, simulate

LIBRARIES = {"numpy", "polars", "rich", "starlette", "rustworkx", "isal", "zstandard", "pydantic"}
MODULES = (  # a command, libraries that it needs, and bounds: modules besides numpy's, and functions compiled from text
    ("--help", set(), 50, 10),
    ("--version", set(), 50, 10),
    ("rtt --help", set(), 105, 70),
    ("watch --help", set(), 115, 110),
    ("info CAPTURE", {"numpy"}, 82, 195),
    ("rtt CAPTURE --format json", set(), 115, 140),
    ("rtt CAPTURE --sla server.p99<50ms", set(), 115, 155),
    ("rtt CAPTURE --memory 1MiB --format json", set(), 118, 145),
    ("rtt CAPTURE --by server --interval 1s --format json", set(), 112, 145),
    ("rtt CAPTURE --by server --interval 1s --html PAGE --format json", set(), 128, 178),
    ("response CAPTURE", {"numpy"}, 83, 184),
)
RARE = {
    "argparse",
    "wirelag.cli.help",
    "numpy.ma",
    "glob",
    "lzma",
    "pathlib",
    "random",
    "shutil",
    "tempfile",
    "wirelag.measure.copies",
}  # not in a table
RARE |= {"ast", "wirelag.measure.points", "wirelag.stats.sla", "wirelag.capture.table", "wirelag.render.html.page"}
LOAD = """
import sys
{first}
before, compiled = set(sys.modules), []
sys.addaudithook(lambda event, _: compiled.append(event) if event == "compile" else None)
from wirelag.cli import main
sys.argv = ["wirelag", *{words!r}]
try: main()
except SystemExit: pass
print(len(compiled), *(set(sys.modules) - before))
"""


@pytest.mark.parametrize(("words", "needed", "most", "most_compiled"), MODULES)
def test_a_command_loads_what_it_needs(
    words: str, needed: set[str], most: int, most_compiled: int, tmp_path: Path
) -> None:
    """Start-up is half of a short command: what is not asked for is not loaded. A dataclass compiles each method."""
    path = tmp_path / "small.pcap"
    write_simulation(simulate(Scenario(packets=1_000)), path)
    given = [word.replace("CAPTURE", str(path)).replace("PAGE", str(tmp_path / "page.html")) for word in words.split()]
    script = LOAD.format(first="import numpy" if needed else "", words=given)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    compiled, *loaded = ran.stdout.splitlines()[-1].split()
    assert {name.split(".")[0] for name in loaded} & LIBRARIES <= needed
    assert "CAPTURE" not in words or "--by" in words or not RARE - {"wirelag.stats.sla"} & set(loaded)
    assert len(loaded) <= most, f"{words}: {len(loaded)} modules"
    assert int(compiled) <= most_compiled, f"{words}: {compiled} functions"


def test_a_module_is_imported_when_something_of_it_is_used() -> None:
    script = """
import sys
from wirelag.cli import _import_when_used
_import_when_used("inspect")
import inspect
assert "ast" not in sys.modules and "signature" not in vars(inspect)
from inspect import signature
assert str(inspect.signature(lambda a: a)) == str(signature(lambda a: a)) == "(a)"
assert sys.modules["inspect"].signature is signature
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", cli.NAMES)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    summaries = {name: text for group in cli.COMMANDS.values() for name, text in group.items()}
    assert cli.command(name).help.splitlines()[0] == summaries[name]


@pytest.mark.parametrize("name", cli.NAMES)
def test_help_opens_with_examples_that_work_and_ends_with_exit_codes(name: str) -> None:
    known, lines = cli.command(name), command.wirelag(name, "--help").stdout.splitlines()
    assert lines[4] == "Examples:"
    examples = [line.strip() for line in lines if re.match(r" {2}(sudo |tcpdump |wirelag )", line)]
    assert len(examples) == 3
    for line in examples:
        called, *words = shlex.split(line.partition("wirelag ")[2].split("    ")[0])
        cli.command(called).values(words)
        assert called == name or name == "cut"  # whose last example is what comes next
    codes = lines[lines.index("Exit codes:") + 1 :]
    judges = {"sla", "exit_code"} & {one.name for one in known.parameters}
    assert [line.split()[0] for line in codes] == ["0", "2", *(["3"] if judges else []), "70", "130"]
    assert max(map(len, lines)) <= 80


def test_the_examples_of_cut_lead_to_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = Scenario(packets=2_000, seed=6, points=2)
    write_simulation(simulate(scenario), tmp_path / "here.pcap", tmp_path / "there.pcap")
    cut, _, compare = (line for line, _ in EXAMPLES["cut"])
    for point in ("here", "there"):
        assert ".syn: 1 synopsis of " in command.wirelag(*shlex.split(cut.replace("here", point))[1:]).stdout
    assert "mean, 95% interval" in command.wirelag(*compare.split()[1:]).stdout


def test_help_shows_basic_options_before_those_of_experts() -> None:
    lines = command.wirelag("rtt", "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and line[0] != " "]
    first = ["Examples:", "Arguments:", "Report:", "Packets:", "Options:"]
    assert titles == [*first, "Many captures:", "Method:", "Exit codes:"]
    assert "handshake, flow-duration," in " ".join(lines), "values are not broken at their hyphens"
    for name in ("simulate", "cut", "balance"):
        panels = [panel for panel, _ in cli.command(name).panels()]
        assert panels[0] == "Options", "what is required comes first"
    for name in ("report", "path"):
        assert "--by" not in command.wirelag(name, "--help").stdout
    whole = command.wirelag("--help").stdout.splitlines()
    assert len(whole) <= 30
    assert max(map(len, whole)) <= 80


@pytest.mark.parametrize("name", ["", *cli.NAMES])
@pytest.mark.skipif(shutil.which("groff") is None, reason=needs.program("groff"))
def test_manual_pages_are_printed_without_a_warning(name: str) -> None:
    page = command.wirelag("--manual", *([name] if name else [])).stdout
    words = ["groff", "-man", "-ww", "-Tutf8", "-P-c"]
    ran = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    plain = re.sub(r"(.)\x08\1|_\x08", r"\1", ran.stdout)  # bold and underlined, as on a typewriter
    options = cli.command(name).options if name else []
    assert [one.name for one in options if not one.declared.hidden and one.flags[0] not in plain] == []
    assert "EXIT STATUS" in plain


def test_a_manual_page_of_what_is_no_command() -> None:
    said = command.wirelag("--manual", "rt", code=2).stderr
    assert said == "wirelag: --manual: unknown command rt (did you mean rtt?)\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("nonsense", "unknown command nonsense; see: wirelag --help"),
        ("rt", "unknown command rt (did you mean rtt?); see: wirelag --help"),
        ("--helpp", "unknown option --helpp; see: wirelag --help"),
        ("info", "CAPTURE...: is missing; see: wirelag info --help"),
        ("simulate", "-o: is missing; see: wirelag simulate --help"),
        ("rtt x.pcap --intervall 1s", "unknown option --intervall (did you mean --interval?); see: wirelag rtt --help"),
        ("rtt x.pcap --inter 1s", "unknown option --inter (did you mean --interval?); see: wirelag rtt --help"),
        ("rtt x.pcap --top", "--top: needs a value; see: wirelag rtt --help"),
        ("rtt x.pcap --top --quiet", "--top: needs a value; see: wirelag rtt --help"),
        ("rtt x.pcap --quiet=no", "--quiet: takes no value; see: wirelag rtt --help"),
        ("rtt x.pcap -x", "unknown option -x; see: wirelag rtt --help"),
        ("rtt x.pcap -o", "-o/--output: needs a value; see: wirelag rtt --help"),
        ("rtt x.pcap --top few", "--top: 'few' is not a whole number; see: wirelag rtt --help"),
        ("rtt x.pcap --leg left", "--leg: 'left' is not one of server, client, both, mixed; see: wirelag rtt --help"),
        ("compare a.json b.json c.json", "unexpected argument 'c.json'; see: wirelag compare --help"),
        ("simulate -o x.pcap --limit 9", "--limit: needs --queue; see: wirelag simulate --help"),
    ],
)
def test_wrong_words_get_one_line_that_names_the_way_out(words: str, problem: str) -> None:
    assert command.wirelag(*words.split(), code=2).stderr == f"wirelag: {problem}\n"


def test_options_may_stand_anywhere(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pcap", tmp_path / "b.pcap"
    for path, seed in ((first, 1), (second, 2)):
        write_simulation(simulate(Scenario(packets=1_000, seed=seed)), path)
    ways = (
        ["rtt", first, second, "--format", "json", "--top", "3"],
        ["rtt", "--top=3", first, "--format=json", second],
        ["rtt", "--format", "json", "--top", "3", "--", first, second],
    )
    assert len({command.wirelag(*words).stdout for words in ways}) == 1
    offset = ["simulate", "-o", first, f"-o{second}", "--points", "2", "--packets", "500", "--clock-offset", "-3s"]
    command.wirelag(*offset)


def test_shells_complete_commands_options_and_values(tmp_path: Path) -> None:
    def offered(*words: str) -> list[str]:
        return command.wirelag("--complete", *words).stdout.split()

    assert offered("resp") == ["response"]
    assert set(offered("")) == set(cli.NAMES)
    assert offered("rtt", "--by", "s") == ["server", "subnet"]
    assert offered("rtt", "x.pcap", "--ipv") == ["--ipv4-prefix", "--ipv6-prefix"]
    assert offered("watch", "eth0", "r") == ["rtt", "response"]
    assert offered("rtt", "-o", "") == []  # files
    assert {"lo", "rtt", "response"} <= set(offered("watch", ""))
    assert "lo" in offered("agent", "--interface", "")
    for one in ("a.pcap", "b.pcapng.zst", "c.txt", "ring.pcap0"):
        (tmp_path / one).touch()
    (tmp_path / "more").mkdir()
    folder = f"{tmp_path}/"
    assert offered("rtt", folder) == [folder + one for one in ("a.pcap", "b.pcapng.zst", "more", "ring.pcap0")]
    assert offered("oneway", folder + "a.pcap", folder + "b") == [folder + "b.pcapng.zst"]
    assert offered("rtt", folder + "more/") == []  # no capture there: files
    assert "--most-groups" not in offered("rtt", "--m")
    bash = command.as_process("--completion", "bash").stdout
    words = "COMP_WORDS=(wirelag rtt --by s); COMP_CWORD=3; _wirelag; echo ${COMPREPLY[@]}"
    script = f"{bash}PATH={Path(sys.executable).parent}:$PATH; {words}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "server subnet\n"
    assert "name a shell: bash, zsh, fish" in command.wirelag("--completion", "tcsh", code=2).stderr


# What completes a line in a shell without a terminal: fish can be asked, zsh asks the function that adds words.
ASKED = {
    "zsh": "compdef() :; {script}; compadd() { print -l -- ${@:2} }; words=(wirelag rtt --by s) CURRENT=4; _wirelag",
    "fish": "{script}; complete -C 'wirelag rtt --by s'",
}


@pytest.mark.parametrize("name", ASKED)
def test_zsh_and_fish_complete_values(name: str, tool: Callable[[str], str], tmp_path: Path) -> None:
    script = command.wirelag("--completion", name).stdout
    asked = ASKED[name].replace("{script}", script)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    ran = subprocess.run([tool(name), "-c", asked], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.stdout.split() == ["server", "subnet"], ran.stderr


def test_version_and_wrong_words() -> None:
    assert command.wirelag("--version").stdout == f"wirelag {wirelag.__version__}\n"
    assert command.wirelag(code=2).stdout == command.wirelag("--help").stdout
    for words in (["nonsense"], ["info"], ["info", "x.pcap", "--port", "x"], ["info", "x.pcap", "--format", "xml"]):
        command.wirelag(*words, code=2)


def test_an_internal_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(words: list[str]) -> None:
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
