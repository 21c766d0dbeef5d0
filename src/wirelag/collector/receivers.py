"""Where a collector sends its metrics (push.py does)."""

from __future__ import annotations

from dataclasses import dataclass

from wirelag.transport import Address
from wirelag.transport.exports import Target


@dataclass(frozen=True, slots=True)
class Receivers:
    """Where metrics go, and how often."""

    remote_write: Address | None = None
    otlp: Address | None = None
    ipfix: Target | None = None
    every_ns: int = 15 * 10**9
