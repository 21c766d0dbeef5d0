"""Shared by pirate_wild.py: a row for every epoch of one capture, what `auto` said beside the exact exchanges.

The capture is reduced to the packets of its clients, and measured as `wirelag response --method auto` would. The truth
of an epoch is the mean response time of the single exchanges of its flow whose request lies in it, seen in both
directions. What `auto` keeps to itself comes from its plain twin, which is equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracles.pirate_auto import Epoch, Flow, littles, reason_of, signed
from tests.oracles.pirate_clocks import UNKNOWN
from tests.oracles.pirate_modes import TIMES, ClientPacket, Settings, travelled
from wirelag.capture.files import Capture
from wirelag.errors import WirelagError
from wirelag.estimators.pirate import Method, Pirate
from wirelag.measure.response_heard import ResponseSettings
from wirelag.measure.response_method import ResponseMeter
from wirelag.packets.address import to_address
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag
from wirelag.packets.roles import Roles, ahead
from wirelag.synopses.epochs import METHODS, REASONS, Epochs, ends_text
from wirelag.synopses.request_response import FLAGS, NOT_SINGLE, Exchanges

Array = npt.NDArray[Any]
Row = dict[str, Any]

FEWEST = 4
TECHNIQUES: tuple[Method, ...] = ("gap", "modes", "ack", "window", "syn", "blind")
DELAYED_NS = 30_000_000  # an acknowledgement alone, this late after its request, may have been delayed on purpose
TCP, UDP = 6, 17
PORTS = {
    TCP: {
        "SSH": (22,), "SMB": (139, 445), "RPC": (135,), "PostgreSQL": (5432,), "MySQL": (3306,), "MSSQL": (1433,),
        "HTTP": (80, 3128, 8000, 8080, 8888), "TLS": (443, 465, 636, 853, 993, 995, 8443), "S7, MMS": (102,),
        "FTP": (20, 21), "Redis": (6379,), "DNS": (53,), "SIP": (5060, 5061), "mail": (25, 110, 143, 587),
        "Modbus": (502,), "DNP3": (20000,), "CIP": (2222, 44818), "RDP": (3389,), "Kerberos, LDAP": (88, 389),
        "telnet": (23,), "MQTT": (1883, 8883), "IEC 104": (2404,), "OPC UA": (4840,), "MongoDB": (27017,),
    },
    UDP: {
        "DNS": (53, 5353, 5355), "NTP": (123,), "QUIC": (443, 4433, 4434), "SIP": (5060, 5061), "SNMP": (161, 162),
        "DHCP": (67, 68, 546, 547), "BACnet": (47808,), "OpenVPN": (1194,), "IKE": (500, 4500), "STUN": (3478, 19302),
        "SSDP": (1900,), "CIP": (2222, 44818), "syslog": (514,),
    },
}  # fmt: skip
CLASSES = {(protocol, port): name for protocol, of in PORTS.items() for name, ports in of.items() for port in ports}


def rows_of(path: Path) -> list[Row]:
    """The epochs of one capture; raises WirelagError if it cannot be read or has no clients."""
    batches = list(Capture([str(path)]))
    if not batches:
        raise WirelagError("no packets with an IP header")
    everything = PacketBatch.concatenate(batches)
    clients = of_clients(everything)
    epochs, exchanges = measured(everything, clients)
    others = {name: Pirate(name).meter("tap") for name in TECHNIQUES}
    for meter in others.values():
        meter.observe(clients)
    beside = {name: dict(by_flow(meter.finish())) for name, meter in others.items()}
    internals = internals_of(clients)
    exact = of_flow(exchanges)
    found: list[Row] = []
    for ends, rows in by_flow(epochs):
        mine = clients[rows_between(clients, ends)]
        hops = hops_of(mine)
        of_this = exact.get(ends, exchanges.rows[:0])
        for row in rows:
            told = described(ends, row) | truth_of(row, of_this) | evidence_of(mine, row)
            told |= {f"by_{name}": pooled(beside[name].get(ends), row) for name in TECHNIQUES}
            told |= internals.get((ends, int(row["start_ns"]), int(row["requests"])), {})
            found.append({"file": path.name, **told, "hops": hops})
    return found


# ---- both ways of measuring ----


def of_clients(packets: PacketBatch) -> PacketBatch:
    """The packets of clients."""
    roles = Roles()
    roles.study(packets[: ahead(packets, packets.time_ns[0])])
    return packets[np.flatnonzero(roles.from_client(packets))]


def measured(everything: PacketBatch, clients: PacketBatch) -> tuple[Epochs, Exchanges]:
    """Epochs from the packets of clients, exchanges from all packets."""
    one_way = ResponseMeter(ResponseSettings(method="auto", fewest=FEWEST), at_end=True)
    both_ways = ResponseMeter(ResponseSettings(fewest=FEWEST), at_end=True)
    one_way.observe(clients)
    both_ways.observe(everything)
    return one_way.finish().epochs, both_ways.finish().exchanges


def by_flow(epochs: Epochs) -> Iterator[tuple[tuple[int, ...], Array]]:
    for ends, rows in epochs.by_ends():
        yield tuple(ends), rows


def of_flow(exchanges: Exchanges) -> dict[tuple[int, ...], Array]:
    flows, place = np.unique(exchanges.rows["ends"], axis=0, return_inverse=True)
    return {tuple(flow): exchanges.rows[place.reshape(-1) == i] for i, flow in enumerate(flows.tolist())}


def rows_between(packets: PacketBatch, ends: tuple[int, ...]) -> Array:
    """The packets of a flow."""
    there = (packets.src == np.array(ends[:2], np.uint64)).all(axis=1)
    there &= (packets.dst == np.array(ends[2:4], np.uint64)).all(axis=1)
    there &= (packets.src_port == ends[4] >> 32) & (packets.dst_port == ends[4] >> 16 & 0xFFFF)
    return np.flatnonzero(there & (packets.protocol == ends[4] & 0xFF))


def hops_of(packets: PacketBatch) -> int | None:
    """Routers between the client and the point: what is missing from a usual first TTL; None if unknown."""
    if not len(packets):
        return None
    high, low = (int(word) for word in packets.src[0])
    is_ipv4 = high == 0 and low >> 32 == 0xFFFF
    source = (low & 0xFFFFFFFF).to_bytes(4, "big") if is_ipv4 else (high << 64 | low).to_bytes(16, "big")
    frame = packets.frame(0)
    place = frame.find(source) - (4 if is_ipv4 else 1)
    return next(first - frame[place] for first in (64, 128, 255) if frame[place] <= first) if place >= 0 else None


def pooled(rows: Array | None, epoch: Any) -> float | None:
    """What another technique says of the same flow and time, in seconds."""
    if rows is None:
        return None
    shared = rows[(rows["count"] > 0) & (rows["start_ns"] < epoch["end_ns"]) & (rows["end_ns"] > epoch["start_ns"])]
    return float(shared["sum_ns"].sum()) / float(shared["count"].sum()) / 1e9 if len(shared) else None


# ---- one epoch ----


def described(ends: tuple[int, ...], row: Any) -> Row:
    """The epoch as `auto` reports it."""
    count, port, protocol = int(row["count"]), ends[4] >> 16 & 0xFFFF, ends[4] & 0xFF
    server = to_address(ends[2], ends[3])
    other = {TCP: "other TCP", UDP: "other UDP"}.get(protocol, "no ports")
    name = "multicast" if server.is_multicast else CLASSES.get((protocol, port), other)
    return {
        "flow": ends_text(list(ends), "flow"),
        "class": name,
        "protocol": protocol,
        "port": port,
        "start": int(row["start_ns"]) / 1e9,
        "start_ns": int(row["start_ns"]),
        "end_ns": int(row["end_ns"]),
        "estimate": int(row["sum_ns"]) / count / 1e9 if count else None,
        "confidence": int(row["confidence"]) / 100 if count else None,
        "method": METHODS[row["method"]],
        "reason": REASONS[row["reason"]],
        "count": count,
        "in_flight": int(row["in_flight"]),
        "requests": int(row["requests"]),
        "lost": int(row["lost"]),
        "network": int(row["network_ns"]) / 1e9 if row["network_ns"] >= 0 else None,
        "batch": int(row["batch_sum_ns"]) / int(row["batch_count"]) / 1e9 if row["batch_count"] else None,
        "batch_count": int(row["batch_count"]),
        "think": int(row["think_sum_ns"]) / int(row["think_count"]) / 1e9 if row["think_count"] else None,
        "think_count": int(row["think_count"]),
    }


def truth_of(row: Any, exchanges: Array) -> Row:
    """The exact exchanges whose request lies in the epoch; clean: there are enough, and all are single."""
    inside = (exchanges["request_ns"] >= row["start_ns"]) & (exchanges["request_ns"] <= row["end_ns"])
    here = exchanges[inside]
    single = here[(here["flags"] & NOT_SINGLE) == 0]
    times = (single["last_ns"] - single["request_ns"]) / 1e9
    ended = exchanges[(exchanges["last_ns"] >= row["start_ns"]) & (exchanges["last_ns"] <= row["end_ns"])]
    ended = ended[(ended["flags"] & NOT_SINGLE) == 0]
    known = single[single["network_client_ns"] >= 0]
    felt = (known["last_ns"] - known["request_ns"] + known["network_client_ns"]) / 1e9  # with the path to the client
    return {
        "truth": float(times.mean()) if len(times) else None,
        "truth_median": float(np.median(times)) if len(times) else None,
        "truth_max": float(times.max()) if len(times) else None,
        "truth_first_byte": float((single["first_ns"] - single["request_ns"]).mean()) / 1e9 if len(times) else None,
        "truth_felt": float(felt.mean()) if len(felt) and len(felt) == len(single) else None,
        "network_client": float(known["network_client_ns"].mean()) / 1e9 if len(known) else None,
        "truth_ended": float((ended["last_ns"] - ended["request_ns"]).mean()) / 1e9 if len(ended) else None,
        "ended": len(ended),
        "exchanges": len(here),
        "single": len(single),
        "clean": len(single) >= FEWEST and len(single) == len(here),
        **{name: int(np.count_nonzero(here["flags"] & np.uint64(flag))) for name, flag in FLAGS.items()},
    }


def evidence_of(packets: PacketBatch, row: Any) -> Row:
    """What the client's packets of the epoch show by themselves."""
    inside = np.flatnonzero((packets.time_ns >= row["start_ns"]) & (packets.time_ns <= row["end_ns"]))
    here = packets[inside]
    tcp = here.of_kind(Kind.TCP)
    data = here.payload_length > 0
    gaps = np.diff(here.time_ns[data if tcp.any() else slice(None)]) / 1e9
    told: Row = {
        "packets": len(here),
        "data_packets": int(np.count_nonzero(data)),
        "pure_acks": float(np.count_nonzero(tcp & ~data)) / max(1, len(here)),
        "timestamps": bool(here.has(Flag.TIMESTAMPS).any()),
        "syn_seen": bool((packets.of_kind(Kind.TCP) & ((packets.message & TcpFlag.SYN) != 0)).any()),
        "sizes": len(np.unique(here.payload_length[data])),
        "gap_mean": float(gaps.mean()) if len(gaps) else None,
        "gap_median": float(np.median(gaps)) if len(gaps) else None,
        "gap_min": float(gaps.min()) if len(gaps) else None,
        "gap_max": float(gaps.max()) if len(gaps) else None,
        "gap_spread": float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else None,
        "gaps_distinct": len(np.unique(np.round(np.log2(np.maximum(gaps, 1e-6)) * 4))),
    }
    return told | waits_of(here) if tcp.any() else told


