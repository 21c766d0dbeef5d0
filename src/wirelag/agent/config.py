"""What an agent does, settled: settings become what the loop needs, or one line that says what is wrong with them."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wirelag.agent import in_kernel
from wirelag.agent.settings import Settings, name_of
from wirelag.errors import SettingError, WirelagError
from wirelag.measure.groups import Groups
from wirelag.measure.methods import GROUPS, Method
from wirelag.network.segments import parse_segment
from wirelag.packets.addresses import Direction
from wirelag.packets.injection import Injection
from wirelag.protocol.terms import Terms, TwoPoint
from wirelag.transport import Address

if TYPE_CHECKING:
    from wirelag.estimators.rli import Rli
    from wirelag.packets.grouping import Grouping

POINT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it is part of addresses, subjects and file names
INSTEAD: Final = {
    "join": "'join' would send every packet: rda says the same, as exactly, in fewer bytes",
}
SHORTEST_NS: Final = 10 * 10**6  # of intervals
FASTEST_NS: Final = 10**6  # between references
EXPECTED: Final = 100_000  # packets of an interval, where nobody says how many
MOST_REFERENCES: Final = 64
MOST_SEGMENTS: Final = 64
SPREAD: Final = 8  # ports that the references of a virtual link come from
MOST_SPREAD: Final = 64
CREDIT_NS: Final = 10**9  # how long the share of references may be saved up
REFERENCE_BYTES: Final = 92  # of the IP packet
SYMBOL_ROWS: Final = 32  # beside the symbols of rda
FLOW_BYTES: Final = 16 << 20  # of rli: 128 a flow, in an interval
STASH: Final = 64  # packets of finecomb near the edges: all of them are sent


@dataclass(frozen=True, slots=True)
class Measured:
    """A segment that this point is an end of: which packets belong to it, and the terms of its synopses."""

    segment: str | None
    terms: Terms
    way: Direction | None
    references_only: bool
    references_way: Direction | None = None  # of rli: where they have other addresses than packets

    def grouping(self) -> Grouping | None:
        """A fresh one, as the terms have it."""
        if self.terms.by is None:
            return None
        kind, ipv4_prefix, ipv6_prefix, most = self.terms.by.split("/")
        from wirelag.packets.grouping import Grouping

        return Grouping(kind, int(ipv4_prefix), int(ipv6_prefix), int(most))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Reference:
    """A stream of reference packets."""

    to: str
    source_port: int  # 0: any
    dscp: int
    injection: Injection
    source: str | None = None  # the address they come from; None: as routes have it
    hops: int = 0  # that they may take; 0: as many as usual
    spread: int = 1  # ports they come from in turn: where paths are equal, each takes some of them
    until_ns: int | None = None  # then no more are sent


@dataclass(frozen=True, slots=True)
class Pace:
    """How references of an m-set are sent that the collector chooses: what is sent is its choice, how much is not."""

    injection: Injection
    dscp: int


@dataclass(frozen=True, slots=True)
class Config:
    """All that an agent does."""

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
    terms: Terms  # of all segments, but for their direction and filter
    measured: tuple[Measured, ...]  # none where the m-set is the collector's, and upstream of rli
    referred: tuple[str, ...]  # segments of rli that begin here: the other end measures them
    m_set: Pace | None  # None: the collector has no say in what is measured
    past_bytes: int
    collector: Address | None
    spool: Path
    spool_bytes: int
    clock_error_ns: int | None
    references: tuple[Reference, ...]
    receive_references: bool
    expected_packets: int  # in an interval
    control: tuple[str, int] | None  # where control packets go that cut the intervals of lda
    in_kernel: bool = False
    then: str | None = None  # the XDP program that runs after ours

    @classmethod
    def of(cls, settings: Settings) -> Config:
        """From settings; a WirelagError names the one that is wrong."""
        point = settings["point"]
        if point is None:
            raise settings.wrong("point", "is missing: name this vantage point, for example edge1")
        if not POINT.fullmatch(point):
            raise settings.wrong("point", f"{point!r} is no name: up to 64 letters, digits, - and _")
        if (settings["interface"] is None) == (settings["read"] is None):
            raise settings.wrong("interface", "name an interface to listen at, or captures to read (read, -r)")
        if settings["read"] is not None and settings["filter"] is not None:
            raise settings.wrong("filter", "is for an interface: filter the captures before, with tcpdump -r -w")
        if settings["interval"] < SHORTEST_NS:
            raise settings.wrong("interval", "is too short: intervals have 10 ms or more")
        if settings["grace"] > settings["interval"]:
            raise settings.wrong("grace", "is longer than the interval")
        terms = _terms(settings)
        m_set = _pace(settings, terms)
        if terms.estimator.name == "rli":
            measured, referred = _interpolated(settings, terms)
        else:
            measured, referred = _measured(settings, terms, m_set is not None), ()
        in_kernel.check(settings, measured)
        return cls(
            point,
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
            referred,
            m_set,
            settings["estimator.past"],
            _collector(settings),
            Path(settings["spool.folder"] or _home() / point),
            settings["spool.most"],
            settings["clock.error"],
            tuple(_reference(settings, f"references.{i}.") for i in range(_count(settings, "references"))),
            settings["receive_references"] or m_set is not None,
            settings["estimator.packets_per_interval"] or EXPECTED,
            _control(settings, terms),
            settings["capture.in_kernel"],
            settings["capture.then"],
        )

    @property
    def memory_bytes(self) -> int:
        """What the meters of the open interval may hold at most, the interval that is being sent, and past ones."""
        each = sum(_meter_bytes(m.terms.estimator) * (2 if m.terms.by else 1) for m in self.measured)
        if self.m_set is not None:
            each += MOST_SEGMENTS * _meter_bytes(self.terms.estimator)
        return 2 * each + (self.past_bytes if self.terms.estimator.name == "rda" else 0)

    def of_references(self, segment: str, source: str, target: str) -> Measured:
        """A segment that is measured by references between two addresses."""
        direction = f"{source}>{target}"
        return Measured(segment, _narrowed(self.terms, direction, True), Direction.parse(direction), True)

    def reference(self, segment: str, source: str, target: str, until_ns: int | None) -> Reference:
        """The references of a segment of the m-set.

        A link's arrive over the link or not at all; a virtual link's take each of its paths.
        """
        assert self.m_set is not None
        link = parse_segment(segment).kind == "link"
        pace, spread = self.m_set, 1 if link else SPREAD
        return Reference(target, 0, pace.dscp, pace.injection, source, 1 if link else 0, spread, until_ns)


def _meter_bytes(estimator: TwoPoint | Rli) -> int:
    if estimator.name == "rda":
        return estimator.memory  # type: ignore[union-attr]
    if estimator.name == "rli":
        return estimator.memory + 144 * estimator.most_flows // 2 + 112 * estimator.buffer  # type: ignore[union-attr]
    return estimator.bytes  # type: ignore[union-attr]


def _count(settings: Settings, table: str) -> int:
    count, most = settings.count(table), MOST_REFERENCES if table == "references" else MOST_SEGMENTS
    if count > most:
        raise WirelagError(f"{table}: {count} are too many for one agent: {most} at most; start another one")
    return count


def _measured(settings: Settings, terms: Terms, by_collector: bool) -> tuple[Measured, ...]:
    found: list[Measured] = []
    for i in range(_count(settings, "segments")):
        at = f"segments.{i}."
        name, direction, packets = (settings[at + key] for key in ("name", "direction", "packets"))
        if packets not in ("all", "references"):
            raise settings.wrong(at + "packets", f"{packets!r} is not one of all, references")
        try:
            way = Direction.parse(direction) if direction else None
        except ValueError as error:
            raise settings.wrong(at + "direction", str(error)) from None
        if name is not None:
            try:
                name = str(parse_segment(name))
            except WirelagError as error:
                raise settings.wrong(at + "name", str(error)) from None
        only = packets == "references"
        found.append(Measured(name, _narrowed(terms, direction, only), way, only))
    names = [m.segment or str(m.terms) for m in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise WirelagError(f"segments: two of them are the same, {twice}; give each its own name")
    return tuple(found) or (() if by_collector else (Measured(None, terms, None, False),))


def _interpolated(settings: Settings, terms: Terms) -> tuple[tuple[Measured, ...], tuple[str, ...]]:
    """Segments of rli that end here, and the names of those that begin here."""
    if not _count(settings, "segments"):
        raise settings.wrong("segments.0.name", "is missing: rli measures packets of one direction, among references")
    found, begin = [], []
    for i, one in enumerate(_measured(settings, terms, False)):
        at = f"segments.{i}."
        if one.references_only:
            raise settings.wrong(at + "packets", "rli measures the packets between references: leave it out")
        if one.segment is not None and one.segment.replace(">>", ">").partition(">")[0] == settings["point"]:
            begin.append(one.segment)
            continue
        if one.way is None:
            raise settings.wrong(at + "direction", "is missing: rli needs to know which packets arrive, SRC>DST")
        way, text = None, settings[at + "references"]
        if text is not None:
            try:
                way = Direction.parse(text)
            except ValueError as error:
                raise settings.wrong(at + "references", str(error)) from None
        found.append(replace(one, references_way=way or one.way))
    return tuple(found), tuple(begin)


def _narrowed(terms: Terms, direction: str | None, references_only: bool) -> Terms:
    words = [*([terms.filter] if terms.filter else []), *(["references"] if references_only else [])]
    return replace(terms, direction=direction, filter="; ".join(words) or None)


def _terms(settings: Settings) -> Terms:
    """What both ends of a segment must agree on; wrong values are found by what reads the options of other commands."""
    name, interval_ns = settings["estimator.name"], settings["interval"]
    if name not in ("lda", "finecomb", "rda", "rli"):
        instead = INSTEAD.get(name, f"{name!r} is not one of lda, finecomb, rda, rli")
        raise settings.wrong("estimator.name", instead)
    seed, packets = settings["estimator.seed"], settings["estimator.packets_per_interval"]
    if settings["cut.control_to"] is not None and settings["cut.control_port"] is None:
        raise settings.wrong("cut.control_port", "is missing: control packets need a port")
    if name == "rli" and (settings["cut.at"] == "packets" or settings["cut.control_port"] is not None):
        raise settings.wrong("cut.at", "only lda is cut at packets")
    try:
        method = Method(
            estimator="lda" if name == "rli" else name,  # what all share is checked alike
            rows=settings["estimator.rows"],
            loss=settings["estimator.loss"],
            packets_per_interval=packets,
            banks=settings["estimator.banks"],
            buckets=settings["estimator.buckets"],
            deviation=settings["estimator.deviation"],
            tail=settings["estimator.tail"],
            memory=settings["estimator.memory"],
            seed=seed,
            cut=settings["cut.at"],
            control_port=settings["cut.control_port"],
            nat=settings["packet_id.nat"],
            prefix=settings["packet_id.prefix"],
        )
        estimator: Any = method.make()
        if name == "rli":
            estimator = _rli(settings)
        elif name == "rda" and settings["estimator.buckets"] is None:
            estimator = replace(estimator, short=True, rows=settings["estimator.rows"] or SYMBOL_ROWS)
        elif name == "finecomb":
            estimator = replace(estimator, stash=min(estimator.stash, STASH))
        prefixes = settings["ipv4_prefix"], settings["ipv6_prefix"], settings["most_groups"]
        grouping = Groups(settings["by"], GROUPS, prefixes[2], *prefixes[:2]).grouping()
        return Terms(
            estimator,
            method.packet_id(),
            interval_ns,
            method.delimiters(estimator, interval_ns, packets),
            "/".join(map(str, (grouping.by, *prefixes))) if grouping else None,
            None,
            "; ".join([w for w in (settings["filter"], settings["capture.tunnels"] and "inside tunnels") if w]) or None,
        )
    except SettingError as error:
        option = "--" + error.name.replace("_", "-")
        raise settings.wrong(name_of(option) or option, error.problem) from None


def _rli(settings: Settings) -> Rli:
    from wirelag.estimators.rli import METHODS, Rli

    method, memory = settings["estimator.method"], settings["estimator.memory"]
    if method not in METHODS:
        raise settings.wrong("estimator.method", f"{method!r} is not one of {', '.join(METHODS)}")
    if settings["by"] == "dscp":
        raise settings.wrong("by", "rli tells flows apart, not what is marked: flow, source, destination or prefix")
    memory = memory if settings.given("estimator.memory") else FLOW_BYTES
    return Rli(method, memory, most_flows=max(1, memory // 128), seed=settings["estimator.seed"])


def _collector(settings: Settings) -> Address | None:
    url, token_file, ca = (settings[f"collector.{key}"] for key in ("url", "token_file", "ca"))
    if url is None:
        return None
    if ca is not None and not os.access(ca, os.R_OK):
        raise settings.wrong("collector.ca", f"{ca}: cannot be read")
    secret = _secret(settings, token_file) if token_file else None
    source = settings["collector.from"]
    if source is not None:
        _address(settings, "collector.from", source)
    try:
        return Address(url, secret, ca, settings["collector.insecure"], source)
    except WirelagError as error:
        raise settings.wrong("collector.url", str(error)) from None


def _secret(settings: Settings, path: str) -> str:
    """A token from a file. What is in it never appears in an error."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise settings.wrong("collector.token_file", f"{path}: cannot read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise settings.wrong("collector.token_file", f"{path}: holds no token: one line of letters, digits and signs")
    return text


