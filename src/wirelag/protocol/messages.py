"""Messages: what agents and the collector send each other, as bytes. No I/O (docs/reference/messages.md).

Law: `decode` gives what was encoded, or a ValueError of one line; never anything else, whatever the bytes are. It takes
memory in proportion to `most`, not to what the bytes claim. A message is about one interval of one point under one set
of terms, and `key` names exactly that; of asks and answers, of which an interval may have several, also what they say.
Messages with the same key say the same: one of them is enough.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from wirelag.codec import MOST_COUNT, apart, array_of, from_json, number_of, pack, together
from wirelag.errors import WirelagError
from wirelag.packets.intervals import Interval
from wirelag.protocol.dictionary import lengthen, shorten
from wirelag.protocol.reconcile import check_answer, check_ask
from wirelag.protocol.terms import Terms, second_round
from wirelag.synopses.cache import Cached

MAGIC: Final = b"WLAG"
VERSION: Final = 2
MOST_BYTES: Final = 16 << 20
MOST_NAME: Final = 64  # bytes of a point's name
_START: Final = struct.Struct("<4sII")  # what it is, the version of the format, checksum of all behind it
_LENGTH: Final = struct.Struct("<I")  # of the names
_MOST_NAMES: Final = 1 << 16  # bytes of names and numbers that any message may have
_MOST_RATIO: Final = 32  # and how many times its bytes, beyond
_MOST_FIELDS: Final = 64
_PLACE: Final = ("start_ns", "end_ns", "name")

Type = Literal["synopsis", "ask", "times", "status", "m-set"]
ClockSource = Literal["adjtimex", "chrony", "ptp", "stated", "none"]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of an interval an agent saw. What the capture dropped is unseen: it says nothing about the path."""

    packets: int = 0  # taken in
    unseen: int = 0  # dropped by the capture: the segment's share of what the kernel counts
    covered_ns: int = 0  # how much of the interval the agent was running
    captured: int = 0  # taken in of all segments and of none: how sure that share is


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What an agent's clock says about itself. The bound means nothing where it is not synchronised."""

    synchronised: bool = False
    error_ns: int = 0  # it is wrong by no more than this
    source: ClockSource = "none"


@dataclass(frozen=True, slots=True)
class Message:
    """From an agent: `synopsis`, `times` (the answer to an ask), `status` (plain values). To an agent: `ask`, `m-set`.

    `point` is the agent's name in both directions.
    """

    type: Type
    point: str
    segment: str | None
    interval: Interval
    terms: Terms
    clock: ClockReading = ClockReading()
    seen: Seen = Seen()
    records: tuple[Record, ...] = ()
    sent_ns: int = 0

    @property
    def key(self) -> str:
        """Letters, digits and - that tell which message it is."""
        about = hashlib.sha256()
        about.update(json.dumps([self.point, self.segment, terms_name(self.terms), self.interval.name]).encode())
        if self.type in ("ask", "times", "m-set"):
            for record in self.records:
                about.update(pack(record))
        return f"{self.type}-{self.interval.start_ns}-{self.interval.end_ns}-{about.hexdigest()[:24]}"


@lru_cache(maxsize=256)
def terms_name(terms: Terms) -> str:
    """The same for the same terms, everywhere."""
    plain = json.dumps(terms.to_fields(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def check_point(point: str) -> str:
    """A point's name if it can be one, or a ValueError."""
    if not 0 < len(point.encode(errors="replace")) <= MOST_NAME or not point.isprintable() or point != point.strip():
        raise ValueError(f"{point[:MOST_NAME]!r} cannot name a point: 1 to {MOST_NAME} bytes that can be printed")
    return point


# ---- as bytes ----


def encode(message: Message) -> bytes:
    """The start, names and numbers of the opening and of all records in shorthand, then the arrays."""
    opening = {
        "type": message.type,
        "point": message.point,
        "segment": message.segment,
        "interval": _place(message.interval),
        "terms": message.terms.to_fields(),
        "clock": asdict(message.clock),
        "seen": asdict(message.seen),
        "sent_ns": message.sent_ns,
    }
    names, arrays = apart((opening, *message.records))
    short = shorten(json.dumps(names, separators=(",", ":")).encode())
    body = _LENGTH.pack(len(short)) + short + arrays
    return _START.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes, most: int = MOST_BYTES) -> Message:
    """The opposite of `encode`; every record can be used as its type demands."""
    return _decode(data, most, whole=True)


def peek(data: bytes, most: int = MOST_BYTES) -> Message:
    """The same without its records, which are not looked at: cheap. `key` needs them in asks and answers."""
    return _decode(data, most, whole=False)


def _decode(data: bytes, most: int, *, whole: bool) -> Message:
    if len(data) > most:
        raise ValueError(f"has {len(data)} bytes, more than the {most} that a message may have")
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise ValueError("is no message of wirelag")
    _, version, _ = _START.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"has version {version} of the format, this wirelag reads {VERSION}: use the same wirelag")
    try:
        return _parts(data, most, whole)
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, ArithmeticError, IndexError, WirelagError) as error:
        raise ValueError(f"does not hold together ({type(error).__name__})") from None


