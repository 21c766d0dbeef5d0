"""The settings of a load balancer: a schema, and what its values become, one Config for each service of a file.

Law: all problems are reported at once, one line each, with the place and the way out.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from wirelag.balance.controller import Policy
from wirelag.balance.maglev import SIZE, is_prime
from wirelag.ebpf.balance_maps import GUE_PORT
from wirelag.ebpf.service import Measured, Service, Via
from wirelag.errors import WirelagError
from wirelag.settings import (
    ADDRESS,
    SHARE,
    TEXT,
    Key,
    Kind,
    Schema,
    Settings,
    choice,
    duration,
    listed,
    meant,
    named,
    number,
    read_toml,
    whole,
)

MOST_BACKENDS: Final = 1024
MOST_SERVICES: Final = 32
PINS: Final = "/sys/fs/bpf/wirelag"
MTU: Final = 576
LEAST_SIX: Final = 1280 + 48  # each link carries 1,280 bytes of IPv6; the longest outer headers
OF_THE_FILE: Final = ("interface", "interval", "pins", "prometheus", "audit")
OF_A_SERVICE: Final = ("name", "address", "ports", "protocol")


def _pins(value: Any) -> str | bool:
    if not isinstance(value, bool | str) or value == "":
        raise ValueError(f"{value!r} is neither a folder in bpffs nor false (nothing is pinned)")
    return value


def _mac(value: Any) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}", str(value)):
        raise ValueError(f"{value!r} is not a MAC address: write 02:00:00:00:00:01")
    mac = bytes.fromhex(re.sub("[:-]", "", value))
    if mac[0] & 1 or mac == bytes(6):
        raise ValueError(f"{value} is not the address of one host")
    return mac


def _prime(value: Any) -> int:
    size: int = whole(101, 1 << 24).read(value)
    if not is_prime(size):
        raise ValueError(f"{size} is not prime; use 65537, for example")
    return size


def _one_host(value: Any) -> str:
    address = ipaddress.ip_address(ADDRESS.read(value))
    if address.is_loopback or address.is_multicast or address.is_unspecified or int(address) == (1 << 32) - 1:
        raise ValueError(f"{address} is not the address of one host on a network")
    return str(address)


def _path(value: Any) -> str:
    path = TEXT.read(value)
    if not re.fullmatch(r"/[!-~]*", path):
        raise ValueError(f"{path!r} is not a path: write /health, for example, without spaces or line ends")
    return str(path)


def _listen(value: Any) -> str:
    port = str(TEXT.read(value)).rpartition(":")[2]
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address: write 127.0.0.1:9465, or only a port")
    return str(value)


HOST: Final = Kind("address", _one_host)
SERVICE_NAME: Final = named("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, - and _")
NAME: Final = named("[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, dots, - and _")
_SHIPPED: Final = Policy()
# fmt: off
SCHEMA: Final = Schema(
    (
        Key("interface", TEXT, None, "interface where packets to the service arrive"),
        Key("interval", duration("100ms", "60s"), "500ms", "how often to set weights"),
        Key("method", choice("auto", "modes"), None, "how latency is measured",
            otherwise="`auto`; `modes` for udp, where `auto` has nothing to go by"),
        Key("controller", choice("wirelag", "paper"), "wirelag", "who decides on weights; `paper`: for comparison"),
        Key("drain", listed(NAME), None, "names of backends that get no new connections"),
        Key("drain_limit", duration("0s", "7d"), "5m", "how long a draining backend keeps its connections"),
        Key("pins", Kind("path, or `false`", _pins), True, "a folder in bpffs; `false`: nothing is pinned",
            otherwise="`/sys/fs/bpf/wirelag/NAME-OF-THE-FILE`"),
        Key("prometheus", Kind("`ADDRESS:PORT`", _listen), None, "as `--prometheus`"),
        Key("audit", TEXT, None, "file for the audit log: start, reloads, weights, backends that are down"),
        Key("service.name", SERVICE_NAME, "service", "its name in output, metrics and pins"),
        Key("service.address", HOST, None, "address that clients connect to", required=True),
        Key("service.ports", listed(whole(1, 65535)), None, "ports that clients connect to", otherwise="all ports"),
        Key("service.protocol", choice("tcp", "udp"), "tcp", "protocol of the service"),
        Key("policy.high", number(1.05, 100), _SHIPPED.high, "weight drops above this multiple of the lowest latency"),
        Key("policy.low", number(1, 100), _SHIPPED.low, "weight may grow below this multiple of it"),
        Key("policy.floor", SHARE, None, "share of new connections for all slow ones together",
            otherwise='`"0.8%"`, or a tenth of an equal share if that is less'),
        Key("policy.increment", number(0.01, 10), _SHIPPED.increment, "largest gain per interval, in fair shares"),
        Key("policy.most", number(1, 1000), _SHIPPED.most, "largest weight of a backend, in fair shares"),
        Key("policy.quiet", whole(1, 1000), _SHIPPED.quiet, "quiet intervals before weights go back to fair shares"),
        Key("policy.regression", number(0.01, 1), _SHIPPED.regression, "the fraction they go back per interval"),
        Key("policy.enough", whole(1, 1 << 20), _SHIPPED.enough, "samples behind a latency"),
        Key("policy.chance", number(1e-9, 0.5), _SHIPPED.chance, "probability that chance makes a backend look slow"),
        Key("policy.fading", number(0, 1), _SHIPPED.fading, "weight of a slow backend's past after one interval"),
        Key("policy.forget", whole(1, 10_000), _SHIPPED.forget, "intervals without samples until a latency is unknown"),
        Key("policy.attempts", whole(1, 1 << 20), _SHIPPED.attempts, "missing responses until a backend is silent"),
        Key("health.check", choice("tcp", "http", "none"), None, "how to check that a backend lives",
            otherwise="`tcp`, for backends that have passed once; `none` for udp"),
        Key("health.port", whole(1, 65535), None, "port to connect to, at the backend's own address",
            otherwise="the first of `service.ports`"),
        Key("health.path", Kind("path", _path), "/", "path to ask for; a status from 200 to 399 passes"),
        Key("health.interval", duration("100ms", "60s"), "1s", "how often to check"),
        Key("health.timeout", duration("50ms", "30s"), "1s", "how long a check may take"),
        Key("health.fall", whole(1, 100), 2, "failures in a row until a backend is down"),
        Key("health.rise", whole(1, 100), 2, "successes in a row until it is up again"),
        Key("table.size", Kind("prime, 101 to 2^24", _prime), SIZE, "entries; at least 100 for each backend"),
        Key("table.connections", whole(1024, 1 << 26), 1 << 17, "connections to remember"),
        Key("table.idle", duration("1s", "1d"), "5m", "how long a connection may be idle"),
        Key("table.new", whole(64, 1 << 26), None, "new connections per second to remember",
            otherwise="an eighth of `table.connections`"),
        Key("table.secret", TEXT, None, "makes it hard to aim at one backend; the same in balancers side by side"),
        Key("tunnel.source", listed(HOST), None, "outer source address: at most one of IPv4 and one of IPv6",
            otherwise="the one that this host uses towards the backend"),
        Key("tunnel.port", whole(1, 65535), GUE_PORT, "UDP port of backends that unpack `gue`"),
        Key("tunnel.mtu", whole(MTU, 65535), None, "longest packet with its tunnel",
            otherwise="the MTU of the interface"),
    ),
    {
        "backends": (MOST_BACKENDS, (
            Key("name", NAME, None, "up to 64 letters, digits, dots, - and _", required=True),
            Key("address", HOST, None, "the backend's own address", required=True),
            Key("via", choice("l2", "ipip", "gue"), "l2", "how packets reach it: MAC address, IP in IP, or IP in UDP"),
            Key("mac", Kind("MAC address", _mac), None, "destination of its frames; with a tunnel, of the next router",
                otherwise="from the kernel's neighbour table"),
            Key("weight", number(0, 1e6), 1.0, "its fair share in proportion to the others'; 0 drains it"),
        )),
    },
)
# fmt: on


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The configuration of a backend."""

    name: str
    address: str
    mac: bytes | None  # None: from the neighbour table
    weight: float
    via: Via = "l2"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How backends are checked."""

    kind: Literal["tcp", "http"] | None = None  # None: not at all
    strict: bool = False  # also backends that have never passed
    port: int | None = None
    path: str = "/"
    interval_ns: int = 10**9
    timeout_ns: int = 10**9
    fall: int = 2
    rise: int = 2


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """The outer headers of tunnels."""

    sources: tuple[str, ...] = ()  # one of each version at most; else what this host uses
    port: int = GUE_PORT
    mtu: int | None = None  # None: that of the interface


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a service; what is the file's is the same in all of them."""

    path: str
    name: str
    interface: str | None
    service: Service
    backends: tuple[BackendSettings, ...]
    draining: frozenset[str]
    drain_ns: int
    interval_ns: int
    method: Measured
    controller: Literal["wirelag", "paper"]
    policy: Policy
    table_size: int
    connections: int
    idle_ns: int
    most_new: int | None  # None: an eighth of the connections
    secret: str
    pins: str | None  # None: nothing is pinned
    prometheus: str | None
    health: HealthSettings
    audit: str | None
    tunnel: TunnelSettings

    @classmethod
    def load(cls, path: str) -> Config:
        """The configuration from a file with one service."""
        (one,) = cls.load_all(path)
        return one

    @classmethod
    def load_all(cls, path: str) -> tuple[Config, ...]:
        """The services of a file; a WirelagError has a line for each problem."""
        document = read_toml(path)
        if "services" not in document:
            return (cls._of(SCHEMA.read(document, path), path),)
        rows = document.pop("services")
        problems = _problems_of_rows(path, document, rows)
        if problems:
            raise WirelagError("\n".join(problems))
        found: list[Config] = []
        for at, row in enumerate(rows):
            settings, where = SCHEMA.read(document, path), f"{path}: services.{_row_name(row, at)}"
            settings.put_inner(_document(row), where)
            try:
                found.append(cls._of(settings, path))
            except WirelagError as error:
                said = str(error).replace(f"{where}: service.", f"{where}.").replace(f"{where}: ", f"{where}.")
                problems += [line for line in said.splitlines() if line not in problems]
        problems += _overlaps(path, found)
        if problems:
            raise WirelagError("\n".join(problems))
        return tuple(found)

    @classmethod
    def _of(cls, settings: Settings, path: str) -> Config:
        draining, pins = settings["drain"] or (), settings["pins"]
        rows = {at: _backend(settings, at) for at in settings.rows("backends")}
        backends = {at: one for at, one in rows.items() if one is not None}
        if not rows and not settings.given("backends"):
            settings.note("backends", "is missing: write [[backends]], with name and address, for each backend")
        _check_names(settings, backends, draining)
        _check_policy(settings, backends, draining)
        _check_health(settings)
        _check_tunnels(settings, backends)
        if settings["method"] == "auto" and settings["service.protocol"] == "udp":
            settings.note("method", "auto needs TCP headers, and the service is udp: use modes")
        settings.check()
        return cls(
            path,
            settings["service.name"],
            settings["interface"],
            Service(settings["service.address"], settings["service.ports"] or (), settings["service.protocol"]),
            tuple(backends.values()),
            frozenset(draining),
            settings["drain_limit"],
            settings["interval"],
            settings["method"] or ("auto" if settings["service.protocol"] == "tcp" else "modes"),
            settings["controller"],
            Policy(**{one.name: settings[f"policy.{one.name}"] for one in fields(Policy)}),
            settings["table.size"],
            settings["table.connections"],
            settings["table.idle"],
            settings["table.new"],
            settings["table.secret"] or "",
            f"{PINS}/{Path(path).stem}" if pins is True else pins or None,
            settings["prometheus"],
            _health(settings),
            settings["audit"],
            TunnelSettings(settings["tunnel.source"] or (), settings["tunnel.port"], settings["tunnel.mtu"]),
        )

    @property
    def fair(self) -> dict[str, float]:
        """The weights of backends that get new connections."""
        return {one.name: one.weight for one in self.backends if one.name not in self.draining and one.weight}


