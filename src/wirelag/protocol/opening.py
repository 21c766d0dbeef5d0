"""The opening of a message as JSON: written, and taken apart where it has the layout that agents give it. No I/O.

Law: what is taken apart here is what a reader of JSON finds. A quote, a backslash or a bracket can be no part of what
is looked for, so that it is where it seems to be; and what is between both ends is the terms, if it is JSON by itself.
A point repeats its terms in each message: the last ones are known again by their text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from wirelag.codec import from_json, to_json
from wirelag.protocol.terms import Terms

if TYPE_CHECKING:
    from wirelag.protocol.messages import Message

_KEPT: Final = 512  # terms,
_MOST_BYTES: Final = 4096  # and bytes of each
_known: dict[bytes, Terms] = {}
_WORD, _COUNT = rb'"([ !#-\[\]-~]*)"', rb"(0|[1-9][0-9]{0,18})"
_BEFORE: Final = re.compile(
    rb'\[\{"type":"([a-z-]+)","point":%b,"segment":(?:null|%b),' % (_WORD, _WORD)
    + rb'"interval":\{"start_ns":%b,"end_ns":%b,"name":(?:null|%b)\},"terms":' % (_COUNT, _COUNT, _COUNT)
)
_CLOCK: Final = b',"clock":{"synchronised":'
_BEHIND: Final = re.compile(
    _CLOCK
    + rb'(?:(true)|false),"error_ns":%b,"source":"([a-z]+)"\},"seen":\{"packets":%b,' % (_COUNT, _COUNT)
    + rb'"unseen":%b,"covered_ns":%b,"captured":%b\},"sent_ns":%b\}(?=,\{|\]\Z)' % (_COUNT, _COUNT, _COUNT, _COUNT)
)

Ends = tuple[re.Match[bytes], re.Match[bytes]]  # what is before the terms, and behind them


def written(message: Message) -> str:
    """The opening, and the bracket before it."""
    interval, clock, seen = message.interval, message.clock, message.seen
    name = "null" if interval.name is None else interval.name
    return (
        f'[{{"type":"{message.type}","point":{_in_json(message.point)},"segment":{_in_json(message.segment)},'
        f'"interval":{{"start_ns":{interval.start_ns},"end_ns":{interval.end_ns},"name":{name}}},'
        f'"terms":{_terms_text(message.terms)},"clock":{{"synchronised":{"true" if clock.synchronised else "false"},'
        f'"error_ns":{clock.error_ns},"source":"{clock.source}"}},"seen":{{"packets":{seen.packets},'
        f'"unseen":{seen.unseen},"covered_ns":{seen.covered_ns},"captured":{seen.captured}}},'
        f'"sent_ns":{message.sent_ns}}}'
    )


@lru_cache(maxsize=4096)
def _in_json(value: str | None) -> str:
    return to_json(value).decode()


@lru_cache(maxsize=256)
def _terms_text(terms: Terms) -> str:
    return to_json(terms.to_fields()).decode()


def ends_of(text: bytes) -> Ends | None:
    """Both ends of an opening with this layout."""
    before = _BEFORE.match(text)
    behind = before and _BEHIND.match(text, text.find(_CLOCK, before.end()))
    return (before, behind) if before and behind else None


def known_terms(text: bytes, ends: Ends) -> Terms | None:
    """The terms between both ends, if they have been read before."""
    return _known.get(text[ends[0].end() : ends[1].start()])


def learn_terms(text: bytes, terms: Terms) -> None:
    """Know the terms of an opening again."""
    if (ends := ends_of(text)) is None:
        return
    between = text[ends[0].end() : ends[1].start()]
    with suppress(ValueError):
        from_json(between)
        if len(between) <= _MOST_BYTES:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[between] = terms
