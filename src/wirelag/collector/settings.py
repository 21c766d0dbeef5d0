"""What a collector can be told, by a TOML file and by flags; flags win. Whatever is wrong is told in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wirelag.collector.following import Follow
from wirelag.collector.store import Retention
from wirelag.errors import WirelagError
from wirelag.protocol.messages import check_point
from wirelag.protocol.results import Ends
from wirelag.transport import Address, loopback
from wirelag.units import parse_duration_ns, parse_size

LISTEN: Final = "127.0.0.1:8321"
STORE: Final = "wirelag.db"
LEAST_TOKEN: Final = 16
POINT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # as agents have it
DAYS: Final = {"d": 86400, "w": 7 * 86400, "y": 365 * 86400}  # seconds, beside the units of durations
KEYS: Final = {
    "listen": str, "store": str, "token_file": str, "certificate": str, "key": str, "segments": list, "topology": str,
    "slow": str, "nats": dict, "retain": dict, "follow": dict, "names": dict,
}  # fmt: skip
NATS: Final = {"url": str, "secret_file": str, "ca": str, "insecure": bool}
FOLLOW: Final = {"every": str, "overlap": str, "upgraded": list}
SHORTEST_NS: Final = 50 * 10**6  # between two readings of the topology
RETAIN: Final = ("intervals", "minutes", "hours", "messages", "size")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them, checked."""

    host: str
    port: int
    store: str = STORE
    tokens: Mapping[str, str | None] | None = field(default=None, repr=False)  # and the point that each is for
    certificate: str | None = None
    key: str | None = None
    ends: tuple[Ends, ...] = ()
    topology: str | None = None
    slow_ns: int = 10**6
    nats: Address | None = None
    retention: Retention = field(default_factory=Retention)
    names: Mapping[str, str] = field(default_factory=dict)  # of routers, as agents are called
    follow: Follow | None = None  # None: the topology is read once

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Settings:
        """From plain values; `where` they stand, for errors."""
        for name, value in plain.items():
            if name not in KEYS:
                raise WirelagError(f"{where}: there is no {name!r}; known are {', '.join(KEYS)}")
            if not isinstance(value, KEYS[name]):
                raise WirelagError(f"{where}: {name} must be {_kind(KEYS[name])}")
        host, port = _listen(plain.get("listen", LISTEN), where)
        tokens = _tokens(plain["token_file"]) if "token_file" in plain else None
        if tokens is None and not loopback(host):
            raise WirelagError(
                f"{where}: listening on {host} needs a token: name a file that holds one (token_file, --token-file)"
            )
        certificate, key = plain.get("certificate"), plain.get("key")
        if (certificate is None) != (key is None):
            raise WirelagError(f"{where}: a certificate and its key go together")
        for file in filter(None, (certificate, key)):
            _read(file)
        try:
            slow_ns = duration_ns(plain.get("slow", "1ms"))
            retention = _retention(plain.get("retain", {}), where)
            names = _names(plain.get("names", {}), where)
            follow = _follow(plain["follow"], names, where) if "follow" in plain else None
        except ValueError as error:
            raise WirelagError(f"{where}: {error}") from None
        if follow is not None and "topology" not in plain:
            raise WirelagError(f"{where}: what shall be followed? Name the topology: a file, or ospf: (--topology)")
        return cls(
            host,
            port,
            plain.get("store", STORE),
            tokens,
            certificate,
            key,
            tuple(_ends(one, where) for one in plain.get("segments", [])),
            plain.get("topology"),
            slow_ns,
            _nats(plain["nats"], where) if "nats" in plain else None,
            retention,
            names,
            follow,
        )


def duration_ns(text: str) -> int:
    """A duration, also in days, weeks and years.

    >>> duration_ns("2d") // 10**9
    172800
    """
    number, unit = text[:-1], text[-1:]
    if unit in DAYS and number.replace(".", "", 1).isdigit():
        return round(float(number) * DAYS[unit] * 10**9)
    return parse_duration_ns(text)


