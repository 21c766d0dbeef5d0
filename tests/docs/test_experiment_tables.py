"""Every row of experiments/README.md is in its table, with its figure and its script.

A script declares its rows at the beginning of its docstring: "RLI, figures 5, 6 and more: ..." has the rows 5, 6 and
"-" of the table RLI. Other parts of a paper have their full name: "section 4.2", "table I".
"""

import ast
import re
from collections import Counter

import pytest

from tests.support.places import ROOT

ROOM = ROOT / "experiments"
README = (ROOM / "README.md").read_text()
COLUMNS = ["figure", "claim", "the paper", "ours", "command", "takes"]
HEAD = re.compile(r"(?P<section>\w[\w ]*)(?:, (?P<figures>[^:]+?))?(?P<more> and more)?: ")

Bond = tuple[str, str, str]  # section, figure, script


def declared() -> set[Bond]:
    """The rows declared in docstrings; files that cannot be run are imported by others."""
    bonds = set()
    for path in ROOM.glob("*.py"):
        text = path.read_text()
        if '__name__ == "__main__"' not in text:
            continue
        head = HEAD.match(ast.get_docstring(ast.parse(text)) or "")
        assert head, f"{path.name}: the docstring must open with a table and figures, such as 'RLI, figures 5, 6: '"
        figures = head["figures"].split(", ") if head["figures"] else []
        if head["more"] or not figures:
            figures.append("-")
        bonds |= {(head["section"], re.sub("^figures? ", "", figure), path.stem) for figure in figures}
    return bonds


def rows_of(readme: str) -> list[tuple[str, list[str]]]:
    """The rows of all tables: section and cells."""
    rows = []
    for part in re.split("^## ", readme, flags=re.MULTILINE)[1:]:
        section, *lines = part.splitlines()
        tables = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
        rows += [(section, cells) for cells in tables if cells != COLUMNS and set("".join(cells)) != {"-"}]
    return rows


def complaints(readme: str) -> list[str]:
    """The errors in the tables."""
    bonds: set[Bond] = set()
    names: Counter[tuple[str, str, str]] = Counter()
    for section, (figures, claim, _, _, command, _) in rows_of(readme):
        (script,) = re.findall(r"^`python experiments/(\w+)\.py`", command)
        bonds |= {(section, figure, script) for figure in figures.split(", ")}
        names[section, figures, claim] += 1
    expected = declared()
    return [
        *(f"{script}.py does not declare {section}, {figure}" for section, figure, script in sorted(bonds - expected)),
        *(f"no row of {script}.py for {section}, {figure}" for section, figure, script in sorted(expected - bonds)),
        *(f"{n} rows {', '.join(name)}" for name, n in names.items() if n > 1),
    ]


def test_every_row_is_in_its_table() -> None:
    assert complaints(README) == []


def row(script: str) -> str:
    """The script's first row."""
    return next(line for line in README.splitlines(keepends=True) if f"`python experiments/{script}.py`" in line)


BANKS, STRESS, AGGREGATE = row("lda_banks"), row("pirate_stress"), row("rli_aggregate")


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        pytest.param(AGGREGATE, AGGREGATE + STRESS, "pirate_stress.py does not declare RLI, 11", id="wrong table"),
        pytest.param(BANKS, "", "no row of lda_banks.py for LDA, 5", id="left out"),
        pytest.param(BANKS, BANKS.replace("| 5 |", "| 6 |"), "lda_banks.py does not declare LDA, 6", id="figure"),
        pytest.param(BANKS, BANKS.replace("| 5 |", "| - |"), "lda_banks.py does not declare LDA, -", id="no figure"),
        pytest.param(BANKS, BANKS.replace("banks.py", "edges.py"), "lda_edges.py does not declare LDA, 5", id="script"),
        pytest.param(
            BANKS, BANKS.replace("banks.py", "gone.py"), "lda_gone.py does not declare LDA, 5", id="no script"
        ),
        pytest.param(BANKS, BANKS + BANKS, "2 rows LDA, 5, ", id="twice"),
        pytest.param("## RLI\n", "## RDA\n", "no row of rli_aggregate.py for RLI, 11", id="section"),
    ],
)
def test_a_misplaced_row_is_noticed(old: str, new: str, complaint: str) -> None:
    changed = README.replace(old, new, 1)
    assert changed != README
    assert any(told.startswith(complaint) for told in complaints(changed))


def test_overwritten_rows() -> None:
    """A figure 11 of Pirate once replaced one of two rows of RLI's figure 11."""
    assert complaints(README.replace(AGGREGATE, STRESS)) == ["pirate_stress.py does not declare RLI, 11"]


def test_the_comparison_has_rows_of_these_tables() -> None:
    page = (ROOT / "docs" / "concepts" / "comparison.md").read_text().split("## The papers beside it")[1]
    shown = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert {paper for paper, *_ in shown} == {"Fridge", "LDA", "mPlane", "RDA", "RLI", "Pirate"}
    known = {tuple(cells[:4]) for _, cells in rows_of(README)}
    assert [cells for _, *cells in shown if tuple(cells) not in known] == []
