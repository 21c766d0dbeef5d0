"""Flows and segments as IPFIX messages (RFC 7011), for files and collectors; delays by the elements of RFC 9951.

Law: a message holds no record before the template of its fields. The sequence number counts data records, those of
options too. A record holds what is known: one without a delay, or with one that no element can hold (below 0, above
71 minutes), leaves it out, and its template differs. The delays of the reverse direction are those of RFC 5103.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirelag.render.flow_records import Delays

if TYPE_CHECKING:
    from wirelag.measure.result import Result
    from wirelag.render.flow_records import FlowRecord


class Element(NamedTuple):
    """An information element: its number at IANA, the format of its value, and its enterprise, if it has one."""

    number: int
    form: str  # of struct; "" is a string of variable length
    enterprise: int = 0

    def specifier(self) -> bytes:
        """The field of a template."""
        length = struct.calcsize(">" + self.form) if self.form else VARIABLE
        if self.enterprise:
            return struct.pack(">HHI", self.number | 0x8000, length, self.enterprise)
        return struct.pack(">HH", self.number, length)

    def reverse(self) -> Element:
        """The same of the reverse direction (RFC 5103)."""
        return self._replace(enterprise=29305)


VARIABLE: Final = 0xFFFF
OCTETS, PACKETS, PROTOCOL = Element(1, "Q"), Element(2, "Q"), Element(4, "B")
SOURCE_PORT, DESTINATION_PORT = Element(7, "H"), Element(11, "H")
SOURCE = {4: Element(8, "4s"), 6: Element(27, "16s")}
DESTINATION = {4: Element(12, "4s"), 6: Element(28, "16s")}
SEGMENT, DROPPED = Element(83, ""), Element(133, "Q")  # interfaceDescription, droppedPacketDeltaCount
FLOW_ID, START_MS, END_MS = Element(148, "Q"), Element(152, "Q"), Element(153, "Q")
DIRECTION = Element(239, "B")  # biflowDirection
UPPER, LOWER, LEVEL = Element(336, "d"), Element(337, "d"), Element(338, "d")  # of a confidence interval
MEAN, MIN, MAX, SUM = Element(530, "I"), Element(531, "I"), Element(532, "I"), Element(533, "Q")  # microseconds
ALL_PACKETS, IGNORED, DOMAIN, NAME = Element(86, "Q"), Element(164, "Q"), Element(149, "I"), Element(300, "")
HEADER: Final = struct.Struct(">HHIII")
VERSION, TEMPLATES, OPTIONS, FIRST_TEMPLATE = 10, 2, 3, 256
MOST: Final = 65_535  # bytes of a message
INITIATOR: Final = 1  # the source opened the connection

Record = tuple[tuple[Element, ...], bytes]


def record_of(flow: FlowRecord) -> Record:
    """The fields of a flow, and their values."""
    ends = flow.ends
    version = ends.client.version
    values: dict[Element, int | float | bytes] = {
        FLOW_ID: ends.key,
        SOURCE[version]: ends.client.packed,
        DESTINATION[version]: ends.server.packed,
        SOURCE_PORT: ends.client_port,
        DESTINATION_PORT: ends.server_port,
        PROTOCOL: ends.protocol,
    }
    if flow.start_ns is not None and flow.end_ns is not None:
        values |= {START_MS: max(0, flow.start_ns // 10**6), END_MS: max(0, flow.end_ns // 10**6)}
    if flow.packets is not None and flow.bytes is not None:
        values |= {PACKETS: flow.packets, OCTETS: flow.bytes}
    values |= _delays(flow.forward, flow.packets)
    if flow.packets is None:  # round trips, which have two directions
        values |= {DIRECTION: INITIATOR}
        values |= {one.reverse(): value for one, value in _delays(flow.reverse, None).items()}
    form = ">" + "".join(element.form for element in values)
    return tuple(values), struct.pack(form, *values.values())


def _delays(delays: Delays | None, packets: int | None) -> dict[Element, int | float | bytes]:
    """The delays of one direction. Their sum is given where it is that of all packets of the record."""
    if delays is None or delays.mean is None:
        return {} if packets is not None else {PACKETS: 0}
    known = {MEAN: delays.mean, MIN: delays.min, MAX: delays.max}
    found: dict[Element, int | float | bytes] = {} if packets is not None else {PACKETS: delays.samples}
    if all(value is None or 0 <= value * 1e6 < 2**32 - 0.5 for value in known.values()):
        found |= {element: round(value * 1e6) for element, value in known.items() if value is not None}
        if packets in (None, delays.samples):
            found[SUM] = round(delays.mean * delays.samples * 1e6)
        if delays.low is not None and delays.high is not None:
            found |= {LOWER: delays.low * 1e6, UPPER: delays.high * 1e6, LEVEL: 0.95}
    return found


def record_of_segment(segment: str, report: Mapping[str, Any]) -> Record:
    """An interval of a segment, from its report as the collector's API has it."""
    name = segment.encode()[:254]
    values: dict[Element, int | float | bytes] = {
        START_MS: max(0, round(report["start"] * 1e3)),
        END_MS: max(0, round(report["end"] * 1e3)),
        PACKETS: report["received"],
    }
    if report["lost"] is not None:
        values[DROPPED] = round(report["lost"])
    bounds = report["ci95"].get("mean", (None, None))
    delays = Delays(report["used"], report["mean"], report["min"], report["max"], *bounds)
    values |= _delays(delays, report["received"])
    form = ">" + "".join(element.form for element in values)
    return (SEGMENT, *values), bytes([len(name)]) + name + struct.pack(form, *values.values())


