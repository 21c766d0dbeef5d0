"""The matchers in the order of their bits; each defines a request and its response (docs/reference/matching.md)."""

from typing import Final

MATCHERS: Final = ("tcp", "tcp-timestamps", "handshake", "flow-duration", "dns", "ntp", "icmp", "quic-spin")


def matcher_bits(names: tuple[str, ...]) -> int:
    """The matchers as bits for the kernels."""
    return sum(1 << MATCHERS.index(name) for name in names)
