"""The plain twin of `kernels/module_messages.cpp`: the head of a request that is a message, and a message's opening.

Both are read by regular expressions of all that agents write; None for anything else.
"""

import re
from typing import Any

_LINES = re.compile(rb"POST /v1/messages HTTP/1\.1((?:\r\n[!-9;-~]+: [!-~]+(?: [!-~]+)*)+)\r\n\r\n")
_NAMES = {"host", "authorization", "content-type", "content-length", "wirelag-run", "wirelag-ask"}


def message_head(data: bytes, media_type: str) -> tuple[str, str, str, int] | None:
    """Token, run, answered ask and where the body begins, if the request is whole."""
    if (found := _LINES.match(data)) is None or found.end() != data.find(b"\r\n\r\n") + 4:
        return None
    lines = found[1].decode("ascii").split("\r\n")[1:]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if len(headers) != len(lines) or not headers.keys() <= _NAMES or "host" not in headers:
        return None
    kind, _, token = headers.get("authorization", "").partition(" ")
    length = str(len(data) - found.end())
    if kind.lower() != "bearer" or not token or headers.get("content-type") != media_type:
        return None
    if headers.get("content-length") != length:
        return None
    return token, headers.get("wirelag-run", ""), headers.get("wirelag-ask", ""), found.end()


_TEXT, _NUMBER = rb'"([ !#-\[\]-~]*)"', rb"(0|[1-9][0-9]*)"
_BEFORE = re.compile(
    rb'\[\{"type":%b,"point":%b,"segment":(?:%b|null),' % (_TEXT, _TEXT, _TEXT)
    + rb'"interval":\{"start_ns":%b,"end_ns":%b,"name":(?:%b|null)\},"terms":(?=\{)' % (_NUMBER, _NUMBER, _NUMBER)
)
_BEHIND = re.compile(
    rb',"clock":\{"synchronised":(true|false),"error_ns":%b,"source":%b\},' % (_NUMBER, _TEXT)
    + rb'"seen":\{"packets":%b,"unseen":%b,"covered_ns":%b,"captured":%b\},' % ((_NUMBER,) * 4)
    + rb'"sent_ns":%b\}(?:(?=\]\Z)|,(?=\{))' % _NUMBER
)
_TOKEN = re.compile(rb'"(?:\\.|[^"\\])*"|["{}]', re.DOTALL)  # a text, the beginning of one without end, braces


def _object_end(text: bytes, place: int) -> int | None:
    """Where the object that begins here ends."""
    depth = 0
    for token in _TOKEN.finditer(text, place):
        if token[0] == b'"':
            return None
        depth += {b"{": 1, b"}": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return None


def opening(text: bytes, most_text: int, most_count: int) -> tuple[Any, ...] | None:
    """Type, point, segment, interval, terms as JSON, clock, seen, time, and where the records begin."""
    if (before := _BEFORE.match(text)) is None or (end := _object_end(text, before.end())) is None:
        return None
    if (behind := _BEHIND.match(text, end)) is None:
        return None
    words = [None if one is None else one.decode() for one in (*before.groups()[:3], behind[3])]
    start_ns, end_ns, name = (None if one is None else int(one) for one in before.groups()[3:])
    error_ns, *seen, sent_ns = (int(behind[i]) for i in (2, 4, 5, 6, 7, 8))
    assert start_ns is not None
    assert end_ns is not None
    if any(len(word) > most_text for word in words if word is not None):
        return None
    if max(start_ns, end_ns, sent_ns) >= 1 << 63 or max(error_ns, *seen) >= most_count or (name or 0) >= (1 << 64) - 1:
        return None
    clock = behind[1] == b"true", error_ns, words[3]
    place = start_ns, end_ns, name
    return *words[:3], place, text[before.end() : end], clock, tuple(seen), sent_ns, behind.end()
