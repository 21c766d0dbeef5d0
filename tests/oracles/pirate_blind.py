"""Response latency from the sizes and times of client packets, in plain Python.

The independent twin of `kernels/pirate_blind.h`, and the tests' oracle for it. Both follow
`docs/reference/pirate-blind.md`, section by section, and not each other.

`Blind` is for one flow: `packet` and `finish` return an epoch, or None. It finds the requests; `Opening`, `Bursts` and
`Lags` collect the evidence for a closed loop.
"""

from dataclasses import dataclass

from tests.oracles.pirate_modes import FULL_LENGTH, MOST, TIMES, ClientPacket, Epoch, Settings, clamp

GREETING = 1200
MOST_GREETINGS = 8
SMALL = 144
SYN_LONGER = (4, 8, 12, 16)
SACK = 12
SHORTER = 8
ENOUGH = 8
FAR_NS = 2**20
MOST_IN_FLIGHT = 64
LONGEST_LAG = 2**20 - 1


def is_syn(first: int, second: int) -> bool:
    """Whether these may be the lengths of a SYN and its ACK."""
    return first <= SMALL and first - second in SYN_LONGER


def most_of(rtt: int) -> int:
    """Three quarters: less than a response takes, whatever the clocks do."""
    return rtt - (rtt >> 2)


@dataclass
class Sizes:
    """The class of packets that only acknowledge; it grows with its members."""

    low: int
    top: int

    def take(self, length: int) -> bool:
        if length > SMALL:
            return False
        if length + 6 < self.low:
            self.low = self.top = length
            return True
        low, top = min(self.low, length), max(self.top, length)
        if length > self.top + 6 or top - low > 24:
            return False
        self.low, self.top = low, top
        return True


@dataclass
class Opening:
    """The flight that opens the flow: the number in flight."""

    rtt: int
    first: int
    w: int = 1
    sure: int = 1
    spread: int = 0
    longest: int = 0
    is_open: bool = True
    endless: bool = False
    told: bool = False

    def take(self, t: int, gap_ns: int) -> bool:
        """Whether this request belongs to the flight."""
        is_far = self.rtt > FAR_NS
        if t - self.first < self.rtt - (self.rtt >> 3) if is_far else gap_ns <= 2**17:
            self.add(gap_ns)
            return True
        if self.w > 1 and self.rtt > 0 and not is_far and gap_ns < 4 * self.longest:
            self.w, self.told = self.sure, True
        self.is_open = False
        return False

    def add(self, gap_ns: int) -> None:
        if self.sure == self.w and gap_ns <= most_of(self.rtt):
            self.sure += 1
        self.w += 1
        self.spread += (gap_ns >> 10).bit_length()
        self.longest = max(self.longest, gap_ns)
        if self.w == MOST_IN_FLIGHT:
            self.is_open = False
            if self.rtt == 0:
                self.w, self.endless = 1, True
            else:
                self.w, self.told = self.sure if self.sure < MOST_IN_FLIGHT else 1, True

    def may_be_chance(self, mean: int) -> bool:
        """Random requests occasionally begin with such a flight."""
        if self.rtt > FAR_NS or self.told:
            return False
        doubt = 3 if self.rtt > 0 and self.sure < self.w else 0
        return mean.bit_length() * (self.w - 1) < self.spread + min(2 * self.w + 1, 24) + doubt


@dataclass
class Bursts:
    """Gaps between requests: which are short, which follow a small packet and silence."""

    rtt: int
    gaps: int = 0
    bare: int = 0
    alone: int = 0
    runs: int = 0
    bursts: int = 0
    run: int = 0
    starts: int = 0
    single: int = 0
    whole: int = 0
    more: int = 0

    def take(self, gap_ns: int, near_ns: int, w: int, is_bare: bool, is_alone: bool) -> None:
        self.gaps += 1
        self.bare += is_bare
        self.alone += is_alone
        if gap_ns <= near_ns:
            self.run = min(self.run + 1, MOST)
        else:
            self.runs += 1
            self.bursts += self.run >= w
            self.run = 0

    def start(self, w: int) -> None:
        """A burst begins: what was the one before?"""
        self.starts += 1
        self.single += self.more == 0
        self.whole += self.more + 1 == w
        self.more = 0

    @property
    def are_ragged(self) -> bool:
        return 4 * self.single < 3 * self.starts and 8 * self.whole < 7 * self.starts

    @property
    def is_many(self) -> bool:
        return self.gaps == 512

    def forget(self) -> None:
        for name in ("gaps", "bare", "alone", "runs", "bursts", "starts", "single", "whole"):
            setattr(self, name, getattr(self, name) >> 1)


