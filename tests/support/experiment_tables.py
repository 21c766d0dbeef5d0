"""The tables that an experiment prints, by title."""

import re
import subprocess
import sys

from tests.support.places import ROOT

ROOM = ROOT / "experiments"
Table = dict[str, dict[str, str]]  # by the first cell of a row, then by column


def tables_of(script: str, *options: str, quick: bool = True) -> dict[str, Table]:
    """The printed tables, by title."""
    words = [sys.executable, str(ROOM / f"{script}.py"), *(["--quick"] if quick else []), *options]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600 if quick else 1800).stdout
    print(printed)
    tables = {}
    for block in re.split(r"^# ", printed, flags=re.MULTILINE)[1:]:
        title, header, *lines = block.split("\n\n")[0].splitlines()
        _, *columns = re.split(r"\s{2,}", header)
        rows = [re.split(r"\s{2,}", line) for line in lines]
        tables[title] = {name: dict(zip(columns, cells, strict=True)) for name, *cells in rows}
    return tables


def numbers(row: dict[str, str], *without: str) -> list[float]:
    """The numbers of a row, without the paper's and other columns."""
    return [float(cell) for name, cell in row.items() if name not in ("paper", *without) and cell != "-"]
