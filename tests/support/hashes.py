"""Write the pins with the hashes of their files: `python -m tests.support.hashes PINS FILE` (make hashes).

It asks the package index that pip uses here for every file of each pinned version that Linux may install: wheels of all
processors and Pythons, and sources. The file has names, versions and hashes, no addresses. Hashes that it has already
stay, if their version does: another index may have offered other files.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """\
# The pins of constraints.txt with the SHA-256 of every file that Linux may install, for pip's --require-hashes.
# Made by: make hashes. Used by: make release, make HASHED=1 test. Names, versions and hashes only.
"""
OTHERS = re.compile(r"-(win32|win_\w+|macosx_\w+|ios_\w+|android_\w+)\.whl$|-(pp\d+|graalpy\d+)-", re.IGNORECASE)
OLD = re.compile(r"-cp(2\d|3[0-9]|310)-cp\d+")  # Pythons before 3.11, unless abi3


Pins = dict[str, tuple[str, set[str]]]  # by name: version and hashes


def read(path: Path) -> Pins:
    """The version and the hashes of each package of a file of pins."""
    found: Pins = {}
    for line in path.read_text().replace("\\\n", " ").splitlines() if path.exists() else ():
        if line.strip() and not line.startswith("#"):
            pin, *hashes = line.split()
            name, _, version = pin.partition("==")
            found[name] = version, {one.removeprefix("--hash=sha256:") for one in hashes}
    return found


def text(pins: Pins) -> str:
    """The content of the file."""
    lines = []
    for name, (version, hashes) in sorted(pins.items()):
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{one}" for one in sorted(hashes))]))
    return HEAD + "\n".join(lines) + "\n"


def wanted(file: str, name: str, version: str) -> bool:
    """Whether a file is of this version, and Linux may install it."""
    sources = re.fullmatch(r"(.+)-([^-]+)\.(tar\.gz|tar\.bz2|zip)", file)
    whose, which = sources.groups()[:2] if sources else file.split("-")[:2]
    if not sources and not file.endswith(".whl"):
        return False
    same = re.sub(r"[-_.]+", "-", whose).lower() == name and which == version
    return same and not OTHERS.search(file) and not OLD.search(file)


class Index:
    """The index that pip uses here, with its settings; pip has no public way to list files."""

    def __init__(self) -> None:
        from pip._internal.commands import create_command
        from pip._internal.index.collector import LinkCollector

        command: Any = create_command("index")
        options, _ = command.parse_args([])
        self._pages = LinkCollector.create(command._build_session(options), options=options)

    def files(self, name: str) -> Iterator[tuple[str, str | None]]:
        """Each file of a package, and its hash if the index has one."""
        from pip._internal.index.collector import parse_links
        from pip._internal.models.link import Link

        for place in self._pages.search_scope.get_index_urls_locations(name):
            page = self._pages.fetch_response(Link(place))
            for link in () if page is None else parse_links(page):
                yield link.filename, link.hash if link.hash_name == "sha256" else None


def hashed(pins: Pins, known: Pins, index: Index) -> Iterator[str]:
    """Add hashes to the pins; yields a line for each package that has none."""
    for name, (version, hashes) in pins.items():
        if known.get(name, ("", set()))[0] == version:
            hashes |= known[name][1]
        hashes |= {digest for file, digest in index.files(name) if digest and wanted(file, name, version)}
        if not hashes:
            yield f"{name}=={version}: the index has no file with a hash"


def main(source: str, target: str) -> int:
    """Write the file, if every pin has a hash."""
    pins = read(Path(source))
    problems = list(hashed(pins, read(Path(target)), Index()))
    for line in problems:
        print(line, file=sys.stderr)
    if not problems:
        Path(target).write_text(text(pins), encoding="utf-8")
        print(f"{target}: {sum(len(hashes) for _, hashes in pins.values())} hashes of {len(pins)} packages")
    return len(problems)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
