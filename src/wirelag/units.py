"""Durations, sizes, rates and shares as people write and read them. Inside, times are ns and sizes are bytes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, TypeAlias

from wirelag.errors import SettingError

if TYPE_CHECKING:
    from datetime import timedelta

Duration: TypeAlias = "str | timedelta | int"
"""A duration as Python code may give it: text with a unit ("10s"), a timedelta, or whole ns."""
Size: TypeAlias = str | int
"""A size as Python code may give it: text with a unit ("64KiB"), or bytes."""
Share: TypeAlias = str | float
"""A share as Python code may give it: text ("5%" or "0.05"), or a fraction."""

DURATIONS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86_400 * 10**9,
    "w": 7 * 86_400 * 10**9,
    "y": 365 * 86_400 * 10**9,
}
SIZES: Final = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
LONGEST_NS: Final = 100 * 365 * 86_400 * 10**9
RATES: Final = {"": 1, "bps": 1, "kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}  # bits a second
_STEPS_NS: Final = (
    ("ns", 1, 10**3),
    ("us", 10**3, 10**6),
    ("ms", 10**6, 10**9),
    ("s", 10**9, 120 * 10**9),
    ("min", 60 * 10**9, 120 * 60 * 10**9),
    ("h", 3600 * 10**9, 48 * 3600 * 10**9),
    ("days", 86400 * 10**9, float("inf")),
)
_MOST_DECIMALS: Final = 6
_NUMBER: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-zA-Zµ]*)")


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    found = _NUMBER.fullmatch(text.strip())
    known = {unit.lower(): factor for unit, factor in units.items()}
    if not found or found[2].lower() not in known:
        raise ValueError(f"{text!r} is not a {what}: write a number and a unit, for example {example}")
    factor = known[found[2].lower()]
    # Whole numbers stay exact: a float would lose ns of a time since 1970.
    try:
        return int(found[1]) * factor if found[1].lstrip("+-").isdigit() else round(float(found[1]) * factor)
    except (OverflowError, ValueError):  # an infinite float, or more digits than Python reads
        raise ValueError(f"{_shortened(text)} is too large a {what}") from None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def parse_duration_ns(text: str) -> int:
    """Read a duration as integer ns.

    >>> parse_duration_ns("500ms")
    500000000
    """
    return _parse(text, DURATIONS_NS, "duration", "500ms, 10s or 2m")


def to_ns(duration: Duration) -> int:
    """A duration in any of its forms as integer ns.

    >>> from datetime import timedelta
    >>> to_ns(timedelta(milliseconds=500))
    500000000
    """
    if isinstance(duration, str):
        return parse_duration_ns(duration)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    from datetime import timedelta

    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    raise ValueError(f"{duration!r} is not a duration: give text with a unit (10s), a timedelta, or whole ns")


def parse_size(text: str) -> int:
    """Read a size as bytes.

    >>> parse_size("64KiB")
    65536
    """
    return _parse(text, SIZES, "size", "64KiB or 1MiB")


def parse_share(text: str) -> float:
    """Read a share, as a fraction or in percent.

    >>> parse_share("5%"), parse_share(".05")
    (0.05, 0.05)
    """
    text = text.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{_shortened(text)} is not a share: write 1% or 0.01")
    return share


def parse_rate(text: str) -> int:
    """Read a rate as bits a second.

    >>> parse_rate("2.5Gbps")
    2500000000
    """
    return _parse(text.replace("bit/s", "bps"), RATES, "rate", "2Gbps or 100Mbps")


def parse_speed(text: str) -> float:
    """Read a playback speed as a factor: 10x is ten times as fast as recorded.

    >>> parse_speed("10x")
    10.0
    """
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1e6:
        raise ValueError(f"{_shortened(text)} is not a speed: write 1x, 10x or 0.5x")
    return speed


def format_rate(bits: float) -> str:
    """Write a number of bits a second in the unit that fits.

    >>> format_rate(2e9)
    '2 Gbps'
    """
    steps = (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6))
    unit, factor = next((step for step in steps if bits >= 0.9995 * step[1]), steps[-1])
    return f"{bits / factor:.3g} {unit}"


def many(count: int, word: str) -> str:
    """A number of things.

    >>> many(1, "epoch"), many(1200, "epoch")
    ('1 epoch', '1,200 epochs')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def format_duration(ns: float, width_ns: float = math.inf) -> str:
    """Write a duration in the unit that fits, with three significant digits.

    With the width of the interval that stands beside it, it has as many digits as that needs.

    >>> format_duration(1_234_567), format_duration(1_234_567, width_ns=500), format_duration(1_230_000, width_ns=500)
    ('1.23 ms', '1.2346 ms', '1.23 ms')
    """
    short, long = _short_and_long(ns, width_ns)
    return short if _is_same(short, long) else long


