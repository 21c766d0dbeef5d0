"""What a load balancer shall do: one TOML file, read and checked as a whole.

Law: all that is wrong is told at once, a line each, with the place where it stands and the way out.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from wirelag.balance.controller import Policy
from wirelag.balance.maglev import SIZE, is_prime
from wirelag.ebpf.service import Service
from wirelag.errors import WirelagError
from wirelag.settings import read_toml
from wirelag.units import parse_duration_ns

MOST_BACKENDS: Final = 1024
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PINS: Final = "/sys/fs/bpf/wirelag"

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A backend as it is configured."""

    name: str
    address: str
    mac: bytes | None  # None: as the table of neighbours has it
    weight: float


@dataclass(frozen=True, slots=True)
class Config:
    """All that a balancer does."""

    path: str
    interface: str | None
    service: Service
    backends: tuple[Wanted, ...]
    draining: frozenset[str]
    drain_ns: int
    interval_ns: int
    policy: Policy
    table_size: int
    connections: int
    idle_ns: int
    pins: str | None  # None: nothing is pinned
    prometheus: str | None

    @classmethod
    def load(cls, path: str) -> Config:
        """What a file says; a WirelagError with a line for each problem."""
        return _Reader(path, read_toml(path)).config()

    @property
    def fair(self) -> dict[str, float]:
        """The weights of those that shall get new connections."""
        return {one.name: one.weight for one in self.backends if one.name not in self.draining and one.weight}


