"""The opening of a message: the extension reads it as its plain twin does, and decides what the general way does."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import messages as naive
from tests.support.byte_edits import EDITS, edited
from tests.support.messages import MESSAGES, OPENINGS, as_message, same, taken_apart, with_opening
from wirelag import _kernels
from wirelag.codec import MOST_COUNT, from_json
from wirelag.protocol import messages
from wirelag.protocol.messages import MOST_TEXT, Message, Opened, decode, encode, peek

WORDS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"null", b"true", b"-1", b"18446744073709551615", b"9223372036854775807",
    b"281474976710656", b" ", b'"point":"B",', b"\xc3\xa4", b',"clock":{', b"1e5", b"\n", b'"by":"ab"', b'"seed":1.0',
)  # fmt: skip
TEXTS = {name: taken_apart(encode(message))[0] for name, message in MESSAGES.items()}


def plain(text: bytes) -> bytes:
    """The same of a point whose name has no letter that JSON escapes."""
    return text.replace(rb"edge 1:eth0/\u00e4", b"edge 1:eth0/a")


def found(text: bytes) -> tuple[Any, ...] | None:
    seen = _kernels.opening(text, MOST_TEXT, MOST_COUNT)
    assert seen == naive.opening(text, MOST_TEXT, MOST_COUNT)
    return seen


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_encoded_is_usual_unless_a_name_is_escaped(name: str) -> None:
    assert found(TEXTS[name]) is None
    seen = found(plain(TEXTS[name]))
    assert seen is not None
    assert seen[:2] == (MESSAGES[name].type, "edge 1:eth0/a")
    assert plain(TEXTS[name])[seen[-1] :][:1] in b"{]"


@pytest.mark.parametrize("name", OPENINGS)
def test_openings_of_no_agent_are_read_alike(name: str) -> None:
    found(taken_apart(with_opening(OPENINGS[name]))[0].replace(b", ", b",").replace(b": ", b":"))


@given(st.sampled_from(sorted(TEXTS)), st.lists(EDITS, max_size=3))
def test_any_text_is_read_as_the_plain_twin_reads_it(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    found(edited(plain(TEXTS[name]), edits, WORDS))


def read(data: bytes) -> tuple[Message | None, type | None, str]:
    """The message, or why there is none; what is found at its beginning is used once more."""
    opened = Opened(data)
    try:
        opening, message = peek(opened), decode(opened)
    except ValueError as error:
        return None, type(error), str(error)
    assert replace(message, records=()) == opening
    assert same(decode(data), message)
    return message, None, ""


@given(st.sampled_from(sorted(TEXTS)), st.lists(EDITS, max_size=3))
def test_both_ways_decide_the_same(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    text = edited(plain(TEXTS[name]), edits, WORDS)
    data = as_message(text, taken_apart(encode(MESSAGES[name]))[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages, "_usual", lambda text: None)
        expected, *why = read(data)
    message, *told = read(data)
    assert message is expected is None or (message and expected and same(message, expected))
    assert told == why or not is_json(text)  # of two faults either may be told


def is_json(text: bytes) -> bool:
    try:
        return bool(from_json(text))
    except ValueError:
        return False
