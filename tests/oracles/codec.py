"""The plain twin of `kernels/module_codec.cpp`: integers in few bytes, and bins of delays (codec.py, tally.py)."""

from collections import Counter
from collections.abc import Sequence

from wirelag.stats.distribution import bin_of

WORD = 1 << 64


def unsqueeze(data: bytes, place: int, count: int, width: int, base: int) -> list[int]:
    """Values of `width` bytes each, above a base; modulo 2^64."""
    starts = (place + i * width for i in range(count))
    return [(int.from_bytes(data[at : at + width], "little") + base) % WORD for at in starts]


def squeeze(values: Sequence[int], signed: bool, free: int) -> tuple[int, int, bytes]:
    """The least value, the bytes of each value above it, and these bytes: as signed or as unsigned ones."""
    if not values:
        return 0, 0, b""
    plain = [value % WORD for value in values]
    views = [plain, [value - WORD if value >> 63 else value for value in plain]]
    views = views[::-1] if signed else views
    best = min(views, key=lambda view: max(view) - min(view))  # the first, if both are as good
    base, span = min(best), max(best) - min(best)
    width = max((span.bit_length() + 7) // 8, int(len(values) > free))
    return base, width, b"".join((value - base).to_bytes(8, "little")[:width] for value in best)


Bins = tuple[list[int], list[int]]


def _columns(sums: dict[int, int]) -> Bins:
    return sorted(sums), [sums[bin_] for bin_ in sorted(sums)]


def sample_bins(delays_ns: Sequence[int], weights: Sequence[int]) -> tuple[Bins, int, int]:
    """The bins of delays from 0 on, the weight of the others, and the sum of squared weights."""
    sums: Counter[int] = Counter()
    both = list(zip(delays_ns, weights, strict=True))
    for delay_ns, weight in both:
        if delay_ns >= 0:
            sums[bin_of(delay_ns)] += weight
    negative = sum(weight for delay_ns, weight in both if delay_ns < 0)
    return _columns({bin_: weight for bin_, weight in sums.items() if weight}), negative, sum(w * w for w in weights)


def merge_bins(one: Bins, other: Bins) -> Bins:
    """Both in one."""
    sums: dict[int, int] = {}
    for bins, weights in (one, other):
        for bin_, weight in zip(bins, weights, strict=True):
            sums[bin_] = sums.get(bin_, 0) + weight
    return _columns(sums)


def count_bins(bins: Sequence[int], weights: Sequence[int], places: Sequence[int], counts: list[int]) -> list[int]:
    """The counts with the weights of bins, each at its place."""
    found = list(counts)
    for bin_, weight in zip(bins, weights, strict=True):
        found[places[bin_]] += weight
    return found


def pack_bins(bins: Sequence[int], weights: Sequence[int]) -> bytes:
    """The bytes of a weight, then all steps and all weights, their low bytes first."""
    used = (max(weights, default=0).bit_length() + 7) // 8
    steps = [(bin_ - before) % (1 << 16) for bin_, before in zip(bins, [0, *bins], strict=False)]
    columns = [[step >> 8 * b & 255 for step in steps] for b in range(2)]
    columns += [[weight >> 8 * b & 255 for weight in weights] for b in range(used)]
    return bytes([used, *(byte for column in columns for byte in column)])
