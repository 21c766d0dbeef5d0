"""JSON as `json.dumps(..., indent=2)` writes it, byte for byte, in half the time: there may be a million groups."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any


def indented(value: Any, before: str = "") -> str:
    """A plain value; all lines but the first begin with `before`."""
    kind = type(value)
    if kind is float:
        return repr(value) if value - value == 0 else json.dumps(value)  # NaN and infinity have names
    if kind is str:
        return quoted(value)
    if value is None:
        return "null"
    if kind is int:
        return repr(value)
    inner = before + "  "
    if kind is dict and value:
        members = [f"{inner}{quoted(name)}: {indented(one, inner)}" for name, one in value.items()]
        return "{\n" + ",\n".join(members) + f"\n{before}}}"
    if kind is list and value:
        return "[\n" + ",\n".join([inner + indented(one, inner) for one in value]) + f"\n{before}]"
    return json.dumps(value)
