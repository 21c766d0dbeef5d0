"""Reports in JSON, as commands print them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from wirelag.errors import WirelagError

JSON_WAY_OUT: Final = "write it with --format json -o FILE"


def read_report(path: str) -> dict[str, Any]:
    """A report in JSON, from a file or standard input."""
    name = "standard input" if path == "-" else path
    if path == "-" and (sys.stdin is None or sys.stdin.isatty()):
        raise WirelagError("standard input is a terminal: pipe a report into it, or name a file")
    try:
        text = (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode()
    except OSError as error:
        raise WirelagError(f"{name}: cannot read: {error.strerror or error}; name a report in JSON") from None
    except ValueError:
        raise WirelagError(f"{name}: binary data, not JSON; {JSON_WAY_OUT}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[: error.pos].strip().startswith("{"):
            raise WirelagError(f"{name}: holds several JSON objects, needs one; {JSON_WAY_OUT}, not jsonl") from None
        raise WirelagError(f"{name}: is not JSON (line {error.lineno}: {error.msg}); {JSON_WAY_OUT}") from None
    except (ValueError, RecursionError):
        raise WirelagError(f"{name}: cannot be read as JSON; {JSON_WAY_OUT}") from None
    if not isinstance(content, dict):
        raise WirelagError(f"{name}: not a report: needs one JSON object; {JSON_WAY_OUT}")
    return content
