"""Messages: what agents and the collector send each other, as bytes. No I/O (docs/reference/messages.md).

Law: `decode` gives what was encoded, or a ValueError of one line; never anything else, whatever the bytes are. It takes
memory in proportion to `most`, not to what the bytes claim. A message is about one interval of one point under one set
of terms, and `key` names exactly that; of asks and answers, of which an interval may have several, also what they say.
Messages with the same key say the same: one of them is enough.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from wirelag.caches import Cached
from wirelag.errors import WirelagError
from wirelag.exchange import Terms
from wirelag.intervals import Interval
from wirelag.packing import array_of, number_of, pack, unpack

MAGIC: Final = b"WLAG"
VERSION: Final = 1
MOST_BYTES: Final = 16 << 20
MOST_NAME: Final = 64  # bytes of a point's name
_START: Final = struct.Struct("<4sI")  # what it is, the version of the format
_LENGTH: Final = struct.Struct("<I")  # of each part
_MOST_NAMES: Final = 1 << 16  # bytes of a part's names and numbers
_MOST_FIELDS: Final = 64
_PLACE: Final = ("start_ns", "end_ns", "name")

Type = Literal["synopsis", "ask", "times", "status"]
ClockSource = Literal["adjtimex", "chrony", "ptp", "stated", "none"]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of an interval an agent saw. What the capture dropped is unseen: it says nothing about the path."""

    packets: int = 0  # taken in
    unseen: int = 0  # dropped by the capture, as the kernel counts
    covered_ns: int = 0  # how much of the interval the agent was running


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What an agent's clock says about itself. The bound means nothing where it is not synchronised."""

    synchronised: bool = False
    error_ns: int = 0  # it is wrong by no more than this
    source: ClockSource = "none"


@dataclass(frozen=True, slots=True)
class Message:
    """From an agent: `synopsis`, `times` (the answer to an ask), `status` (plain values). To an agent: `ask`.

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
        if self.type in ("ask", "times"):
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
    """The start, what the message is about, and its records, each behind its length."""
    opening = {
        "type": message.type,
        "point": message.point,
        "segment": message.segment,
        "interval": _place(message.interval),
        "terms": message.terms.to_fields(),
        "clock": asdict(message.clock),
        "seen": asdict(message.seen),
        "sent_ns": message.sent_ns,
        "records": len(message.records),
    }
    parts = [_START.pack(MAGIC, VERSION)]
    for part in (opening, *message.records):
        body = pack(part)
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


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
    _, version = _START.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"has version {version} of the format, this wirelag reads {VERSION}: use the same wirelag")
    try:
        return _parts(data, most, whole)
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, ArithmeticError, IndexError, WirelagError) as error:
        raise ValueError(f"does not hold together ({type(error).__name__})") from None


def _parts(data: bytes, most: int, whole: bool) -> Message:
    place, names, values = _START.size, 0, 0
    message, count, records = None, 0, list[Record]()
    while message is None or (whole and len(records) < count):
        start = place + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, place)[0] if start <= len(data) else most)
        if end > len(data):
            raise ValueError("is cut short")
        part = data[start:end]
        claimed = _claimed(part)
        names, values, place = names + claimed[0], values + claimed[1], end
        if names > max(_MOST_NAMES, most // 4) or values > max(_MOST_NAMES, most // 4):
            raise ValueError(f"holds more than fits into {most} bytes")
        if message is None:
            message, count = _opening(unpack(part))
        else:
            records.append(_record(unpack(part), message))
    if whole and place != len(data):
        raise ValueError("goes on behind its end")
    return replace(message, records=tuple(records))


def _claimed(part: bytes) -> tuple[int, int]:
    """How many bytes of names a part has, and how many values of arrays it claims: known before they take memory."""
    length = _LENGTH.unpack_from(part)[0] if len(part) >= _LENGTH.size else 0
    if length > _MOST_NAMES:
        raise ValueError("is damaged: its names are too long")
    try:
        plain = json.loads(part[2 * _LENGTH.size : 2 * _LENGTH.size + length])
        arrays = [value["array"] for value in plain.values() if isinstance(value, dict) and "array" in value]
        return length, sum(max(0, shape[1]) for shape in arrays)
    except (ValueError, RecursionError, TypeError, IndexError, KeyError, AttributeError):
        raise ValueError("is damaged: its names are not JSON") from None


def _opening(plain: Record) -> tuple[Message, int]:
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
    if start_ns > end_ns or not (name is None or 0 <= _integer(name, 64) < 1 << 64):
        raise ValueError("is about an interval that cannot be")
    if type(message.clock.synchronised) is not bool:
        raise ValueError("has a clock that neither is synchronised nor is not")
    _one_of(message.clock.source, ClockSource)
    for number in (message.clock.error_ns, *asdict(message.seen).values(), count := plain["records"]):
        if _integer(number) < 0:
            raise ValueError("counts less than nothing")
    return message, count


def _terms(plain: Mapping[str, Any]) -> Terms:
    """Terms whose parameters are what they are by default: numbers, texts, numbers in a row."""
    terms = Terms.from_fields(plain)
    for group in (terms.estimator, terms.packet_id, *filter(None, [terms.delimiters])):
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
    if "buckets" in record:
        number_of(record, "buckets")
    else:
        array_of(record, "numbers", np.uint64)


def _times(record: Record, terms: Terms) -> None:
    """What was asked for, or the reason why it is not there."""
    if "reason" in record:
        _text(record["reason"])
    elif "bucket_ids" in record:
        terms.estimator.synopsis(record)
    else:
        Cached.from_fields(record, terms.estimator.seed)


def _status(record: Record, terms: Terms) -> None:
    """Numbers and texts by name."""
    for name, value in record.items():
        if not isinstance(value, int | float | str | bool | None):
            raise ValueError(f"has a record whose {name} is no plain value")


_USES: Final[Mapping[Type, Callable[[Record, Terms], object]]] = {
    "synopsis": lambda record, terms: terms.estimator.synopsis(record),
    "ask": _ask,
    "times": _times,
    "status": _status,
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
