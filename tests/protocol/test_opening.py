"""Openings of messages are read alike, whether their terms are known or not."""

import json
import random
import re
from typing import Any

import pytest

from tests.support.agent_messages import CLOCK, EPOCH_NS, SECOND_NS, usual
from tests.support.effort import scaled
from tests.support.message_bytes import as_message, taken_apart
from wirelag.packets.interval import Interval
from wirelag.protocol import messages
from wirelag.protocol.messages import Message, Seen, decode, encode
from wirelag.protocol.terms import Terms

INTERVAL = Interval(EPOCH_NS, EPOCH_NS + SECOND_NS)
MESSAGE = Message("status", "edge", None, INTERVAL, Terms(usual("rda"), by="dscp"), CLOCK, Seen(100, 3, SECOND_NS))


def opening(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(taken_apart(encode(MESSAGE))[0])[0]
    return plain | changes


def compact(plain: Any) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode()


STATUS = compact([opening(point="edge 1", segment="A>>B"), {"start_ns": EPOCH_NS}])
COMPACT = {
    "as it is": STATUS,
    "no records": compact([opening()]),
    "no record behind a comma": compact([opening()])[:-1] + b",]",
    "an open end": STATUS[:-1],
    "more behind the end": STATUS + b"]",
    "a space behind the end": STATUS + b" ",
    "a space between": STATUS.replace(b"},{", b"} ,{"),
    "records within the opening": STATUS.replace(b"},{", b",{"),
    "a point with a quote": STATUS.replace(b"edge 1", b'edge\\"1'),
    "a point with a tab": STATUS.replace(b"edge 1", b"edge\t1"),
    "a point of a letter with a mark": STATUS.replace(b"edge 1", "\u00e4".encode()),
    "a point that ends in a space": STATUS.replace(b"edge 1", b"edge "),
    "a leading zero": STATUS.replace(b'"error_ns":', b'"error_ns":0'),
    "a fraction": STATUS.replace(b'"packets":100', b'"packets":100.0'),
    "a negative count": STATUS.replace(b'"packets":100', b'"packets":-1'),
    "too large a count": STATUS.replace(b'"packets":100', b'"packets":281474976710656'),
    "a time that is too late": re.sub(rb'"sent_ns":\d+', b'"sent_ns":9223372036854775808', STATUS),
    "an end that is too late": re.sub(rb'"end_ns":\d+', b'"end_ns":9999999999999999999', STATUS, count=1),
    "an interval that goes back": re.sub(rb'"end_ns":\d+', b'"end_ns":5', STATUS, count=1),
    "a name": STATUS.replace(b'"name":null', b'"name":18446744073709551615', 1),
    "a short name": STATUS.replace(b'"name":null', b'"name":7', 1),
    "an unknown type": STATUS.replace(b'"status"', b'"gossip"'),
    "an unknown clock": STATUS.replace(b'"none"', b'"sun"').replace(b'"chrony"', b'"sun"'),
    "other terms": STATUS.replace(b'"by":"dscp"', b'"by":"vlan"'),
    "terms twice": STATUS.replace(b'"by":"dscp"', b'"by":"dscp"},"terms":{"by":"dscp"'),
    "one more field": STATUS.replace(b',"sent_ns"', b',"more":1,"sent_ns"'),
    "another order": compact([dict(sorted(opening().items()))]),
}


def outcome(text: bytes) -> object:
    """What becomes of a message of these names."""
    try:
        found = decode(as_message(text))
    except ValueError as error:
        return type(error)
    return found, found.records


def both_ways(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at first, and once its terms are known, is the same."""
    outcome(STATUS)
    known = outcome(text)
    with monkeypatch.context() as anew:
        anew.setattr(messages, "_usual", lambda text: None)
        assert outcome(text) == known


@pytest.mark.parametrize("text", COMPACT.values(), ids=COMPACT)
def test_an_opening_with_known_terms_is_read_as_any_other(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(STATUS)
    assert messages._usual(STATUS) is not None
    both_ways(text, monkeypatch)


def test_changed_openings_are_read_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    for _ in range(scaled(3000)):
        text = bytearray(STATUS)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 1)] = bytes([chance.choice(b'0159-"\\{}[],: antr\x00\xff')])
        both_ways(bytes(text), monkeypatch)
