"""Packet by packet against tshark: the columns of every capture under rtt/ and hidden/, with and without tunnels.

Fields come from the layer that the row describes: `frame.protocols` gives the order of a packet's layers, and a
field's values follow it. A difference fails the test, unless a rule below states why the two may differ.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.captures import capture_name, capture_paths, packets, plain_bytes
from tests.support.effort import FULL

# Raw numbers, and each packet by itself.
from tests.support.tshark_fields import LOWER, NTP_EPOCH_S, dissected, expected
from wirelag import _kernels
from wirelag.capture.pcap import CaptureFile
from wirelag.packets.batch import Flag, Kind, PacketBatch

EVERY_COLUMN = {  # together they have a value in every column
    *("surfshark.pcap.gz", "wireguard-ping-tcp-dsb.pcapng", "ip-in-mpls.pcap.gz", "ipsec_isakmp_esp.pcap.gz"),
    "quic_t51.pcap.gz",
}
MOST_PACKETS = 10**9 if FULL else 2500  # first packets of each capture


def found(batch: PacketBatch) -> pl.DataFrame:
    """The same columns from a batch."""
    message, transaction = batch.message.astype(np.uint64), batch.transaction
    ntp_s, ntp_fraction = transaction >> np.uint64(32), transaction & np.uint64(0xFFFFFFFF)
    ntp_ns = (ntp_s.astype(np.int64) - NTP_EPOCH_S) * 10**9 + (ntp_fraction * np.uint64(10**9) >> np.uint64(32)).astype(
        np.int64
    )
    return pl.DataFrame(
        {
            "number": batch.number,
            "src_high": batch.src[:, 0],
            "src_low": batch.src[:, 1],
            "dst_high": batch.dst[:, 0],
            "dst_low": batch.dst[:, 1],
            "traffic_class": batch.traffic_class,
            "ip_id": batch.ip_id,
            "protocol": batch.protocol,
            "src_port": batch.src_port,
            "dst_port": batch.dst_port,
            "tcp_seq": batch.seq,
            "ack": batch.ack,
            "tcp_payload": batch.payload_length,
            "tcp_flags": message,
            "window": batch.window,
            "tsval": batch.tsval,
            "tsecr": batch.tsecr,
            "has_timestamps": batch.has(Flag.TIMESTAMPS),
            "has_sack": batch.has(Flag.SACK),
            "udp_length": batch.payload_length + 8,
            "icmp_type": message,
            "icmp_ident": transaction,
            "icmp_seq": batch.seq,
            "kind": batch.kind,
            "dns_id": transaction,
            "dns_response": message >> 7,
            "ntp_mode": message,
            "ntp_ns": ntp_ns,
            "quic_long": message >> 7,
            "quic_id": transaction,
            "quic_spin": message >> 5 & 1,
            "esp_spi": transaction,
            "esp_seq": batch.seq,
            "wg_type": message,
            "wg_sender": transaction >> np.uint64(32),
            "wg_receiver": transaction & np.uint64(0xFFFFFFFF),
            "wg_counter": batch.seq,
            "flags": batch.flags,
            "captured_length": batch.captured_length,
            "wire_length": batch.wire_length,
            "payload_offset": batch.payload_offset.astype(np.int64),
        }
    )


COLUMNS = [
    *(
        "src_high",
        "src_low",
        "dst_high",
        "dst_low",
        "traffic_class",
        "ip_id",
        "protocol",
        "src_port",
        "dst_port",
        "kind",
    ),
    *("tcp_seq", "ack", "tcp_payload", "tcp_flags", "window", "tsval", "tsecr", "has_timestamps", "has_sack"),
    *("udp_length", "icmp_type", "icmp_ident", "icmp_seq", "dns_id", "dns_response", "ntp_mode", "ntp_ns"),
    *("quic_long", "quic_id", "quic_spin", "esp_spi", "esp_seq", "wg_type", "wg_sender", "wg_receiver", "wg_counter"),
]
# Columns of a single kind are compared where both see this kind; `kind` itself is a column.
SPECIAL = {"dns": Kind.DNS, "ntp": Kind.NTP, "quic": Kind.QUIC, "esp": Kind.ESP, "wg": Kind.WIREGUARD}
MEANT_FOR = {column: kind for prefix, kind in SPECIAL.items() for column in COLUMNS if column.startswith(f"{prefix}_")}
MEANT_FOR |= dict.fromkeys(COLUMNS[10:19], Kind.TCP) | dict.fromkeys(("icmp_type", "icmp_ident", "icmp_seq"), Kind.ICMP)
BYTES_NEEDED = {Kind.DNS: 12, Kind.NTP: 48, Kind.ESP: 8, Kind.WIREGUARD: 16, Kind.QUIC: 7}


def ours(column: str) -> pl.Expr:
    return pl.col(f"{column}_ours")


def flagged(flag: Flag) -> pl.Expr:
    return pl.col("flags") & int(flag) != 0


needed = pl.col("payload_offset") + pl.col("kind").replace_strict(BYTES_NEEDED, default=0, return_dtype=pl.Int64)
header_cut = pl.col("captured_length") < pl.col("payload_offset")
is_udp = ours("protocol") == 17

# Why a column may differ from tshark's: the reason, and where it holds.
RULES: dict[str, dict[str, pl.Expr]] = {
    # The IP header claims more bytes than the layer below it: the record lost its wire length when the capture was cut,
    # a PPPoE length excludes padding that the IP header counts, or an inner packet is longer than its carrier's first
    # fragment. tshark takes the smaller length; wirelag takes the sender's IP header, in tshark's field `claimed`.
    "tcp_payload": {
        "lower layer is shorter": (pl.col("tcp_payload") < ours("tcp_payload"))
        & (ours("tcp_payload") == pl.col("claimed"))
    },
    # tshark gives the UDP header's length, wirelag the bytes of the datagram in this packet.
    "udp_length": {
        "first fragment": flagged(Flag.FRAGMENT) & (pl.col("udp_length") > ours("udp_length")),
        "more than the IP packet": is_udp & (pl.col("udp_length") > ours("udp_length")),
        "impossible": is_udp & (pl.col("udp_length") < 8),
    },
    # tshark shows the captured part of an option or a message, wirelag only whole ones.
    "tsval": {"cut": header_cut},
    "has_timestamps": {"cut": header_cut},
    "has_sack": {"cut": header_cut},
    # A cut extension header: tshark shows its next header, wirelag its own number.
    "protocol": {"cut": flagged(Flag.SHORT)},
    "kind": {
        "cut": flagged(Flag.SHORT) | (pl.col("captured_length") < needed),
        # tshark takes any payload that begins with 4, 0, 0, 0 for WireGuard, such as Zoom's media. WireGuard's data
        # come in blocks of 16 bytes; the tunnel's MTU cuts the padding of full-size packets.
        "WireGuard's blocks": (pl.col("kind") == Kind.WIREGUARD)
        & (pl.col("wg_type") == 4)
        & (ours("udp_length") % 16 != 8)
        & (ours("udp_length") < 1288),
    },
}
# tshark enters a tunnel even if the inner IP header is incomplete; the row then stays with the carrier.
CARRIER = {"inner packet is cut": flagged(Flag.TUNNEL) & (pl.col("captured_length") < pl.col("wire_length"))}

# How often each rule was needed, by capture; "inside" where tunnels are followed. Captures that are not listed may
# use the rules any number of times.
OBSERVED: dict[str, dict[tuple[str, str], int]] = {
    "hidden/debian-ndpi-4.2/zoom2.pcap.gz": {("kind", "WireGuard's blocks"): 60},
    "hidden/zeek/gtp1_gn_normal_incl_fragmentation.pcap": {("udp_length", "first fragment"): 40},
    "hidden/zeek/gtp1_gn_normal_incl_fragmentation.pcap inside": {("tcp_payload", "lower layer is shorter"): 40},
    "hidden/zeek/pppoe-over-qinq.pcap": {("tcp_payload", "lower layer is shorter"): 6},
    "rtt/libtrace/fragtest.nsec.pcap.gz": {
        ("tsval", "cut"): 3,
        ("has_timestamps", "cut"): 3,
        ("has_sack", "cut"): 4,
        ("udp_length", "first fragment"): 6,
        ("kind", "cut"): 465,
    },
    "rtt/libtrace/fragtest.nsec.pcap.gz inside": {
        ("tsval", "cut"): 3,
        ("has_timestamps", "cut"): 3,
        ("has_sack", "cut"): 4,
        ("udp_length", "first fragment"): 6,
        ("kind", "cut"): 465,
    },
    "rtt/tcptrace/6syns.dmp.gz": {("tcp_payload", "lower layer is shorter"): 32},
    "rtt/tcptrace/fast_reuse.dmp.gz": {("tcp_payload", "lower layer is shorter"): 202},
    "rtt/tcptrace/long_rtt.dmp.gz": {("tcp_payload", "lower layer is shorter"): 22},
}


def why_no_row(path: Path, table: pl.DataFrame) -> set[str]:
    """The reasons why tshark's IP packets in this table have no row."""
    lower = dict(table.select("number", "lower").iter_rows())
    reasons = set()
    for number, packet in enumerate(packets(plain_bytes(path)) if lower else (), 1):
        if number in lower and packet.time_ns is None:
            reasons.add("no_timestamp")
        elif number in lower:
            reason = str(_kernels.decode_frame(packet.frame, packet.wire_length, packet.link_type))
            # Below IP is a layer that wirelag does not decode.
            known = {*lower[number].split(":")} <= LOWER
            reasons.add("unknown layer" if reason == "not_ip" and not known else reason)
    return reasons


