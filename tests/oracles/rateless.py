"""Rateless symbols in plain Python: as many as needed, whatever the size of the difference.

The independent twin of `kernels/rateless.h`, and the tests' oracle for it. Both follow only
`docs/reference/crossing.md`. After Yang and others, *Practical Rateless Set Reconciliation*.

Times are not in symbols but in rows beside them, as in `lda`, and those are repaired.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from math import isqrt
from typing import NamedTuple

from tests.oracles import lda
from tests.oracles.hashing import G as GOLDEN
from tests.oracles.hashing import mix
from tests.oracles.join import RATELESS, Packet, coin, numbered, numbers, signed
from tests.oracles.rda import Difference, Found, check, differing, without

EMPTY = Difference(0, 0, 0)


class Symbol(NamedTuple):
    """The XOR of numbers and of their checks, and their count."""

    ids: int = 0
    check: int = 0
    packets: int = 0


# Symbols


def indices(x: int, seed: int) -> Iterator[int]:
    """The symbols that contain a number: symbol i with probability 2/(i + 2)."""
    i, t = 0, 0
    while True:
        yield i
        t += 1
        r = (mix(coin(x, seed, RATELESS) + t * GOLDEN) >> 32) + 1
        i = following(i, r)


def following(i: int, r: int) -> int:
    """The smallest j > i with (j + 1)(j + 2) r > (i + 1)(i + 2) 2^32."""
    most = ((i + 1) * (i + 2) << 32) // r
    j = max(i + 1, isqrt(most) - 2)  # anything smaller has too small a product
    while (j + 1) * (j + 2) <= most:
        j += 1
    return j


def symbols(entries: Sequence[Packet], size: int, seed: int) -> list[Symbol]:
    """The first `size` symbols of a cache."""
    result = [Symbol()] * size
    for x in numbers(entries):
        for i in takewhile(lambda i: i < size, indices(x, seed)):
            ids, checks, count = result[i]
            result[i] = Symbol(ids ^ x, checks ^ check(x, seed), count + 1)
    return result


def difference(upstream: Symbol, downstream: Symbol) -> Difference:
    return Difference(
        upstream.ids ^ downstream.ids, upstream.check ^ downstream.check, signed(downstream.packets - upstream.packets)
    )


# Decoding


class Decoder:
    """Takes differences of symbols, in order, until it knows everything that only one point has.

    A number is found once: a repeated one is a fake, and stays in place. Only some bits of checks and counts were sent.
    """

    def __init__(self, seed: int, check_bits: int = 32, count_bits: int = 64) -> None:
        self.seed = seed
        self.checks, self.counts = 1 << check_bits, 1 << count_bits
        self.symbols: list[Difference] = []
        self.found: Found = []

    def is_complete(self) -> bool:
        return bool(self.symbols) and all(self.sent(symbol) == EMPTY for symbol in self.symbols)

    def sent(self, symbol: Difference) -> Difference:
        """The bits of a symbol that were sent."""
        return Difference(symbol.ids, symbol.check % self.checks, symbol.surplus % self.counts)

    def add(self, symbol: Difference) -> None:
        place = len(self.symbols)
        for x, count in self.found:
            if place in takewhile(lambda i: i <= place, indices(x, self.seed)):
                symbol = symbol.less(x, check(x, self.seed), count)
        self.symbols.append(symbol)
        queue = deque([place])
        while queue:
            i = queue.popleft()
            if self.is_pure(i):
                queue.extend(self.take_out(self.symbols[i].ids, 1 if self.sent(self.symbols[i]).surplus == 1 else -1))

    def is_pure(self, i: int) -> bool:
        x, checks, surplus = self.sent(self.symbols[i])
        if surplus not in (1, self.counts - 1) or checks != check(x, self.seed) % self.checks:
            return False
        belongs = i in takewhile(lambda j: j <= i, indices(x, self.seed))
        return belongs and all(x != known for known, _ in self.found)

    def take_out(self, x: int, count: int) -> list[int]:
        """The symbols that become pure, in order."""
        self.found.append((x, count))
        changed = list(takewhile(lambda i: i < len(self.symbols), indices(x, self.seed)))
        for i in changed:
            self.symbols[i] = self.symbols[i].less(x, check(x, self.seed), count)
        return [i for i in changed if self.is_pure(i)]


def decode(upstream: Iterable[Symbol], downstream: Iterable[Symbol], seed: int) -> tuple[Decoder, int]:
    """Decode symbols until complete, or until there are no more; also return how many that took."""
    decoder = Decoder(seed)
    for a, b in zip(upstream, downstream, strict=False):
        decoder.add(difference(a, b))
        if decoder.is_complete():
            break
    return decoder, len(decoder.symbols)


# Rows


def fill_rows(entries: Sequence[Packet], rows: int, seed: int) -> list[lda.Bucket]:
    return lda.fill(numbered(entries), rows, (0,), seed)


def repair_rows(
    upstream: Sequence[Packet], downstream: Sequence[Packet], found: Found, rows: int, seed: int
) -> lda.Banks:
    """The rows without everything that differs, refilled; decoding was complete."""
    ids = differing(found, upstream, downstream)
    sent, came = (lda.fill(without(entries, ids), rows, (0,), seed) for entries in (upstream, downstream))
    return lda.usable(sent, came, rows)
