"""Sessions of the page: a cookie that proves a login until it expires. No I/O.

Law: a session is worth what its token is worth now, at every collector that has the token, also after a restart. The
cookie holds its end and a keyed hash of it, with the token as the key: who has no token cannot make one, and a token
that is gone takes its sessions with it. All tokens are compared, so that timing reveals nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

SESSION_S: Final = 12 * 3600
_LONGEST: Final = 20  # digits


def opened(token: str, now_s: float) -> str:
    """The cookie of a session that begins now."""
    end = str(int(now_s) + SESSION_S)
    return f"{end}.{_proof(token, end)}"


def scope_of(cookie: str, tokens: Mapping[str, str], now_s: float) -> str | None:
    """The scope of the token of a session; None if there is no such session, or it has ended."""
    end, _, proof = cookie.partition(".")
    if not (end.isascii() and end.isdigit() and len(end) <= _LONGEST and now_s < int(end) <= now_s + SESSION_S):
        return None
    given = proof.encode(errors="replace")
    found = [scope for token, scope in tokens.items() if hmac.compare_digest(_proof(token, end).encode(), given)]
    return found[0] if found else None


def _proof(token: str, end: str) -> str:
    return hmac.new(token.encode(), f"wirelag session until {end}".encode(), "sha256").hexdigest()
