"""What an agent would do, in plain words: memory, bytes for each interval, its share of the traffic, the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from wirelag.agent.clock import HostClock
from wirelag.agent.config import Config, Measured
from wirelag.agent.cutting import Part
from wirelag.agent.loop import encoded
from wirelag.agent.past import Past
from wirelag.crossings import ALL, Cut
from wirelag.intervals import Interval
from wirelag.messages import Message, Seen
from wirelag.packets import PacketBatch
from wirelag.units import format_duration, format_rate, format_size

WATCHED_S: Final = 1.0


def forecast(config: Config) -> Iterator[str]:
    """A line each."""
    yield _where(config)
    if config.in_kernel:
        yield "measured inside the kernel, which takes CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    first = config.measured[0].terms
    length = format_duration(config.interval_ns)
    if first.delimiters is None:
        cut = "by the clock"
    elif first.delimiters.control_port is None:
        cut = "at packets that both ends see"
    else:
        cut = f"at control packets to port {first.delimiters.control_port}"
        cut += f", which go to {config.control[0]}" if config.control else ", which somebody else sends"
    yield f"intervals of {length}, cut {cut}; {first.estimator.name}" + (
        f", classes by {_by(first.by)}" * bool(first.by)
    )
    for measured in config.measured:
        yield f"segment {measured.segment or '(the collector knows)'}: {_packets(measured)}"
    each = sum(message_bytes(measured, config.expected_packets) for measured in config.measured)
    per_s = each * 1e9 / config.interval_ns
    yield (
        f"sends {format_size(each)} for each interval of {config.expected_packets:,} packets, "
        f"{format_rate(8 * per_s)}" + (", and more for each class" if first.by else "") + _share(config, per_s)
    )
    yield f"memory: at most {format_size(config.memory_bytes + config.ring_bytes)}" + (
        f", {format_size(config.past_bytes)} of it for past intervals, which the collector may ask about"
        if first.estimator.name == "rda"
        else ""
    )
    yield _clock(config)
    for stream in config.references:
        injection = stream.injection
        rate = 8 * injection.size * 1e9 / injection.tau_ns
        bound = 8 * injection.link_bytes_per_s * injection.most_share
        yield (
            f"references to {stream.to} every {format_duration(injection.tau_ns)}, {format_rate(min(rate, bound))}"
            f"; never more than {format_rate(bound)} ({injection.most_share:.3g} of the link)"
        )
    if config.collector is None:
        yield "no collector is named: the agent cannot start without one"
        return
    hours = format_duration(config.spool_bytes / max(per_s, 1e-9) * 1e9)
    yield (
        f"to {config.collector.shown}, {'with' if config.collector.secret else 'without'} a token; while it cannot be "
        f"reached, messages wait in {config.spool}, at most {format_size(config.spool_bytes)}: {hours}"
    )


def message_bytes(measured: Measured, count: int) -> int:
    """How large the message about an interval of so many packets is: one is made."""
    interval_ns = measured.terms.interval_ns or 10**9
    interval = Interval(0, interval_ns)
    random = np.random.default_rng(1)
    meter = measured.terms.estimator.meter("upstream")
    ids = random.integers(0, 1 << 64, count, np.uint64)
    meter.observe(PacketBatch({"time_ns": np.sort(random.integers(0, interval_ns, count)), "packet_id": ids}))
    part = Part(measured, Cut(interval, {ALL: meter.cut(interval)}), {}, False, Seen(count, 0, interval_ns))
    about = Message("synopsis", "x" * 16, measured.segment, interval, measured.terms, seen=part.seen)
    return len(encoded(part, about, Past(about.point, 0, 0))[0])


def _where(config: Config) -> str:
    if config.interface is None:
        return f"{config.point}: reads {', '.join(config.captures)} at {config.speed:g} times its speed"
    wanted = f", packets that match '{config.filter}'" if config.filter else ", every packet"
    return (
        f"{config.point}: listens at {config.interface}{wanted}"
        + (", promiscuously" if config.promiscuous else "")
        + (", inside tunnels" if config.tunnels else "")
    )


def _by(by: str | None) -> str:
    return (by or "").partition("/")[0]


def _packets(measured: Measured) -> str:
    which = "reference packets" if measured.references_only else "packets"
    if measured.terms.direction is None:
        return f"{which} of both directions; where some go away from the other point, name the direction"
    return f"{which} {measured.terms.direction}"


def _share(config: Config, per_s: float) -> str:
    """Of the traffic that passes now."""
    if config.interface is None:
        return ""
    before = _counted(config.interface)
    if before is None:
        return ""
    began = time.monotonic()
    time.sleep(WATCHED_S)
    passed = ((_counted(config.interface) or before) - before) / (time.monotonic() - began)
    if passed <= 0:
        return "; nothing passes the interface now"
    share = per_s / passed
    return f"; the interface now carries {format_rate(8 * passed)}, of which that is {share:.2%}"


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
        return f"clock: taken to be right within {format_duration(reading.error_ns)}, as stated"
    if not reading.synchronised:
        return (
            f"clock: NOT synchronised ({reading.source}): delays will be wrong by what the clocks differ; "
            f"start chrony or PTP, or state a bound with clock.error where both points have one clock"
        )
    return f"clock: synchronised, right within {format_duration(reading.error_ns)} ({reading.source})"
