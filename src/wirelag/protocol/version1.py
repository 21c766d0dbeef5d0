"""Messages of version 1 of the format, of which agents that were not upgraded yet may have some on disk.

A message was its magic and version, and then its opening and each record by itself: a length, and packed fields
(codec.py). It had no `captured`, sums were those of the times themselves, and `rda` sent buckets only.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from wirelag.codec import unpack
from wirelag.estimators.catalogue import capabilities_of

_HEAD: Final = 8  # bytes of magic and version
_LENGTH: Final = struct.Struct("<I")
_MOST_NAMES: Final = 1 << 16  # bytes of the names and numbers of a part
_MOST_RECORDS: Final = 4096

Record = dict[str, Any]


def parts(data: bytes, whole: bool) -> tuple[Record, list[Record]]:
    """The opening and, if `whole`, the records, as the current version has them; a ValueError if they are not valid."""
    place, found = _HEAD, list[Record]()
    count = 0
    while len(found) <= (count if whole else 0):
        end = place + _LENGTH.size
        if end + _LENGTH.size > len(data):
            raise ValueError("is cut short")
        length, names = _LENGTH.unpack_from(data, place)[0], _LENGTH.unpack_from(data, end)[0]
        if end + length > len(data):
            raise ValueError("is cut short")
        if names > _MOST_NAMES:
            raise ValueError("is damaged: its names are too long")
        found.append(unpack(data[end : end + length]))
        place = end + length
        if len(found) == 1:
            count = found[0].pop("records")
            if type(count) is not int or not 0 <= count <= _MOST_RECORDS:
                raise ValueError("has a count that is negative or too large")
    if whole and place != len(data):
        raise ValueError("goes on behind its end")
    opening, *records = found
    return _now(opening), [{"base_ns": 0} | record for record in records]


def _now(opening: Record) -> Record:
    terms = opening["terms"]
    can = capabilities_of(terms["estimator"])
    if can is not None and can.second_round:
        terms = terms | {"parameters": terms["parameters"] | {"short": False}}
    return opening | {"terms": terms, "seen": opening["seen"] | {"captured": 0}}
