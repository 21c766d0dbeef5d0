"""Messages between agents and the collector, as bytes. No I/O (docs/reference/messages.md).

Law: `decode` returns what was encoded, or raises a ValueError of one line, whatever the bytes are: `UnknownVersion` if
another version of wirelag may know what this one does not, so that the message is worth keeping. Its memory is
proportional to `most`, not to what the bytes claim. Every number and every text of a message has a bound, so that the
work and the memory of what is made from it have one, too. A message is about one interval of one point under one set of
terms, and `key` names exactly that; asks and replies, of which an interval may have several, include their contents.
Messages with the same key have the same contents: one of them is enough.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args, get_type_hints

import numpy as np

from wirelag import _kernels
from wirelag.codec import MOST_COUNT, array_of, from_json, number_of, pack, split_fields, to_json, together
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.dictionary import lengthen, shorten
from wirelag.protocol.opening import written
from wirelag.protocol.reconcile import check_answer, check_ask
from wirelag.protocol.terms import Terms, second_round
from wirelag.protocol.version1 import parts as parts_of_version1
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing_summary import from_fields

MAGIC: Final = b"WLAG"
VERSION: Final = 2
MOST_BYTES: Final = 16 << 20
MOST_NAME: Final = 64  # bytes of a point's name
_START: Final = struct.Struct("<4sII")  # magic, version of the format, checksum of all that follows
_LENGTH: Final = struct.Struct("<I")  # length of the names
_MOST_NAMES: Final = 1 << 16  # bytes of names and numbers that any message may have,
_MOST_RATIO: Final = 32  # and beyond that, this many times its own bytes
_MOST_FIELDS: Final = 64
MOST_RECORDS: Final = 4096  # of one message: everything, and each class
MOST_LENGTH_NS: Final = 24 * 3600 * 10**9  # of an interval
MOST_TEXT: Final = 256  # characters: segments and classes, plain values of a status, reasons
MOST_TERM: Final = 1024  # characters: filters and directions, which list networks
_MOST_WORDS: Final = 16  # of a list among the parameters
# The largest parameters of an estimator that sizes depend on; others are seeds, or nothing is made of them.
MOST_PARAMETERS: Final = {
    "banks": 4, "rows": 1 << 16, "buckets": 1 << 19, "stash": 1 << 16, "tail": 1 << 16, "memory": 1 << 40,
}  # fmt: skip
BEYOND_NS: Final = 1 << 60  # differences of clocks are smaller
_PLACE: Final = ("start_ns", "end_ns", "name")
_KEPT_TERMS: Final = 512  # terms that are not checked again,
_MOST_KEPT: Final = 4096  # and bytes of each
_known_terms: dict[bytes, Terms] = {}


class UnknownVersion(ValueError):  # noqa: N818
    """A message that is whole, but of another version of wirelag: keep it until one comes that reads it."""


Type = Literal["synopsis", "ask", "times", "status", "m-set", "crossing"]
ClockSource = Literal["adjtimex", "chrony", "ptp", "stated", "stamp", "none"]
_TYPES: Final[frozenset[str]] = frozenset(get_args(Type))
_SOURCES: Final[frozenset[str]] = frozenset(get_args(ClockSource))
STAMP: Final = "stamp"  # by which a crossing was measured, and its clocks compared, if not by its terms
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of an interval an agent saw. Packets dropped by the capture are unseen: they say nothing of the path."""

    packets: int = 0  # packets captured
    unseen: int = 0  # dropped by the capture: the segment's share of the kernel's count
    covered_ns: int = 0  # part of the interval during which the agent ran
    captured: int = 0  # packets captured of all traffic, for the uncertainty of that share


_SEEN: Final = tuple(one.name for one in fields(Seen))
OUT_SEEN: Final = tuple(f"out_{name}" for name in _SEEN)  # of a crossing: the end where packets leave


@dataclass(frozen=True, slots=True)
class ClockReading:
    """An agent's reading of its own clock. The bound means nothing if the clock is not synchronised."""

    synchronised: bool = False
    error_ns: int = 0  # largest error
    source: ClockSource = "none"


_CLOCK: Final = tuple(one.name for one in fields(ClockReading))