def differences(table: pl.DataFrame) -> Counter[tuple[str, str]]:
    """Which columns differ, for which reason and how often; "" without a rule."""
    count: Counter[tuple[str, str]] = Counter()
    for column in COLUMNS:
        differs = pl.col(column).cast(pl.Int128).ne(ours(column).cast(pl.Int128))
        if column in MEANT_FOR:
            differs &= ours("kind") == MEANT_FOR[column]
        rows = table.filter(differs)
        for reason, holds in (RULES.get(column, {}) | CARRIER).items():
            count[column, reason] += rows.filter(holds).height
            rows = rows.filter(holds.not_() | holds.is_null())
        count[column, ""] += rows.height
        if rows.height:
            print(rows.select("number", column, ours(column), "flags", "udp_payload").head(5))
    return +count


def compared(path: Path, table: pl.DataFrame, innermost: bool) -> pl.DataFrame:
    """tshark's columns beside wirelag's, one row for every IP packet of either."""
    batch = found(PacketBatch.concatenate(list(CaptureFile(str(path), tunnels=innermost))))
    batch = batch.filter(pl.col("number") <= MOST_PACKETS)
    both = expected(table, innermost).join(batch, on="number", how="full", coalesce=True, suffix="_ours")
    # Only the connection knows the length of the id in a short header: tshark tracks it, wirelag shows eight bytes.
    short = (pl.col("quic_long") == 0) & (pl.col("quic_id_bits") < 64)
    shifted = ours("quic_id") // pl.lit(2, dtype=pl.UInt64).pow(64 - pl.col("quic_id_bits")).cast(pl.UInt64)
    return both.filter(pl.col("is_ip") | pl.col("flags").is_not_null()).with_columns(
        pl.when(short).then(shifted).otherwise(ours("quic_id")).alias("quic_id_ours")
    )


