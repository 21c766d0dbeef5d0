"""Display filters of Wireshark that show the packets of a sample.

Law: a filter is right for every capture. So it names frames and endpoints, which the file itself gives, and never a
stream, whose number depends on how Wireshark splits connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wirelag import _kernels

_PORTS: Final = {6: "tcp", 17: "udp"}


def display_filters(frames: Sequence[tuple[str, int]], time_ns: int, ends: Sequence[int]) -> dict[str, str]:
    """A filter for each capture.

    Without endpoints it shows the frames alone. With them it shows what the two hosts sent each other from the first
    packet to the last; if only the last is known, the time tells where the first is.
    """
    numbers: dict[str, list[int]] = {}
    for capture, number in frames:
        numbers.setdefault(capture, []).append(number)
    if not any(ends):
        return {capture: f"frame.number == {mine[0]}" for capture, mine in numbers.items()}
    between = _between(ends)
    if len(frames) == 1:
        (capture, last), since = frames[0], f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
        return {capture: f"frame.number <= {last} && frame.time_epoch >= {since} && {between}"}
    if len(numbers) == 1:
        ((capture, (first, last)),) = numbers.items()
        return {capture: f"frame.number >= {first} && frame.number <= {last} && {between}"}
    (begin, first), (end, last) = frames
    return {begin: f"frame.number >= {first} && {between}", end: f"frame.number <= {last} && {between}"}


def _between(ends: Sequence[int]) -> str:
    """Packets between two endpoints, in both directions."""
    hosts = _host(ends[0], ends[1]), _host(ends[2], ends[3])
    ports, protocol = (ends[4] >> 32 & 0xFFFF, ends[4] >> 16 & 0xFFFF), _PORTS.get(ends[4] & 0xFF)
    parts = list(dict.fromkeys(hosts))
    if protocol:
        parts += [f"{protocol}.port == {port}" for port in dict.fromkeys(ports)]
    return " && ".join(parts)


def _host(high: int, low: int) -> str:
    """Packets to or from an address, by its two halves. Without `ipaddress`, which takes a millisecond to import."""
    text = _kernels.address_text(high, low)
    return f"{'ipv6' if ':' in text else 'ip'}.addr == {text}"
