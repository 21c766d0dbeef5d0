"""A plain reader of IPFIX (RFC 7011): the twin of what `render/ipfix.py` writes, from the same text."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

Key = tuple[int, int]  # an element's number, and its enterprise
Record = dict[Key, bytes]


@dataclass
class Reader:
    """Reads messages one after another, and knows the templates it has seen."""

    templates: dict[int, list[tuple[Key, int]]] = field(default_factory=dict)
    options: set[int] = field(default_factory=set)  # templates of options
    records: list[Record] = field(default_factory=list)
    about: list[Record] = field(default_factory=list)
    sequence: int = 0

    def read(self, message: bytes) -> None:
        version, length, _, sequence, _ = struct.unpack_from(">HHIII", message)
        assert (version, length, sequence) == (10, len(message), self.sequence)
        at = 16
        while at < length:
            number, size = struct.unpack_from(">HH", message, at)
            assert size >= 4
            self._read_set(number, message[at + 4 : at + size])
            at += size
        assert at == length
        self.sequence = len(self.records) + len(self.about)

    def _read_set(self, number: int, content: bytes) -> None:
        if number in (2, 3):
            template, count = struct.unpack_from(">HH", content)
            at = 4 if number == 2 else 6
            fields = []
            for _ in range(count):
                element, length = struct.unpack_from(">HH", content, at)
                at += 4
                enterprise = 0
                if element >> 15:
                    (enterprise,) = struct.unpack_from(">I", content, at)
                    at += 4
                fields.append(((element & 0x7FFF, enterprise), length))
            assert at == len(content)
            self.templates[template] = fields
            self.options |= {template} if number == 3 else set()
            return
        at = 0
        while at < len(content):
            record: Record = {}
            for key, length in self.templates[number]:
                if length == 0xFFFF:
                    length, at = content[at], at + 1
                record[key] = content[at : at + length]
                at += length
            (self.about if number in self.options else self.records).append(record)
        assert at == len(content)


def messages(data: bytes) -> Iterable[bytes]:
    """The messages of a file or a connection."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">H", data, at + 2)
        yield data[at : at + length]
        at += length
