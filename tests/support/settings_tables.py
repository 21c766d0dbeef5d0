"""`python -m tests.support.settings_tables [--check]`: writes the tables of settings into the reference pages.

With `--check` nothing is written, and the exit code is 1 when a page differs from its schema.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wirelag.agent.settings import SCHEMA as AGENT
from wirelag.balance.settings import SCHEMA as BALANCER
from wirelag.collector.settings import SCHEMA as COLLECTOR
from wirelag.settings import Key, Schema

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final = {"agent.md": AGENT, "collect.md": COLLECTOR, "balance.md": BALANCER}
BEGIN: Final = "<!-- settings: written by make docs; change the schema, not the table -->\n"
END: Final = "<!-- end of settings -->\n"
_PART: Final = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def page(text: str, schema: Schema) -> str:
    """A page with its tables written from the schema."""
    return _PART.sub(lambda _: BEGIN + "\n".join(_part(schema)) + "\n" + END, text)


def _part(schema: Schema) -> Iterator[str]:
    repeated = [(f"{table}.", key) for table, (_, keys) in schema.tables.items() for key in keys]
    flags = any(key.flag for key in schema.keys)
    yield from _table([("", key) for key in schema.keys], flags)
    if repeated:
        yield "\nTables that may be repeated:\n"
        yield from _table(repeated, flags)


def _table(keys: list[tuple[str, Key]], flags: bool) -> Iterator[str]:
    names = ["setting", *(["flag"] if flags else []), "value", "default", "meaning"]
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    yield from (_row(prefix, key, flags) for prefix, key in keys)


def _row(prefix: str, key: Key, flags: bool) -> str:
    default = "" if key.default is None else str(key.default).lower() if key.default in (True, False) else key.default
    shown = key.otherwise or (f"`{default}`" if default != "" else "required" if key.required else "")
    cells = [f"`{prefix}{key.name}`", *([f"`{key.flag}`" if key.flag else ""] if flags else [])]
    cells += [key.kind.words, shown, key.help]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("|  |", "| |")


def main(arguments: list[str]) -> int:
    """Write the tables, or check them."""
    stale = 0
    for name, schema in PAGES.items():
        text = (FOLDER / name).read_text(encoding="utf-8")
        fresh = page(text, schema)
        if fresh != text and "--check" in arguments:
            print(f"{FOLDER / name} is stale: run make docs", file=sys.stderr)
            stale = 1
        elif fresh != text:
            (FOLDER / name).write_text(fresh, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
