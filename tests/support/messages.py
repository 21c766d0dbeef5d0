"""Messages of every type, and openings that no agent writes."""

import json
import random
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.two_points import EPOCH_NS, SECOND_NS, batch_of
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.protocol.dictionary import lengthen, shorten
from wirelag.protocol.messages import VERSION, ClockReading, Message, Seen, encode
from wirelag.protocol.reconcile import answer_symbols
from wirelag.protocol.terms import Terms, answered, asked, records_of
from wirelag.synopses.cache import Cached
from wirelag.synopses.symbols import NUMBERS, numbers_of
from wirelag.twopoint.spans import ALL, Cut, Pair

INTERVAL = Interval(EPOCH_NS, EPOCH_NS + SECOND_NS)
ESTIMATORS: dict[str, Lda | Finecomb | Rda] = {
    "lda": Lda(16, (0, 2), tail=20),
    "finecomb": Finecomb(16, stash=8, tail=20),
    "rda": Rda(buckets=90, tail=20),
    "rda, short": Rda(short=True, rows=8, tail=20),
}


def packets(count: int, late_ns: int = 0, without: int = -1) -> list[tuple[int, int]]:
    rng = random.Random(5)
    made = [(rng.getrandbits(64), EPOCH_NS + i * SECOND_NS // count + late_ns) for i in range(count)]
    return [packet for i, packet in enumerate(made) if i != without]


def cut(estimator: Lda | Finecomb | Rda, seen: list[tuple[int, int]]) -> Cut:
    meter = estimator.meter("upstream")
    meter.observe(batch_of(seen))
    synopsis: Any = meter.cut(INTERVAL)
    return Cut(
        INTERVAL, {tag: estimator.bind(synopsis) if isinstance(estimator, Rda) else synopsis for tag in (ALL, 1)}
    )


def synopsis(estimator: Lda | Finecomb | Rda = ESTIMATORS["rda"], count: int = 100) -> Message:
    return Message(
        "synopsis",
        "edge 1:eth0/ä",
        "A>>B",
        INTERVAL,
        Terms(estimator, interval_ns=SECOND_NS, by="dscp"),
        ClockReading(True, 1234, "chrony"),
        Seen(count, 3, SECOND_NS),
        tuple(records_of(cut(estimator, packets(count)), {1: "class 1"})),
        EPOCH_NS + SECOND_NS + 5,
    )


def rounds() -> dict[str, Message]:
    """Every type of message, about packets of which one was lost."""
    first, estimator = synopsis(), ESTIMATORS["rda"]
    assert isinstance(estimator, Rda)
    up, down = cut(estimator, packets(100)), cut(estimator, packets(100, 1000, without=7))
    pair = Pair(INTERVAL, up.synopses, down.synopses)
    asks = tuple(asked(pair, estimator, {1: "class 1"}))
    meter = estimator.meter("upstream")
    meter.observe(batch_of(packets(100)))
    cached = meter.cut(INTERVAL)
    assert isinstance(cached, Cached)
    where = {name: asks[0][name] for name in ("start_ns", "end_ns", "name", "class")}
    more = replace(estimator, buckets=180).bind(cached).to_fields()
    return {
        "synopsis": first,
        "ask": replace(first, type="ask", clock=ClockReading(), seen=Seen(), records=asks),
        "ask for more": replace(first, type="ask", records=(where | {"cache_level": 0, "buckets": 180},)),
        "times": replace(first, type="times", records=tuple(answered(cached, ask) for ask in asks)),
        "more": replace(first, type="times", records=(where | more,)),
        "no times": replace(first, type="times", records=(where | {"reason": "no longer kept"},)),
        "status": replace(first, type="status", records=(), segment=None),
    }


def symbol_rounds() -> dict[str, Message]:
    """The same with symbols: packets of which some were lost, one of them a copy."""
    estimator = ESTIMATORS["rda, short"]
    assert isinstance(estimator, Rda)
    first = synopsis(estimator)
    ids, times_ns = (np.array(column) for column in zip(*packets(100), strict=True))
    up = Cached(np.append(ids, ids[3]).astype(np.uint64) & NUMBERS, np.append(times_ns, times_ns[3] + 9), packets=101)
    where: dict[str, Any] = {"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + SECOND_NS, "name": None, "class": None}
    wanted = numbers_of(up.ids)[[5, 100]] & np.uint64(2**32 - 1)
    questions: dict[str, dict[str, Any]] = {
        "symbols": {"symbols": 80, "after": 64},
        "a synopsis": {"symbols": 80, "after": 0},
        "times of copies": {"wanted": wanted, "difference": 7},
        "packets": {"ids": up.ids[:3]},
        "everything": {"whole": True},
    }
    found = {"short synopsis": first}
    for name, question in questions.items():
        ask = where | question | {"cache_level": 0}
        found[f"ask for {name}"] = replace(first, type="ask", records=(ask,))
        found[name] = replace(first, type="times", records=(where | answer_symbols(estimator, up, ask),))
    return found


MESSAGES = rounds() | symbol_rounds()


def same(one: Message, other: Message) -> bool:
    def plain(message: Message) -> list[dict[str, Any]]:
        return [
            {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in record.items()}
            for record in message.records
        ]

    return replace(one, records=()) == replace(other, records=()) and plain(one) == plain(other)


def as_message(names: bytes, arrays: bytes = b"") -> bytes:
    """A message with these names and a valid checksum."""
    short = shorten(names)
    body = struct.pack("<I", len(short)) + short + arrays
    return struct.pack("<4sII", b"WLAG", VERSION, zlib.crc32(body)) + body


def taken_apart(data: bytes) -> tuple[bytes, bytes]:
    """Names and arrays."""
    end = 16 + struct.unpack_from("<I", data, 12)[0]
    return lengthen(data[16:end], 1 << 20), data[end:]


def opening(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(taken_apart(encode(MESSAGES["status"]))[0])[0]
    return plain | changes


def with_opening(plain: Any, *records: bytes, arrays: bytes = b"") -> bytes:
    return as_message(b"[" + b",".join([json.dumps(plain).encode(), *records]) + b"]", arrays)


TERMS = opening()["terms"]
OPENINGS: dict[str, Any] = {
    "no object": [],
    "nothing in it": {},
    "an unknown type": opening(type="gossip"),
    "a type that is a list": opening(type=["ask"]),
    "a point that is a number": opening(point=5),
    "a point with a line feed": opening(point="a\nb"),
    "a segment that is a number": opening(segment=5),
    "a segment that no disk can hold": opening(segment="\ud800"),
    "a segment that clears the screen": opening(segment="\x1b[2J"),
    "a segment without end": opening(segment="x" * 2000),
    "an interval that is a list": opening(interval=[1, 2, 3]),
    "an interval that goes back": opening(interval={"start_ns": 5, "end_ns": 4, "name": None}),
    "an interval in text": opening(interval={"start_ns": "1", "end_ns": "2", "name": None}),
    "an interval at the end of time": opening(interval={"start_ns": 0, "end_ns": 10**30, "name": None}),
    "a name below zero": opening(interval={"start_ns": 0, "end_ns": 1, "name": -1}),
    "a name of 65 bits": opening(interval={"start_ns": 0, "end_ns": 1, "name": 2**64}),
    "a clock without a bound": opening(clock={"synchronised": True}),
    "a clock with an unknown field": opening(clock={"synchronised": True, "error_ns": 1, "source": "ptp", "x": 1}),
    "a clock that is better than right": opening(clock={"synchronised": True, "error_ns": -1, "source": "ptp"}),
    "a clock of the wrong type": opening(clock={"synchronised": 1, "error_ns": 1, "source": "ptp"}),
    "a clock from nowhere": opening(clock={"synchronised": True, "error_ns": 1, "source": "sun"}),
    "less than no packets": opening(seen={"packets": -1, "unseen": 0, "covered_ns": 0}),
    "a fraction of a packet": opening(seen={"packets": 0.5, "unseen": 0, "covered_ns": 0}),
    "not a number of packets": opening(seen={"packets": float("nan"), "unseen": 0, "covered_ns": 0}),
    "sent in text": opening(sent_ns="now"),
    "terms that are none": opening(terms=None),
    "an unknown estimator": opening(terms=TERMS | {"estimator": "guess"}),
    "an estimator that is a list": opening(terms=TERMS | {"estimator": []}),
    "a parameter of the wrong type": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"banks": "3"}}),
    "a parameter below zero": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"seed": -1}}),
    "a parameter of 65 bits": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"seed": 2**64}}),
    "a parameter that is a list": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"tail": [1]}}),
    "no parameters": opening(terms=TERMS | {"parameters": {}}),
    "packet ids of the wrong type": opening(terms=TERMS | {"packet_id": TERMS["packet_id"] | {"flow": "yes"}}),
    "delimiters of the wrong type": opening(terms=TERMS | {"delimiters": {"length_ns": "1"}}),
    "more rows than anyone needs": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"rows": 65_537}}),
    "more of the tail than anyone needs": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"tail": 65_537}}),
    "a deviation of another kind": opening(terms=TERMS | {"parameters": TERMS["parameters"] | {"deviation": "x"}}),
    "an interval of two days": opening(interval={"start_ns": 0, "end_ns": 2 * 86400 * 10**9, "name": None}),
    "intervals of two days": opening(terms=TERMS | {"interval_ns": 2 * 86400 * 10**9}),
    "no length": opening(terms=TERMS | {"interval_ns": 0}),
    "a filter that is a list": opening(terms=TERMS | {"filter": [1]}),
    "an array instead of terms": opening(terms={"array": ["<u8", 0, 0, 0]}),
}
