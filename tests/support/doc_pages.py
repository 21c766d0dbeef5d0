"""Documentation pages as programs: their console and python blocks run in order, in one directory.

`python -m tests.support.doc_pages [--update] [PAGE...]` lists differences between pages and reality; `--update` first
rewrites the output in console blocks. `...` in an output stands for anything, as in doctest.
"""

import contextlib
import doctest
import io
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.places import ROOT
from tests.support.shell import shell

PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
TOOLS = ("capinfos", "tcpdump", "tcptrace", "tshark")  # foreign programs: may be missing, and their output may vary
# WIRELAG: where pages find the captures of the sources
ENVIRONMENT = {"COLUMNS": "", "LC_ALL": "C.UTF-8", "WIRELAG": str(ROOT)}


@dataclass
class Block:
    """A fenced block: its language, its lines, and the number of its first line, from 1."""

    language: str
    first: int
    lines: list[str] = field(default_factory=list)


@dataclass
class Command:
    """A command of a console block, and the lines of the page with its output (from 0, end excluded)."""

    text: str
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"```(\w*)", line)
        if fence and inside is None:
            inside = Block(fence[1], number + 1)
        elif fence and inside is not None:
            found.append(inside)
            inside = None
        elif inside is not None:
            inside.lines.append(line)
    return found


def commands(block: Block) -> Iterator[Command]:
    starts = [i for i, line in enumerate(block.lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        last = start
        while block.lines[last].endswith("\\") or any(
            line.startswith("> ") for line in block.lines[last + 1 : last + 2]
        ):
            last += 1
        text = "\n".join(line.removeprefix("> ") for line in block.lines[start : last + 1])[2:]
        while end > last + 1 and not block.lines[end - 1]:
            end -= 1
        yield Command(text, block.first - 1 + last + 1, block.first - 1 + end)


def missing_tools(text: str) -> list[str]:
    shown = "\n".join(line for block in blocks(text) if block.language == "console" for line in block.lines)
    return [tool for tool in TOOLS if re.search(rf"\b{tool}\b", shown) and not shutil.which(tool)]


def trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def same(shown: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(trimmed(shown) + "\n", got + "\n", doctest.ELLIPSIS)


@dataclass
class Run:
    """A page that runs in the current directory; `differences` are for people, `outputs` the real outputs."""

    page: Path
    differences: list[str] = field(default_factory=list)
    outputs: list[tuple[Command, str]] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})

    def run(self) -> "Run":
        text = self.page.read_text(encoding="utf-8")
        lines = text.splitlines()
        for block in blocks(text):
            if block.language == "console":
                for command in commands(block):
                    self._console(command, "\n".join(lines[command.start : command.end]))
            elif block.language == "python":
                self._python(block)
        return self

    def _console(self, command: Command, shown: str) -> None:
        shown_file = re.fullmatch(r"cat ([\w.]+)", command.text)
        if shown_file and not Path(shown_file[1]).exists():  # this is how a page writes a file
            Path(shown_file[1]).write_text(shown + "\n", encoding="utf-8")
            return
        got = trimmed(shell(command.text, ENVIRONMENT))
        if command.text.split()[0] in TOOLS:
            return
        if not same(shown, got):
            self.differences.append(f"{self._place(command.start)}: $ {command.text}\nshown:\n{shown}\ngot:\n{got}")
            self.outputs.append((command, got))

    def _python(self, block: Block) -> None:
        source = "\n".join(block.lines) + "\n"
        if ">>>" not in source:
            padding = "\n" * (block.first - 1)  # so that a traceback names the page's line
            try:
                exec(compile(padding + source, str(self.page), "exec"), self.names)
            except Exception:
                self.differences.append(f"{self._place(block.first)}:\n{traceback.format_exc()}")
            return
        test = doctest.DocTestParser().get_doctest(source, self.names, self.page.name, str(self.page), block.first - 1)
        said = io.StringIO()
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.write, clear_globs=False)
        self.names |= test.globs
        if said.getvalue():
            self.differences.append(said.getvalue())

    def _place(self, line: int) -> str:
        return f"{self.page.relative_to(ROOT)}:{line}"

    def update(self) -> None:
        """Rewrite outputs that differ, from the end, so that line numbers stay valid."""
        lines = self.page.read_text(encoding="utf-8").splitlines()
        for command, output in reversed(self.outputs):
            lines[command.start : command.end] = output.splitlines()
        self.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    update = "--update" in arguments
    pages = [Path(name).resolve() for name in arguments if name != "--update"] or PAGES
    wrong = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            run = Run(page).run()
        if update and run.outputs:
            run.update()
            print(f"{page}: updated")
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
                run = Run(page).run()
        wrong += len(run.differences)
        print("\n\n".join(run.differences), end="\n" if run.differences else "")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