def waits_of(packets: PacketBatch) -> Row:
    """From each request to the first acknowledgement that moved after it: one on its own, or with the next request."""
    moved: Array = np.diff(packets.ack, prepend=packets.ack[:1])  # modulo 2^32
    moves = (moved > 0) & (moved < 2**28)
    data = packets.payload_length > 0
    alone: list[float] = []
    riding: list[float] = []
    idle: list[float] = []  # from an acknowledgement on its own to the request after it
    asked: int | None = None
    acked: int | None = None
    for time_ns, carries, advances in zip(packets.time_ns.tolist(), data.tolist(), moves.tolist(), strict=True):
        if advances and asked is not None:
            (riding if carries else alone).append((time_ns - asked) / 1e9)
            asked = None
        if carries:
            if acked is not None:
                idle.append((time_ns - acked) / 1e9)
            asked, acked = time_ns if asked is None else asked, None
        elif advances:
            acked = time_ns
    delayed = [wait for wait in alone if wait * 1e9 >= DELAYED_NS]
    return {
        "waits_alone": len(alone),
        "wait_alone": float(np.mean(alone)) if alone else None,
        "wait_alone_median": float(np.median(alone)) if alone else None,
        "waits_riding": len(riding),
        "wait_riding": float(np.mean(riding)) if riding else None,
        "wait_riding_median": float(np.median(riding)) if riding else None,
        "wait_min": min(alone + riding) if alone or riding else None,
        "wait_max": max(alone + riding) if alone or riding else None,
        "waits_delayed": len(delayed),
        "idle": float(np.mean(idle)) if idle else None,
        "idle_median": float(np.median(idle)) if idle else None,
        "idles": len(idle),
        "moves": int(np.count_nonzero(moves)),
        "moves_riding": int(np.count_nonzero(moves & data)),
        "bytes_moved": int(moved[moves].sum()),
    }


