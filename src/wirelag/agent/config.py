"""The configuration of an agent: settings become what the loop needs, or an error names the wrong one."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wirelag.agent import in_kernel
from wirelag.agent.reflectors import Reflecting, reflectors_of
from wirelag.agent.settings import MOST_SEGMENTS, MOST_WAYS, SCHEMA
from wirelag.errors import SettingError, WirelagError
from wirelag.estimators.catalogue import between_points, capabilities_of
from wirelag.estimators.protocol import Sent, TwoPoint
from wirelag.measure.groups import Groups
from wirelag.measure.methods import GROUPS, Method
from wirelag.network.segments import parse_segment
from wirelag.packets.addresses import Direction
from wirelag.packets.injection import Injection
from wirelag.packets.injection import Kind as Policy
from wirelag.packets.packet_id import PacketId
from wirelag.protocol.terms import Terms
from wirelag.settings import Settings
from wirelag.transport import Address
from wirelag.transport.exports import Target

if TYPE_CHECKING:
    from wirelag.capture.ring import Clock as ClockOf
    from wirelag.packets.grouping import Grouping

EXPECTED: Final = 100_000  # packets of an interval, unless set
SPREAD: Final = 8  # source ports of the references of a virtual link
CREDIT_NS: Final = 10**9  # how long unused share of references accumulates
LONGEST_NS: Final = 2 * 10**6  # time between references of the adaptive policy at most, unless set
REFERENCE_BYTES: Final = 86  # of Ethernet, UDP and the payload: the rest is IP


def grouping_of(by: str | None) -> Grouping | None:
    """A fresh grouping, from the words of the terms."""
    if by is None:
        return None
    from wirelag.packets.grouping import Grouping

    kind, ipv4_prefix, ipv6_prefix, most = by.split("/")
    return Grouping(kind, int(ipv4_prefix), int(ipv6_prefix), int(most))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Measured:
    """A segment that begins or ends at this point: its packets, and the terms of its synopses."""

    segment: str | None
    terms: Terms
    way: Direction | None
    references_only: bool
    references_way: Direction | None = None  # rli: if references have other addresses than packets
    end: str | None = None  # inside a router, which this point is at both ends: upstream or downstream

    @property
    def needs_few(self) -> bool:
        """Whether times and packet ids are all that it needs of packets."""
        delimiters = self.terms.delimiters
        by_id = delimiters is None or delimiters.by_id
        chosen = self.way is not None or self.references_only or self.terms.by is not None
        return by_id and not chosen and not self.terms.estimator.can.one_sided

    def grouping(self) -> Grouping | None:
        """A fresh grouping, by the terms."""
        return grouping_of(self.terms.by)


@dataclass(frozen=True, slots=True)
class Reference:
    """A stream of reference packets."""

    to: str
    source_port: int  # 0: any
    dscp: int
    injection: Injection
    source: str | None = None  # source address; None: chosen by routing
    hops: int = 0  # hop limit; 0: the usual one
    spread: int = 1  # source ports used in turn, so that equal paths each get some
    until_ns: int | None = None  # when to stop
    watches: bool = False  # packets that are captured decide, and the last of them is named in each
    among: tuple[Direction, ...] = ()  # these packets; none: all


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of references in an m-set from the collector, which chooses the segments but not the rate."""

    injection: Injection
    dscp: int


@dataclass(frozen=True, slots=True)
class PortSetting:
    """A port of this router, by interface or by address, and the router that it leads to."""

    to: str
    interface: str | None
    address: str | None


