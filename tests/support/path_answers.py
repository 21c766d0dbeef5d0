"""Runs of `wirelag path`, their results, and a report of one segment."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.command import Ran, wirelag
from tests.support.places import SCHEMAS

SCHEMA = SCHEMAS / "path.json"
SLOW = ("F", "C")
AD = ("--from", "A", "--to", "D")


def report(path: Path, of_mean: float, of: str | None = None, **more: Any) -> Path:
    content: dict[str, Any] = {
        "command": "oneway", "estimator": "lda", "quantity": "one_way", "samples": 1000, "mean": of_mean, "std": 1e-5,
        "min": None, "ci95": {"mean": [of_mean - 1e-6, of_mean + 1e-6]}, "sent": 1000, "lost": 0, "intervals": [],
    }  # fmt: skip
    if of:
        content |= {"segment": of, "floor": 1e-4}
    path.write_text(json.dumps(content | more), encoding="utf-8")
    return path


AC = ("--from", "A", "--to", "C")


def run(*words: object, code: int = 0) -> Ran:
    return wirelag("path", *words, "--quiet", code=code)


def answer(*words: object) -> dict[str, Any]:
    """The JSON, checked against its schema."""
    found: dict[str, Any] = json.loads(run(*words, "--format", "json").stdout)
    jsonschema.validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    return found
