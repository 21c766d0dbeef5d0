"""Who may do what at a collector: tokens and their scopes, one per line of a file.

Law: `admin` may do everything, `read` may look at results, `metrics` may read /metrics, `agent:POINT` may send, and
receive questions, as that point. A token without a scope is `admin`, one with another word is the agent of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from wirelag.errors import WirelagError

ADMIN, READ, METRICS, AGENT = "admin", "read", "metrics", "agent:"
SCOPES: Final = (ADMIN, READ, METRICS)
LEAST: Final = 16  # characters
SAFE: Final = ("GET", "HEAD")
MAY: Final = {READ: "it may only read", METRICS: "it may only read /metrics", AGENT: "it may only send messages"}

Tokens = Mapping[str, str]  # token: its scope


def tokens_of(text: str, path: str) -> dict[str, str]:
    """The tokens of a file."""
    found: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or len(words[0]) < LEAST or not words[0].isascii():
            raise WirelagError(
                f"{path}: line {place} is not a token of at least {LEAST} characters, with a scope or without"
            )
        scope = words[1] if len(words) == 2 else ADMIN
        if scope == AGENT:
            raise WirelagError(f"{path}: line {place}: agent: needs the name of a point: write agent:POINT")
        if scope not in SCOPES and (near := get_close_matches(scope.lower(), SCOPES, 1, 0.75)):
            raise WirelagError(
                f"{path}: line {place}: unknown scope {scope[:64]}; did you mean {near[0]}? The agent of a point "
                f"called {scope[:64]} has the scope agent:{scope[:64]}"
            )
        if (before := places.setdefault(words[0], place)) != place:
            raise WirelagError(f"{path}: line {place} has the token of line {before}; remove one of them")
        found[words[0]] = scope if scope in SCOPES or scope.startswith(AGENT) else AGENT + scope
    if not {ADMIN, READ} & set(found.values()):
        raise WirelagError(f"{path}: no token may read results; add one without a scope, or with `read`")
    return found


def senders(tokens: Tokens | None) -> dict[str, str | None] | None:
    """Tokens that may send messages, with their point; None: any."""
    if tokens is None:
        return None
    return {
        token: None if scope == ADMIN else scope.removeprefix(AGENT)
        for token, scope in tokens.items()
        if scope == ADMIN or scope.startswith(AGENT)
    }


def refusal(scope: str, method: str, path: str) -> str:
    """Why this scope may not do that; empty if it may."""
    allowed = (
        scope == ADMIN
        or (scope == READ and method in SAFE)
        or (scope == METRICS and method in SAFE and path == "/metrics")
    )
    return "" if allowed else MAY.get(scope, MAY[AGENT])