def _reference(settings: Settings, at: str) -> Reference:
    to, source = settings[at + "to"], settings[at + "from"]
    if to is None:
        raise settings.wrong(at + "to", "is missing: the address to which references go")
    _address(settings, at + "to", to)
    if source is not None:
        _address(settings, at + "from", source)
        if (":" in source) != (":" in to):
            raise settings.wrong(at + "from", f"{source} and {to} are of different families")
    source_port, hops, spread = (settings[at + key] for key in ("source_port", "hops", "spread"))
    if not 0 <= source_port < 1 << 16:
        raise settings.wrong(at + "source_port", "ports go from 1 to 65535")
    if not 0 <= hops <= 255:
        raise settings.wrong(at + "hops", "goes from 1 to 255; 0 is as many as usual")
    if not 1 <= spread <= MOST_SPREAD:
        raise settings.wrong(at + "spread", f"goes from 1 to {MOST_SPREAD} ports")
    if spread > 1 and source_port:
        raise settings.wrong(at + "spread", "needs several ports: leave source_port out")
    dscp, injection = _dscp(settings, at), _injection(settings, at)
    return Reference(to, source_port, dscp, injection, source, hops, spread)


def _pace(settings: Settings, terms: Terms) -> Pace | None:
    by = settings["m_set.by"]
    if by is None:
        return None
    if by != "collector":
        raise settings.wrong("m_set.by", f"{by!r} is not known: write collector, or leave it out")
    if settings["interface"] is None:
        raise settings.wrong("m_set.by", "is for an interface: captures hold what they hold")
    if terms.estimator.name == "rli":
        raise settings.wrong("m_set.by", "measures references alone: lda, finecomb or rda do that")
    if terms.delimiters is not None:
        raise settings.wrong("m_set.by", 'needs intervals that the clock cuts: cut.at = "clock"')
    return Pace(_injection(settings, "m_set."), _dscp(settings, "m_set."))


