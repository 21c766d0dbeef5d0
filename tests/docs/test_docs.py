"""The documentation is true: examples print what is shown, links have targets, schemas hold."""

import copy
import doctest
import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import wirelag
from tests.support import cli_reference, command, needs, python_reference
from tests.support.doc_pages import PAGES, ROOT, Run, blocks, missing_tools
from tests.support.shell import shell
from wirelag.cli import NAMES

REFERENCE = ROOT / "docs" / "reference"
MODULES = [
    module.name
    for module in pkgutil.walk_packages(wirelag.__path__, "wirelag.")
    if not module.name.endswith("__main__")
]


# Each simulates seconds of a busy queue many times.
LONG = {"which-flow-is-slow.md", "rli.md", "lda.md", "rda.md"}
MARKED = [pytest.param(page, marks=pytest.mark.acceptance if page.name in LONG else ()) for page in PAGES]


@pytest.mark.every(3)
@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_give_their_output(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = missing_tools(page.read_text(encoding="utf-8"))
    if missing:
        pytest.skip(needs.program(missing[0]))
    monkeypatch.chdir(tmp_path)
    differences = Run(page).run().differences
    assert not differences, "\n\n".join([*differences, "python -m tests.support.doc_pages --update rewrites them"])


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_required_modules_have_examples() -> None:
    for name in ("units", "packets.filters", "packets.address"):
        assert doctest.testmod(importlib.import_module(f"wirelag.{name}")).attempted > 0


def test_the_python_reference_is_current_and_complete() -> None:
    assert python_reference.main(["--check"]) == 0, "write it anew with make docs"
    page = python_reference.PAGE.read_text(encoding="utf-8")
    missing = [name for name in wirelag.__all__ if f"\n### {name}\n" not in page]
    assert missing == []


@pytest.mark.parametrize("command", NAMES)
def test_every_command_is_documented(command: str) -> None:
    assert (REFERENCE / f"{command}.md").read_text(encoding="utf-8").startswith(f"# `wirelag {command}`\n")
    assert f"\n## `wirelag {command}`\n" in cli_reference.PAGE.read_text(encoding="utf-8")
    assert f"reference/{command}.md" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def test_the_command_line_reference_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli_reference.main(["--check"]) == 0, "write it anew with make docs"
    stale = tmp_path / "cli.md"
    monkeypatch.setattr(cli_reference, "PAGE", stale)
    assert cli_reference.main(["--check"]) == 1
    assert cli_reference.main([]) == 0
    assert cli_reference.main(["--check"]) == 0
    stale.write_text(stale.read_text().replace("--format", "--shape"))
    assert cli_reference.main(["--check"]) == 1


def test_every_option_is_in_the_reference() -> None:
    shown = cli_reference.PAGE.read_text(encoding="utf-8")
    for name in NAMES:
        section = shown.split(f"## `wirelag {name}`\n")[1].split("\n## ")[0]
        options = set(re.findall(r"(--[a-z0-9-]+)", command.wirelag(name, "--help").stdout)) - {"--help"}
        assert options
        assert {option for option in options if option not in section} == set()


def _anchors(page: Path) -> set[str]:
    """The anchors of a page, named as Markdown viewers name them."""
    lines, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#+ ", line):
            lines.append(line.lstrip("# "))
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor in _anchors(file), f"{page}: {target}"


@pytest.mark.parametrize("room", ["guides", "concepts", "reference/schema"])
def test_every_page_is_in_the_index(room: str) -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [f"{room}/{page.name}" for page in (ROOT / "docs" / room).iterdir() if page.is_file()]
    assert [page for page in pages if f"({page})" not in index] == []


WIDEST = 120  # characters in a line of prose
WIDE = {"cli.md"}  # generated
PROSE = sorted(
    [
        *(page for page in PAGES if page.name not in WIDE),
        ROOT / "CONTRIBUTING.md",
        ROOT / "experiments" / "README.md",
    ]
)


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbers and lines of a page, without fenced blocks, tables, HTML and lines that are a single link."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        bare = line.lstrip(" -*")
        if not (fence or fenced or bare.startswith(("|", "<")) or re.fullmatch(r"\[[^]]*\](\(|: )\S+", bare)):
            yield number, line


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_not_too_long(page: Path) -> None:
    long = [number for number, line in _prose(page.read_text(encoding="utf-8")) if len(line) > WIDEST]
    assert not long, f"{page}: lines {long} have more than {WIDEST} characters"


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_architecture_lists_all_rooms() -> None:
    table = ARCHITECTURE.split("## Rooms")[1].split("## ")[0]
    listed = {
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    source = ROOT / "src" / "wirelag"
    assert listed == {path.name for path in source.iterdir() if (path / "__init__.py").exists()}


def test_architecture_has_the_checked_order() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    trees = [block.lines for block in blocks(ARCHITECTURE)]
    shown = next(lines for lines in trees if lines[0] == "cli")
    assert [set(line.split()) for line in shown] == [set(layer.split(" : ")) for layer in layers]


def test_files_named_in_architecture_exist() -> None:
    """Names with a slash; `x` and words in angle brackets are placeholders."""
    places = (ROOT, ROOT / "src" / "wirelag")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|h|md|c|cpp|toml))`", ARCHITECTURE))
    coming = re.compile(r"/(x|formats_x|jitter|kafka|mariadb)\.")
    assert {
        name for name in named if not coming.search(name) and not any((top / name).exists() for top in places)
    } == set()


def _json(command: str) -> dict[str, Any]:
    result = json.loads(shell(f"{command} --format json"))
    assert isinstance(result, dict)
    return result


def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((REFERENCE / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert shell("wirelag simulate --packets 3000 -o one.pcapng.gz --truth one.parquet --quiet") == ""
    assert shell("wirelag simulate --packets 3000 --points 2 -o up.pcap -o down.pcap.zst --quiet") == ""
    return tmp_path


def test_info_follows_its_schema(simulated: Path) -> None:
    cut = simulated / "cut.pcap"
    cut.write_bytes((simulated / "up.pcap").read_bytes()[:1000])
    (simulated / "none.pcap").write_bytes(cut.read_bytes()[:24])
    validator = _validator("info")
    for captures in ("one.pcapng.gz", "--port 53 one.pcapng.gz", "up.pcap down.pcap.zst", "none.pcap", "- < up.pcap"):
        validator.validate(_json(f"wirelag info {captures}"))
    several = _json("wirelag info up.pcap down.pcap.zst cut.pcap nowhere.pcap 2> /dev/null")
    validator.validate(several)
    assert [len(file["warnings"]) for file in several["files"]] == [0, 0, 1]


def test_the_schema_of_info_is_strict(simulated: Path) -> None:
    validator = _validator("info")
    for captures in ("one.pcapng.gz", "up.pcap down.pcap.zst"):
        whole = _json(f"wirelag info {captures}")
        for name in whole:
            assert not validator.is_valid({key: value for key, value in whole.items() if key != name}), name
        assert not validator.is_valid(whole | {"more": 1})
        assert not validator.is_valid(whole | {"packets": "3000"})
        assert not validator.is_valid(whole | {"directions": whole["directions"] | {"none": 0}})
        for file in whole.get("files", []):
            changed = copy.deepcopy(whole)
            changed["files"] = [file | {"more": 1}]
            assert not validator.is_valid(changed)


def test_score_follows_its_schema(simulated: Path) -> None:
    validator = _validator("score")
    for report in (
        {"quantity": "round_trip", "samples": 0},
        {"quantity": "round_trip", "samples": 9, "mean": 0.02, "std": None, "quantiles": {"0.5": 0.01, "0.99": None}},
        {"quantity": "round_trip", "samples": 9, "mean": 0.02, "ci95": {"mean": [0.0, 1.0]}},
    ):
        (simulated / "report.json").write_text(json.dumps(report))
        result = _json("wirelag score report.json one.parquet")
        validator.validate(result)
        assert not validator.is_valid(result | {"more": 1})
        assert not validator.is_valid({key: value for key, value in result.items() if key != "samples"})
