"""The accuracy of this host's clock: from chrony or PTP if they run, else from the kernel.

Law: the error is a bound stated by whatever keeps the clock, not our guess. chrony: distance from its source's
reference, |offset| + dispersion + delay / 2. PTP: |offset from the master| + |path delay|, because a path may be as
asymmetric as it is long. The kernel: `maxerror` of adjtimex, which grows while the clock is not corrected. A clock that
stepped since the last reading is not synchronised, and wrong by at least the step. With timestamps of the network card,
the distance of its clock from the host's is added, and the error of that.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wirelag.capture.card_clock import CardClock
from wirelag.errors import WirelagError
from wirelag.protocol.messages import ClockReading
from wirelag.units import format_duration

STEP_NS: Final = 1_000_000  # more than any slewing between two readings
ASK_S: Final = 8.0  # interval of queries to chrony and PTP: programs are not started at every interval
PATIENCE_S: Final = 1.0
DRIFT: Final = 500e-6  # growth of a bound while the clock is not corrected; the kernel uses the same
UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC
FAILED: Final = 5  # TIME_ERROR
LARGEST_NS: Final = 1 << 62


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "seconds", "microseconds", "tick")),
        *((name, ctypes.c_long) for name in ("ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    ]


def kernel_reading() -> ClockReading:
    """The reading of adjtimex."""
    timex = _Timex()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return ClockReading()
    if answer < 0:
        return ClockReading()
    synchronised = answer != FAILED and not timex.status & UNSYNCHRONISED
    return ClockReading(synchronised, max(0, timex.maxerror) * 1000, "adjtimex")


def chrony_reading(text: str) -> ClockReading | None:
    """Parse `chronyc -c tracking`; None if unusable.

    >>> chrony_reading(
    ...     "A9FEA97B,169.254.169.123,4,1700000000.1,0.000012,-0.00001,0.00002,1.5,0.001,0.03,0.0004,0.0001,16.2,Normal"
    ... )
    ClockReading(synchronised=True, error_ns=312000, source='chrony')
    """
    fields = text.strip().split(",")
    if len(fields) < 14:
        return None
    try:
        offset, delay, dispersion = (abs(float(fields[i])) for i in (4, 10, 11))
        error_ns = min(LARGEST_NS, round((offset + dispersion + delay / 2) * 1e9))
    except (ValueError, OverflowError):
        return None
    return ClockReading(fields[13] != "Not synchronised", error_ns, "chrony")


def ptp_reading(text: str) -> ClockReading | None:
    r"""Parse `pmc 'GET CURRENT_DATA_SET' 'GET PORT_DATA_SET'`; None if the clock does not follow another.

    >>> ptp_reading("portState SLAVE\n offsetFromMaster -120.0\n meanPathDelay 480.0")
    ClockReading(synchronised=True, error_ns=600, source='ptp')
    """
    offset = re.search(r"offsetFromMaster\s+(-?\d+(?:\.\d+)?)", text)
    delay = re.search(r"meanPathDelay\s+(-?\d+(?:\.\d+)?)", text)
    if offset is None or delay is None or "SLAVE" not in text:
        return None
    return ClockReading(True, round(abs(float(offset[1])) + abs(float(delay[1]))), "ptp")


class HostClock:
    """Reads the clock's state: `reading` is cheap, `ask` starts programs and may take seconds."""

    def __init__(self, stated_ns: int | None = None, card: CardClock | None = None) -> None:
        """`stated_ns`: a bound stated by the user, instead of asking; `card`: the clock that timestamps packets."""
        self._stated_ns, self._card = stated_ns, card
        self._told: tuple[ClockReading, int] | None = None  # with its time, on a clock that never steps
        self._apart_ns = apart_ns()

    def ask(self) -> None:
        """Ask the programs that keep the clock."""
        if self._stated_ns is None:
            found = _asked()
            self._told = (found, time.clock_gettime_ns(time.CLOCK_BOOTTIME)) if found else None

    def reading(self) -> ClockReading:
        """The accuracy of the clock now."""
        before_ns, self._apart_ns = self._apart_ns, apart_ns()
        step_ns = abs(self._apart_ns - before_ns)
        found = self.steady()
        if step_ns > STEP_NS:
            return replace(found, synchronised=False, error_ns=found.error_ns + step_ns)
        return found

    def steady(self) -> ClockReading:
        """The same without consuming a step that `reading` must report; from any thread."""
        if self._stated_ns is not None:
            return ClockReading(True, self._stated_ns, "stated")
        found = kernel_reading() if self._told is None else self._since(*self._told)
        return found if self._card is None else beside_card(found, self._card.apart_ns)

    @staticmethod
    def _since(told: ClockReading, told_ns: int) -> ClockReading:
        since_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - told_ns
        return replace(told, error_ns=told.error_ns + round(since_ns * DRIFT))


def beside_card(host: ClockReading, apart: Callable[[], tuple[int, int]]) -> ClockReading:
    """The reading of a card's clock, so far apart from the host's; that of a card that is gone is not synchronised."""
    try:
        apart_ns, error_ns = apart()
    except OSError:
        return replace(host, synchronised=False)
    return replace(host, error_ns=min(LARGEST_NS, host.error_ns + abs(apart_ns) + error_ns))


def card_clock(interface: str) -> CardClock:
    """The clock of an interface's card; a WirelagError if it has none, or none that says the host's time."""
    card = CardClock(interface)
    apart_ns, _ = card.apart_ns()
    if abs(apart_ns) > STEP_NS:
        card.close()
        way = "ahead of" if apart_ns > 0 else "behind"
        apart = f"{format_duration(abs(apart_ns))} {way} the host's"
        raise WirelagError(f"{interface}: the clock of this card is {apart} (let phc2sys set it)")
    return card


class Steps:
    """Notices that the clock was set; read by one thread."""

    def __init__(self) -> None:
        self._apart_ns = apart_ns()

    def taken_ns(self) -> int:
        """By how much the clock was set since the last call; 0 if it was not."""
        before_ns, self._apart_ns = self._apart_ns, apart_ns()
        step_ns = self._apart_ns - before_ns
        return step_ns if abs(step_ns) > STEP_NS else 0


def _asked() -> ClockReading | None:
    """The reading of a program that keeps the clock; None if none runs."""
    if found := ptp_reading(_said("pmc", "-u", "-b", "0", "GET CURRENT_DATA_SET", "GET PORT_DATA_SET")):
        return found
    return chrony_reading(_said("chronyc", "-c", "tracking"))


def _said(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def apart_ns() -> int:
    """The difference between the clock and one that never steps, read almost simultaneously."""
    for _ in range(5):
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if after_ns - before_ns < STEP_NS // 4:
            break
    return now_ns - (before_ns + after_ns) // 2
