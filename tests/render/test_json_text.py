"""JSON with indentation: what Python itself writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelag.render.json_text import indented

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
)


@given(PLAIN)
def test_the_text_is_that_of_python(value: object) -> None:
    assert indented(value) == json.dumps(value, indent=2)
    assert indented(value, "    ") == json.dumps(value, indent=2).replace("\n", "\n    ")


def test_a_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(TypeError):
        indented({"a": {1: 2}})


def test_what_is_not_plain_is_an_error() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        indented(endless)
    with pytest.raises(TypeError, match="not JSON serializable"):
        indented({"a": object()})