@dataclass(frozen=True, slots=True)
class Message:
    """From an agent: `synopsis`, `times` (the reply to an ask), `status` (plain values), `crossing` (a result).

    To an agent: `ask`, `m-set`. `point` is the agent's name in both directions.
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
    synopses: tuple[Any, ...] = field(default=(), init=False, repr=False, compare=False)  # of the records, if decoded
    _key: str | None = field(default=None, init=False, repr=False, compare=False)  # once it was asked for

    def with_records(self, records: tuple[Record, ...], kind: Type | None = None) -> Message:
        """The same with other records, perhaps of another type."""
        about = self.interval, self.terms, self.clock, self.seen
        return Message(kind or self.type, self.point, self.segment, *about, records, self.sent_ns)

    @property
    def key(self) -> str:
        """Letters, digits and - that identify the message."""
        if self._key is None:
            object.__setattr__(self, "_key", self._named())
        assert self._key is not None
        return self._key

    def _named(self) -> str:
        about = _about(self.point, self.segment, terms_name(self.terms), self.interval.name)
        if self.type in ("ask", "times", "m-set"):
            about = about.copy()
            for record in self.records:
                about.update(pack(record))
        return f"{self.type}-{self.interval.start_ns}-{self.interval.end_ns}-{about.hexdigest()[:24]}"


@lru_cache(maxsize=8192)  # messages about one segment differ in their times
def _about(point: str, segment: str | None, terms: str, interval: int | None) -> Any:
    """What a key tells of a message besides its times and contents, as a hash that may be continued in a copy."""
    return hashlib.sha256(json.dumps([point, segment, terms, interval]).encode())


@lru_cache(maxsize=256)
def terms_name(terms: Terms) -> str:
    """A name that is the same for the same terms everywhere."""
    plain = json.dumps(terms.to_fields(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def check_point(point: str) -> str:
    """The name of a point if it is valid; else a ValueError."""
    if not 0 < len(point.encode(errors="replace")) <= MOST_NAME or not point.isprintable() or point != point.strip():
        raise ValueError(f"{point[:MOST_NAME]!r} cannot name a point: use 1 to {MOST_NAME} printable bytes")
    return point


def ahead_of(message: Message) -> tuple[int, int] | None:
    """The bounds that a message has of what the clock of the downstream point is ahead."""
    record = message.records[0] if message.records else {}
    low_ns, high_ns = record.get("ahead_low_ns"), record.get("ahead_high_ns")
    if type(low_ns) is not int or type(high_ns) is not int or not -BEYOND_NS < low_ns <= high_ns < BEYOND_NS:
        return None
    return low_ns, high_ns


# ---- as bytes ----


def encode(message: Message) -> bytes:
    """The start, the compressed names and numbers of the opening and of all records, then the arrays."""
    names, arrays = split_fields(message.records)
    records = b"," + to_json(names)[1:] if names else b"]"
    short = shorten(written(message).encode() + records)
    body = _LENGTH.pack(len(short)) + short + arrays
    return _START.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes, most: int = MOST_BYTES) -> Message:
    """The inverse of `encode`; every record is checked against its type."""
    return _decode(data, most, whole=True)


def peek(data: bytes, most: int = MOST_BYTES) -> Message:
    """The same without its records, which are not read: cheap. `key` needs them for asks and replies."""
    return _decode(data, most, whole=False)


class Opened(bytes):
    """The bytes of a message, with what was found at its beginning: `decode` need not parse that again."""

    found: Beginning | None = None


Beginning = tuple[Message, bytes | list[Any], int]  # without records; their names, perhaps as JSON; where these end


def _decode(data: bytes, most: int, *, whole: bool) -> Message:
    if len(data) > most:
        raise ValueError(f"has {len(data)} bytes, more than the limit of {most}")
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise ValueError("is not a wirelag message")
    _, version, _ = _START.unpack_from(data)
    if version not in (VERSION, VERSION - 1):
        raise UnknownVersion(
            f"has version {version} of the format, this wirelag reads {VERSION - 1} and {VERSION}: use the same wirelag"
        )
    try:
        return _parts(data, most, whole) if version == VERSION else _before(data, whole)
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, ArithmeticError, IndexError, WirelagError) as error:
        raise ValueError(f"is inconsistent ({type(error).__name__})") from None


def _parts(data: bytes, most: int, whole: bool) -> Message:
    if not isinstance(data, Opened) or data.found is None:
        found = _beginning(data, most)
        if isinstance(data, Opened):
            data.found = found
    else:
        found = data.found
    message, names, end = found
    if not whole:
        return message
    if isinstance(names, bytes):
        names = from_json(names)
    if len(names) > MOST_RECORDS:
        raise ValueError(f"has {len(names)} records, more than {MOST_RECORDS}")
    return _with(message, together(names, memoryview(data)[end:], max(_MOST_NAMES, most // 4)))


def _beginning(data: bytes, most: int) -> Beginning:
    start = _START.size + _LENGTH.size
    end = start + (_LENGTH.unpack_from(data, _START.size)[0] if start <= len(data) else most)
    if end > len(data):
        raise ValueError("is cut short")
    if zlib.crc32(memoryview(data)[_START.size :]) != _START.unpack_from(data)[2]:
        raise ValueError("is damaged: the checksum does not match")
    longest = min(max(_MOST_NAMES, _MOST_RATIO * (end - start)), max(_MOST_NAMES, most // 4))
    text = lengthen(data[start:end], longest)
    if (usual := _usual(text)) is not None:
        return *usual, end
    names = from_json(text)
    return _opening(names[0]), names[1:], end


def _usual(text: bytes) -> tuple[Message, bytes] | None:
    """An opening as `encode` writes it, and the names of the records as JSON; None if any of it is unusual.

    Then the general way decides. What both decide is the same; of two faults either may be told.
    """
    if (found := _kernels.opening(text, MOST_TEXT, MOST_COUNT)) is None:
        return None
    kind, point, segment, place, terms, clock, seen, sent_ns, end = found
    interval = Interval(*place)
    if kind not in _TYPES or clock[2] not in _SOURCES or not 0 <= interval.length_ns <= MOST_LENGTH_NS:
        return None
    point, made = check_point(point), _terms(terms)
    message = Message(kind, point, segment, interval, made, ClockReading(*clock), Seen(*seen), sent_ns=sent_ns)
    return message, b"[" + text[end:]


def _before(data: bytes, whole: bool) -> Message:
    """A message of the version before."""
    opening, records = parts_of_version1(data, whole)
    return _with(_opening(opening), records)


def _with(message: Message, records: Iterable[Record]) -> Message:
    """The message with its records, each of which is checked."""
    whole = message.with_records(tuple(records))
    place = _place(message.interval)
    made = tuple([_checked(record, message, place) for record in whole.records])
    if message.type == "synopsis":
        object.__setattr__(whole, "synopses", made)
    return whole


def _opening(plain: Record) -> Message:
    interval = Interval(*[plain["interval"][name] for name in _PLACE])
    clock, seen = _all_of(_CLOCK, plain["clock"]), _all_of(_SEEN, plain["seen"])
    message = Message(
        _one_of(plain["type"], _TYPES),
        check_point(_text(plain["point"])),
        None if plain["segment"] is None else _text(plain["segment"]),
        interval,
        _terms(to_json(plain["terms"])),
        ClockReading(*clock),
        Seen(*seen),
        sent_ns=_integer(plain["sent_ns"]),
    )
    start_ns, end_ns, name = _integer(interval.start_ns), _integer(interval.end_ns), interval.name
    if not 0 <= start_ns <= end_ns or not (name is None or 0 <= _integer(name, 64) < 1 << 64):
        raise ValueError("has an impossible interval")
    if end_ns - start_ns > MOST_LENGTH_NS:
        raise ValueError("has an interval of more than a day")
    if type(message.clock.synchronised) is not bool:
        raise ValueError("has a clock reading whose synchronised is not a boolean")
    _one_of(message.clock.source, _SOURCES)
    for number in (message.clock.error_ns, *seen):
        if not 0 <= _integer(number) < MOST_COUNT:
            raise ValueError("has a count that is negative or too large")
    return message


def _terms(text: bytes) -> Terms:
    """Terms, of JSON, whose parameters have the types of the defaults, known words, and sizes within bounds.

    A point repeats its terms: the last ones are kept.
    """
    if (known := _known_terms.get(text)) is None:
        known = _new_terms(from_json(text))
        if len(text) <= _MOST_KEPT:
            if len(_known_terms) >= _KEPT_TERMS:
                _known_terms.clear()
            _known_terms[text] = known
    return known


def _new_terms(plain: Mapping[str, Any]) -> Terms:
    try:
        terms = Terms.from_fields(plain)
    except ValueError as error:
        names = plain.get("estimator"), plain.get("parameters")
        said = str(error).encode("unicode_escape").decode()[:MOST_TEXT]  # it may contain names from the message
        raise (UnknownVersion if isinstance(names[0], str) and names[1] else ValueError)(said) from None
    groups: list[Any] = [terms.estimator, terms.packet_id, *filter(None, [terms.delimiters])]
    for group in groups:
        words = _words(group.__class__)
        for parameter in fields(group):
            value = getattr(group, parameter.name)
            if not _fits(value, parameter.default) or (isinstance(value, str) and value not in words[parameter.name]):
                raise ValueError(f"has terms that this version does not know ({parameter.name})")
            if isinstance(value, int) and value > MOST_PARAMETERS.get(parameter.name, value):
                raise ValueError(f"has {parameter.name} of {value}, more than {MOST_PARAMETERS[parameter.name]}")
    for text in (terms.by, terms.direction, terms.filter):
        if text is not None:
            _text(text, MOST_TERM)
    lengths_ns = [terms.interval_ns] if terms.interval_ns is not None else []
    lengths_ns += [terms.delimiters.length_ns] if terms.delimiters is not None else []
    if not all(0 < _integer(length_ns) <= MOST_LENGTH_NS for length_ns in lengths_ns):
        raise ValueError("has intervals of length 0, or of more than a day")
    return terms


@lru_cache(maxsize=64)
def _words(kind: Any) -> dict[str, tuple[str, ...]]:
    """The words that each parameter may be, where it is one of a few."""
    return {name: get_args(hint) for name, hint in get_type_hints(kind).items()}


def _fits(value: Any, default: Any) -> bool:
    if default is MISSING or default is None:
        return (value is None and default is None) or (type(value) is int and 0 <= value < 1 << 64)
    if isinstance(default, tuple):
        return (
            type(value) is tuple
            and len(value) <= _MOST_WORDS
            and all(type(each) is int and 0 <= each < 64 for each in value)
        )
    return type(value) is type(default) and (type(value) is not int or 0 <= value < 1 << 64)


def _checked(record: Record, message: Message, place: Record) -> object:
    """Check a record against the message: it is about the same interval, and is valid. What it was checked with."""
    if len(record) > _MOST_FIELDS or not {*map(type, record.values())}.isdisjoint((dict, list)):
        raise ValueError("has a record that is not flat")
    for name in record:
        _name(name)
    if any(record[name] != value for name, value in place.items()):
        raise ValueError("has a record about another interval")
    if record["class"] is not None:
        _text(record["class"])
    return _USES[message.type](record, message.terms)


def _ask(record: Record, terms: Terms) -> None:
    """Check an ask for the times of some packets, or for a synopsis with that many buckets."""
    if number_of(record, "cache_level") > 64:
        raise ValueError("asks for a level that no cache has")
    if second_round(terms.estimator) and terms.estimator.short:
        check_ask(record)
    elif "buckets" in record:
        number_of(record, "buckets")
    else:
        array_of(record, "numbers", np.uint64)


def _times(record: Record, terms: Terms) -> None:
    """Check the requested times, or the reason why they are missing."""
    if "reason" in record:
        _text(record["reason"])
    elif second_round(terms.estimator) and terms.estimator.short:
        check_answer(terms.estimator, record)
    elif "bucket_ids" in record:
        terms.estimator.synopsis(record)
    else:
        Cached.from_fields(record, terms.estimator.seed)


def _status(record: Record, terms: Terms) -> None:
    """Check named numbers and texts."""
    for value in record.values():
        if isinstance(value, float) and math.isfinite(value):
            continue
        if type(value) is int:
            _integer(value)
        elif isinstance(value, str):
            _text(value)
        elif not isinstance(value, bool | None):
            raise ValueError("has a record with a value that is not plain")


def _m_set(record: Record, terms: Terms) -> None:
    """Check a segment of which the point is an end, and the addresses of its references, or of its ports."""
    for name in ("segment", "source", "target"):
        _text(record[name])
    for name in ("source", "target"):
        ipaddress.ip_address(record[name])
    if record["way"] not in ("out", "in", "inside"):
        raise ValueError("has a segment that neither begins nor ends here, nor lies inside")
    if record["until_ns"] is not None:
        _integer(record["until_ns"])


def _crossing(record: Record, terms: Terms) -> None:
    """Check a crossing, its loss and, of everything, how much was seen where packets leave."""
    from_fields(record)
    lost = record["lost"]
    for value in (record["lost_low"], record["lost_high"], 0 if lost is None else lost):
        if type(value) not in (int, float) or not -MOST_COUNT <= value <= MOST_COUNT:
            raise ValueError("has a loss that is no number")
    for reason in (record["why"], record["lost_why"]):
        if reason is not None:
            _text(reason)
    if record.get("by", STAMP) != STAMP:
        raise UnknownVersion("has a crossing by a method that this version does not know")
    if record["class"] is None:
        for name in OUT_SEEN:
            number_of(record, name)


_USES: Final[Mapping[Type, Callable[[Record, Terms], object]]] = {
    "synopsis": lambda record, terms: terms.estimator.synopsis(record),
    "ask": _ask,
    "times": _times,
    "status": _status,
    "m-set": _m_set,
    "crossing": _crossing,
}


def _all_of(names: tuple[str, ...], plain: Record) -> list[Any]:
    if len(plain) != len(names) or not all(name in plain for name in names):
        raise ValueError(f"has no {' and '.join(names)}, or more than that")
    return [plain[name] for name in names]


def _place(interval: Interval) -> Record:
    return {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": interval.name}


def _text(value: Any, most: int = MOST_TEXT) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise ValueError(f"has a value that should be text of at most {most} printable characters but is not")
    return value


@lru_cache(maxsize=1024)
def _name(name: str) -> None:
    _text(name, MOST_NAME)


def _integer(value: Any, bits: int = 63) -> int:
    if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
        raise ValueError("has a value that should be an integer but is not")
    return value


def _one_of(value: Any, words: frozenset[str]) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"has {str(value)[:40]!r} in place of a word")
    if value not in words:
        raise UnknownVersion(f"has a word that this version does not know ({value[:40]!r})")
    return value