# ---- what auto keeps to itself ----


class Watched(Flow):
    """A flow of the plain twin whose state is written down whenever an epoch ends."""

    def __init__(self, settings: Settings, key: int) -> None:
        super().__init__(settings, key)
        self.told: list[tuple[Epoch, Row]] = []

    def finish(self, now_ns: int) -> Epoch | None:
        state = state_of(self) if self.record is not None and self.record.is_open else {}
        epoch = super().finish(now_ns)
        if epoch is not None:
            self.told.append((epoch, state))
        return epoch


def state_of(flow: Flow) -> Row:
    """The doubts and sums of the open epoch, and the estimate that they would give."""
    record = flow.record
    assert record is not None
    sums, clock = record.sums, record.clock
    little = littles(record)
    busy = max(0, signed(sums.busy_sum))
    total = busy if record.w == 1 and sums.busy_count >= FEWEST else little
    count = sums.busy_count if record.w == 1 and sums.busy_count >= FEWEST else sums.completions
    doubts = {name: sums.doubt(name) for name in ("lone", "spontaneous", "reordered", "coalesced")}
    return {
        **{f"auto_{name}": n for name, n in doubts.items()},
        "auto_reason": reason_of(record, FEWEST, total),
        "auto_raw": total * 1024 / count / 1e9 if count and total > 0 else None,
        "auto_little": little * 1024 / sums.completions / 1e9 if sums.completions and little > 0 else None,
        "auto_busy": busy * 1024 / sums.busy_count / 1e9 if sums.busy_count else None,
        "auto_busy_count": sums.busy_count,
        "auto_flight": max(0, signed(sums.flight_sum)) * 1024 / sums.flight_count / 1e9 if sums.flight_count else None,
        "auto_completions": sums.completions,
        "auto_think": max(0, signed(sums.think_sum)) * 1024 / sums.think_count / 1e9 if sums.think_count else None,
        "auto_think_count": sums.think_count,
        "auto_spoilt": sums.spoilt,
        "auto_in_step": record.in_step,
        "auto_stamped": record.is_stamped,
        "auto_tick": clock.echo_tick.ns / 1e9 if clock.echo_tick.number != UNKNOWN else None,
        "auto_tick_sure": clock.is_sure,
        "auto_steady": record.steady * 1024 / 1e9,
        "auto_knows_response": record.knows_response,
        "auto_knows_request": record.knows_request,
        "auto_exact": record.is_exact,
        "auto_largest_flight": record.largest_flight,
    }


