"""The matchers, in the order of their bits: what is a request and its response (docs/reference/matching.md)."""

from typing import Final

MATCHERS: Final = ("tcp", "tcp-timestamps", "handshake", "flow-duration", "dns", "ntp", "icmp", "quic-spin")


def matcher_bits(names: tuple[str, ...]) -> int:
    """The matchers as the kernels take them."""
    return sum(1 << MATCHERS.index(name) for name in names)
