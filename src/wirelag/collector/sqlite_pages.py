"""Rows of a damaged store, read from its pages one by one: those to which no page leads any more.

Law: each page is read by itself, so that damage costs the rows of that page and of no other. What a page says is only
bytes: whoever takes a row checks its checksum. Pages that SQLite has freed are left out, since their rows were deleted.
The format is that of https://sqlite.org/fileformat2.html, sections 1.3 to 2.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Any, Final

_INTERIOR, _LEAF, _OF_ROWIDS = 2, 10, 13  # kinds of pages that hold rows: without rowids two, with rowids one
_FREE: Final = 2  # in the pointer map
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes of a value, by its type
_MOST_BYTES: Final = 64 << 20  # of a row


class Pages:
    """The pages of a file."""

    def __init__(self, data: bytes | mmap) -> None:
        self._data = data
        size = int.from_bytes(data[16:18])
        self._size = 65536 if size == 1 else size
        if self._size < 512 or self._size & (self._size - 1):
            self._size = 4096  # SQLite's default: the header is damaged, too
        self._usable = self._size - min(data[20], 32)
        self._count = len(data) // self._size

    def __iter__(self) -> Iterator[int]:
        """The numbers of the pages in use, from 1."""
        return filter(self._is_used, range(1, self._count + 1))

    def rows(self, number: int, ends: bool = False) -> Iterator[list[Any]]:
        """The rows of a page that are whole, or only its first and last one; a rowid counts as the first value."""
        page = self._data[self._at(number) : self._at(number) + self._size]
        head = 100 if number == 1 else 0
        kind = page[head]
        if kind not in (_INTERIOR, _LEAF, _OF_ROWIDS):
            return
        cells, first = int.from_bytes(page[head + 3 : head + 5]), head + (12 if kind == _INTERIOR else 8)
        places = range(first, min(first + 2 * cells, self._usable - 1), 2)
        for at in (*places[:1], *places[-1:]) if ends else places:
            try:
                yield self._row(page, int.from_bytes(page[at : at + 2]), kind)
            except (IndexError, ValueError, struct.error):  # it is damaged
                continue

    def _is_used(self, number: int) -> bool:
        """Whether it is in a tree, by the pointer map."""
        each = self._usable // 5 + 1  # a page of the map, and the pages it is about
        first = 2 + (number - 2) // each * each
        if number == 1 or number == first:
            return number == 1
        return bool(self._data[self._at(first) + 5 * (number - first - 1)] != _FREE)

    def _at(self, number: int) -> int:
        return (number - 1) * self._size

    def _row(self, page: bytes, at: int, kind: int) -> list[Any]:
        at += 4 if kind == _INTERIOR else 0  # the page below
        length, at = _number(page, at)
        before: list[Any] = []
        if kind == _OF_ROWIDS:
            rowid, at = _number(page, at)
            before = [rowid]
        if not 0 < length <= _MOST_BYTES:
            raise ValueError
        return before + _values(self._payload(page, at, length, kind))

    def _payload(self, page: bytes, at: int, length: int, kind: int) -> bytes:
        """A row's bytes, some of which may be on pages of its own."""
        usable = self._usable
        most = usable - 35 if kind == _OF_ROWIDS else (usable - 12) * 64 // 255 - 23
        if length <= most:
            return _exactly(page[at : at + length], length)
        least = (usable - 12) * 32 // 255 - 23
        here = least + (length - least) % (usable - 4)
        here = here if here <= most else least
        found = bytearray(_exactly(page[at : at + here], here))
        number = int.from_bytes(_exactly(page[at + here : at + here + 4], 4))
        while len(found) < length:
            if not 0 < number <= self._count:
                raise ValueError
            start = self._at(number)
            found += self._data[start + 4 : start + min(usable, 4 + length - len(found))]
            number = int.from_bytes(self._data[start : start + 4])
        return bytes(found)


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError
    return data


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and where it ends."""
    found = 0
    for i in range(8):
        byte = data[at + i]
        found = found << 7 | byte & 127
        if byte < 128:
            return found, at + i + 1
    return found << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    head, at = _number(record, 0)
    kinds: list[int] = []
    while at < head:
        kind, at = _number(record, at)
        kinds.append(kind)
    if at != head:
        raise ValueError
    found: list[Any] = []
    for kind in kinds:
        if kind in _INTEGERS or kind == 7:
            data = _exactly(record[at : at + _INTEGERS.get(kind, 8)], _INTEGERS.get(kind, 8))
            found.append(struct.unpack(">d", data)[0] if kind == 7 else int.from_bytes(data, signed=True))
            at += len(data)
        elif kind >= 12:
            data = _exactly(record[at : at + (kind - 12) // 2], (kind - 12) // 2)
            found.append(data.decode(errors="replace") if kind % 2 else data)
            at += len(data)
        elif kind in (0, 8, 9):
            found.append((None, 0, 1)[(0, 8, 9).index(kind)])
        else:
            raise ValueError
    return found
