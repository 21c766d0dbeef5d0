"""What an agent would do, in words: memory, bytes per interval, its share of the traffic, the clock."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from wirelag.agent.composing import encoded
from wirelag.agent.config import Config, InsideSettings, Measured
from wirelag.agent.contact import contacted
from wirelag.agent.cutting import CutPart
from wirelag.agent.history import History
from wirelag.agent.settings import MOST_SEGMENTS, MOST_WAYS
from wirelag.capture.bpf_filter import compile_filter
from wirelag.capture.host_clock import HostClock
from wirelag.capture.live import SNAP_BYTES
from wirelag.capture.ring import ANY, link_of
from wirelag.capture.routes import interfaces_by_address
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketBatch
from wirelag.packets.injection import Injection
from wirelag.packets.interval import Interval
from wirelag.protocol.inside import message_of
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import Message, Seen, encode
from wirelag.protocol.results import Rank, Result
from wirelag.protocol.terms import Terms, second_round
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample
from wirelag.twopoint.spans import ALL, Cut
from wirelag.units import format_duration, format_rate, format_size

WATCHED_S: Final = 1.0
DIFFERENCE_BYTES: Final = 17  # bytes of symbols and times, at one point, per packet that differs
EXAMPLES: Final = ipaddress.ip_network("2001:db8::/32")


def forecast(config: Config) -> Iterator[str]:
    """The forecast, line by line; a WirelagError if the agent would not start."""
    yield from _lines(config)
    yield config.given
    if config.collector is not None:
        yield from contacted(config)


def _lines(config: Config) -> Iterator[str]:
    if config.interface is not None and config.interface != ANY:
        _look_at(config.interface, config.filter)
    if config.spool is not None:
        _look_into(Path(config.spool))
    yield _where(config)
    if config.in_kernel:
        yield "measures in the kernel, which needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    first = config.terms
    length = format_duration(config.interval_ns)
    if first.delimiters is None:
        cut = "by the clock"
    elif first.delimiters.colour is not None:
        cut = f"where the colour of packets changes (bit {first.delimiters.colour} of the DSCP)"
    elif first.delimiters.control_port is None:
        cut = "at packets that both ends see"
    else:
        cut = f"at control packets to port {first.delimiters.control_port}"
        cut += f", which go to {config.control[0]}" if config.control else ", sent by another program"
    alone = config.inside is not None and not config.measured and config.m_set is None  # nothing but the inside
    how = f", cut {cut}; {first.estimator.name}" * (not alone)
    yield f"intervals of {length}{how}" + f", classes by {_by(first.by)}" * bool(first.by)
    for name in config.referred:
        sends = "this point sends it references" if config.references else "NO [[references]] are configured here"
        yield f"segment {name}: measured at its other end, between references; {sends}"
    for measured in config.measured:
        yield f"segment {measured.segment or '(the collector knows)'}: {_packets(measured)}"
    if config.m_set is not None:
        injection = config.m_set.injection
        yield (
            f"segments from the collector, at most {MOST_SEGMENTS}: references of each every "
            f"{format_duration(injection.tau_ns)}, {format_rate(8 * injection.size * 1e9 / injection.tau_ns)}"
        )
    if config.inside is not None:
        yield from _inside(config, config.inside)
    for end in config.reflectors:
        pace = f"a test packet every {format_duration(end.every_ns)}, {'with' if end.key else 'without'} a key"
        over = ">" if end.link else ">>"
        what = "the clock of" if end.clock_only else f"segments {config.point}{over}{end.name} and back:"
        yield f"{what} {end.name}: {pace}, to the reflector at {end.to} port {end.port}"
    one = () if config.m_set is None else (config.of_references("A>B", "::1", "::2"),)  # may be named by the collector
    sent = config.measured or one
    each = sum(message_bytes(measured, config.expected_packets) for measured in sent)
    per_s = each * 1e9 / config.interval_ns
    if not sent and config.inside is not None:
        per_s = MOST_WAYS * way_bytes(config.inside.terms) * 1e9 / config.interval_ns
    elif not sent and config.reflectors:
        yield "test packets are timed as they come"
    elif not sent:
        looks = "captures packets to time its references, and " if config.watches else ""
        yield f"measures nothing here: {looks}sends only its status"
    else:
        yield _sent(config, each, per_s)
    yield f"memory: at most {format_size(config.memory_bytes + config.ring_bytes)}" + (
        f", {format_size(config.past_bytes)} of it for past intervals, which the collector may ask about"
        if first.estimator.can.second_round
        else ""
    )
    if not sent and config.reflectors:
        yield "clock: any will do: two-way times bound what it and the reflectors' differ by"
    else:
        yield "clock: any will do, because both ends are here" if alone else _clock(config)
    for stream in config.references:
        injection = stream.injection
        bound = format_rate(8 * injection.link_bytes_per_s * injection.most_share)
        most = f"never more than {bound} ({injection.most_share:.3g} of the link)"
        yield f"references to {stream.to} {_policy(injection)}; {most}{_unfilled(stream.to)}"
    if config.ipfix is not None:
        yield f"each interval of a segment as IPFIX to {config.ipfix.shown}"
    if config.collector is None:
        yield "no collector is configured: the agent cannot start without one"
        return
    hours = format_duration(config.spool_bytes / max(per_s, 1) * 1e9)
    yield (
        f"to {config.collector.shown}, {'with' if config.collector.secret else 'without'} a token; while it cannot be "
        f"reached, messages wait in {config.spool}, at most {format_size(config.spool_bytes)}: {hours}"
    )


def _inside(config: Config, inside: InsideSettings) -> Iterator[str]:
    """Where ports lead, and what their ways cost."""
    cut = "by the clock" if inside.terms.delimiters is None else "at packets"
    size = way_bytes(inside.terms)
    yield (
        f"inside this router: every way from port to port, at most {MOST_WAYS}, by {inside.terms.estimator.name}, cut "
        f"{cut}; results are made here, with one clock: up to {format_size(size)} for each interval and way"
    )
    addresses = interfaces_by_address()
    for port in inside.ports or ():
        where = f"interface {port.interface}" if port.interface else f"address {port.address}"
        there = port.interface in {name for _, name in socket.if_nameindex()} or port.address in addresses
        yield f"  to {port.to}: {where}" + ("" if there else ", which this host does NOT have")
    if inside.ports is None:
        yield "  where ports lead, the collector says"


def _sent(config: Config, each: int, per_s: float) -> str:
    terms = config.terms
    return (
        f"sends {format_size(each)} for each interval {'' if config.measured else 'and segment '}"
        f"of {config.expected_packets:,} packets, "
        f"{format_rate(8 * per_s)}"
        + (", and more for each class" if terms.by else "")
        + (f", and about {DIFFERENCE_BYTES} bytes for each that only one point saw" if _by_symbols(terms) else "")
        + _share(config, per_s)
    )


def _policy(injection: Injection) -> str:
    """When references are sent."""
    every, n = format_duration(injection.tau_ns), f"one in {injection.n:,} packets"
    rate = 8 * injection.size * 1e9 / injection.tau_ns
    bound = 8 * injection.link_bytes_per_s * injection.most_share
    return {
        "1-in-tau": f"every {every}, {format_rate(min(rate, bound))}",
        "1-in-n": f"for {n} captured here",
        "both": f"for {n} captured here, and at least every {every}",
        "adaptive": f"for one in {injection.n_least:,} packets captured here, up to one in {injection.n_most:,} while "
        f"the link is busy, and at least every {format_duration(injection.longest_ns)} (adaptive)",
    }[injection.kind]


def _unfilled(address: str) -> str:
    """A warning if the address is from a documentation range, as in a plan without addresses."""
    return "; FILL IN: this is not a router's address" if ipaddress.ip_address(address) in EXAMPLES else ""


def message_bytes(measured: Measured, count: int) -> int:
    """The size of the message about an interval of this many packets, from a real message."""
    interval_ns = measured.terms.interval_ns or 10**9
    interval = Interval(0, interval_ns)
    random = np.random.default_rng(1)
    meter = measured.terms.estimator.meter("upstream")
    if not measured.terms.estimator.can.one_sided:  # it sends a few numbers, however many packets there are
        ids = random.integers(0, 1 << 64, count, np.uint64)
        meter.observe(PacketBatch({"time_ns": np.sort(random.integers(0, interval_ns, count)), "packet_id": ids}))
    part = CutPart(measured, Cut(interval, {ALL: meter.cut(interval)}), {}, False, Seen(count, 0, interval_ns))
    about = Message("synopsis", "x" * 16, measured.segment, interval, measured.terms, seen=part.seen)
    return len(encoded(part, about, History(about.point, 0, 0))[0])


def way_bytes(terms: Terms) -> int:
    """The size of the message about an interval of a way inside a router, with a full sample of delays."""
    interval, estimator = Interval(0, terms.interval_ns or 10**9), terms.two_point
    most = min(estimator.tail, 1 << 16)
    delays_ns = np.random.default_rng(1).exponential(1e6, most).astype(np.int64)
    crossing = Crossing(most, most, tail=DelaySample.of(np.zeros(most, np.int64), delays_ns, 1))
    loss, seen = Loss(0.0, 0.0, 0.0), Seen(most, 0, interval.length_ns, most)
    found = Result("B[A>C]", interval, Rank.SETTLED, estimator.name, {None: crossing}, {None: loss}, (seen, seen), None)
    return len(encode(message_of(found, "x" * 16, terms, interval.end_ns)))


def _by_symbols(terms: Terms) -> bool:
    return second_round(terms.estimator) and terms.estimator.short


def _look_at(interface: str, expression: str | None) -> None:
    """Check that an interface exists and is up, and that a filter compiles, if permitted to open it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        link_type, _ = link_of(any_socket, interface)
    if expression is not None and os.geteuid() == 0:
        compile_filter(expression, interface, link_type, SNAP_BYTES)