@dataclass
class Lags:
    """From every W-th request to the next such."""

    rtt: int
    mark: int = 0
    since: int = 0
    lags: int = 0
    low_lags: int = 0
    total: int = 0
    shortest: int = 0
    second: int = 0
    block: tuple[int, ...] = ()
    block_before: int | None = None
    blocks: int = 0
    calm: int = 0

    def restart(self, t: int) -> None:
        self.mark, self.since = t, 0

    def take(self, t: int, w: int) -> None:
        self.since += 1
        if self.since < w:
            return
        x = min((t >> 10) - (self.mark >> 10), LONGEST_LAG)
        if self.rtt > 0 and t - self.mark < most_of(self.rtt):
            self.low_lags += 1
        self.restart(t)
        if self.lags == 0:
            self.shortest, self.second = x, LONGEST_LAG
        else:
            self.shortest, self.second = sorted((self.shortest, self.second, x))[:2]
        self.lags += 1
        self.total += x
        self.block = (*self.block, x)
        if len(self.block) == 32:
            self.end_block()
        if self.lags == 1024:
            for name in ("lags", "low_lags", "total", "blocks", "calm"):
                setattr(self, name, getattr(self, name) >> 1)
            self.shortest, self.second = self.second, min(self.second + (self.second >> 1), LONGEST_LAG)

    def end_block(self) -> None:
        total = sum(self.block)
        uneven = sum((a - b) ** 2 for a, b in zip(self.block, self.block[1:], strict=False))
        if self.block_before is not None:
            self.blocks += 1
            self.calm += 8 * (total - self.block_before) ** 2 < uneven and total**2 < 4096 * uneven
        self.block, self.block_before = (), total


@dataclass
class Sums:
    """Sums of so many beats in a row, and how many are like the one before them."""

    beats: int
    part: int
    so_far: tuple[int, ...] = ()
    before: int = 0
    pairs: int = 0
    equal: int = 0

    def take(self, beat: int) -> None:
        self.so_far = (*self.so_far, beat)
        if len(self.so_far) < self.beats:
            return
        total = sum(self.so_far)
        if self.before > 0:
            self.pairs += 1
            self.equal += self.part * abs(total - self.before) < max(total, self.before)
        if self.pairs == 128:
            self.pairs, self.equal = 64, self.equal >> 1
        self.so_far, self.before = (), total

    def are_even(self, eighths: int) -> bool:
        return self.pairs >= (20 if self.beats == 1 else ENOUGH) and 8 * self.equal > eighths * self.pairs


class Pace:
    """The times between bursts of requests: a sender with a clock of its own keeps them, or their sums, alike."""

    def __init__(self) -> None:
        self.at = 0
        self.sums = [Sums(1, 8), Sums(4, 16), Sums(16, 32)]
        self.is_even = False

    def take(self, t: int) -> None:
        beat = min((t >> 10) - (self.at >> 10), LONGEST_LAG)
        self.at = t
        for sums in self.sums:
            sums.take(beat)


@dataclass
class Shorter:
    """Packets shorter than any of the opening flight: acknowledgements, or requests."""

    least: int = 65535
    seen: int = 0
    beside: int = 0
    waiting: int = 0  # those in a row, up to now
    last: int = 0
    in_epoch: int = 0

    def belongs(self, length: int) -> bool:
        return length <= SMALL and length + SHORTER <= self.least

    def take(self, t: int, since_request_ns: int, near_ns: int) -> None:
        self.seen = min(self.seen + 1, MOST)
        self.in_epoch += 1
        if since_request_ns <= near_ns:
            self.beside = min(self.beside + 1, MOST)
        elif self.waiting > 0 and t - self.last <= near_ns:
            self.waiting = min(self.waiting + 1, MOST)
        else:
            self.waiting = 1
        self.last = t

    def request(self, t: int, near_ns: int) -> None:
        if self.waiting > 0 and t - self.last <= near_ns:
            self.beside = min(self.beside + self.waiting, MOST)
        self.waiting = 0

    def acknowledge(self, w: int, gaps: int) -> bool:
        return self.seen > 0 and (8 * self.beside >= 7 * self.seen or w * self.seen >= 4 * (gaps + self.seen))


