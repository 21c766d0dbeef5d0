"""The weighted Maglev table in plain Python: the independent twin of `kernels/maglev.h`, and the tests' oracle for it.

Both follow only `docs/concepts/balancing.md`.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from hashlib import blake2b

PARTS = 1 << 30


def table(weights: Mapping[str, float], size: int) -> list[str]:
    """The name that each entry belongs to."""
    total = sum(weights.values())
    parts = {name: max(1, round(w / total * PARTS)) if w > 0 else 0 for name, w in weights.items()}
    turns = ((Fraction(n, parts[name]), name) for name in parts if parts[name] for n in range(size))
    heaviest = max(parts.values())
    wishes = {name: order(name, size) for name in parts}
    found: dict[int, str] = {}
    for _, name in sorted(turns, key=lambda turn: (turn[0] * heaviest // 1, turn[1])):  # N, by round and name
        if len(found) == size:
            break
        found[next(entry for entry in wishes[name] if entry not in found)] = name
    return [found[entry] for entry in range(size)]


def order(name: str, size: int) -> Iterator[int]:
    """The permutation of a backend: all entries, in its order of preference."""
    words = blake2b(name.encode(), digest_size=16).digest()
    offset = int.from_bytes(words[:8], "little") % size
    skip = int.from_bytes(words[8:], "little") % (size - 1) + 1
    return ((offset + j * skip) % size for j in range(size))
