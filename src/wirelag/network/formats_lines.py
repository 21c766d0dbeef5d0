"""Formats with one link per line: Rocketfuel, Inet, HPCC, REPETITA, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from wirelag.errors import WirelagError
from wirelag.network.formats_draft import Draft, shown

Lines: TypeAlias = list[tuple[int, list[str]]]  # number of the line, words
_WHOLE: Final = re.compile(r"\d{1,9}")
_NUMBER: Final = re.compile(r"[-+]?[\d.]")
_RATE: Final = re.compile(r"[\d.]+[kKMGT]?bps")
_COLUMNS: Final = (
    {"source", "from", "src"},
    {"target", "to", "dst", "destination"},
    {"weight", "cost", "metric"},
)


def read(name: str, text: str) -> Draft:
    """Read formats without a signature: the words of the first lines decide."""
    lines = _lines(text)
    first, second, third = ([*(words for _, words in lines[:3]), [], [], []])[:3]
    if len(first) == 2 and _whole(first) and len(second) == 3:
        return _inet(name, lines)
    if len(first) == 3 and _whole(first + second) and len(third) == 5 and _RATE.fullmatch(third[2]):
        return _hpcc(name, lines)
    separated = bool(lines) and ("\t" in text.split("\n")[lines[0][0] - 1] or first[0].endswith((",", ";")))
    if len(first) == 3 and _NUMBER.match(first[2]) and not separated:
        return _rocketfuel(name, lines)
    return _csv(name, text)


def _lines(text: str) -> Lines:
    numbered = ((at, line.split()) for at, line in enumerate(text.split("\n"), 1))
    return [(at, words) for at, words in numbered if words and not words[0].startswith("#")]


def _whole(words: Sequence[str]) -> bool:
    return all(_WHOLE.fullmatch(word) for word in words)


def _rocketfuel(name: str, lines: Lines) -> Draft:
    """`from to weight`, one line per direction; names have no spaces."""
    draft = Draft(name, "listed")
    for at, words in lines:
        source, target, weight = _exactly(draft, at, words, 3, "two routers and a weight")
        draft.add_link(source, target, weight, f"line {at}", declared=False)
    return draft


def _inet(name: str, lines: Lines) -> Draft:
    """The numbers of routers and links; `router x y` for each router, `one other distance` for each link."""
    draft = Draft(name, "both")
    routers, links = map(int, lines[0][1])
    _promised(draft, len(lines) - 1, routers + links, f"{routers} routers and {links} links")
    for at, words in lines[1 : 1 + routers]:
        key, _, _ = _exactly(draft, at, words, 3, "a router and where it is")
        draft.add_router(key, key, f"line {at}")
    for at, words in lines[1 + routers :]:
        one, other, distance = _exactly(draft, at, words, 3, "two routers and their distance")
        draft.add_link(one, other, distance, f"line {at}")
    return draft


def _hpcc(name: str, lines: Lines) -> Draft:
    """The numbers of devices, switches and links; the switches; `one other rate delay errors` for each link."""
    draft = Draft(name, "both", notes=["every link counts as 1, as in the simulator this is written for"])
    devices, _, links = map(int, lines[0][1])
    if devices > 10 * links + 10:
        raise draft.refusal("line 1", f"{devices} devices and only {links} links")
    for at in range(devices):
        draft.add_router(str(at), str(at), "line 1")
    body = lines[2 : 2 + links]
    _promised(draft, len(body), links, f"{links} links")
    for at, words in body:
        one, other, *_ = _exactly(draft, at, words, 5, "two devices, rate, delay and share of errors")
        draft.add_link(one, other, 1, f"line {at}")
    return draft


def read_repetita(name: str, text: str) -> Draft:
    """Read REPETITA's graphs: tables NODES (name, x, y) and EDGES (name, source, target, weight, bandwidth, delay)."""
    draft = Draft(name, "listed")
    lines = _lines(text)
    header = next((at for at, (_, words) in enumerate(lines) if words[0] == "EDGES"), None)
    if header is None:
        raise draft.refusal("", "it has a table NODES but no table EDGES")
    for table, what in ((lines[:header], "routers"), (lines[header:], "links")):
        promise = table[0][1][1:]
        if len(promise) != 1 or not _whole(promise):
            raise draft.refusal(f"line {table[0][0]}", f"this should be the number of {what}")
        _promised(draft, len(table) - 2, int(promise[0]), f"{promise[0]} {what}")
    for key, (at, words) in enumerate(lines[2:header]):
        draft.add_router(str(key), words[0], f"line {at}")
    for at, words in lines[header + 2 :]:
        _, source, target, weight, _, _ = _exactly(
            draft, at, words, 6, "name, source, target, weight, bandwidth, delay"
        )
        draft.add_link(source, target, weight, f"line {at}")
    return draft


def _csv(name: str, text: str) -> Draft:
    """Columns source, target and optionally weight; named in the first line, or in this order."""
    draft = Draft(name, "mirrored")
    # Comment lines become empty, so that line numbers stay right.
    lines = ["\n" if line.startswith("#") else line for line in io.StringIO(text, newline="")]
    mark, columns, header = _layout(name, lines)
    rows = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
    try:
        for row in rows:
            fields, place = [field.strip() for field in row], f"line {rows.line_num}"
            if not any(fields):
                continue
            if header:
                header = False
                continue
            if len(fields) <= max(columns) or not fields[columns[0]] or not fields[columns[1]]:
                raise draft.refusal(place, f"this should be source, target and weight, and is {shown(mark.join(row))}")
            source, target, *weight = (fields[column] for column in columns)
            draft.add_link(source, target, "".join(weight) or None, place, declared=False)
    except csv.Error as error:
        raise draft.refusal(f"line {rows.line_num}", f"not CSV ({error})") from None
    return draft


def _layout(name: str, lines: Sequence[str]) -> tuple[str, list[int], bool]:
    """The separator, the positions of source, target and weight, and whether the first line is a header."""
    bare: list[tuple[str, list[int], bool]] = []
    for mark in "\t;,":
        try:
            rows = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
            fields = next(([field.strip() for field in row] for row in rows if any(row)), [])
        except csv.Error:
            continue
        named = [next((at for at, field in enumerate(fields) if field.lower() in names), -1) for names in _COLUMNS]
        if min(named[:2]) >= 0:
            return mark, [at for at in named if at >= 0], True
        if len(fields) == 2 or (len(fields) == 3 and _NUMBER.match(fields[2])):
            bare.append((mark, list(range(len(fields))), False))
    if not bare:
        raise _unknown(name)
    return max(bare, key=lambda layout: len(layout[1]))


def _exactly(draft: Draft, at: int, words: list[str], many: int, what: str) -> list[str]:
    if len(words) != many:
        raise draft.refusal(f"line {at}", f"this should be {what}, and is {shown(' '.join(words))}")
    return words


def _promised(draft: Draft, there: int, promised: int, what: str) -> None:
    if there != promised:
        raise draft.refusal("", f"it announces {what}, {promised} lines, but has {there}")


def _unknown(name: str) -> WirelagError:
    return WirelagError(
        f"{name}: unknown format; wirelag reads Rocketfuel, Inet, HPCC, GraphML, GML, SNDlib, REPETITA,"
        " topohub, databases of FRRouting's OSPF, JSON and CSV (source,target,weight)"
    )