@dataclass(frozen=True, slots=True)
class InsideSettings:
    """How the inside of this router is measured."""

    terms: Terms
    ports: tuple[PortSetting, ...] | None  # None: the collector names them


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of an agent."""

    point: str
    interface: str | None
    captures: tuple[str, ...]
    speed: float
    filter: str | None
    promiscuous: bool
    tunnels: bool
    ring_bytes: int
    cores: int
    interval_ns: int
    grace_ns: int
    status_ns: int
    terms: Terms  # common terms; segments differ in direction and filter
    measured: tuple[Measured, ...]  # none with an m-set from the collector, or upstream of rli
    referred: tuple[str, ...]  # rli segments that begin here; the other end measures them
    m_set: Pace | None  # None: the collector does not choose segments
    past_bytes: int
    collector: Address | None
    spool: Path
    spool_bytes: int
    clock_error_ns: int | None
    references: tuple[Reference, ...]
    receive_references: bool
    expected_packets: int  # per interval
    control: tuple[str, int] | None  # destination of control packets, which cut intervals of lda
    in_kernel: bool = False
    then: str | None = None  # XDP program that runs after wirelag's
    clock: ClockOf = "kernel"  # whose timestamps
    given: str = ""  # which settings were given, in words
    inside: InsideSettings | None = None  # None: not measured
    reflectors: tuple[Reflecting, ...] = ()  # other ends of segments that this point measures alone
    ipfix: Target | None = None  # where intervals go as flows

    @classmethod
    def of(cls, settings: Settings) -> Config:
        """The configuration from settings; a WirelagError names a wrong one."""
        settings.check()
        if (settings["interface"] is None) == (settings["read"] is None):
            raise settings.wrong("interface", "name an interface to capture on, or captures to replay (read, -r)")
        if settings["read"] is not None and settings["filter"] is not None:
            raise settings.wrong("filter", "needs an interface: filter captures beforehand with tcpdump -r -w")
        if settings["read"] is not None and settings["capture.clock"] != "kernel":
            raise settings.wrong("capture.clock", "needs an interface: captures have their own timestamps")
        if settings["grace"] > settings["interval"]:
            raise settings.wrong("grace", "is longer than the interval: give a shorter one")
        terms, reflectors = _terms(settings), reflectors_of(settings)
        m_set, inside = _pace(settings, terms), _inside(settings, terms)
        if terms.estimator.can.one_sided:
            measured, referred = _interpolated(settings, terms)
        else:
            elsewhere = m_set is not None or inside is not None or not all(one.clock_only for one in reflectors)
            measured, referred = _measured(settings, terms, elsewhere), ()
        in_kernel.check(settings, terms, measured)
        among = tuple(way for _, way in referred if way is not None)
        references = tuple(_reference(settings, at, terms, among) for at in settings.rows("references"))
        return cls(
            settings["point"],
            settings["interface"],
            settings["read"] or (),
            settings["speed"],
            settings["filter"],
            settings["capture.promiscuous"],
            settings["capture.tunnels"],
            settings["capture.ring"],
            _cores(settings, terms),
            settings["interval"],
            settings["grace"],
            settings["status"],
            terms,
            measured,
            tuple(name for name, _ in referred),
            m_set,
            settings["estimator.past"],
            _collector(settings),
            Path(settings["spool.folder"] or _home() / settings["point"]),
            settings["spool.most"],
            settings["clock.error"],
            references,
            settings["receive_references"] or m_set is not None,
            settings["estimator.packets_per_interval"] or EXPECTED,
            _control(settings, terms),
            settings["capture.in_kernel"],
            settings["capture.then"],
            settings["capture.clock"],
            settings.stated(),
            inside,
            reflectors,
            _ipfix(settings),
        )

    @property
    def memory_bytes(self) -> int:
        """The memory limit of the open interval's meters, the interval being sent, and past ones."""
        if self.in_kernel:
            return in_kernel.memory_bytes(self)
        each = sum(m.terms.estimator.bytes * (2 if m.terms.by else 1) for m in self.measured)
        if self.m_set is not None:
            each += MOST_SEGMENTS * self.terms.estimator.bytes
        if self.inside is not None:
            each += 2 * MOST_WAYS * self.inside.terms.estimator.bytes
        return 2 * each + (self.past_bytes if self.terms.estimator.can.second_round else 0)

    def of_references(self, segment: str, source: str, target: str) -> Measured:
        """A segment measured by references between two addresses."""
        direction = f"{source}>{target}"
        return Measured(segment, _narrowed(self.terms, direction, True), Direction.parse(direction), True)

    def reference(self, segment: str, source: str, target: str, until_ns: int | None) -> Reference:
        """The references of a segment of the m-set.

        Those of a link arrive over the link or not at all; those of a virtual link take each of its paths.
        """
        assert self.m_set is not None
        link = parse_segment(segment).kind == "link"
        pace, spread = self.m_set, 1 if link else SPREAD
        injection = replace(pace.injection, size=_reference_bytes(target))
        return Reference(target, 0, pace.dscp, injection, source, 1 if link else 0, spread, until_ns)

    @property
    def needs_packets(self) -> bool:
        """Whether packets are captured here: not by who only sends references by the clock, or asks reflectors."""
        return bool(self.measured) or self.m_set is not None or self.inside is not None or self.watches

    @property
    def watches(self) -> bool:
        """Whether the packets captured here decide when references are sent."""
        return any(stream.watches for stream in self.references)