def chosen() -> list[Path]:
    """All captures; in `make test` every third one, and those with known rules or columns."""
    paths = capture_paths("rtt", "hidden")
    named = {name.removesuffix(" inside") for name in OBSERVED}
    return [
        path
        for number, path in enumerate(paths)
        if FULL or number % 3 == 0 or capture_name(path) in named or path.name in EVERY_COLUMN
    ]


@pytest.mark.parametrize("path", chosen(), ids=capture_name)
@pytest.mark.every(8)
def test_columns_equal_tshark_s(path: Path, tool: Callable[[str], str]) -> None:
    fields = dissected(tool("tshark"), path, MOST_PACKETS)
    has_tunnels = any(batch.has(Flag.TUNNEL).any() for batch in CaptureFile(str(path)))
    for innermost in (False, True) if has_tunnels else (False,):
        table = compared(path, fields, innermost)
        # tshark shows an IP packet exactly where there is a row, unless a reason applies.
        assert not table.filter(~pl.col("is_ip")).height
        without_row = table.filter(pl.col("flags").is_null())
        assert why_no_row(path, without_row) <= {
            "link_type",
            "cut",
            "malformed",
            "layers",
            "no_timestamp",
            "unknown layer",
        }
        table = table.filter(pl.col("flags").is_not_null())
        # Packets that tshark recognises as something else do not get one of the special kinds.
        unknown = pl.col("kind").is_null() & ~pl.col("udp_payload").is_in(["", "data"])
        assert not table.filter(unknown & ours("kind").is_in(list(SPECIAL.values()))).height
        count = differences(table)
        print(capture_name(path), "inside" if innermost else "", dict(count), "no row:", without_row.height)
        assert not [column for column, reason in count if not reason]
        name = capture_name(path) + (" inside" if innermost else "")
        if name in OBSERVED and fields.height < MOST_PACKETS:
            assert count == OBSERVED[name]


@pytest.mark.usefixtures("shared_data")
def test_every_column_is_compared(tool: Callable[[str], str]) -> None:
    """Each column has values from tshark in at least one capture, so no comparison is empty by mistake."""
    left = set(COLUMNS)
    for path in [path for path in capture_paths("hidden") if path.name in EVERY_COLUMN]:
        values = expected(dissected(tool("tshark"), path, MOST_PACKETS), innermost=False)
        left -= {column for column in left if values[column].drop_nulls().len()}
        if not left:
            break
    assert not left
