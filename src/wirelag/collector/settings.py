"""The settings of a collector: a schema, and what its values become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wirelag.collector.following import Follow
from wirelag.collector.objectives import Objective
from wirelag.collector.receivers import Receivers
from wirelag.collector.store import Retention, is_postgres
from wirelag.collector.tokens import Tokens, tokens_of
from wirelag.errors import WirelagError
from wirelag.protocol.inside import is_inside
from wirelag.protocol.messages import check_point
from wirelag.protocol.results import Ends
from wirelag.protocol.session import MOST_BYTES, MOST_CLASSES, MOST_NAMED
from wirelag.settings import (
    FLAG,
    PATH,
    TEXT,
    Key,
    Kind,
    Schema,
    duration,
    listed,
    named,
    number,
    read_toml,
    size,
    whole,
)
from wirelag.settings import Settings as Read
from wirelag.transport import Address, loopback
from wirelag.transport.exports import Target
from wirelag.transport.quotas import Limits

LISTEN: Final = "127.0.0.1:8321"
POINT: Final = named("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, - and _")  # as agents have it


def ends_of(text: str) -> Ends:
    """A segment as `A>B`, or as `NAME=UPSTREAM,DOWNSTREAM` if points have other names.

    The inside of a router is measured by its own agent, unless two points are named.

    >>> ends_of("B[A>C]=b1,b2").points, ends_of("B[A>C]").points
    (('b1', 'b2'), ('B', 'B'))
    """
    name, equals, points = text.partition("=")
    if not equals and is_inside(name, router := name.partition("[")[0].strip()):
        return Ends(name.strip(), check_point(router), router)
    up, comma, down = points.partition(",") if equals else name.replace(">>", ">").partition(">")
    up, down = up.strip(), down.strip()
    if not comma or up == down or not up or not down or ">" in down:
        raise ValueError(f"{text!r} is not a segment: write A>B, or NAME=UPSTREAM,DOWNSTREAM")
    return Ends(name.strip(), check_point(up), check_point(down))


def _ends(value: Any) -> Ends:
    if isinstance(value, str):
        return ends_of(value)
    if isinstance(value, dict) and value.keys() == {"name", "upstream", "downstream"}:
        return ends_of(f"{value['name']}={value['upstream']},{value['downstream']}")
    raise ValueError("not a segment: write text, or a table of name, upstream and downstream")


def _listen(value: Any) -> tuple[str, int]:
    host, colon, port = TEXT.read(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not ADDRESS:PORT: write {LISTEN}, for example")
    return host, int(port)


def _names(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table: write {{ router = point }}")
    return {router: POINT.read(name) for router, name in value.items()}


def _sites(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r} is not a table: write {{ "fra-*" = "Frankfurt" }}')
    return {points: TEXT.read(site) for points, site in value.items()}


OBJECTIVES: Final = listed(Kind("`p99<20ms`, or `fra-*: loss<0.1%`", lambda value: Objective.parse(TEXT.read(value))))
SEGMENTS: Final = listed(Kind("`A>B`, or a table", _ends))
# fmt: off
SCHEMA: Final = Schema((
    Key("listen", Kind("`ADDRESS:PORT`", _listen), LISTEN, "address to listen on; beyond loopback needs `token_file`",
        "--listen"),
    Key("store", PATH, "wirelag.db", "database of results: a file, or `postgresql://USER@HOST/NAME`", "--store"),
    Key("token_file", PATH, None, "file of tokens, one per line", "--token-file"),
    Key("audit", PATH, None, "file for the audit log: logins, refusals, reloads, what agents are told"),
    Key("certificate", PATH, None, "certificate for HTTPS; needs `key`", "--certificate"),
    Key("key", PATH, None, "private key of the certificate", "--key"),
    Key("client_ca", PATH, None, "CA of client certificates: every client must show one; an agent's names its point"),
    Key("segments", SEGMENTS, None, "segments to measure", "--segment", "those that agents name"),
    Key("topology", TEXT, None, "for paths: a topology file of `wirelag plan`, or `ospf:`", "--topology"),
    Key("slow", duration("0s"), "1ms", "blame a segment of a path that adds more than this", "--slow"),
    Key("slo", OBJECTIVES, None, "objectives of segments: the page is coloured by them", "--slo"),
    Key("sites", Kind("table", _sites), None, "where points are: `{ \"fra-*\" = \"Frankfurt\" }`",
        otherwise="their names up to the first `-` or `_`"),
    Key("names", Kind("table", _names), None, "agents of routers: `{ router = point }`"),
    Key("follow.every", duration("50ms"), "1s", "how often to read the topology and assign m-sets", "--follow"),
    Key("follow.overlap", duration("0s"), "30s", "how long to measure removed segments"),
    Key("follow.upgraded", listed(TEXT), None, "routers that measure", "--upgraded", "those whose agents are alive"),
    Key("nats.url", TEXT, None, "also receive messages from this broker: `tls://HOST:4222`", "--nats"),
    Key("nats.secret_file", PATH, None, "file with its token, or `user:password`", "--nats-secret"),
    Key("nats.ca", PATH, None, "CA that signed the broker's certificate", "--ca", "the system's"),
    Key("nats.insecure", FLAG, False, "allow plain text to other hosts and any certificate", "--insecure"),
    Key("nats.replicas", whole(1, 5), 1, "copies of each stream that the collector makes: 3 in a cluster of brokers",
        "--nats-replicas"),
    Key("share.lease", duration("500ms", "10m"), "1500ms", "with PostgreSQL and a broker: how long after its last "
        "sign of life the work of a collector goes to others"),
    Key("push.remote_write", TEXT, None, "also send metrics by Prometheus remote write: `https://HOST/api/v1/write`"),
    Key("push.otlp", TEXT, None, "also send metrics by OpenTelemetry: `https://HOST:4318/v1/metrics`"),
    Key("push.ipfix", TEXT, None, "also send each interval of each segment as IPFIX: `ipfix+udp://HOST:4739`"),
    Key("push.every", duration("1s", "1h"), "15s", "how often"),
    Key("push.secret_file", PATH, None, "file with the bearer token of the receivers"),
    Key("push.ca", PATH, None, "CA that signed the receivers' certificates", None, "the system's"),
    Key("push.insecure", FLAG, False, "allow plain text to other hosts and any certificate"),
    Key("limits.messages", whole(1, 10**6), 500, "messages per second of one point; beyond it, it waits"),
    Key("limits.bytes", size("64KiB"), "8MiB", "bytes per second of one point; beyond it, it waits"),
    Key("limits.time", number(0.01, 1.0), 0.25, "share of the processing time that one point may use"),
    Key("limits.connections", whole(2, 4096), 32, "open connections of one point"),
    Key("limits.strangers", whole(4, 4096), 256, "open connections of one address before a right token"),
    Key("limits.segments", whole(1, 4096), 512, "segments that one point may name"),
    Key("limits.classes", whole(16, 8192), 8192, "classes of a segment, or of all that one point has named"),
    Key("limits.memory", size("32MiB", "64GiB"), "256MiB", "memory for intervals that wait for their other half"),
    Key("retain.intervals", duration("0s"), "2d", "how long to keep single intervals", "--retain"),
    Key("retain.minutes", duration("0s"), "60d", "how long to keep sums of a minute", "--retain"),
    Key("retain.hours", duration("0s"), "2y", "how long to keep sums of an hour", "--retain"),
    Key("retain.messages", duration("0s"), "1d", "how long to keep messages without their counterpart", "--retain"),
    Key("retain.size", size("0B"), "10GiB", "size limit; beyond it waiting messages go, then old results", "--retain"),
))
# fmt: on


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of a collector."""

    host: str
    port: int
    store: str
    tokens: Tokens | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None
    ends: tuple[Ends, ...] = ()
    topology: str | None = None
    slow_ns: int = 10**6
    nats: Address | None = None
    retention: Retention = field(default_factory=Retention)
    names: Mapping[str, str] = field(default_factory=dict)  # router: name of its agent
    follow: Follow | None = None  # None: the topology is read once
    limits: Limits = field(default_factory=Limits)  # of one point
    most_named: int = MOST_NAMED
    most_classes: int = MOST_CLASSES
    most_waiting: int = MOST_BYTES
    audit: str | None = None
    client_ca: str | None = None
    token_file: str | None = None
    lease_ns: int = 1_500_000_000
    replicas: int = 1
    objectives: tuple[Objective, ...] = ()
    sites: Mapping[str, str] = field(default_factory=dict)
    push: Receivers | None = None
    given: str = ""  # which settings were given, in words

    @property
    def shares(self) -> bool:
        """Whether several collectors share the work."""
        return self.nats is not None and is_postgres(self.store)

    @classmethod
    def load(cls, file: str | None, given: Mapping[str, Any]) -> Settings:
        """Settings of a file and of the command line; `given`: values and tables of values, None where not given."""
        plain: dict[str, Any] = {} if file is None else read_toml(file)
        for name, value in given.items():
            if isinstance(value, Mapping):
                if some := {key: one for key, one in value.items() if one is not None}:
                    plain[name] = plain.get(name, {}) | some
            elif value is not None:
                plain[name] = value
        return cls.of(plain, file or "wirelag collect")

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Settings:
        """Settings from plain values; errors begin with `where`."""
        read = SCHEMA.read(plain, where)
        read.check()
        host, port = read["listen"]
        tokens = tokens_of(_text_of(read["token_file"]), read["token_file"]) if read.given("token_file") else None
        if tokens is None and not loopback(host):
            raise read.wrong("token_file", f"is missing: listening on {host} needs a token; name a file with one")
        certificate, key = read["certificate"], read["key"]
        if (certificate is None) != (key is None):
            raise read.wrong("key" if key is None else "certificate", "is missing: certificate and key go together")
        if read["client_ca"] is not None and certificate is None:
            raise read.wrong("client_ca", "needs certificate and key: only TLS has client certificates")
        for file in filter(None, (certificate, key, read["client_ca"])):
            _text_of(file)
        if read.given("follow") and not read.given("topology"):
            raise read.wrong("topology", "is missing: name the topology to follow, a file or ospf:")
        if read.given("follow") and read.given("nats") and is_postgres(read["store"]):
            raise read.wrong("follow", "works with one collector: those that share the work cannot follow yet")
        names = read["names"] or {}
        return cls(
            host,
            port,
            read["store"],
            tokens,
            certificate,
            key,
            read["segments"] or (),
            read["topology"],
            read["slow"],
            _nats(read) if read.given("nats") else None,
            Retention(*(read[f"retain.{name}"] for name in ("intervals", "minutes", "hours", "messages", "size"))),
            names,
            _follow(read, names) if read.given("follow") else None,
            Limits(*(read[f"limits.{name}"] for name in ("messages", "bytes", "time", "connections", "strangers"))),
            read["limits.segments"],
            read["limits.classes"],
            read["limits.memory"],
            read["audit"],
            read["client_ca"],
            read["token_file"],
            read["share.lease"],
            read["nats.replicas"],
            read["slo"] or (),
            read["sites"] or {},
            _receivers(read) if read.given("push") else None,
            read.stated(),
        )


