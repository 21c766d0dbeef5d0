"""Values of settings, checked where they are given: an error names the setting."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from wirelag.errors import SettingError
from wirelag.units import Duration, Size, parse_size, to_ns

LONGEST_NS: Final = 100 * 365 * 86_400 * 10**9


def one_of(value: str, allowed: Collection[str], name: str) -> str:
    """The value, if it is one of these."""
    if value not in allowed:
        raise SettingError(name, f"{value!r} is not one of {', '.join(allowed)}")
    return value


def within(value: int, least: int, most: int, name: str) -> int:
    """The value, if it lies between these."""
    if not least <= value <= most:
        raise SettingError(name, f"{value} is not between {least} and {most}")
    return value


def duration_ns(value: Duration, name: str) -> int:
    """A duration of at least 1 ns and less than 100 years."""
    ns = offset_ns(value, name)
    if ns <= 0:
        raise SettingError(name, "must be longer than 0")
    return ns


def offset_ns(value: Duration, name: str) -> int:
    """A duration of either sign, less than 100 years."""
    try:
        ns = to_ns(value)
    except ValueError as error:
        raise SettingError(name, str(error)) from None
    if abs(ns) >= LONGEST_NS:
        raise SettingError(name, "must be shorter than 100 years")
    return ns


def size_bytes(value: Size, name: str) -> int:
    """A size in bytes."""
    if isinstance(value, int):
        return value
    try:
        return parse_size(value)
    except ValueError as error:
        raise SettingError(name, str(error)) from None