def internals_of(clients: PacketBatch) -> dict[tuple[tuple[int, ...], int, int], Row]:
    """The state of `auto` at the end of each epoch, by flow, start and requests."""
    flows: dict[tuple[int, ...], Watched] = {}
    usable = clients.of_kind(Kind.TCP) & ~(clients.has(Flag.LATER) | clients.has(Flag.SHORT))
    last_ns = 0
    for ends, row in client_packets(clients[np.flatnonzero(usable)]):
        if row.time_ns in TIMES:
            flows.setdefault(ends, Watched(Settings(fewest=FEWEST), row.key)).packet(row)
            last_ns = max(last_ns, row.time_ns)
    for flow in flows.values():
        flow.finish(last_ns)
    return {(ends, epoch.start_ns, epoch.requests): state for ends, flow in flows.items() for epoch, state in flow.told}


def client_packets(clients: PacketBatch) -> Iterator[tuple[tuple[int, ...], ClientPacket]]:
    """TCP packets as the plain twin takes them, with the words that name their flow."""
    numbered = ~(clients.has(Flag.IPV6) | clients.has(Flag.FRAGMENT)) & (clients.ip_id > 0)
    shown = np.where((clients.message & TcpFlag.SYN) != 0, clients.transaction, 0)
    mss, far = shown & np.uint64(0xFFFF), np.array([travelled(limit) for limit in (shown >> np.uint64(16)).tolist()])
    has = 1 + 2 * clients.has(Flag.TIMESTAMPS) + 4 * numbered + 8 * far
    ports = clients.src_port.astype(np.int64) << 32 | clients.dst_port.astype(np.int64) << 16 | clients.protocol
    columns = (
        clients.time_ns, clients.flow_key, clients.seq, clients.ack, clients.tsval, clients.tsecr, clients.wire_length,
        clients.payload_length, clients.ip_id, mss, clients.message, has,
    )  # fmt: skip
    names = zip(clients.src.tolist(), clients.dst.tolist(), ports.tolist(), strict=True)
    for (src, dst, port), values in zip(names, zip(*(column.tolist() for column in columns), strict=True), strict=True):
        yield (*src, *dst, port), ClientPacket(*values)
