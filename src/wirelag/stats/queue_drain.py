"""The drain rate of a queue and the noise of a clock, learned from packets that left the queue."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.errors import SettingError
from wirelag.units import parse_rate

FEWEST_GAPS: Final = 32
FEWEST_REFERENCES: Final = 8
SLOWEST, FASTEST = 125_000, 10**12  # bytes per second


class Drain(NamedTuple):
    """The drain rate of a queue, and the noise of the receiver's clock."""

    bytes_per_s: int  # 0: unknown
    noise_ns: float  # standard deviation of one time


def learn_drain(time_ns: npt.NDArray[np.int64], size: npt.NDArray[Any]) -> Drain:
    """Learn drain rate and clock noise from packets in the order they left the queue.

    Within a busy period, the gap before a packet is its own serialisation time; no gap is shorter. So many large
    packets have the same gap per byte, and few have a shorter one.
    """
    gaps, sizes = np.diff(time_ns).astype(np.float64), np.maximum(size[1:], 1).astype(np.float64)
    if len(gaps) < FEWEST_GAPS:
        return Drain(0, 0.0)
    large = sizes >= np.quantile(sizes, 0.95) / 2
    a_byte = np.sort((gaps / sizes)[large])
    some = max(FEWEST_GAPS, len(a_byte) // 20)
    if len(a_byte) < 2 * some:
        return Drain(0, 0.0)
    widths = a_byte[some - 1 :] - a_byte[: 1 - some]
    at = int(np.argmin(widths))
    middle = float(np.median(a_byte[at : at + some]))
    faster = float((a_byte < 0.8 * middle).mean())
    if middle <= 0 or widths[at] > 0.2 * middle or faster > 0.05:
        return Drain(0, 0.0)
    near = large & (np.abs(gaps / sizes - middle) < 0.2 * middle)
    middle = float(np.median(gaps[near] / sizes[near]))
    bytes_per_s = round(1e9 / middle)
    off = np.abs(gaps - sizes * middle)[near]
    if not SLOWEST <= bytes_per_s <= FASTEST:
        return Drain(0, 0.0)
    return Drain(bytes_per_s, float(np.median(off)) * 1.4826 / 2**0.5)


def serialises(drain: Drain, delays_ns: npt.NDArray[np.int64], sizes: npt.NDArray[Any]) -> bool:
    """Whether delays of references confirm a drain rate: without their serialisation time they must not vary more.

    Packets paced by a sender leave the same gaps as a queue, but never waited in one.
    """
    if not drain.bytes_per_s or len(delays_ns) < FEWEST_REFERENCES:
        return bool(drain.bytes_per_s)
    waited_ns = delays_ns - sizes.astype(np.float64) * 1e9 / drain.bytes_per_s
    noise_ns = 2 * drain.noise_ns
    return bool(np.abs(np.diff(waited_ns)).mean() <= 1.5 * np.abs(np.diff(delays_ns)).mean() + noise_ns)


def parse_drain(text: str) -> int:
    """Parse the rate of a queue, in bits per second, as bytes per second.

    >>> parse_drain("2Gbps")
    250000000
    """
    try:
        rate = parse_rate(text) // 8
    except ValueError as error:
        raise SettingError("drain", str(error)) from None
    if not SLOWEST <= rate <= FASTEST:
        raise SettingError("drain", "must be between 1Mbps and 8Tbps")
    return rate