def ends_of(text: str) -> Ends:
    """A segment as `A>B`, or as `NAME=UPSTREAM,DOWNSTREAM` where points have other names.

    >>> ends_of("B[A>C]=b1,b2").points
    ('b1', 'b2')
    """
    name, equals, points = text.partition("=")
    up, comma, down = points.partition(",") if equals else name.replace(">>", ">").partition(">")
    up, down = up.strip(), down.strip()
    if not comma or up == down or not up or not down or ">" in down:
        raise WirelagError(f"{text!r} is no segment: write A>B, or NAME=UPSTREAM,DOWNSTREAM")
    try:
        return Ends(name.strip(), check_point(up), check_point(down))
    except ValueError as error:
        raise WirelagError(f"{text!r}: {error}") from None


def _ends(one: Any, where: str) -> Ends:
    if isinstance(one, str):
        return ends_of(one)
    if isinstance(one, dict) and one.keys() == {"name", "upstream", "downstream"}:
        return ends_of(f"{one['name']}={one['upstream']},{one['downstream']}")
    raise WirelagError(f"{where}: a segment is a text, or a table of name, upstream and downstream")


def _listen(text: str, where: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise WirelagError(f"{where}: {text!r} is nothing to listen on: write ADDRESS:PORT, {LISTEN} for example")
    return host, int(port)


def _tokens(path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or len(words[0]) < LEAST_TOKEN or not words[0].isascii():
            raise WirelagError(
                f"{path}: line {number} is no token of {LEAST_TOKEN} characters or more, with a point or without"
            )
        found[words[0]] = words[1] if len(words) == 2 else None
    if None not in found.values():
        raise WirelagError(f"{path}: has no token without a point, so nobody could read what is collected")
    return found


def _nats(plain: Mapping[str, Any], where: str) -> Address:
    for name, value in plain.items():
        if name not in NATS or not isinstance(value, NATS[name]):
            raise WirelagError(f"{where}: nats.{name} is not known, or not {_kind(NATS.get(name, str))}")
    if "url" not in plain:
        raise WirelagError(f"{where}: nats.url is missing: write tls://HOST:4222")
    secret = _read(plain["secret_file"]).strip() if "secret_file" in plain else None
    return Address(plain["url"], secret, plain.get("ca"), plain.get("insecure", False))


def _retention(plain: Mapping[str, Any], where: str) -> Retention:
    for name, value in plain.items():
        if name not in RETAIN or not isinstance(value, str):
            raise WirelagError(f"{where}: retain.{name} is not one of {', '.join(RETAIN)}, or no text")
    usual = Retention()
    ages = {name: duration_ns(plain[name]) for name in RETAIN[:4] if name in plain}
    return Retention(
        ages.get("intervals", usual.single_ns),
        ages.get("minutes", usual.minutes_ns),
        ages.get("hours", usual.hours_ns),
        ages.get("messages", usual.messages_ns),
        parse_size(plain["size"]) if "size" in plain else usual.most_bytes,
    )


def _names(plain: Mapping[str, Any], where: str) -> dict[str, str]:
    for router, name in plain.items():
        if not isinstance(name, str) or not POINT.fullmatch(name):
            raise WirelagError(f"{where}: names: {router} cannot be called {name!r}: up to 64 letters, digits, - and _")
    return dict(plain)


def _follow(plain: Mapping[str, Any], names: Mapping[str, str], where: str) -> Follow:
    for name, value in plain.items():
        if name not in FOLLOW or not isinstance(value, FOLLOW[name]):
            raise WirelagError(f"{where}: follow.{name} is not one of {', '.join(FOLLOW)}, or not as it should be")
    usual = Follow()
    every_ns = duration_ns(plain["every"]) if "every" in plain else usual.every_ns
    overlap_ns = duration_ns(plain["overlap"]) if "overlap" in plain else usual.overlap_ns
    if every_ns < SHORTEST_NS:
        raise WirelagError(f"{where}: follow.every is too often: 50ms or more")
    upgraded = plain.get("upgraded")
    if upgraded is not None and not all(isinstance(one, str) for one in upgraded):
        raise WirelagError(f"{where}: follow.upgraded is a list of routers")
    return Follow(every_ns, overlap_ns, None if upgraded is None else tuple(upgraded), names)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise WirelagError(f"{path}: cannot read ({reason})") from None


def _kind(kind: type) -> str:
    return {str: "a text", list: "a list", dict: "a table", bool: "true or false"}[kind]
