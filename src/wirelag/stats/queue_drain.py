"""The drain rate of a queue and the noise of a clock, learned from packets that left the queue."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.errors import SettingError
from wirelag.units import parse_rate

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

NONE: Final = int(np.iinfo(np.int64).min)  # no time
LATEST_NS: Final = 1 << 62
FEWEST_GAPS: Final = 32
FEWEST_REFERENCES: Final = 8
FASTER: Final = 0.05  # share of large packets that may follow others faster than a link sends them
LONGEST_RUN: Final = 512  # packets over which an error of the rate does not add up to much
TOGETHER: Final = (1, 2, 4, 8, 16, 32, 64, 128)  # packets
SPREAD: Final = 0.1  # of a rate, or of a burst
SIGMAS: Final = 10  # standard deviations of clock noise: a longer gap is real
LONG: Final = 8  # packets that left while a reference waited
MOST_BURST: Final = 1 << 30
SLOWEST, FASTEST = 125_000, 10**12  # bytes per second


class Drain(NamedTuple):
    """The drain rate of a queue, and the noise of the receiver's clock.

    A link takes time to send a packet. A shaper (token bucket) lets `burst` bytes pass at once, then limits the rate.
    """

    bytes_per_s: int  # 0: unknown
    noise_ns: float  # standard deviation of one time
    burst: int = 0  # 0: a link


def known_delays(
    time_ns: Ints, references: npt.NDArray[np.intp], ids: Words, sent_ns: Ints, before_ns: Ints, named: Words
) -> tuple[npt.NDArray[np.intp], Ints]:
    """The rows whose delay is known, and these: of references, and of the packets that they name.

    The last three have an entry per reference: when it was sent, when the packet that it names was, and its id.
    """
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids, named, sorter=order)
    at = order[np.minimum(at, len(order) - 1)] if len(order) else at
    found = (before_ns != NONE) & (ids[at] == named) & (at < references)
    rows = np.append(references, at[found])
    delays_ns = np.append(time_ns[references] - sent_ns, (time_ns[at] - before_ns)[found])
    place = np.argsort(rows, kind="stable")
    place = place[_in_order((time_ns[rows] - delays_ns)[place])]
    return rows[place], delays_ns[place]


def _in_order(sent_ns: Ints) -> npt.NDArray[np.bool_]:
    """Mask of the times that lie between those before and behind them: a queue keeps the order, a forger does not.

    Of three on each side the middle one counts, so that one in three may be false.
    """
    if not len(sent_ns):
        return np.empty(0, np.bool_)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(sent_ns, 3, constant_values=(-LATEST_NS, LATEST_NS)), 7)
    before, behind = np.median(around[:, :3], axis=1), np.median(around[:, 4:], axis=1)
    return np.asarray((before <= sent_ns) & (sent_ns <= behind))


def learn_drain(time_ns: npt.NDArray[np.int64], size: npt.NDArray[Any]) -> Drain:
    """Learn drain rate and clock noise from packets in the order they left the queue.

    Within a busy period, the gap before a packet is its own serialisation time; no gap is shorter. So many large
    packets have the same gap per byte, and few have a shorter one.
    """
    gaps, sizes = np.diff(time_ns).astype(np.float64), np.maximum(size[1:], 1).astype(np.float64)
    drain, faster = _commonest(gaps, sizes)
    return drain if faster <= FASTER else Drain(0, 0.0)


def learn_queue(
    time_ns: npt.NDArray[np.int64],
    size: npt.NDArray[Any],
    rows: npt.NDArray[np.intp],
    delays_ns: npt.NDArray[np.int64],
    least_ns: int,
) -> Drain:
    """Learn whether a queue is a link or a shaper, and its rate; `rows` are packets whose delays are known.

    `least_ns` is the shortest delay known: if none was nearly as fast, the queue was never empty, and shaper and link
    look alike. Packets may also follow each other at the rate of a link before the queue, or of their sender. While a
    packet waited, others left at the rate of the queue: if some waited long enough, that decides.
    """
    link = learn_drain(time_ns, size)
    if not serialises(link, delays_ns, size[rows]) or _at_once(link, time_ns, size, rows, delays_ns):
        link = Drain(0, 0.0)
    if len(rows) < FEWEST_REFERENCES:
        return link
    low_ns, high_ns = least_ns, float(np.quantile(delays_ns, 0.9))
    if np.partition(delays_ns, FEWEST_REFERENCES // 2)[FEWEST_REFERENCES // 2] - low_ns > (high_ns - low_ns) / 4:
        return Drain(0, 0.0)
    long = delays_ns - low_ns > (high_ns - low_ns) / 4
    waited, waits_ns = rows[long], delays_ns[long] - low_ns
    passed = np.cumsum(size.astype(np.int64))
    came = np.minimum(np.searchsorted(time_ns, time_ns[waited] - waits_ns), waited)  # times may go back
    left = passed[waited] - passed[came]
    enough = left >= LONG * int(size.max())
    if np.count_nonzero(enough) < FEWEST_REFERENCES:
        return link
    rate = float(np.median(left[enough] / waits_ns[enough])) * 1e9
    if link.bytes_per_s and abs(link.bytes_per_s - rate) < SPREAD * rate:
        return link
    return learn_shaper(time_ns, size, waited[enough], rate)


def _at_once(
    link: Drain,
    time_ns: npt.NDArray[np.int64],
    size: npt.NDArray[Any],
    rows: npt.NDArray[np.intp],
    delays_ns: npt.NDArray[np.int64],
) -> bool:
    """Whether packets that found the link idle were as fast as each other, whatever their size: then it is no link."""
    if not link.bytes_per_s:
        return False
    own_ns = size[rows] * (1e9 / link.bytes_per_s)
    idle = np.diff(time_ns, prepend=time_ns[:1])[rows] > own_ns + SIGMAS * link.noise_ns
    if np.count_nonzero(idle) < FEWEST_REFERENCES:
        return False
    alike_ns, apart_ns = _width(delays_ns[idle]), _width(delays_ns[idle] - own_ns[idle])
    return apart_ns > 2 * alike_ns + 2 * link.noise_ns


def _width(values: npt.NDArray[Any]) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low)


def learn_shaper(
    time_ns: npt.NDArray[np.int64], size: npt.NDArray[Any], waited: npt.NDArray[np.intp], rate: float
) -> Drain:
    """Learn rate and burst of a shaper; `waited` are packets that certainly waited, `rate` is about its rate.

    A packet that waited left when it had just enough of the burst, so behind all of them it is equally spent, and it is
    no smaller than any packet. Of the rates at which packets follow each other, one by one or several together, the
    right one shows that best.
    """
    passed, best = np.cumsum(size.astype(np.int64)), (SPREAD, Drain(0, 0.0))
    for several in TOGETHER:
        if len(time_ns) <= several:
            break
        found, _ = _commonest(
            (time_ns[several:] - time_ns[:-several]).astype(np.float64),
            (passed[several:] - passed[:-several]).astype(np.float64),
        )
        if abs(found.bytes_per_s - rate) > SPREAD * rate:
            continue
        before_ns, since = _spent(found.bytes_per_s, time_ns, size)
        near = waited[since[waited] < LONGEST_RUN]
        if len(near) < FEWEST_REFERENCES:
            continue
        spent_ns = before_ns[near] + size[near] * (1e9 / found.bytes_per_s)
        burst_ns = float(np.median(spent_ns))
        noise_ns = float(np.median(np.abs(spent_ns - burst_ns))) * 1.4826
        burst = round(burst_ns * found.bytes_per_s / 1e9)
        if int(size.max()) * (1 - SPREAD) <= burst < MOST_BURST:
            best = min(best, (noise_ns / burst_ns, Drain(found.bytes_per_s, noise_ns, burst)))
    return best[1]


def _spent(
    bytes_per_s: int, time_ns: npt.NDArray[np.int64], size: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """How much of a burst is spent before each packet, in ns; and since how many packets some is."""
    flows_ns = np.concatenate(([0.0], np.cumsum(size[:-1] * (1e9 / bytes_per_s) - np.diff(time_ns))))
    least_ns, places = np.minimum.accumulate(flows_ns), np.arange(len(flows_ns))
    since = places - np.maximum.accumulate(np.where(flows_ns == least_ns, places, 0))
    return flows_ns - least_ns, since


def _commonest(gaps: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[Drain, float]:
    """The rate at which most large packets follow others, and the share that follow faster."""
    nothing = Drain(0, 0.0), 1.0
    if len(gaps) < FEWEST_GAPS:
        return nothing
    large = sizes >= np.quantile(sizes, 0.95) / 2
    a_byte = np.sort((gaps / sizes)[large])
    some = max(FEWEST_GAPS, len(a_byte) // 20)
    if len(a_byte) < 2 * some:
        return nothing
    widths = a_byte[some - 1 :] - a_byte[: 1 - some]
    at = int(np.argmin(widths))
    middle = float(np.median(a_byte[at : at + some]))
    faster = float((a_byte < 0.8 * middle).mean())
    if middle <= 0 or widths[at] > 0.2 * middle:
        return nothing
    near = large & (np.abs(gaps / sizes - middle) < 0.2 * middle)
    middle = float(np.median(gaps[near] / sizes[near]))
    bytes_per_s = round(1e9 / middle)
    off = np.abs(gaps - sizes * middle)[near]
    if not SLOWEST <= bytes_per_s <= FASTEST:
        return nothing
    return Drain(bytes_per_s, float(np.median(off)) * 1.4826 / 2**0.5), faster


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
