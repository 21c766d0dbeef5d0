"""Why a command has nothing to say about packets, and what to try instead: one line.

Only an empty result asks for it. The first packets are then read again, where that is possible; so a command that
has an answer does no work for this.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.source import Packets
    from wirelag.measure.survey import Survey
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter

BATCHES: Final = 25  # that are read again: about 200,000 packets
FEW: Final = 10  # packets that make no capture
MOST: Final = 0.5  # share of packets that explains an empty result
_SURE: Final = ("TCP", "DNS", "NTP", "ICMP")  # kinds whose requests and responses always tell a round trip
ENOUGH_BYTES: Final = "capture at least 128 bytes of each (tcpdump -s 128)"


def hint(packets: Packets, command: str) -> str:
    """Why `command` found nothing in these packets, and what to try; empty if that is not known."""
    from wirelag.capture.files import Capture

    statistics = packets.statistics
    skipped = sum(statistics.skipped.values())
    filtered = getattr(statistics, "filtered", 0)
    if not statistics.packets:
        return ""  # the result says so itself
    if filtered and filtered + skipped >= statistics.packets:
        return _filtered(packets, filtered)
    if skipped >= statistics.packets:
        return _skipped(statistics.skipped)
    if not isinstance(packets, Capture) or (survey := _surveyed(packets)) is None:
        return ""
    tunnels = any(file.tunnels for file in packets.files)
    return _by_packets(survey, tunnels) or _by_kind(survey, command) or _by_direction(survey, command)


def because(packets: Packets | None, command: str) -> str:
    """The same as the rest of an error's line."""
    line = hint(packets, command) if packets is not None else ""
    return f": {line}" if line else ""


def _filtered(packets: Packets, filtered: int) -> str:
    import numpy as np

    from wirelag.capture.files import Capture
    from wirelag.packets.filters import Filter

    text = f"the filter leaves out all {filtered:,} packets"
    if not isinstance(packets, Capture) or (seen := _again(packets, Filter())) is None:
        return text
    wanted = packets.files[0].filter
    if wanted.from_ns != Filter().from_ns or wanted.to_ns != Filter().to_ns:
        from wirelag.units import format_time

        known = packets.statistics
        first, last = (format_time(ns) for ns in (known.first_ns or 0, known.last_ns or 0))
        return f"{text}: the capture is from {first} to {last} UTC"
    ports: Counter[int] = Counter()
    for batch in seen:  # the lower port is the service's
        ports.update(port for port in np.minimum(batch.src_port, batch.dst_port).tolist() if port)
    if wanted.ports and ports:
        return f"{text}: most are of port {', '.join(str(port) for port, _ in ports.most_common(3))}"
    return f"{text}: see what there is with `wirelag info`"


def _skipped(skipped: dict[str, int]) -> str:
    from wirelag.render.info import SKIPPED

    reason = max(skipped, key=skipped.__getitem__)
    text = f"{skipped[reason]:,} packets are {SKIPPED[reason]}"
    return f"{text}: {ENOUGH_BYTES}" if reason == "cut" else text


def _again(capture: Capture, wanted: Filter | None = None) -> Iterable[PacketBatch] | None:
    """The first packets once more, with another filter; None if they can be read only once."""
    from wirelag.capture.files import Capture

    if not all(os.path.isfile(file.path) for file in capture.files):
        return None
    first = capture.files[0]
    chosen = first.filter if wanted is None else wanted
    names = {file.path: file.name for file in capture.files}
    return islice(Capture(list(names), names=names, filter=chosen, tunnels=first.tunnels), BATCHES)


def _surveyed(capture: Capture) -> Survey | None:
    from wirelag.measure.survey import Survey

    batches = _again(capture)
    if batches is None:
        return None
    survey = Survey()
    for batch in batches:
        survey.observe(batch)
    return survey


def _by_packets(survey: Survey, tunnels: bool) -> str:
    """What hides the packets."""
    from wirelag.packets.batch import Flag

    packets = sum(survey.kinds.values())
    if not tunnels and survey.flags[Flag.TUNNEL] >= MOST * packets:
        return f"{survey.flags[Flag.TUNNEL]:,} packets are tunnelled: --tunnels"
    if survey.flags[Flag.SHORT] >= MOST * packets:
        return f"{survey.flags[Flag.SHORT]:,} packets are captured without their full headers: {ENOUGH_BYTES}"
    if packets < FEW:
        return f"only {packets:,} packet{'' if packets == 1 else 's'}: capture for longer"
    return ""


def _by_kind(survey: Survey, command: str) -> str:
    """What cannot be measured by this command, whatever its direction."""
    from wirelag.measure.survey import TIMED_KINDS
    from wirelag.packets.batch import Kind

    present = {kind: n for kind, n in survey.kinds.items() if n}
    if command == "rtt" and not any(present.get(kind) for kind in (Kind.TCP, *TIMED_KINDS)):
        named = " and ".join(f"{n:,} {kind.name}" for kind, n in present.items())
        tell = "try `wirelag response`" if Kind.UDP in present else "their requests cannot be told from responses"
        return f"no TCP, DNS, NTP, ICMP or QUIC, only {named} packets: {tell}"
    if command == "rtt" and present.get(Kind.QUIC, 0) >= MOST * sum(present.values()):
        return (
            f"{many(present[Kind.QUIC], 'QUIC packet')}, whose spin bit does not turn: nothing else of QUIC shows a "
            "round trip; `wirelag response` may estimate one from requests"
        )
    if command == "response" and set(present) == {Kind.ICMP}:
        return "only ICMP: try `wirelag rtt`"
    return ""


def _by_direction(survey: Survey, command: str) -> str:
    """Which half of conversations is missing."""
    from wirelag.packets.batch import Kind

    seen = survey.conversations
    both, everything, clients = seen.count(seen.both_ways), seen.count(), seen.count(seen.client_only)
    if command == "rtt" and not both:
        if clients:
            return f"{_seen(everything)} in one direction only: try `wirelag response`"
        return f"{_seen(everything)} from servers to clients only: capture where requests pass, too"
    if command == "response" and both and any(survey.kinds[Kind[name]] for name in _SURE):
        return f"{_seen(both)} in both directions, with too few requests: try `wirelag rtt`"
    if command == "response":
        return "too few requests in each conversation: capture for longer"
    return ""


def _seen(conversations: int) -> str:
    return f"{many(conversations, 'conversation')} {'is' if conversations == 1 else 'are'} seen"
