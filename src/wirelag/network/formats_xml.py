"""XML as a tree, from untrusted files: nothing is fetched, no entity is expanded, nesting is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from wirelag.errors import WirelagError

_DEEPEST: Final = 50


@dataclass
class Element:
    """A tag without its namespace, its attributes, text and child elements."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[Element] = field(default_factory=list)

    def every(self, tag: str) -> Iterator[Element]:
        """All elements below with this tag, in order."""
        for element in self.inside:
            if element.tag == tag:
                yield element
            yield from element.every(tag)


def parse_xml(name: str, text: str) -> Element:
    """The root element."""
    top = Element("", {})
    stack = [top]
    texts: list[list[str]] = [[]]
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise WirelagError(f"{name}: line {parser.CurrentLineNumber}: XML nested too deeply for a topology")
        element = Element(tag.rpartition(" ")[2], attributes)
        stack[-1].inside.append(element)
        stack.append(element)
        texts.append([])

    def end(tag: str) -> None:
        stack.pop().text = "".join(texts.pop()).strip()

    def characters(data: str) -> None:
        texts[-1].append(data)

    def entity(*declared: object) -> None:
        raise WirelagError(f"{name}: line {parser.CurrentLineNumber}: XML must not declare entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise WirelagError(f"{name}: line {error.lineno}: not XML ({expat.errors.messages[error.code]})") from None
    return top.inside[0]