def _look_into(folder: Path) -> None:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise WirelagError(f"{folder}: cannot hold waiting messages: {there} is not writable; name another folder")


def _where(config: Config) -> str:
    if config.interface is None:
        return f"{config.point}: replays {', '.join(config.captures)} at {config.speed:g}x"
    if not config.needs_packets:
        return f"{config.point}: captures no packet on {config.interface}"
    wanted = f", packets that match '{config.filter}'" if config.filter else ", every packet"
    return (
        f"{config.point}: captures on {config.interface}{wanted}"
        + (", promiscuously" if config.promiscuous else "")
        + (", inside tunnels" if config.tunnels else "")
    )


def _by(by: str | None) -> str:
    return (by or "").partition("/")[0]


def _packets(measured: Measured) -> str:
    which = "reference packets" if measured.references_only else "packets"
    if measured.terms.estimator.can.one_sided:
        way = measured.references_way
        apart = "" if way == measured.way else ", which have other addresses"
        return f"packets {measured.terms.direction} between references{apart}; only the loss of references is known"
    if measured.terms.direction is None:
        return f"{which} of both directions; if some travel away from the other point, set the direction"
    return f"{which} {measured.terms.direction}"


def _share(config: Config, per_s: float) -> str:
    """Share of the current traffic."""
    if config.interface is None:
        return ""
    before = _counted(config.interface)
    if before is None:
        return ""
    began = time.monotonic()
    time.sleep(WATCHED_S)
    passed = ((_counted(config.interface) or before) - before) / (time.monotonic() - began)
    if passed <= 0:
        return "; no packets pass the interface now"
    share = per_s / passed
    return f", {share:.2%} of the {format_rate(8 * passed)} on the interface now"


def _counted(interface: str) -> int | None:
    folder = Path("/sys/class/net") / interface / "statistics"
    try:
        return sum(int((folder / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
    except (OSError, ValueError):
        return None


def _clock(config: Config) -> str:
    clock = HostClock(config.clock_error_ns)
    clock.ask()
    reading = clock.reading()
    if reading.source == "stated":
        return f"clock: assumed accurate within {format_duration(reading.error_ns)}, as stated"
    if not reading.synchronised:
        return (
            f"clock: NOT synchronised ({reading.source}): delays will be off by the clock difference; "
            f"start chrony or PTP, or set clock.error if both points share a clock"
        )
    return f"clock: synchronised, accurate within {format_duration(reading.error_ns)} ({reading.source})"
