"""Messages: encoding is reversible; other input is refused in one line, and takes little memory."""

import json
import random
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.messages import (
    ESTIMATORS,
    INTERVAL,
    MESSAGES,
    OPENINGS,
    TERMS,
    as_message,
    cut,
    opening,
    packets,
    same,
    synopsis,
    taken_apart,
    with_opening,
)
from tests.support.two_points import EPOCH_NS, SECOND_NS
from wirelag.codec import split_fields
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import (
    MOST_BYTES,
    MOST_RECORDS,
    VERSION,
    ClockReading,
    Message,
    Seen,
    UnknownVersion,
    check_point,
    decode,
    encode,
    peek,
    terms_name,
)
from wirelag.protocol.reconcile import Reconciling
from wirelag.protocol.terms import Terms, cut_of, records_of
from wirelag.synopses.symbols import SymbolSynopsis
from wirelag.twopoint.spans import ALL

# ---- encoding and decoding ----


@pytest.mark.parametrize("name", MESSAGES)
def test_decoding_restores_a_message(name: str) -> None:
    message = MESSAGES[name]
    again = decode(encode(message))
    assert same(again, message)
    assert again.key == message.key
    assert peek(encode(message)) == replace(message, records=())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_synopsis_is_the_same_after_transport(name: str) -> None:
    estimator = ESTIMATORS[name]
    ups, downs = (
        cut_of(
            estimator,
            decode(encode(replace(synopsis(estimator), records=tuple(records_of(made, {1: "x"}))))).records,
            {},
        )
        for made in (cut(estimator, packets(100)), cut(estimator, packets(100, 1000)))
    )
    up, down = ups.synopses[ALL], downs.synopses[ALL]
    if isinstance(up, SymbolSynopsis) and isinstance(estimator, Rda):
        talk = Reconciling(estimator, [up, down])
        _, crossing = talk.ask(), talk.crossing()
    else:
        crossing = estimator.cross_bound(up, down)[0] if isinstance(estimator, Rda) else estimator.cross(up, down)
    assert crossing.mean_ns == pytest.approx(1000)


def test_delimited_intervals_keep_their_names() -> None:
    interval = replace(INTERVAL, name=2**64 - 1)
    message = replace(MESSAGES["status"], interval=interval, terms=Terms(Lda(), delimiters=Delimiters(SECOND_NS)))
    again = decode(encode(message))
    assert again.interval.name == 2**64 - 1
    assert again.terms.delimiters == Delimiters(SECOND_NS)


# ---- keys ----

APART: dict[str, Callable[[Message], Message]] = {
    "type": lambda message: replace(message, type="status"),
    "point": lambda message: replace(message, point="other"),
    "segment": lambda message: replace(message, segment=None),
    "interval": lambda message: replace(message, interval=Interval(EPOCH_NS + SECOND_NS, EPOCH_NS + 2 * SECOND_NS)),
    "its name": lambda message: replace(message, interval=replace(message.interval, name=1)),
    "seed": lambda message: replace(message, terms=replace(message.terms, estimator=Rda(buckets=90, tail=20, seed=1))),
    "filter": lambda message: replace(message, terms=replace(message.terms, filter="udp")),
}


@pytest.mark.parametrize("change", APART.values(), ids=APART)
def test_different_subjects_have_different_keys(change: Callable[[Message], Message]) -> None:
    assert change(MESSAGES["synopsis"]).key != MESSAGES["synopsis"].key


def test_a_repeated_message_has_the_same_key() -> None:
    message = MESSAGES["synopsis"]
    assert replace(message, sent_ns=1, clock=ClockReading(), seen=Seen()).key == message.key


def test_rounds_about_one_interval_have_different_keys() -> None:
    assert len({message.key for message in MESSAGES.values()}) == len(MESSAGES)


def test_keys_are_stable() -> None:
    """Agents and collectors of different versions must agree: a change needs a new version of the format."""
    message = Message("status", "a", None, Interval(0, 1), Terms(Lda(), interval_ns=1))
    assert terms_name(message.terms) == "828ab1ab6756a2fa"
    assert message.key == "status-0-1-0d29b5efbe57f0ca8318922c"


