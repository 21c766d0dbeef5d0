"""Completion in shells: `wirelag --completion SHELL` prints a script, which asks `wirelag --complete WORDS...`.

Candidates are commands, options, values where their names list them (`server|client`), interfaces, and captures by
their names; otherwise the shell offers files. No capture is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from wirelag.capture.names import CAPTURE
from wirelag.cli import NAMES, command
from wirelag.cli.parser import UsageError

if TYPE_CHECKING:
    from wirelag.cli.parser import Command

INTERFACE, CAPTURES = "IFACE", re.compile(r"CAPTURE|UPSTREAM|DOWNSTREAM")  # in the names of values
_SCRIPTS: Final = {
    "bash": """\
_wirelag() {
    local IFS=$'\\n'
    COMPREPLY=($(wirelag --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -o filenames -F _wirelag wirelag
""",
    "zsh": """\
#compdef wirelag
_wirelag() {
    local -a found
    found=(${(f)"$(wirelag --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( $#found )) && compadd -- $found || _files
}
[[ $funcstack[1] = _wirelag ]] && _wirelag "$@" || compdef _wirelag wirelag
""",
    "fish": """\
function __wirelag
    set -l found (wirelag --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    and test -n "$found"; and printf '%s\\n' $found; or __fish_complete_path (commandline -ct)
end
complete -c wirelag -f -a '(__wirelag)'
""",
}


def script(words: Sequence[str]) -> str:
    """What a shell evaluates to complete `wirelag`."""
    if len(words) != 1 or words[0] not in _SCRIPTS:
        raise UsageError(f"name a shell: {', '.join(_SCRIPTS)}", "--completion")
    return _SCRIPTS[words[0]]


def complete(words: Sequence[str]) -> str:
    """The candidates for the last word, one per line; none where a file is due."""
    *before, last = words or ("",)
    if not before:
        options = ("--help", "--version", "--completion", "--manual") if last[:1] == "-" else ()
        found: Iterable[str] = (*NAMES, *options)
    else:
        found = _of(command(before[0]), before[-1], last) if before[0] in NAMES else ()
    return "".join(f"{one}\n" for one in found if one.startswith(last))


def _of(known: Command, previous: str, last: str) -> Iterable[str]:
    named = {flag: one for one in known.options for flag in one.flags}
    if previous in named and named[previous].takes_value:
        return _values(named[previous].declared.metavar or "", last)
    if last[:1] == "-":
        return [flag for flag, one in named.items() if not one.declared.hidden] + ["--help"]
    return [value for one in known.arguments for value in _values(one.declared.metavar, last)]


def _values(name: str, last: str) -> Iterator[str]:
    """What may stand where help has this name of a value."""
    if INTERFACE in name:
        yield from sorted(os.listdir("/sys/class/net"))
    if CAPTURES.search(name):
        yield from _captures(last)
    yield from (value for value in name.split()[-1].split("|") if value.islower() and "|" in name)


def _captures(begun: str) -> Iterator[str]:
    """Captures and folders whose paths begin with this; none if there is no capture, so that the shell offers files."""
    folder = os.path.dirname(begun)
    try:
        found = sorted(os.scandir(folder or "."), key=lambda one: one.name)
    except OSError:
        return
    if any(CAPTURE.search(one.name) for one in found):
        for one in found:
            if CAPTURE.search(one.name) or one.is_dir():
                yield os.path.join(folder, one.name)
