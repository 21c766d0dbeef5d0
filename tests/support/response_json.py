"""The JSON of `wirelag response`, checked against its schema."""

import json
from typing import Any, Final

import jsonschema

from tests.support.command import wirelag
from tests.support.places import SCHEMAS

VALIDATOR: Final = jsonschema.Draft202012Validator(json.loads((SCHEMAS / "response.json").read_text(encoding="utf-8")))


def asked(*words: object, code: int = 0) -> dict[str, Any]:
    """The JSON of a run."""
    found: dict[str, Any] = json.loads(wirelag("response", *words, "--format", "json", code=code).stdout)
    VALIDATOR.validate(found)
    return found


def by_key(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Its groups."""
    return {group["key"]: group for group in found["groups"]}