@pytest.mark.parametrize("point", ["", " a", "a\n", "x" * 65, "ä" * 33, "\ud800"])
def test_invalid_names_of_points(point: str) -> None:
    with pytest.raises(ValueError, match="cannot name a point"):
        check_point(point)


# ---- errors ----


def refused(data: bytes, most: int = MOST_BYTES) -> str:
    """The reason for the refusal, in one line."""
    message, why = read(data, most)
    assert message is None
    return why


def read(data: bytes, most: int = MOST_BYTES) -> tuple[Message | None, str]:
    """The message, or the reason why it is invalid."""
    try:
        return decode(data, most), ""
    except ValueError as error:
        kind, why = type(error), str(error)
    assert kind in (ValueError, UnknownVersion)
    assert "\n" not in why
    assert 0 < len(why) < 300
    return None, why


@pytest.mark.parametrize("name", ["ask", "status"])
def test_every_truncation_and_every_flipped_bit(name: str) -> None:
    data = encode(MESSAGES[name])
    for end in range(len(data)):
        refused(data[:end])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(bytes(flipped))


def test_another_version_is_named() -> None:
    data = bytearray(encode(MESSAGES["status"]))
    data[4] = VERSION + 1
    assert refused(bytes(data)) == "has version 3 of the format, this wirelag reads 1 and 2: use the same wirelag"


@pytest.mark.parametrize("newer", ["an unknown type", "a clock from nowhere", "an unknown estimator"])
def test_what_a_newer_version_may_mean_is_told_from_nonsense(newer: str) -> None:
    with pytest.raises(UnknownVersion):
        decode(with_opening(OPENINGS[newer]))
    for nonsense in ("a type that is a list", "terms that are none", "an estimator that is a list", "no parameters"):
        with pytest.raises(ValueError, match=r"^[a-z]") as caught:
            decode(with_opening(OPENINGS[nonsense]))
        assert not isinstance(caught.value, UnknownVersion)


def test_trailing_bytes_are_refused() -> None:
    assert "checksum" in refused(encode(MESSAGES["status"]) + b"x")
    assert refused(repaired(encode(MESSAGES["status"]) + b"x")) == "is damaged: it has extra bytes at the end"


def test_a_large_message_is_refused_unread() -> None:
    class Untouched:
        """Only its length is available."""

        def __len__(self) -> int:
            return 100 << 20

    assert "more than the limit of 16777216" in refused(cast(bytes, Untouched()))


@given(st.binary(max_size=200))
@example(b"WLAG\2\0\0\0")
@example(b"WLAG\2\0\0\0\0\0\0\0")
@example(b"WLAG\2\0\0\0\0\0\0\0\0\0\0\0")
@example(b"WLAG\2\0\0\0\0\0\0\0\xff\xff\xff\xff")
def test_random_bytes_are_refused(data: bytes) -> None:
    refused(data)
    refused(b"WLAG\2\0\0\0" + data)
    refused(as_message(data))


@pytest.mark.parametrize("name", MESSAGES)
def test_names_are_plain_json(name: str) -> None:
    text, _ = taken_apart(encode(MESSAGES[name]))
    assert text == json.dumps(json.loads(text), separators=(",", ":")).encode()
    plain = json.loads(text)[0]
    assert plain["terms"] == json.loads(json.dumps(MESSAGES[name].terms.to_fields()))
    assert list(plain) == ["type", "point", "segment", "interval", "terms", "clock", "seen", "sent_ns"]


# ---- valid checksums, hostile content ----


@pytest.mark.parametrize("plain", OPENINGS.values(), ids=OPENINGS)
def test_an_impossible_opening_is_refused(plain: Any) -> None:
    refused(with_opening(plain))