def _follow(read: Read, names: Mapping[str, str]) -> Follow:
    return Follow(read["follow.every"], read["follow.overlap"], read["follow.upgraded"], names)


def _receivers(read: Read) -> Receivers:
    if all(read[f"push.{name}"] is None for name in ("remote_write", "otlp", "ipfix")):
        raise read.wrong("push.otlp", "is missing, and so are push.remote_write and push.ipfix: name a receiver")
    secret = _text_of(read["push.secret_file"]).strip() if read["push.secret_file"] else None
    found = []
    for name in ("push.remote_write", "push.otlp"):
        url = read[name]
        if url is not None and not url.startswith(("https://", "http://")):
            raise read.wrong(name, "must begin with https://, or http:// within the host")
        found.append(None if url is None else Address(url, secret, read["push.ca"], read["push.insecure"]))
    try:
        ipfix = None if read["push.ipfix"] is None else Target.parse(read["push.ipfix"])
    except ValueError as error:
        raise read.wrong("push.ipfix", str(error)) from None
    return Receivers(found[0], found[1], ipfix, read["push.every"])


def _nats(read: Read) -> Address:
    if read["nats.url"] is None:
        raise read.wrong("nats.url", "is missing: write tls://HOST:4222")
    secret = _text_of(read["nats.secret_file"]).strip() if read["nats.secret_file"] else None
    return Address(read["nats.url"], secret, read["nats.ca"], read["nats.insecure"])


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise WirelagError(f"{path}: cannot read ({reason})") from None
