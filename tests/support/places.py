"""Paths: the project, the tests' data, the JSON schemas."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCHEMAS = ROOT / "docs" / "reference" / "schema"
SIX_ROUTERS = DATA / "six.json"