def format_interval(low_ns: float, high_ns: float) -> str:
    """Write an interval with as many digits as its width needs; where both ends have the same unit, it is said once.

    >>> format_interval(12_509_400, 12_515_700), format_interval(950_000, 1_050_000), format_interval(0, 1_050_000)
    ('12.509 to 12.516 ms', '950 us to 1.05 ms', '0 to 1.05 ms')
    >>> format_interval(212_040_000, 215_600_000), format_interval(1_000_000, 4_000_000)
    ('212.0 to 215.6 ms', '1 to 4 ms')
    """
    texts = [_short_and_long(end, high_ns - low_ns) for end in (low_ns, high_ns)]
    low, high = (text[not all(_is_same(*pair) for pair in texts)] for text in texts)
    number, _, unit = low.partition(" ")
    return f"{number if not low_ns or high.endswith(f' {unit}') else low} to {high}"


def _short_and_long(ns: float, width_ns: float) -> tuple[str, str]:
    """With three significant digits, and with at least as many as an interval of this width needs."""
    size = abs(ns)
    unit, factor = next((unit, factor) for unit, factor, limit in _STEPS_NS if size < 0.9995 * limit)
    short, needed = _three_digits(ns / factor), _decimals(width_ns / factor)
    long = short if needed <= len(short.partition(".")[2]) else f"{ns / factor:,.{needed}f}"
    return f"{short} {unit}", f"{long} {unit}"


def _is_same(short: str, long: str) -> bool:
    """Whether more digits are all 0."""
    return long.partition(" ")[0].removeprefix(short.partition(" ")[0]).strip(".0") == ""


def _decimals(width: float) -> int:
    """How many decimals show a width: it is at least five steps of the last one."""
    return 0 if not 0 < width < 5 else min(_MOST_DECIMALS, math.ceil(-math.log10(width / 5)))


_YEARS_S: Final = (-62_135_596_800, 253_402_300_800)  # 1 to 9999


def format_time(time_ns: int) -> str:
    """Write a time in UTC, to the ms.

    >>> format_time(1_714_564_800_250_000_000)
    '2024-05-01 12:00:00.250'
    """
    text = utc(time_ns // 10**9)
    return f"{time_ns / 1e9:.3f}" if text is None else f"{text}.{time_ns % 10**9 // 10**6:03d}"


def utc(seconds: int) -> str | None:
    """Write a time in UTC; None beyond the years 1 to 9999. It does without `datetime`, which takes 3 ms to import.

    >>> utc(1_714_564_800), utc(1 << 60)
    ('2024-05-01 12:00:00', None)
    """
    if not _YEARS_S[0] <= seconds < _YEARS_S[1]:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def format_size(size: float) -> str:
    """Write a number of bytes in the unit that fits.

    >>> format_size(65536)
    '65.5 kB'
    """
    for unit, factor in (("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if size < 999.5 * factor or unit == "GB":
            break
    return f"{_three_digits(size / factor)} {unit}"


def _three_digits(x: float) -> str:
    size = abs(x)
    if size >= 99.95 or x == int(x):
        return f"{x:,.0f}"
    return f"{x:.1f}" if size >= 9.995 else f"{x:.2f}"


# ---- settings: the value, or an error that names the setting ----


def one_of(value: str, allowed: Collection[str], name: str) -> str:
    """The value, if it is one of these."""
    if value not in allowed:
        raise SettingError(name, f"{value!r} is not one of {', '.join(allowed)}")
    return value


def within(value: int, least: int, most: int, name: str) -> int:
    """The value, if it lies between these."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingError(name, f"{value!r} is not a whole number")
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
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise SettingError(name, f"{value!r} is not a size: give text with a unit (64KiB), or bytes")
    try:
        return parse_size(value)
    except ValueError as error:
        raise SettingError(name, str(error)) from None


def share(value: Share, name: str) -> float:
    """A share from 0 to 1."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SettingError(name, f"{value!r} is not a share: give text (5%) or a fraction (0.05)")
    try:
        return parse_share(str(value))
    except ValueError as error:
        raise SettingError(name, str(error)) from None
