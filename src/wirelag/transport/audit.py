"""The audit log of a daemon: who did what and when, a line of JSON each, in a file that only grows.

Law: a line is one write at the end of the file, so that lines of several processes never mix. No token, no content of
messages. Refusals, which strangers can cause, are at most 10 in a second; the next line says how many were left out.
A file that cannot be written stops nothing, and is reported once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Final

from wirelag.errors import WirelagError

MOST_REFUSALS: Final = 10  # per second
MOST_CHARACTERS: Final = 200  # of a text


class Audit:
    """Appends to this file; without one, does nothing. It stays open: rotate it by copying and truncating."""

    def __init__(self, path: str | None) -> None:
        self._path, self._file = path, -1
        self._lock = threading.Lock()
        self._second, self._refusals, self._left_out, self._told = 0, 0, 0, False
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise WirelagError(f"{path}: cannot write the audit log ({error.strerror})") from None

    def say(self, what: str, **fields: Any) -> None:
        """Write a line."""
        if self._file < 0:
            return
        now_ns = time.time_ns()
        with self._lock:
            if what == "refused":
                if now_ns // 10**9 != self._second:
                    self._second, self._refusals = now_ns // 10**9, 0
                self._refusals += 1
                if self._refusals > MOST_REFUSALS:
                    self._left_out += 1
                    return
            line: dict[str, Any] = {"time": round(now_ns / 1e9, 3), "what": what}
            if self._left_out:
                line["refusals_left_out"], self._left_out = self._left_out, 0
            line |= {
                name: value[:MOST_CHARACTERS] if isinstance(value, str) else value for name, value in fields.items()
            }
            try:
                os.write(self._file, json.dumps(line).encode() + b"\n")
            except OSError as error:
                if not self._told:
                    self._told = True
                    print(f"wirelag: {self._path}: cannot write the audit log ({error.strerror})", file=sys.stderr)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
