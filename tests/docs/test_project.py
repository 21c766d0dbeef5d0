"""Rules of the project: pins, addresses, file sizes, versions, documented commands."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import wirelag
from tests.support.places import ROOT
from wirelag.cli import NAMES

ROOMS = (".ci", "benchmarks", "bpf", "deploy", "docs", "experiments", "fuzz", "kernels", "lab", "src", "tests")
MADE = {"__pycache__", "build", "corpus"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REGISTRY = re.compile(
    r"(pyp[i]|pythonhoste[d])\.org|file://[/]|--(extra-)?index-ur[l]|--find-link[s]|/simpl[e]/", re.IGNORECASE
)


def _files(suffix: str = "") -> Iterator[Path]:
    """The project's own files."""
    inside = (path for room in ROOMS for path in (ROOT / room).rglob(f"*{suffix}"))
    for path in (*ROOT.glob(f"*{suffix}"), *inside):
        if path.is_file() and not MADE & set(path.relative_to(ROOT).parts):
            yield path


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_are_names_and_versions_only() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line


def test_every_requirement_is_pinned() -> None:
    project = PROJECT["project"]
    wanted = [
        *PROJECT["build-system"]["requires"],
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra if "wirelag[" not in need),
    ]
    names = {re.split(r"[<>=!~\[; ]", requirement)[0].lower() for requirement in wanted}
    assert names | {"cmake", "ninja"} <= _pins().keys()


def test_no_registry_address() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _files()
        if (match := REGISTRY.search(path.read_bytes().decode("utf-8", "replace")))
    ]
    assert not found


def test_no_python_file_is_large() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in _files(".py")}
    assert {name: size for name, size in sizes.items() if size > 24 << 10} == {}


def test_one_version() -> None:
    """Everything asks src/wirelag/__init__.py: the package's own metadata, too."""
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/wirelag/__init__.py"
    assert metadata.version("wirelag") == wirelag.__version__


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_a_page(command: str) -> None:
    page = ROOT / "docs" / "reference" / f"{command}.md"
    assert page.is_file()
    assert f"wirelag {command}" in page.read_text()


def test_make_help_names_every_target() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = ["help", "demo", "lab", "fleet", "test", "quick", "pythons", "acceptance", "bench", "fuzz", "release"]
    targets += ["deb", "arm", "prebuilt", "sbom", "hashes", "docs", "pictures", "site", "lint", "format", "clean"]
    assert re.findall(r"^  make (\w+)", listed, re.MULTILINE) == targets


def test_only_the_kernels_are_imported_from_the_package_itself() -> None:
    """Import-linter cannot see the extension and so ignores imports of `wirelag`: see pyproject.toml."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "wirelag":
                assert {alias.name for alias in node.names} <= {"_kernels", "__version__"}, path
            if isinstance(node, ast.Import):
                assert "wirelag" not in {alias.name for alias in node.names}, path


def test_no_test_module_imports_another() -> None:
    """Shared code is in tests/support and tests/oracles; scripts in strings are checked, too."""
    importing = re.compile(r"^\s*(?:from|import) tests\.(?!(?:support|oracles)\b)", re.MULTILINE)
    found = [path for path in _files(".py") if importing.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_the_house_keeps_its_shape() -> None:
    """Few modules at the root; a command line that only parses and prints, and that nothing else imports."""
    source = ROOT / "src" / "wirelag"
    assert len(list(source.glob("*.py"))) <= 6
    assert sum(len(path.read_text().splitlines()) for path in (source / "cli").glob("*.py")) < 3_780
    for path in source.rglob("*.py"):
        if "cli" in path.relative_to(source).parts:
            continue
        assert not re.search(r"^\s*(from|import) wirelag\.cli\b", path.read_text(), re.MULTILINE), path


def test_every_test_that_the_documentation_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in _files(".py") if "tests" in path.parts)
    named = {
        name for path in _files(".md") if "docs" in path.parts for name in re.findall(r"`(test_\w+)`", path.read_text())
    }
    assert len(named) > 30
    assert {name for name in named if f"def {name}(" not in tests} == set()
