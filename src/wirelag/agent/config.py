"""What an agent does, settled: settings become what the loop needs, or one line that says what is wrong with them."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from wirelag.agent import in_kernel
from wirelag.agent.settings import Settings, name_of
from wirelag.cli.method import delimiters_of, estimator_of, grouping_of, packet_id_of
from wirelag.courses import Direction
from wirelag.errors import WirelagError
from wirelag.exchange import Terms
from wirelag.injection import Injection
from wirelag.network.segments import parse_segment
from wirelag.transport import Address

if TYPE_CHECKING:
    from wirelag.estimators.finecomb import Finecomb
    from wirelag.estimators.lda import Lda
    from wirelag.estimators.rda import Rda
    from wirelag.grouping import Grouping

POINT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it is part of addresses, subjects and file names
SHORTEST_NS: Final = 10 * 10**6  # of intervals
FASTEST_NS: Final = 10**6  # between references
EXPECTED: Final = 100_000  # packets of an interval, where nobody says how many
MOST_REFERENCES: Final = 64
MOST_SEGMENTS: Final = 64
CREDIT_NS: Final = 10**9  # how long the share of references may be saved up
REFERENCE_BYTES: Final = 92  # of the IP packet


@dataclass(frozen=True, slots=True)
class Measured:
    """A segment that this point is an end of: which packets belong to it, and the terms of its synopses."""

    segment: str | None
    terms: Terms
    way: Direction | None
    references_only: bool

    def grouping(self) -> Grouping | None:
        """A fresh one, as the terms have it."""
        if self.terms.by is None:
            return None
        kind, ipv4_prefix, ipv6_prefix, most = self.terms.by.split("/")
        from wirelag.grouping import Grouping

        return Grouping(kind, int(ipv4_prefix), int(ipv6_prefix), int(most))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Reference:
    """A stream of reference packets."""

    to: str
    source_port: int  # 0: any
    dscp: int
    injection: Injection


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
    interval_ns: int
    grace_ns: int
    status_ns: int
    measured: tuple[Measured, ...]
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
        measured = _measured(settings)
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
            settings["interval"],
            settings["grace"],
            settings["status"],
            measured,
            settings["estimator.past"],
            _collector(settings),
            Path(settings["spool.folder"] or _home() / point),
            settings["spool.most"],
            settings["clock.error"],
            tuple(_reference(settings, f"references.{i}.") for i in range(_count(settings, "references"))),
            settings["receive_references"],
            settings["estimator.packets_per_interval"] or EXPECTED,
            _control(settings, measured[0].terms),
            settings["capture.in_kernel"],
            settings["capture.then"],
        )

    @property
    def memory_bytes(self) -> int:
        """What the meters of the open interval may hold at most, the interval that is being sent, and past ones."""
        each = sum(_meter_bytes(m.terms.estimator) * (2 if m.terms.by else 1) for m in self.measured)
        return 2 * each + (self.past_bytes if any(m.terms.estimator.name == "rda" for m in self.measured) else 0)


def _meter_bytes(estimator: Lda | Finecomb | Rda) -> int:
    if estimator.name == "rda":
        return estimator.memory  # type: ignore[union-attr]
    return estimator.bytes  # type: ignore[union-attr]


def _count(settings: Settings, table: str) -> int:
    count, most = settings.count(table), MOST_REFERENCES if table == "references" else MOST_SEGMENTS
    if count > most:
        raise WirelagError(f"{table}: {count} are too many for one agent: {most} at most; start another one")
    return count


def _measured(settings: Settings) -> tuple[Measured, ...]:
    terms = _terms(settings)
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
    if len({(m.segment, str(m.terms)) for m in found}) < len(found):
        raise WirelagError("segments: two of them are the same; give each its own name or direction")
    return tuple(found) or (Measured(None, terms, None, False),)


def _narrowed(terms: Terms, direction: str | None, references_only: bool) -> Terms:
    from dataclasses import replace

    words = [*([terms.filter] if terms.filter else []), *(["references"] if references_only else [])]
    return replace(terms, direction=direction, filter="; ".join(words) or None)


def _terms(settings: Settings) -> Terms:
    """What both ends of a segment must agree on; wrong values are found by what reads the options of other commands."""
    name, interval_ns = settings["estimator.name"], settings["interval"]
    if name not in ("lda", "finecomb", "rda"):
        raise settings.wrong("estimator.name", f"{name!r} is not one of lda, finecomb, rda")
    seed, packets = settings["estimator.seed"], settings["estimator.packets_per_interval"]
    if settings["cut.control_to"] is not None and settings["cut.control_port"] is None:
        raise settings.wrong("cut.control_port", "is missing: control packets need a port")
    try:
        estimator: Any = estimator_of(
            name,
            rows=settings["estimator.rows"],
            loss=settings["estimator.loss"],
            packets=packets,
            banks=settings["estimator.banks"],
            no_check=False,
            buckets=settings["estimator.buckets"],
            rateless=False,
            deviation=settings["estimator.deviation"],
            tail=settings["estimator.tail"],
            memory=str(settings["estimator.memory"]),
            seed=seed,
        )
        prefixes = settings["ipv4_prefix"], settings["ipv6_prefix"], settings["most_groups"]
        grouping = grouping_of(settings["by"], *prefixes)
        return Terms(
            estimator,
            packet_id_of(settings["packet_id.nat"], settings["packet_id.prefix"], seed),
            interval_ns,
            delimiters_of(estimator, interval_ns, settings["cut.at"], settings["cut.control_port"], packets),
            "/".join(map(str, (grouping.by, *prefixes))) if grouping else None,
            None,
            "; ".join([w for w in (settings["filter"], settings["capture.tunnels"] and "inside tunnels") if w]) or None,
        )
    except typer.BadParameter as error:
        hint = error.param_hint if isinstance(error.param_hint, str) else ""
        raise settings.wrong(name_of(hint) or hint or "estimator.name", error.message) from None


def _collector(settings: Settings) -> Address | None:
    url, token_file, ca = (settings[f"collector.{key}"] for key in ("url", "token_file", "ca"))
    if url is None:
        return None
    if ca is not None and not os.access(ca, os.R_OK):
        raise settings.wrong("collector.ca", f"{ca}: cannot be read")
    secret = _secret(settings, token_file) if token_file else None
    try:
        return Address(url, secret, ca, settings["collector.insecure"])
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
    to = settings[at + "to"]
    if to is None:
        raise settings.wrong(at + "to", "is missing: the address to which references go")
    _address(settings, at + "to", to)
    source_port, dscp = settings[at + "source_port"], settings[at + "dscp"]
    if not 0 <= source_port < 1 << 16:
        raise settings.wrong(at + "source_port", "ports go from 1 to 65535")
    if not 0 <= dscp <= 63:
        raise settings.wrong(at + "dscp", "goes from 0 to 63")
    every_ns = settings[at + "every"]
    if every_ns < FASTEST_NS:
        raise settings.wrong(at + "every", "is too often: one each millisecond at most")
    try:
        injection = Injection(
            settings[at + "link"],
            "1-in-tau",
            tau_ns=every_ns,
            most_share=settings[at + "share"],
            depth_ns=CREDIT_NS,
            size=REFERENCE_BYTES,
        )
    except ValueError as error:
        raise settings.wrong(at + "every", str(error)) from None
    return Reference(to, source_port, dscp, injection)


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
