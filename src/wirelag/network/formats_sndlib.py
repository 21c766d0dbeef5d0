"""SNDlib, native and XML. Links are undirected in most of its networks; the files do not state it."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from wirelag.network.formats_draft import Draft, shown
from wirelag.network.formats_xml import Element

_SECTION: Final = re.compile(r"([A-Z_]+)\s*\(")
_ROUTER: Final = re.compile(r"([^\s()]+)(\s*\([^()]*\))?")
_LINK: Final = re.compile(r"[^\s()]+\s*\(\s*([^\s()]+)\s+([^\s()]+)\s*\)([^()]*)(\([^()]*\))?")
_LONGEST: Final = 4096  # longest line: patterns may scan each character several times


def read_native(name: str, text: str) -> Draft:
    """Read `NODES ( name ( x y ) ... )` and `LINKS ( name ( source target ) 4 numbers ( modules ) ... )`."""
    draft = Draft(name, "mirrored")
    section = ""
    costs: list[tuple[str, str, str, str]] = []
    for at, line in enumerate(text.split("\n"), 1):
        place, line = f"line {at}", line.strip()
        if not line or line[0] in "#?":
            continue
        if len(line) > _LONGEST:
            raise draft.refusal(place, f"has {len(line):,} characters; lines may have at most {_LONGEST:,}")
        if not section:
            opened = _SECTION.fullmatch(line)
            if opened is None:
                raise draft.refusal(place, f"this should open a section, and is {shown(line)}")
            section = opened[1]
        elif line == ")":
            section = ""
        elif section == "NODES":
            router = _ROUTER.fullmatch(line)
            if router is None:
                raise draft.refusal(place, f"this should be a name and where it is, and is {shown(line)}")
            draft.add_router(router[1], router[1], place)
            draft.put(router[1], *[*(router[2] or "").strip(" ()").split(), "", ""][:2])
        elif section == "LINKS":
            link = _LINK.fullmatch(line)
            if link is None:
                raise draft.refusal(place, f"this should be a name, ( source target ) and costs, and is {shown(line)}")
            numbers = link[3].split()
            costs.append((link[1], link[2], numbers[2] if len(numbers) > 2 else "0", place))
    if section:
        raise draft.refusal("", f"section {section} has no end; the file is truncated")
    return _priced(draft, costs)


def read_xml(name: str, root: Element) -> Draft:
    """Read the same as XML."""
    draft = Draft(name, "mirrored")
    costs = []
    for at, router in enumerate(root.every("node")):
        key = router.attributes.get("id", "")
        draft.add_router(key, key, f"node {at + 1}")
        where = {one.tag: one.text for one in router.every("x")} | {one.tag: one.text for one in router.every("y")}
        draft.put(key, where.get("x"), where.get("y"))
    for at, link in enumerate(root.every("link")):
        told = {one.tag: one.text for one in link.inside}
        cost = told.get("routingCost") or "0"
        costs.append((told.get("source", ""), told.get("target", ""), cost, f"link {at + 1}"))
    return _priced(draft, costs)


def _priced(draft: Draft, links: list[tuple[str, str, str, str]]) -> Draft:
    """Routing costs are 0 in most networks, which means that there are none."""
    priced = any(not _zero(cost) for _, _, cost, _ in links)
    for source, target, cost, place in links:
        draft.add_link(source, target, cost if priced else None, place)
    return draft


def _zero(cost: str) -> bool:
    try:
        return Decimal(cost) == 0
    except InvalidOperation:
        return False
