"""Addresses, from the two words that columns have of each."""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def to_address(high: int, low: int) -> Address:
    """The address from its two 64-bit halves; `::ffff:a.b.c.d` is IPv4.

    >>> to_address(0, 0xFFFFC0000201)
    IPv4Address('192.0.2.1')
    """
    if high == 0 and low >> 32 == 0xFFFF:
        return ipaddress.IPv4Address(low & 0xFFFFFFFF)
    return ipaddress.IPv6Address(high << 64 | low)
