"""Completion in shells: `wirelag --completion SHELL` prints a script, which asks `wirelag --complete WORDS...`.

Candidates are commands, options, and values where their names list them (`server|client`); otherwise the shell offers
files. No capture is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from wirelag.cli import NAMES, command
from wirelag.cli.parser import UsageError

if TYPE_CHECKING:
    from wirelag.cli.parser import Command

_SCRIPTS: Final = {
    "bash": """\
_wirelag() {
    local IFS=$'\\n'
    COMPREPLY=($(wirelag --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _wirelag wirelag
""",
    "zsh": """\
#compdef wirelag
_wirelag() {
    local -a found
    found=(${(f)"$(wirelag --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( $#found )) && compadd -- $found || _files
}
compdef _wirelag wirelag
""",
    "fish": """\
complete -c wirelag -a '(wirelag --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
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
        found: Iterable[str] = (*NAMES, *(("--help", "--version", "--completion") if last[:1] == "-" else ()))
    else:
        found = _of(command(before[0]), before[-1], last) if before[0] in NAMES else ()
    return "".join(f"{one}\n" for one in found if one.startswith(last))


def _of(known: Command, previous: str, last: str) -> Iterable[str]:
    named = {flag: one for one in known.options for flag in one.flags}
    if previous in named and named[previous].takes_value:
        values = named[previous].declared.metavar or ""
        return values.split("|") if "|" in values else ()
    if last[:1] == "-":
        return [flag for flag, one in named.items() if not one.declared.hidden] + ["--help"]
    return [
        value for one in known.arguments for value in one.declared.metavar.split()[-1].split("|") if value.islower()
    ]