def _dscp(settings: Settings, at: str) -> int:
    dscp: int = settings[at + "dscp"]
    if not 0 <= dscp <= 63:
        raise settings.wrong(at + "dscp", "goes from 0 to 63")
    return dscp


def _injection(settings: Settings, at: str) -> Injection:
    every_ns = settings[at + "every"]
    if every_ns < FASTEST_NS:
        raise settings.wrong(at + "every", "is too often: one each millisecond at most")
    try:
        return Injection(
            settings[at + "link"],
            "1-in-tau",
            tau_ns=every_ns,
            most_share=settings[at + "share"],
            depth_ns=CREDIT_NS,
            size=REFERENCE_BYTES,
        )
    except ValueError as error:
        raise settings.wrong(at + "every", str(error)) from None


def _cores(settings: Settings, terms: Terms) -> int:
    cores: int = settings["capture.cores"]
    most = os.cpu_count() or 1
    if not 1 <= cores <= most:
        raise settings.wrong("capture.cores", f"must be between 1 and {most}, as many as there are here")
    if cores > 1 and terms.estimator.name == "rli":
        raise settings.wrong("capture.cores", "rli needs packets in their order: one core")
    if cores > 1 and terms.delimiters is not None:
        raise settings.wrong("capture.cores", "needs intervals that the clock cuts (--cut clock)")
    return cores


def _control(settings: Settings, terms: Terms) -> tuple[str, int] | None:
    to = settings["cut.control_to"]
    if to is None or terms.delimiters is None or terms.delimiters.control_port is None:
        return None
    _address(settings, "cut.control_to", to)
    return to, terms.delimiters.control_port


def _address(settings: Settings, name: str, text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise settings.wrong(name, f"{text!r} is not an address: write 192.0.2.1 or 2001:db8::1") from None


def _home() -> Path:
    """Where messages wait: systemd's folder for a unit, or the user's own."""
    if folder := os.environ.get("STATE_DIRECTORY"):
        return Path(folder.partition(":")[0]) / "spool"
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "wirelag" / "spool"
