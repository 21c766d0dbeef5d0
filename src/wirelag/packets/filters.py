"""Packet filters. Alternatives of one kind are joined by "or", the kinds by "and"."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from wirelag.errors import SettingError
from wirelag.units import parse_duration_ns

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    Net: TypeAlias = IPv4Network | IPv6Network

PROTOCOLS: Final = {
    "icmp": (1, 58),
    "tcp": (6,),
    "udp": (17,),
    "gre": (47,),
    "esp": (50,),
    "ah": (51,),
    "ospf": (89,),
    "sctp": (132,),
}
MOST_NETS: Final = 64  # that the kernel compares with
EARLIEST_NS: Final = -(2**63)
LATEST_NS: Final = 2**63 - 1
_ALL: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """Addresses (a host is a net of one address), ports and protocols of either end, and times `[from_ns, to_ns)`.

    With `relative`, times count from the first packet of each file. `expression` is tcpdump's (man pcap-filter): it
    sees frames as they were captured, so with `tunnels` the outer packet.
    """

    nets: tuple[IPv4Network | IPv6Network, ...] = ()
    ports: tuple[int, ...] = ()
    protocols: tuple[int, ...] = ()
    from_ns: int = EARLIEST_NS
    to_ns: int = LATEST_NS
    relative: bool = False
    expression: str = ""

    @classmethod
    def of(cls, given: Filter | str | None) -> Filter:
        """A filter as Python code may give it: itself, or an expression of tcpdump."""
        if isinstance(given, str):
            return cls.parse(expression=given)
        if given is not None and not isinstance(given, cls):
            raise SettingError("filter", "give text as for tcpdump, or wirelag.Filter.parse(ports=(443,), ...)")
        return given or cls()

    @classmethod
    def parse(
        cls,
        hosts: str | tuple[str, ...] = (),
        nets: str | tuple[str, ...] = (),
        ports: str | int | tuple[int | str, ...] = (),
        protocols: str | tuple[str, ...] = (),
        start: str | None = None,
        end: str | None = None,
        expression: str | None = None,
    ) -> Filter:
        """Build a filter from words of the command line; a SettingError names the wrong one."""
        hosts, nets, protocols = _words(hosts), _words(nets), _words(protocols)
        ports = (ports,) if isinstance(ports, str | int) else tuple(ports)
        times = {name: _setting(name, parse_time_ns, text) for name, text in (("from", start), ("to", end)) if text}
        if len({relative for _, relative in times.values()}) > 1:
            raise SettingError("from", "give both times as a distance from the first packet (+2s), or neither")
        from_ns, relative = times.get("from", (EARLIEST_NS, False))
        to_ns, relative = times.get("to", (LATEST_NS, relative))
        if from_ns >= to_ns:
            raise SettingError("to", f"the time range from {start} to {end} is empty")
        if len(hosts) + len(nets) > MOST_NETS:
            raise SettingError("net", f"at most {MOST_NETS} hosts and networks; name larger networks")
        wanted = [_setting("host", _host, text) for text in hosts] + [_setting("net", _net, text) for text in nets]
        chosen = {port for word in ports for port in _setting("port", _ports, str(word))}
        return cls(
            nets=tuple(wanted),
            ports=tuple(sorted(chosen)),
            protocols=tuple(number for text in protocols for number in _setting("proto", _protocol, text)),
            from_ns=from_ns,
            to_ns=to_ns,
            relative=relative,
            expression=(expression or "").strip(),
        )

    def kernel_arguments(self) -> dict[str, Any]:
        """The filter as arguments of the reading kernel."""
        return {
            "nets": [_halves(net) for net in self.nets],
            "ports": list(self.ports),
            "protocols": list(self.protocols),
            "from_ns": self.from_ns,
            "to_ns": self.to_ns,
            "relative": self.relative,
        }


def _words(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """One word, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


T = TypeVar("T")


def _setting(name: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except (ValueError, AttributeError, TypeError) as error:
        raise SettingError(name, str(error)) from None


def parse_time_ns(text: str) -> tuple[int, bool]:
    """Read a time as ns, and whether it counts from the first packet.

    >>> parse_time_ns("2024-05-01T12:00:00Z")
    (1714564800000000000, False)
    >>> parse_time_ns("1714564800.25")
    (1714564800250000000, False)
    >>> parse_time_ns("+2s")
    (2000000000, True)
    """
    if text.startswith("+"):
        return parse_duration_ns(text[1:]), True
    seconds = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?", text)
    if seconds:
        return int(seconds[1]) * 10**9 + int((seconds[2] or "").ljust(9, "0")), False
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2024-05-01T12:00:00Z, seconds since 1970, or +2s from the first packet"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000, False


def _host(text: str) -> Net:
    from ipaddress import ip_address, ip_network

    try:
        return ip_network(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an address: write 192.0.2.1 or 2001:db8::1") from None


def _net(text: str) -> Net:
    from ipaddress import ip_network

    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not a network: write 192.0.2.0/24 or 2001:db8::/32") from None


def _protocol(text: str) -> tuple[int, ...]:
    if text.lower() in PROTOCOLS:
        return PROTOCOLS[text.lower()]
    if text.isdecimal() and int(text) <= 255:
        return (int(text),)
    raise ValueError(f"{text!r} is not a protocol: write a number or one of {', '.join(PROTOCOLS)}")


def _ports(text: str) -> list[int]:
    """Ports as people write them: numbers, ranges and names of services, with commas between."""
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            low, high = int(first), int(last or first)
        else:
            low = high = _service(word.strip())
        if high < low <= 65535:
            raise ValueError(f"{word.strip()} has its ends in the wrong order: write {high}-{low}")
        if not 0 <= low <= high <= 65535:
            raise ValueError(f"{word.strip()} is not a port: ports go from 0 to 65535")
        found += range(low, high + 1)
    return found


def _service(name: str) -> int:
    from socket import getservbyname

    try:
        return getservbyname(name)
    except OSError:
        raise ValueError(f"{name!r} is not a port: write 443, 80,443, 1-1024 or a name such as https") from None


def ports_text(ports: tuple[int, ...]) -> str:
    """Ports in order, as few words as possible.

    >>> ports_text((53, 80, 81, 82))
    '53 80-82'
    """
    words: list[list[int]] = []
    for port in sorted(ports):
        if words and words[-1][1] == port - 1:
            words[-1][1] = port
        else:
            words.append([port, port])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in words)


def _halves(net: Net) -> tuple[int, int, int, int]:
    """Address and mask as 64-bit halves; IPv4 as `::ffff:a.b.c.d`."""
    address, mask = int(net.network_address), int(net.netmask)
    if net.version == 4:
        address |= 0xFFFF << 32
        mask |= _ALL << 64 | 0xFFFFFFFF << 32
    return address >> 64, address & _ALL, mask >> 64, mask & _ALL