def _parts(data: bytes, most: int, whole: bool) -> Message:
    start = _START.size + _LENGTH.size
    end = start + (_LENGTH.unpack_from(data, _START.size)[0] if start <= len(data) else most)
    if end > len(data):
        raise ValueError("is cut short")
    if zlib.crc32(memoryview(data)[_START.size :]) != _START.unpack_from(data)[2]:
        raise ValueError("is damaged: the checksum is another one")
    longest = min(max(_MOST_NAMES, _MOST_RATIO * (end - start)), max(_MOST_NAMES, most // 4))
    names = from_json(lengthen(data[start:end], longest))
    message = _opening(names[0])
    if not whole:
        return message
    records = together(names[1:], memoryview(data)[end:], max(_MOST_NAMES, most // 4))
    return replace(message, records=tuple(_record(record, message) for record in records))


def _opening(plain: Record) -> Message:
    interval = Interval(*(plain["interval"][name] for name in _PLACE))
    message = Message(
        _one_of(plain["type"], Type),
        check_point(_text(plain["point"])),
        None if plain["segment"] is None else _text(plain["segment"]),
        interval,
        _terms(plain["terms"]),
        ClockReading(**_all_of(ClockReading, plain["clock"])),
        Seen(**_all_of(Seen, plain["seen"])),
        sent_ns=_integer(plain["sent_ns"]),
    )
    start_ns, end_ns, name = _integer(interval.start_ns), _integer(interval.end_ns), interval.name
    if not 0 <= start_ns <= end_ns or not (name is None or 0 <= _integer(name, 64) < 1 << 64):
        raise ValueError("is about an interval that cannot be")
    if type(message.clock.synchronised) is not bool:
        raise ValueError("has a clock that neither is synchronised nor is not")
    _one_of(message.clock.source, ClockSource)
    for number in (message.clock.error_ns, *asdict(message.seen).values()):
        if not 0 <= _integer(number) < MOST_COUNT:
            raise ValueError("counts less than nothing, or more than there can be")
    return message


def _terms(plain: Mapping[str, Any]) -> Terms:
    """Terms whose parameters are what they are by default: numbers, texts, numbers in a row."""
    terms = Terms.from_fields(plain)
    groups: list[Any] = [terms.estimator, terms.packet_id, *filter(None, [terms.delimiters])]
    for group in groups:
        for parameter in fields(group):
            if not _fits(getattr(group, parameter.name), parameter.default):
                raise ValueError(f"has terms that this version does not know ({parameter.name})")
    for text in (terms.by, terms.direction, terms.filter):
        if text is not None:
            _text(text)
    if terms.interval_ns is not None and _integer(terms.interval_ns) <= 0:
        raise ValueError("has intervals without a length")
    return terms


def _fits(value: Any, default: Any) -> bool:
    if default is MISSING or default is None:
        return (value is None and default is None) or (type(value) is int and 0 <= value < 1 << 64)
    if isinstance(default, tuple):
        return type(value) is tuple and all(type(each) is int and 0 <= each < 64 for each in value)
    return type(value) is type(default) and (type(value) is not int or 0 <= value < 1 << 64)


def _record(record: Record, message: Message) -> Record:
    """A record of that message, or a ValueError: it is about the same interval, and can be used."""
    if len(record) > _MOST_FIELDS or any(isinstance(value, dict | list) for value in record.values()):
        raise ValueError("has a record that is not flat")
    if {name: record[name] for name in _PLACE} != _place(message.interval):
        raise ValueError("has a record about another interval")
    if record["class"] is not None:
        _text(record["class"])
    _USES[message.type](record, message.terms)
    return record


def _ask(record: Record, terms: Terms) -> None:
    """For the times of some packets, or for a synopsis of that many buckets."""
    if number_of(record, "cache_level") > 64:
        raise ValueError("asks for a level that no cache has")
    if second_round(terms.estimator) and terms.estimator.short:
        check_ask(record)
    elif "buckets" in record:
        number_of(record, "buckets")
    else:
        array_of(record, "numbers", np.uint64)


def _times(record: Record, terms: Terms) -> None:
    """What was asked for, or the reason why it is not there."""
    if "reason" in record:
        _text(record["reason"])
    elif second_round(terms.estimator) and terms.estimator.short:
        check_answer(terms.estimator, record)
    elif "bucket_ids" in record:
        terms.estimator.synopsis(record)
    else:
        Cached.from_fields(record, terms.estimator.seed)


def _status(record: Record, terms: Terms) -> None:
    """Numbers and texts by name."""
    for name, value in record.items():
        if isinstance(value, float) and math.isfinite(value):
            continue
        if type(value) is int:
            _integer(value)
        elif not isinstance(value, str | bool | None):
            raise ValueError(f"has a record whose {name[:MOST_NAME]} is no plain value")


def _m_set(record: Record, terms: Terms) -> None:
    """A segment that the point is an end of, and between which addresses its references go."""
    for name in ("segment", "source", "target"):
        _text(record[name])
    for name in ("source", "target"):
        ipaddress.ip_address(record[name])
    if record["way"] not in ("out", "in"):
        raise ValueError("has a segment that neither begins nor ends here")
    if record["until_ns"] is not None:
        _integer(record["until_ns"])


_USES: Final[Mapping[Type, Callable[[Record, Terms], object]]] = {
    "synopsis": lambda record, terms: terms.estimator.synopsis(record),
    "ask": _ask,
    "times": _times,
    "status": _status,
    "m-set": _m_set,
}


def _all_of(kind: type[ClockReading | Seen], plain: Record) -> Record:
    if plain.keys() != {parameter.name for parameter in fields(kind)}:
        raise ValueError(f"has no {' and '.join(parameter.name for parameter in fields(kind))}, or more than that")
    return plain


def _place(interval: Interval) -> Record:
    return {name: getattr(interval, name) for name in _PLACE}


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1024 or not value.isprintable():
        raise ValueError("has something that is no text where one must be")
    return value


def _integer(value: Any, bits: int = 63) -> int:
    if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
        raise ValueError("has something that is no whole number where one must be")
    return value


def _one_of(value: Any, literal: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(literal):
        raise ValueError(f"has a word that this version does not know ({str(value)[:40]!r})")
    return value
