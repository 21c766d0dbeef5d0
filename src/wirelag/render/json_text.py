"""JSON as `json.dumps(..., indent=2)` writes it, byte for byte, and quicker: there may be a million groups."""

from __future__ import annotations

import json
from typing import Any

from wirelag import _kernels


def indented(value: Any, before: str = "") -> str:
    """A plain value; all lines but the first begin with `before`."""
    return _kernels.indented(value, before, json.dumps)
