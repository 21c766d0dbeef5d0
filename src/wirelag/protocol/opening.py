"""The opening of a message as JSON, written without dictionaries. No I/O.

Law: it is what `to_json` makes of the same fields. A point repeats its names and terms: their texts are kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from wirelag.codec import to_json
from wirelag.protocol.terms import Terms

if TYPE_CHECKING:
    from wirelag.protocol.messages import Message


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