# ---- several services ----


def _problems_of_rows(path: str, document: Mapping[str, Any], rows: Any) -> list[str]:
    """What is wrong with the rows as such, and what stands beside them that belongs into one."""
    problems = [
        f"{path}: {name}: there are [[services]]: write it into the one it belongs to"
        for name in ("service", "backends", "drain")
        if name in document
    ]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return [*problems, f"{path}: services: write [[services]] for each of them"]
    if len(rows) > MOST_SERVICES:
        problems.append(f"{path}: services: {len(rows)} are too many: at most {MOST_SERVICES}")
    names = [_row_name(row, at) for at, row in enumerate(rows)]
    for at, row in enumerate(rows):
        place = f"{path}: services.{names[at]}"
        if "name" not in row:
            problems.append(f"{place}.name: is missing: each of several services has a name")
        elif names.index(names[at]) != at:
            problems.append(f"{place}.name: two services have it")
        problems += [
            f"{place}.{name}: is the same for all services: write it above them" for name in OF_THE_FILE if name in row
        ]
        if "service" in row:
            problems.append(f"{place}.service: is this table itself: write address, ports and protocol without it")
    return problems


def _row_name(row: Mapping[str, Any], at: int) -> str:
    name = row.get("name")
    return name if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 64 else str(at)


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of [[services]] as a file with one service."""
    service = {name: value for name, value in row.items() if name in OF_A_SERVICE}
    return {"service": service, **{name: value for name, value in row.items() if name not in OF_A_SERVICE}}


def _overlaps(path: str, configs: Sequence[Config]) -> list[str]:
    """Services that would get the same packets."""
    owners: dict[tuple[str, str, int], str] = {}
    problems = []
    for config in configs:
        service = config.service
        for port in service.ports or (0,):
            other = owners.setdefault((service.address, service.protocol, port), config.name)
            if other != config.name:
                what = f"port {port}" if port else "all ports"
                problems.append(f"{path}: services.{config.name}: {other} has {service.address}, {what}, too")
    return problems


# ---- one service ----


def _check_tunnels(settings: Settings, backends: Mapping[str, BackendSettings]) -> None:
    tunnelled = {at: one for at, one in backends.items() if one.via != "l2"}
    service = settings["service.address"]
    six = service is not None and ":" in service
    for at, one in tunnelled.items():
        if six and ":" not in one.address:
            settings.note(at + "address", "an IPv6 service needs an IPv6 address at the end of a tunnel, or via l2")
    sources = settings["tunnel.source"] or ()
    if len({":" in one for one in sources}) < len(sources):
        settings.note("tunnel.source", "two of the same version: give at most one of IPv4 and one of IPv6")
    mtu = settings["tunnel.mtu"]
    if mtu is not None and tunnelled and six and mtu < LEAST_SIX:
        settings.note("tunnel.mtu", f"{mtu} is too small for IPv6: at least {LEAST_SIX}, 1280 in a tunnel of 48")


def _check_health(settings: Settings) -> None:
    if settings["health.check"] in (None, "none") or settings["health.port"]:
        return
    if settings["service.protocol"] == "udp":
        settings.note("health.port", "is missing: the service is udp; name a port where backends accept TCP")
    elif not settings["service.ports"]:
        settings.note("health.port", "is missing: the service has no ports of which to use the first")


def _health(settings: Settings) -> HealthSettings:
    ports, wanted = settings["service.ports"] or (), settings["health.check"]
    port = settings["health.port"] or (ports[0] if ports else None)
    usual = "tcp" if settings["service.protocol"] == "tcp" and port else "none"
    kind: Any = wanted or usual
    return HealthSettings(
        None if kind == "none" else kind,
        wanted is not None,
        port,
        settings["health.path"],
        settings["health.interval"],
        settings["health.timeout"],
        settings["health.fall"],
        settings["health.rise"],
    )


def _backend(settings: Settings, at: str) -> BackendSettings | None:
    name, address, mac, weight, via = (settings[at + key] for key in ("name", "address", "mac", "weight", "via"))
    return None if name is None or address is None else BackendSettings(name, address, mac, weight, via)


def _check_names(settings: Settings, backends: Mapping[str, BackendSettings], draining: Sequence[str]) -> None:
    """Check that backends are distinct, none is the service, and draining ones exist."""
    seen: dict[tuple[str, Any], str] = {}
    for at, one in backends.items():
        mac = one.mac if one.via == "l2" else None  # a router may lead to several
        for what, value in (("name", one.name), ("address", one.address), ("mac", mac)):
            if value is not None and (other := seen.setdefault((what, value), at)) != at:
                text = value if isinstance(value, str) else value.hex(":")
                who = "two backends have it" if what == "name" else f"{backends[other].name} has it, too"
                settings.note(at + what, f"{text}: {who}")
        if one.address == settings["service.address"]:
            settings.note(at + "address", "is the service's address: give the backend's own")
    for port, times in Counter(settings["service.ports"] or ()).items():
        if times > 1:
            settings.note("service.ports", f"{port} is there {times} times")
    names = [one.name for one in backends.values()]
    for name in draining:
        if name not in names and names:
            settings.note("drain", f"unknown backend {name}{meant(name, names)}")


def _check_policy(settings: Settings, backends: Mapping[str, BackendSettings], draining: Sequence[str]) -> None:
    low, high, floor = (settings[f"policy.{name}"] for name in ("low", "high", "floor"))
    if low > high:
        settings.note("policy.low", f"{low:g} is above policy.high ({high:g}): lower it")
    taking = sum(1 for one in backends.values() if one.weight and one.name not in draining)
    if backends and not taking:
        settings.note("backends", "all drain or have weight 0: leave one for new connections")
    most = 0.5 / max(1, taking)
    if floor is not None and floor > most:
        settings.note(
            "policy.floor", f"{floor:.3g} is too much for {taking} backends: at most {most:.3g}, half a fair share"
        )
    size = settings["table.size"]
    if size < 100 * taking:
        settings.note("table.size", f"{size} is too small for {taking} backends: use a prime above {100 * taking}")