class _Reader:
    """Reads values one by one, and remembers what was wrong with them."""

    def __init__(self, path: str, document: Mapping[str, Any]) -> None:
        self._path, self._document = path, document
        self.problems: list[str] = []

    def config(self) -> Config:
        self._unknown("", self._document, [*KEYS, *TABLES, "backends"])
        top = self._table("", self._document, KEYS)
        parts = {}
        for name, keys in TABLES.items():
            part = self._document.get(name, {})
            if not isinstance(part, dict):
                self.wrong(name, f"is a table: write [{name}]")
                part = {}
            self._unknown(f"{name}.", part, keys)
            parts[name] = self._table(f"{name}.", part, keys)
        backends = self._backends()
        self._names(backends, top["drain"] or ())
        table = parts["table"]
        policy = self._policy(parts["policy"], backends, top["drain"] or (), table["size"])
        service = self._service(parts["service"], backends)
        if self.problems:
            raise WirelagError("\n".join(self.problems))
        assert service is not None
        assert policy is not None
        return Config(
            self._path,
            top["interface"],
            service,
            tuple(backends),
            frozenset(top["drain"] or ()),
            top["drain_limit"],
            top["interval"],
            policy,
            table["size"],
            table["connections"],
            table["idle"],
            f"{PINS}/{Path(self._path).stem}" if top["pins"] is True else top["pins"] or None,
            top["prometheus"],
        )

    def wrong(self, name: str, problem: str) -> None:
        self.problems.append(f"{self._path}: {name}: {problem}")

    def _unknown(self, place: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
        known = list(known)
        for name in table:
            if name not in known:
                close = get_close_matches(name, known, 1, 0.6)
                self.wrong(place + name, f"there is no such setting{f'; did you mean {close[0]}?' if close else ''}")

    def _table(self, place: str, table: Mapping[str, Any], keys: Mapping[str, tuple[Read, Any]]) -> dict[str, Any]:
        found = {}
        for name, (read, default) in keys.items():
            found[name] = default
            if name in table:
                try:
                    found[name] = read(table[name])
                except ValueError as error:
                    self.wrong(place + name, str(error))
        return found

    def _backends(self) -> list[Wanted]:
        given = self._document.get("backends", [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            self.wrong("backends", "write [[backends]] for each of them")
            return []
        if not given:
            self.wrong("backends", "there are none: write [[backends]], with name and address, for each of them")
        if len(given) > MOST_BACKENDS:
            self.wrong("backends", f"{len(given)} are too many: {MOST_BACKENDS} at most")
            return []
        found = []
        for number, one in enumerate(given):
            place = f"backends.{one['name'] if isinstance(one.get('name'), str) else number}."
            before = len(self.problems)
            self._unknown(place, one, BACKEND)
            values = self._table(place, one, BACKEND)
            for name in ("name", "address"):
                if name not in one:
                    self.wrong(place + name, "is missing")
            if len(self.problems) == before:
                found.append(Wanted(values["name"], values["address"], values["mac"], values["weight"]))
        return found

    def _names(self, backends: list[Wanted], draining: tuple[str, ...]) -> None:
        """No two are the same, and who is named is there."""
        seen: dict[tuple[str, Any], str] = {}
        for one in backends:
            for what, value in (("name", one.name), ("address", one.address), ("mac", one.mac)):
                other = seen.setdefault((what, value), one.name)
                text = value if isinstance(value, str) else one.mac.hex(":") if one.mac else None
                if text is not None and (other != one.name or (what == "name" and self._twice(backends, value))):
                    who = "two backends have it" if what == "name" else f"{other} has it, too"
                    line = f"{self._path}: backends.{one.name}.{what}: {text}: {who}"
                    if line not in self.problems:
                        self.problems.append(line)
        names = [one.name for one in backends]
        for name in draining:
            if name not in names and backends:
                close = get_close_matches(name, names, 1, 0.6)
                self.wrong("drain", f"there is no backend {name}{f'; did you mean {close[0]}?' if close else ''}")

    @staticmethod
    def _twice(backends: list[Wanted], name: Any) -> bool:
        return [one.name for one in backends].count(name) > 1

    def _policy(
        self, part: dict[str, Any], backends: list[Wanted], draining: tuple[str, ...], size: int
    ) -> Policy | None:
        if part["low"] > part["high"]:
            self.wrong("policy.low", f"{part['low']:g} is above the high watermark, {part['high']:g}")
        taking = [one for one in backends if one.weight and one.name not in draining]
        if backends and not taking:
            self.wrong("backends", "all of them drain or have weight 0: nobody is left for new connections")
        most = 0.5 / max(1, len(taking))
        if part["floor"] is not None and part["floor"] > most:
            problem = (
                f"{part['floor']:.3g} is too much for {len(taking)} backends: {most:.3g} at most, half a fair share"
            )
            self.wrong("policy.floor", problem)
        if size < 100 * len(taking):
            self.wrong(
                "table.size", f"{size} is too small for {len(taking)} backends: take a prime above {100 * len(taking)}"
            )
        return None if self.problems else Policy(**part)

    def _service(self, part: dict[str, Any], backends: list[Wanted]) -> Service | None:
        if part["address"] is None:
            self.wrong("service.address", "is missing: what do clients connect to?")
            return None
        for one in backends:
            if one.address == part["address"]:
                self.wrong(f"backends.{one.name}.address", "is the service's: give the backend's own")
        return Service(part["address"], part["ports"] or (), part["protocol"])


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a text")
    return value


def _pins(value: Any) -> str | bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a folder in bpffs, nor false (nothing is pinned)")
    return value


def _name(value: Any) -> str:
    if not NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is no name: up to 64 letters, digits, dots, - and _")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError('is a list of names: write ["web1"]')
    return tuple(map(_name, value))


def _address(value: Any) -> str:
    try:
        return str(ipaddress.ip_address(_text(value)))
    except ValueError:
        raise ValueError(f"{value!r} is not an address: write 192.0.2.1 or 2001:db8::1") from None


def _mac(value: Any) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}", str(value)):
        raise ValueError(f"{value!r} is not a MAC address: write 02:00:00:00:00:01")
    mac = bytes.fromhex(re.sub("[:-]", "", value))
    if mac[0] & 1 or mac == bytes(6):
        raise ValueError(f"{value} is not the address of one host")
    return mac


def _ports(value: Any) -> tuple[int, ...]:
    ports = value if isinstance(value, list) else [value]
    for port in ports:
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise ValueError(f"{port!r} is not a port: they go from 1 to 65535")
    return tuple(dict.fromkeys(ports))


def _protocol(value: Any) -> str:
    if value not in ("tcp", "udp"):
        raise ValueError(f"{value!r} is not one of tcp, udp")
    return str(value)


def _duration(least_ns: int, most_ns: int) -> Read:
    def read(value: Any) -> int:
        ns = parse_duration_ns(_text(value))
        if not least_ns <= ns <= most_ns:
            raise ValueError(f"{value} is not within {least_ns / 1e9:g} s and {most_ns / 1e9:g} s")
        return ns

    return read


def _number(least: float, most: float) -> Read:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{value!r} is not a number")
        if not least <= value <= most:
            raise ValueError(f"{value:g} is not within {least:g} and {most:g}")
        return value

    return read


def _whole(least: int, most: int) -> Read:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is not a whole number")
        return int(_number(least, most)(value))

    return read


def _share(value: Any) -> float:
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise ValueError(f'{text!r} is not a share: write "0.5%" or 0.005')
    return share


def _size(value: Any) -> int:
    size: int = _whole(101, 1 << 24)(value)
    if not is_prime(size):
        raise ValueError(f"{size} is not prime; 65537 is")
    return size


def _listen(value: Any) -> str:
    port = str(_text(value)).rpartition(":")[2]
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address: write 127.0.0.1:9465, or a port alone")
    return str(value)


SECOND: Final = 10**9
KEYS: Final[Mapping[str, tuple[Read, Any]]] = {
    "interface": (_text, None),
    "interval": (_duration(SECOND // 10, 60 * SECOND), SECOND // 2),
    "drain": (_names, None),
    "drain_limit": (_duration(0, 7 * 86_400 * SECOND), 300 * SECOND),
    "pins": (_pins, True),
    "prometheus": (_listen, None),
}
_SHIPPED: Final = Policy()
TABLES: Final[Mapping[str, Mapping[str, tuple[Read, Any]]]] = {
    "service": {"address": (_address, None), "ports": (_ports, None), "protocol": (_protocol, "tcp")},
    "policy": {
        "high": (_number(1.05, 100), _SHIPPED.high),
        "low": (_number(1, 100), _SHIPPED.low),
        "floor": (_share, _SHIPPED.floor),
        "increment": (_number(0.01, 10), _SHIPPED.increment),
        "most": (_number(1, 1000), _SHIPPED.most),
        "quiet": (_whole(1, 1000), _SHIPPED.quiet),
        "regression": (_number(0.01, 1), _SHIPPED.regression),
        "enough": (_whole(1, 1 << 20), _SHIPPED.enough),
        "chance": (_number(1e-9, 0.5), _SHIPPED.chance),
        "fading": (_number(0, 1), _SHIPPED.fading),
        "forget": (_whole(1, 10_000), _SHIPPED.forget),
        "attempts": (_whole(1, 1 << 20), _SHIPPED.attempts),
    },
    "table": {
        "size": (_size, SIZE),
        "connections": (_whole(1024, 1 << 26), 1 << 17),
        "idle": (_duration(SECOND, 86_400 * SECOND), 300 * SECOND),
    },
}
BACKEND: Final[Mapping[str, tuple[Read, Any]]] = {
    "name": (_name, None),
    "address": (_address, None),
    "mac": (_mac, None),
    "weight": (_number(0, 1e6), 1.0),
}
