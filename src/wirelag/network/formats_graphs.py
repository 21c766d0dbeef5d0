"""GraphML and GML, as used by the Topology Zoo."""

from __future__ import annotations

import html
import re
from typing import Final, TypeAlias

from wirelag.errors import WirelagError
from wirelag.network import formats_sndlib
from wirelag.network.formats_draft import Draft, shown, weigh
from wirelag.network.formats_xml import Element, parse_xml

_TOKEN: Final = re.compile(r'\s+|#[^\n]*|(?P<mark>[\[\]])|"(?P<text>[^"]*)"|(?P<word>[^\s\[\]"]+)')
_DEEPEST: Final = 50
Block: TypeAlias = "dict[str, list[str | Block]]"  # all values of each GML key


def read_xml(name: str, text: str) -> Draft:
    """Read GraphML or SNDlib's XML."""
    root = parse_xml(name, text)
    if root.tag == "graphml":
        return _graphml(name, root)
    if root.tag == "network":
        return formats_sndlib.read_xml(name, root)
    raise WirelagError(f"{name}: XML, but neither GraphML nor SNDlib; it begins with <{shown(root.tag)}>")


def _graphml(name: str, root: Element) -> Draft:
    graph = next(root.every("graph"), None)
    if graph is None:
        raise WirelagError(f"{name}: GraphML without a graph")
    default = graph.attributes.get("edgedefault", "undirected")
    draft = Draft(name, "listed" if default == "directed" else "both")
    called = {key.attributes.get("id", ""): key.attributes.get("attr.name", "").lower() for key in root.every("key")}

    def data(element: Element) -> dict[str, str]:
        return {called.get(one.attributes.get("key", ""), ""): one.text for one in element.inside if one.tag == "data"}

    for at, router in enumerate(graph.every("node"), 1):
        key = router.attributes.get("id", "")
        told = data(router)
        draft.add_router(key, told.get("label") or told.get("name") or key, f"node {at}")
        draft.put(key, told.get("longitude") or told.get("x"), told.get("latitude") or told.get("y"))
    links = list(graph.every("edge"))
    told_of_links = [data(link) for link in links]
    attribute = weigh(draft, told_of_links)
    for at, (link, told) in enumerate(zip(links, told_of_links, strict=True), 1):
        place = f"edge {at}"
        if link.attributes.get("directed", "").lower() == ("false" if default == "directed" else "true"):
            raise draft.refusal(place, f"this edge differs from the graph, which is {default}; make them alike")
        source, target = link.attributes.get("source", ""), link.attributes.get("target", "")
        draft.add_link(source, target, told[attribute] if attribute else None, place)
    return draft


def read_gml(name: str, text: str) -> Draft:
    """Read GML: keys with numbers, texts or blocks in [ ]."""
    graph = _blocks(_parse_gml(name, text), "graph")[0]
    draft = Draft(name, "listed" if _value(graph, "directed") == "1" else "both")
    for at, router in enumerate(_blocks(graph, "node"), 1):
        key = _value(router, "id")
        draft.add_router(key, _value(router, "label") or _value(router, "name") or key, f"node {at}")
        draft.put(key, _value(router, "longitude"), _value(router, "latitude"))
    links = [{key: _value(link, key) for key in link} for link in _blocks(graph, "edge")]
    attribute = weigh(draft, links)
    for at, link in enumerate(links, 1):
        weight = link[attribute] if attribute else None
        draft.add_link(link.get("source", ""), link.get("target", ""), weight, f"edge {at}")
    return draft


def _parse_gml(name: str, text: str) -> Block:
    top: Block = {}
    stack = [top]
    key = ""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise WirelagError(f"{name}: line {_line(text, at)}: a quoted text does not end")
        kind, value = token.lastgroup, token[token.lastgroup or 0]
        if kind == "word" and not key:
            key = value.lower()
        elif kind == "mark" and value == "[" and key:
            if len(stack) > _DEEPEST:
                raise WirelagError(f"{name}: line {_line(text, at)}: GML nested too deeply for a topology")
            block: Block = {}
            stack[-1].setdefault(key, []).append(block)
            stack.append(block)
            key = ""
        elif kind == "mark" and value == "]" and not key and len(stack) > 1:
            stack.pop()
        elif kind in ("word", "text") and key:
            stack[-1].setdefault(key, []).append(html.unescape(value))
            key = ""
        elif kind is not None:
            raise WirelagError(f"{name}: line {_line(text, at)}: not GML; unexpected {shown(value)}")
        at = token.end()
    if len(stack) > 1 or key:
        raise WirelagError(f"{name}: this GML is truncated")
    return top


def _blocks(block: Block, key: str) -> list[Block]:
    return [one for one in block.get(key, []) if not isinstance(one, str)]


def _value(block: Block, key: str) -> str:
    return next((one for one in block.get(key, []) if isinstance(one, str)), "")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