@dataclass
class Exporter:
    """Makes the messages of one observation domain; it numbers records, and remembers the templates it has sent."""

    domain: int = 1
    most: int = MOST  # bytes of a message
    refresh: int = 0  # messages after which templates are sent again, as over UDP; 0: never
    sequence: int = 0
    _ids: dict[tuple[Element, ...], int] = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)
    _messages: int = 0

    def messages(self, result: Result, now_s: int | None = None) -> Iterator[bytes]:
        """The messages of a result: what was observed, then its flows."""
        yield from self.pack([self._about(result)], now_s, scopes=1)
        yield from self.pack(map(record_of, result.flow_records()), now_s)

    def segments(self, intervals: Iterable[tuple[str, Mapping[str, Any]]], name: str) -> Iterator[bytes]:
        """The messages of intervals of segments, and of what measured them; each time with templates."""
        yield from self._named(f"{name}: one-way delays")
        yield from self.pack(record_of_segment(*one) for one in intervals)

    def flows(self, flows: Iterable[FlowRecord], name: str) -> Iterator[bytes]:
        """The messages of flows of an interval, likewise."""
        yield from self._named(f"{name}: round trips")
        yield from self.pack(map(record_of, flows))

    def _named(self, name: str) -> Iterator[bytes]:
        self._sent.clear()
        text = f"wirelag {name}".encode()[:254]
        about = (DOMAIN, NAME), struct.pack(">IB", self.domain, len(text)) + text
        yield from self.pack([about], scopes=1)

    def _about(self, result: Result) -> Record:
        """Options of the observation domain: what it is, and how many packets were read and could not be."""
        report = result.report  # type: ignore[attr-defined]
        what = {"round_trip": "round trips", "one_way": "one-way delays"}.get(report.quantity, report.quantity)
        name = f"wirelag {result.command}: {what}, {getattr(result, 'subject', '')}".encode()[:254]
        counts = report.packets or 0, sum(report.skipped.values())
        return (DOMAIN, ALL_PACKETS, IGNORED, NAME), struct.pack(">IQQB", self.domain, *counts, len(name)) + name

    def pack(self, records: Iterable[Record], now_s: int | None = None, scopes: int = 0) -> Iterator[bytes]:
        """Records as messages, as few as the size of a message allows. `scopes`: how many fields are of options."""
        sets: list[tuple[int, bytearray]] = []
        length, count = HEADER.size, 0
        for elements, values in records:
            number = self._ids.setdefault(elements, FIRST_TEMPLATE + len(self._ids))
            template = b"" if number in self._sent else _template(number, elements, scopes)
            more = len(template) + len(values) + 8
            if count and length + more > self.most:
                yield self._message(sets, count, now_s)
                sets, length, count = [], HEADER.size, 0
                template = b"" if number in self._sent else _template(number, elements, scopes)
            if template:
                sets.append((OPTIONS if scopes else TEMPLATES, bytearray(template)))
                self._sent.add(number)
                length += 4 + len(template)
            if not sets or sets[-1][0] != number:
                sets.append((number, bytearray()))
                length += 4
            sets[-1][1].extend(values)
            length, count = length + len(values), count + 1
        if count:
            yield self._message(sets, count, now_s)

    def _message(self, sets: list[tuple[int, bytearray]], count: int, now_s: int | None) -> bytes:
        body = b"".join(struct.pack(">HH", number, 4 + len(content)) + content for number, content in sets)
        when = int(time.time()) if now_s is None else now_s
        head = HEADER.pack(VERSION, HEADER.size + len(body), when, self.sequence, self.domain)
        self.sequence = self.sequence + count & 0xFFFFFFFF
        self._messages += 1
        if self.refresh and self._messages % self.refresh == 0:
            self._sent.clear()
        return head + body


def _template(number: int, elements: tuple[Element, ...], scopes: int) -> bytes:
    head = struct.pack(">HHH", number, len(elements), scopes) if scopes else struct.pack(">HH", number, len(elements))
    return head + b"".join(element.specifier() for element in elements)
