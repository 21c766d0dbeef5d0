"""Addresses as text: the extension writes them as Python's ipaddress does."""

import random

from wirelag import _kernels
from wirelag.packets.address import to_address


def test_text_is_that_of_ipaddress() -> None:
    """Runs of zeros of any length and place, ends that look like IPv4, and IPv4 itself."""
    rng = random.Random(1)
    halves = [(0, 0xFFFF << 32 | rng.getrandbits(32)) for _ in range(100)]
    halves += [(0, rng.getrandbits(rng.randrange(1, 50))) for _ in range(1_000)] + [(0, 0)]
    for _ in range(5_000):
        groups = [rng.choice((0, 0, 0, 1, 0xFFFF, rng.getrandbits(16))) for _ in range(8)]
        high, low = (sum(group << 48 - 16 * i for i, group in enumerate(half)) for half in (groups[:4], groups[4:]))
        halves.append((high, low))
    assert [_kernels.address_text(*one) for one in halves] == [str(to_address(*one)) for one in halves]
