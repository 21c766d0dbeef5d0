"""The methods by name: the one list for settings, options and messages. A method is imported on first use.

Law: a method's name is its module's, and its class is the name with a capital letter.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

from wirelag.estimators.protocol import Capabilities

NAMES: Final = ("match", "fridge", "pairs", "pirate", "join", "lda", "finecomb", "rda", "rli")
TAP: Final = ("tap",)


def estimator_class(name: str) -> Any:
    """The class of a method; a ValueError if the name is unknown."""
    if name not in NAMES:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(NAMES)}")
    return getattr(import_module(f"wirelag.estimators.{name}"), name.capitalize())


def load() -> None:
    """Import all methods now: a program that runs out of file descriptors could not import one later."""
    for name in NAMES:
        estimator_class(name)


def capabilities_of(name: Any) -> Capabilities | None:
    """What a method can do; None if the name is unknown, as in results of another version.

    >>> capabilities_of("rli").one_sided
    True
    """
    found: Capabilities | None = estimator_class(name).can if name in NAMES else None
    return found


def crosses(name: Any) -> bool:
    """Whether a method compares synopses of two points."""
    return name in NAMES and len(estimator_class(name).points) == 2


@cache
def between_points(**needed: bool) -> tuple[str, ...]:
    """The methods that measure between points and have these capabilities.

    >>> between_points(in_kernel=True)
    ('lda',)
    """
    found = ((name, estimator_class(name)) for name in NAMES)
    return tuple(
        name
        for name, kind in found
        if kind.points != TAP and all(getattr(kind.can, what) is wanted for what, wanted in needed.items())
    )