PLACE = {"start_ns": INTERVAL.start_ns, "end_ns": INTERVAL.end_ns, "name": None, "class": None}
IDS = np.arange(3, dtype=np.uint64)
WHOLE = MESSAGES["synopsis"].records[0]
RECORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a status with an array": ("status", PLACE | {"numbers": IDS}),
    "another interval": ("ask", PLACE | {"start_ns": 1, "numbers": IDS, "cache_level": 0}),
    "no interval": ("ask", {"numbers": IDS, "cache_level": 0}),
    "no class": ("ask", {name: PLACE[name] for name in ("start_ns", "end_ns", "name")} | {"numbers": IDS}),
    "a class that is a number": ("ask", PLACE | {"class": 5, "numbers": IDS, "cache_level": 0}),
    "no numbers": ("ask", PLACE | {"cache_level": 0}),
    "numbers that are none": ("ask", PLACE | {"cache_level": 0, "numbers": "1, 2"}),
    "an impossible cache level": ("ask", PLACE | {"numbers": IDS, "cache_level": 65}),
    "less than no buckets": ("ask", PLACE | {"buckets": -1, "cache_level": 0}),
    "not flat": ("ask", PLACE | {"numbers": IDS, "cache_level": 0, "more": {"and": "more"}}),
    "too many fields": ("ask", PLACE | {"numbers": IDS, "cache_level": 0} | {str(i): i for i in range(64)}),
    "times without times": ("times", PLACE | {"ids": IDS}),
    "more ids than times": ("times", PLACE | {"ids": IDS, "times_ns": np.arange(2), "level": 0, "packets": 3}),
    "a reason that is none": ("times", PLACE | {"reason": 5}),
    "buckets of no banks": ("times", PLACE | {"bucket_ids": IDS}),
    "an empty synopsis": ("synopsis", PLACE),
    "a level that no cache has": ("synopsis", WHOLE | {"cache_level": 31}),
    "a negative level": ("synopsis", WHOLE | {"cache_level": -1}),
    "a tail that its terms do not allow": (
        "synopsis",
        WHOLE | {"tail_ids": np.arange(21, dtype=np.uint64), "tail_times_ns": np.arange(21)},
    ),
    "more kept than seen": ("synopsis", WHOLE | {"entries": 101}),
    "a status in two lines": ("status", PLACE | {"version": "a\nb"}),
    "a status that no reply can hold": ("status", PLACE | {"version": "\ud800"}),
    "a status without end": ("status", PLACE | {"version": "x" * 257}),
    "a name without end": ("status", PLACE | {"x" * 65: 1}),
    "a class without end": ("status", PLACE | {"class": "x" * 257}),
    "closed by nothing": ("synopsis", PLACE | {"closed_by": 5}),
}


@pytest.mark.parametrize(("kind", "record"), RECORDS.values(), ids=RECORDS)
def test_an_impossible_record_is_refused(kind: str, record: dict[str, Any]) -> None:
    names, arrays = split_fields([record])
    refused(with_opening(opening(type=kind), json.dumps(names[0]).encode(), arrays=arrays))


def test_a_record_that_is_not_changed_is_read() -> None:
    """So that those above are refused for what was changed."""
    names, arrays = split_fields([WHOLE])
    assert decode(with_opening(opening(type="synopsis"), json.dumps(names[0]).encode(), arrays=arrays)).records


def test_too_many_records_are_refused() -> None:
    rng = random.Random(3)
    records = [json.dumps(PLACE | {"class": f"{rng.getrandbits(64):x}"}).encode() for _ in range(MOST_RECORDS + 1)]
    assert len(decode(with_opening(opening(), *records[1:])).records) == MOST_RECORDS
    assert refused(with_opening(opening(), *records)).startswith("has 4097 records")


def test_empty_banks_cause_no_division_by_zero() -> None:
    names, arrays = taken_apart(encode(MESSAGES["synopsis"]))
    plain = opening(type="synopsis", terms=TERMS | {"parameters": TERMS["parameters"] | {"banks": 0}})
    records = [json.dumps(record).encode() for record in json.loads(names)[1:]]
    assert refused(with_opening(plain, *records, arrays=arrays)) == "is inconsistent (ZeroDivisionError)"


def large(count: int) -> bytes:
    """A few bytes that claim this many values."""
    return json.dumps(PLACE | {"cache_level": 0, "numbers": {"array": ["<u8", count, 0, 0]}}).encode()