def _measured(settings: Settings, terms: Terms, by_collector: bool) -> tuple[Measured, ...]:
    found: list[Measured] = []
    for at in settings.rows("segments"):
        direction, only = settings[at + "direction"], settings[at + "packets"] == "references"
        way = Direction.parse(direction) if direction else None
        found.append(Measured(settings[at + "name"], _narrowed(terms, direction, only), way, only))
    names = [m.segment or str(m.terms) for m in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise settings.wrong("segments", f"duplicate name {twice}; give each segment its own")
    return tuple(found) or (() if by_collector else (Measured(None, terms, None, False),))


def _interpolated(
    settings: Settings, terms: Terms
) -> tuple[tuple[Measured, ...], tuple[tuple[str, Direction | None], ...]]:
    """Segments of rli that end here; and the names of those that begin here, with the direction of their packets."""
    if not settings.rows("segments"):
        raise settings.wrong("segments.0.name", "is missing: rli needs a segment of one direction")
    found, begin = [], []
    for at, one in zip(settings.rows("segments"), _measured(settings, terms, False), strict=True):
        if one.references_only:
            raise settings.wrong(at + "packets", "rli measures the packets between references: leave it out")
        if one.segment is not None and one.segment.replace(">>", ">").partition(">")[0] == settings["point"]:
            begin.append((one.segment, one.way))
            continue
        if one.way is None:
            raise settings.wrong(at + "direction", "is missing: rli needs the direction of arriving packets, SRC>DST")
        way = settings[at + "references"]
        found.append(replace(one, references_way=Direction.parse(way) if way else one.way))
    return tuple(found), tuple(begin)


def _narrowed(terms: Terms, direction: str | None, references_only: bool) -> Terms:
    words = [*([terms.filter] if terms.filter else []), *(["references"] if references_only else [])]
    return replace(terms, direction=direction, filter="; ".join(words) or None)


def _terms(settings: Settings) -> Terms:
    """The terms that both ends of a segment must agree on."""
    name, interval_ns = settings["estimator.name"], settings["interval"]
    can = capabilities_of(name)
    assert can is not None
    packets, port = settings["estimator.packets_per_interval"], settings["cut.control_port"]
    if settings["cut.control_to"] is not None and port is None:
        raise settings.wrong("cut.control_port", "is missing: control packets need a port")
    if settings["by"] == "dscp" and not can.by_mark:
        raise settings.wrong("by", f"{name} distinguishes flows, not marks: write flow, source, destination or prefix")
    method, coloured = _method(settings, name if not can.one_sided else "join"), settings["cut.at"] == "colours"
    estimator = _one_sided(settings) if can.one_sided else _two_point(settings, method)
    prefixes = {"ipv4_prefix": settings["ipv4_prefix"], "ipv6_prefix": settings["ipv6_prefix"]}
    try:
        delimiters = method.delimiters(estimator, interval_ns, packets)
        if delimiters is not None and port is None:
            # any packet may cut: a slow segment, too, has intervals
            delimiters = replace(delimiters, bits=0, colour=int(settings["cut.colour"][-1]) if coloured else None)
        grouping = Groups(settings["by"], GROUPS, **prefixes, most=settings["most_groups"]).grouping()
    except SettingError as error:
        raise _wrong(settings, error) from None
    return Terms(
        estimator,
        PacketId(flow=not settings["packet_id.nat"], prefix=settings["packet_id.prefix"], seed=estimator.seed),
        interval_ns,
        delimiters,
        "/".join(map(str, (grouping.by, *prefixes.values(), settings["most_groups"]))) if grouping else None,
        None,
        "; ".join([w for w in (settings["filter"], settings["capture.tunnels"] and "inside tunnels") if w]) or None,
    )


def _ipfix(settings: Settings) -> Target | None:
    try:
        return None if settings["push.ipfix"] is None else Target.parse(settings["push.ipfix"])
    except ValueError as error:
        raise settings.wrong("push.ipfix", str(error)) from None


def _inside(settings: Settings, terms: Terms) -> InsideSettings | None:
    """How the inside is measured; the packets and their ids are those of all segments."""
    if settings["inside.by"] is None:
        if settings.given("inside") or settings.rows("ports"):
            raise settings.wrong("inside.by", "is missing: write ports, or collector")
        return None
    for name, problem in {
        "interface": None if settings["interface"] == "any" else 'must be "any": the inside has several ports',
        "capture.in_kernel": settings["capture.in_kernel"] and "is not available inside a router: leave it out",
        "capture.cores": settings["capture.cores"] > 1 and "inside a router packets are needed in order: use one core",
        "capture.clock": settings["capture.clock"] != "kernel" and "inside a router the kernel's is used: leave it out",
    }.items():
        if problem:
            raise settings.wrong(name, problem)
    by_collector = settings["inside.by"] == "collector"
    if by_collector and settings["m_set.by"] is None:
        raise settings.wrong("m_set.by", "is missing: only an agent with an m-set is told where its ports lead")
    rows = settings.rows("ports")
    if by_collector == bool(rows):
        raise settings.wrong("ports", "the collector names them: leave them out" if rows else "name a port at least")
    ports = tuple(_port(settings, at) for at in rows)
    given = {key: settings[f"inside.{key}"] for key in ("rows", "packets_per_interval", "memory")}
    given |= {key: settings[f"estimator.{key}"] for key in ("loss", "tail", "seed")}
    try:
        method = Method(estimator=settings["inside.estimator"], **given)
        estimator: TwoPoint = method.make().for_agent(settings["inside.rows"])
        delimiters = method.delimiters(estimator, settings["interval"], settings["inside.packets_per_interval"])
    except SettingError as error:
        raise settings.wrong(f"inside.{error.name}", error.problem) from None
    if delimiters is not None:
        delimiters = replace(delimiters, bits=0)
    return InsideSettings(replace(terms, estimator=estimator, delimiters=delimiters), None if by_collector else ports)


def _port(settings: Settings, at: str) -> PortSetting:
    to, interface, address = (settings[at + key] for key in ("to", "interface", "address"))
    if (interface is None) == (address is None):
        raise settings.wrong(at + "interface", "name the interface, or the address of this router there")
    return PortSetting(to, interface, address)


def _method(settings: Settings, name: str) -> Method:
    """The two-point method, and where its intervals end."""
    given = {key: settings[f"estimator.{key}"] for key in ("rows", "loss", "banks", "buckets", "deviation", "tail")}
    given |= {key: settings[f"estimator.{key}"] for key in ("packets_per_interval", "memory", "seed")}
    try:
        cut, port = settings["cut.at"], settings["cut.control_port"]
        if cut == "colours" and port is not None:
            raise SettingError("control_port", "cuts at control packets: leave cut.at out")
        return Method(estimator=name, cut="packets" if cut == "colours" else cut, control_port=port, **given)
    except SettingError as error:
        raise _wrong(settings, error) from None


def _wrong(settings: Settings, error: SettingError) -> WirelagError:
    """The error, with the setting's name in the file."""
    option = "--" + error.name.replace("_", "-")
    return settings.wrong(SCHEMA.name_of(option) or error.name, error.problem)


def _two_point(settings: Settings, method: Method) -> TwoPoint:
    estimator: TwoPoint = method.make().for_agent(settings["estimator.rows"])
    return estimator


def _one_sided(settings: Settings) -> Sent:
    from wirelag.estimators.rli import Rli

    memory = settings["estimator.memory"] if settings.given("estimator.memory") else None
    return Rli.for_agent(settings["estimator.method"], memory, settings["estimator.seed"])


def _collector(settings: Settings) -> Address | None:
    url, token_file, ca = (settings[f"collector.{key}"] for key in ("url", "token_file", "ca"))
    if url is None:
        return None
    if ca is not None and not os.access(ca, os.R_OK):
        raise settings.wrong("collector.ca", f"{ca}: cannot read it")
    certificate, key = settings["collector.certificate"], settings["collector.key"]
    if (certificate is None) != (key is None):
        missing = "collector.key" if key is None else "collector.certificate"
        raise settings.wrong(missing, "is missing: certificate and key go together")
    secret = _secret(settings, token_file) if token_file else None
    try:
        return Address(url, secret, ca, settings["collector.insecure"], settings["collector.from"], certificate, key)
    except WirelagError as error:
        raise settings.wrong("collector.url", str(error)) from None


def _secret(settings: Settings, path: str) -> str:
    """A token from a file. Errors never show its content."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise settings.wrong("collector.token_file", f"{path}: cannot read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise settings.wrong("collector.token_file", f"{path}: holds no token: write one line without spaces")
    return text


def _reference(settings: Settings, at: str, terms: Terms, among: tuple[Direction, ...]) -> Reference:
    """A stream of references; `among`: packets of rli that leave here."""
    to, source, port, hops, spread = (settings[at + key] for key in ("to", "from", "source_port", "hops", "spread"))
    if source is not None and (":" in source) != (":" in to):
        raise settings.wrong(at + "from", f"{source} and {to} are of different address families")
    if spread > 1 and port:
        raise settings.wrong(at + "spread", "needs several ports: leave source_port out")
    between, direction = terms.estimator.can.one_sided, settings[at + "among"]
    live = settings["interface"] is not None and not settings["capture.in_kernel"]
    adaptive = between and live and not settings.given(at + "every")
    kind: Policy = settings[at + "policy"] or ("adaptive" if adaptive else "1-in-tau")
    if kind != "1-in-tau" and not live:
        raise settings.wrong(at + "policy", f"{kind} needs packets captured on an interface: use 1-in-tau")
    return Reference(
        to,
        port,
        settings[at + "dscp"],
        _injection(settings, at, kind, to),
        source,
        hops,
        spread,
        watches=live and (between or kind != "1-in-tau"),
        among=(Direction.parse(direction),) if direction else among,
    )


def _reference_bytes(to: str) -> int:
    """The size of a reference on Ethernet, as captures and queues count it."""
    return REFERENCE_BYTES + (40 if ":" in to else 20)


def _pace(settings: Settings, terms: Terms) -> Pace | None:
    if settings["m_set.by"] is None:
        return None
    if settings["interface"] is None:
        raise settings.wrong("m_set.by", "needs an interface: captures cannot measure an m-set")
    if terms.estimator.can.one_sided:
        known = ", ".join(between_points(live=True, one_sided=False))
        raise settings.wrong("m_set.by", f"measures only references: use one of {known}")
    if terms.delimiters is not None:
        raise settings.wrong("m_set.by", 'needs intervals cut by the clock: cut.at = "clock"')
    return Pace(_injection(settings, "m_set.", "1-in-tau", "::"), settings["m_set.dscp"])


def _injection(settings: Settings, at: str, kind: Policy, to: str) -> Injection:
    try:
        return Injection(
            settings[at + "link"],
            kind,
            n=settings[at + "n"] if kind != "1-in-tau" else 1,
            tau_ns=settings[at + "every"],
            longest_ns=settings[at + "every"] if settings.given(at + "every") else LONGEST_NS,
            most_share=settings[at + "share"],
            depth_ns=CREDIT_NS,
            size=_reference_bytes(to),
        )
    except ValueError as error:
        raise settings.wrong(at + "every", str(error)) from None


def _cores(settings: Settings, terms: Terms) -> int:
    cores: int = settings["capture.cores"]
    most = os.cpu_count() or 1
    if cores > most:
        raise settings.wrong("capture.cores", f"{cores} is out of range: 1 to {most}, the cores of this host")
    if cores > 1 and terms.estimator.can.ordered:
        raise settings.wrong("capture.cores", f"{terms.estimator.name} needs packets in order: use one core")
    if cores > 1 and terms.delimiters is not None:
        raise settings.wrong("capture.cores", "needs intervals cut by the clock (--cut clock)")
    return cores


def _control(settings: Settings, terms: Terms) -> tuple[str, int] | None:
    to = settings["cut.control_to"]
    if to is None or terms.delimiters is None or terms.delimiters.control_port is None:
        return None
    return to, terms.delimiters.control_port


def _home() -> Path:
    """The folder for waiting messages: systemd's for a unit, or the user's own."""
    if folder := os.environ.get("STATE_DIRECTORY"):
        return Path(folder.partition(":")[0]) / "spool"
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "wirelag" / "spool"