class Blind:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held: tuple[int, int] | None = None  # the first row: t and length
        self.greeted = 0  # rows of a greeting, which is over when `begun`
        self.begun = self.joined = self.crowd = False
        self.syn = self.alike = 0
        self.t = self.rtt = 0
        self.sizes: Sizes | None = None
        self.full = False
        self.small_at: int | None = None  # since the last request
        self.opening: Opening | None = None
        self.bursts, self.lags = Bursts(0), Lags(0)
        self.pace, self.shorter = Pace(), Shorter()
        self.last = self.mean = self.opened = self.usual = 0
        self.start = self.requests = self.sum_ns = self.count = 0

    def packet(self, row: ClientPacket) -> Epoch | None:
        if row.time_ns not in TIMES:
            return None
        self.t = max(self.t, row.time_ns)
        length = min(row.length, 65535)
        if self.begun:
            return self.ordinary(self.t, length)
        if self.greeted > 0:
            self.greet(length)
        elif self.held is not None:
            return self.second(*self.held, length)
        elif length >= GREETING:
            self.greeted = 1
        else:
            self.held = (self.t, length)
        return None

    def greet(self, length: int) -> None:
        if length < GREETING:
            self.opened = max(self.opened, length)
        if length <= SMALL:
            self.sizes, self.begun = Sizes(length, length), True
            return
        self.greeted += 1
        if self.greeted == MOST_GREETINGS:
            self.begun = self.joined = True

    def second(self, first_t: int, first_length: int, length: int) -> Epoch | None:
        self.begun = True
        if is_syn(first_length, length):
            self.rtt = clamp(self.t - first_t, 1, 2**32 - 1)
            self.sizes = Sizes(length, length)
            self.syn = 0 if first_length - length == SACK else first_length
            self.bursts.rtt = self.lags.rtt = self.rtt
            return None
        self.ordinary(first_t, first_length)
        self.alike = length if length == first_length <= SMALL else 0
        return self.ordinary(self.t, length)

    def ordinary(self, t: int, length: int) -> Epoch | None:
        if length == self.syn > 0 or (self.alike > 0 and is_syn(self.alike, length)):
            self.crowd = True
        if length != self.alike:
            self.alike = 0
        if self.sizes is not None and self.sizes.take(length):
            self.small_at = t
            return None
        if self.is_shorter(t, length):
            self.requests += 1
            self.shorter.take(t, t - self.last, self.mean >> 3)
            return None
        continues, self.full = self.full, length >= FULL_LENGTH
        if continues:
            return None
        self.requests += 1
        self.request(t, length)
        long_ns, settings = t - self.start, self.settings
        is_long = self.count >= settings.fewest or long_ns >= 4 * settings.epoch_ns
        return self.end(t) if long_ns >= settings.epoch_ns and is_long else None

    @property
    def is_bare(self) -> bool:
        """Whether nothing but the requests shows what answers them."""
        return self.sizes is None

    def is_shorter(self, t: int, length: int) -> bool:
        if not self.is_bare or self.opening is None or (self.opening.is_open and t - self.last <= 2**17):
            return False
        return self.shorter.belongs(length)

    def request(self, t: int, length: int) -> None:
        if self.opening is None or (self.opening.is_open and t - self.last <= 2**17):
            self.shorter.least = min(self.shorter.least, length)
        if self.opening is None:
            self.opened = max(self.opened, length)
            self.start = self.last = self.lags.mark = t
            self.opening = Opening(self.rtt, t, is_open=not self.joined)
            self.pace.at = t
            return
        self.usual = self.usual + (length - self.usual >> 3) if self.usual else length
        gap_ns, self.last = min(t - self.last, 2**40), t
        is_first = self.opening.is_open
        self.shorter.request(t, self.mean >> 3)
        if not (is_first and self.opening.take(t, gap_ns)):
            self.measure(t, gap_ns, self.opening.w, is_first)
        if is_first and not self.opening.is_open:
            self.lags.restart(t)
            self.pace.at = t
        self.small_at = None

    def measure(self, t: int, gap_ns: int, w: int, is_first: bool) -> None:
        latency_ns, quiet_ns = w * self.mean, 0 if self.small_at is None else t - self.small_at
        thinks = gap_ns > 50_000_000 and quiet_ns > gap_ns >> 1
        is_idle = thinks if self.rtt > 0 else gap_ns > 200_000_000
        if self.mean > 0 and gap_ns > 16 * latency_ns and is_idle:
            self.lags.restart(t)
            self.pace.at = t
            return
        is_alone = self.rtt > 0 and self.mean > 0 and quiet_ns > max(2**20, latency_ns >> 3)
        self.bursts.take(gap_ns, self.near_ns, w, self.small_at is None, is_alone)
        if self.bursts.is_many:
            self.bursts.forget()
            self.shorter.seen >>= 1
            self.shorter.beside >>= 1
        if gap_ns > self.mean >> 3 and not is_first:
            self.bursts.start(w)
            self.pace.take(t)
        elif not is_first:
            self.bursts.more = min(self.bursts.more + 1, MOST)
        self.sum_ns += gap_ns
        self.count += 1
        self.mean = gap_ns if self.mean == 0 else self.mean + ((gap_ns - self.mean) >> 5)
        if not is_first:
            self.lags.take(t, w)

    @property
    def near_ns(self) -> int:
        """Requests that are closer to each other belong to a burst."""
        if self.rtt > 0:
            return min(100_000, most_of(self.rtt))
        return max(100_000, self.mean >> 3) if self.is_bare else 100_000

    def end(self, t: int) -> Epoch | None:
        told = None
        self.pace.is_even |= any(sums.are_even(4 if self.is_bare else 7) for sums in self.pace.sums)
        if self.requests > 0:
            w = self.opening.w if self.opening is not None else 0
            reason = self.reason()
            sum_ns, count = (w * self.sum_ns, self.count) if reason == "answered" else (0, 0)
            if count > 0 and not self.shorter.acknowledge(w, self.bursts.gaps):
                count += self.shorter.in_epoch
            told = Epoch(
                start_ns=self.start,
                end_ns=min(t, self.start + 4 * self.settings.epoch_ns),
                sum_ns=sum_ns,
                count=count,
                reason=reason,
                in_flight=0 if self.joined else w,
                requests=self.requests,
                lost=0,
                network_ns=self.rtt or -1,
            )
        self.start = t
        self.requests = self.sum_ns = self.count = self.shorter.in_epoch = 0
        return told

    def finish(self) -> Epoch | None:
        return self.end(self.last)

    def reason(self) -> str:
        if self.joined:
            return "joined"
        opening, bursts, lags = self.opening, self.bursts, self.lags
        if opening is None or opening.is_open or self.count < self.settings.fewest or bursts.gaps < 16:
            return "too_few"
        if opening.endless:
            return "no_gap"
        if 64 * lags.low_lags > lags.lags:
            return "spontaneous"
        if opening.w in (10, 11) and self.rtt > FAR_NS:
            return "initial"
        if self.pace.is_even:
            return "paced"
        if self.sizes is not None and self.rtt == 0 and self.usual and 8 * self.opened > 9 * self.usual:
            return "coalesced"
        if self.is_crowd(opening.w):
            return "crowd"
        if self.is_bare and opening.w > 1 and not self.opened <= 2 * self.usual <= 4 * self.opened:
            return "joined"
        if 16 * self.shorter.seen > bursts.gaps and not self.shorter.acknowledge(opening.w, bursts.gaps):
            return "acks"
        if bursts.alone * (32 if opening.w == 1 else 4 * opening.w) > bursts.gaps:
            return "think"
        if self.may_be_chance(opening):
            return "spontaneous"
        return "too_few" if self.is_young else "answered"

    @property
    def is_young(self) -> bool:
        """Whether a pace would not show yet."""
        return self.pace.sums[2 if self.is_bare else 1].pairs < ENOUGH

    def is_crowd(self, w: int) -> bool:
        bursts, lags = self.bursts, self.lags
        if self.crowd or (w > 1 and 8 * bursts.bursts > bursts.runs):
            return True
        if lags.blocks >= 8 and 2 * lags.calm > lags.blocks:
            return True
        if self.is_bare and w > 1 and bursts.are_ragged:
            return True
        is_quic = self.sizes is not None and self.rtt == 0
        is_mixed = 8 * min(bursts.bare, bursts.gaps - bursts.bare) > bursts.gaps
        return is_quic and w == 1 and is_mixed

    def may_be_chance(self, opening: Opening) -> bool:
        lags = self.lags
        if opening.w == 1:
            return self.rtt == 0 and (lags.second < 32 or lags.lags**2 * lags.second <= 7 * lags.total)
        return opening.may_be_chance(lags.total // (lags.lags * opening.w) if lags.lags else 0)