ASK = opening(type="ask")
BOMBS: dict[str, bytes] = {
    "an array of 500 MB in 100 bytes": with_opening(ASK, large((1 << 26) - 1)),
    "many arrays": with_opening(ASK, *[large(1 << 16)] * 50),
    "fewer than nothing, then many": with_opening(ASK, large(-(1 << 40)), large(1 << 25)),
    "many, then fewer than nothing": with_opening(
        ASK,
        b'{"a":{"array":["<u8",67108863,0,0]},"b":{"array":["<u8",67108863,0,0]},"c":{"array":["<u8",-134217726,0,0]}}',
    ),
    "lists in lists": with_opening(ASK, b"[" * 60_000),
    "lists beside lists": with_opening(ASK, b'{"a":[' + b"[]," * 20_000 + b"0]}"),
    "names without end": with_opening(ASK, b'{"a":[' + b"[]," * 5_000_000 + b"0]}"),
    "a long number": with_opening(ASK, b'{"a":' + b"9" * 60_000 + b"}"),
    "many small records": with_opening(
        ASK,
        *[json.dumps(PLACE | {"buckets": 1, "cache_level": 0} | {f"{i:x}": i for i in range(58)}).encode()] * 30_000,
    ),
    "names that unfold": as_message(b"[" * (64 << 20)),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_few_bytes_take_little_memory(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        refused(bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < max(16 << 20, 4 * len(bomb))


# ---- the fuzzer ----


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A mutation, sometimes with repaired checksums, to reach the code behind them."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(raw))
        match rng.randrange(6):
            case 0:
                raw[place] ^= 1 << rng.randrange(8)
            case 1:
                raw[place] = rng.randrange(256)
            case 2:
                del raw[place : place + rng.randint(1, 40)]
            case 3:
                raw[place:place] = rng.randbytes(rng.randint(1, 40))
            case 4:
                raw[place : place + 8] = rng.choice([b"\0", b"\xff", b"9", b"-1", b"[]", b"{}", b"null", b"1e9"]) * 2
            case _:
                start = rng.randrange(len(raw))
                raw[place:place] = raw[start : start + rng.randint(1, 200)]
        if not raw:
            return b""
    return repaired(bytes(raw)) if rng.random() < 0.8 else bytes(raw)


def repaired(data: bytes) -> bytes:
    """The message with a valid checksum."""
    raw = bytearray(data)
    if len(raw) >= 12:
        struct.pack_into("<I", raw, 8, zlib.crc32(raw[12:]))
    return bytes(raw)


WORD = re.compile(r'-?\d+|"[^"]*"|true|false|null')
SPELLINGS = [
    *("0", "1", "-1", "true", "null", '"x"', '""', "[]", "{}", "1.5", "NaN", "Infinity", "9" * 30, "9" * 5000),
    *('{"array":["<u8",3,0,0]}', '{"array":[]}', '{"array":["<i8",67108863,0,0]}', "[[1]]", str(2**63), str(2**64)),
]


def respelt(message: Message, rng: random.Random) -> bytes:
    """A message with names and numbers changed as text, and a valid checksum."""
    names, arrays = taken_apart(encode(message))
    text = names.decode()
    for _ in range(rng.randint(0, 4)):
        words = [(m.start(), m.end()) for m in WORD.finditer(text)]
        start, end = rng.choice(words)
        text = text[:start] + rng.choice(SPELLINGS) + text[end:]
    return as_message(text.encode(), arrays)


def fuzz(seed: int, count: int) -> tuple[int, int]:
    """The numbers of refused and of valid messages; other errors are raised."""
    rng, found = random.Random(seed), [0, 0]
    seeds = [encode(message) for message in MESSAGES.values()]
    seeds += [encode(synopsis(estimator, 10)) for estimator in ESTIMATORS.values()]
    for turn in range(count):
        data = mutated(rng.choice(seeds), rng) if turn % 2 else respelt(rng.choice(list(MESSAGES.values())), rng)
        message, _ = read(data)
        found[message is not None] += 1
        if message is None:
            continue
        assert same(decode(encode(message)), message), data
        assert message.key
        if message.type == "synopsis":
            cut_of(message.terms.estimator, message.records, {})
    return found[0], found[1]


def test_the_fuzzer_finds_nothing() -> None:
    bad, good = fuzz(1, 3000)
    assert bad > 1000
    assert good > 50


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(2, 12))
def test_the_fuzzer_finds_nothing_in_a_long_run(seed: int) -> None:
    fuzz(seed, 60_000)
