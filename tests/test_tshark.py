"""Packet by packet against tshark: the columns of every capture under rtt/ and hidden/, carriers and what they carry.

Fields are taken from the same layer as the row: `frame.protocols` gives the order of a packet's layers, and a field's values
come in that order. A difference fails the test, unless a rule below states why the two may differ there.
"""

import ipaddress
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest

from captures import capture_name, capture_paths
from wirelag.io.pcap import CaptureFile
from wirelag.packets import Flag, Kind, PacketBatch

# Raw numbers, and each packet for itself.
PREFERENCES = (
    "tcp.relative_sequence_numbers:FALSE",
    "tcp.desegment_tcp_streams:FALSE",
    "tcp.analyze_sequence_numbers:FALSE",
    "ip.defragment:FALSE",
    "ipv6.defragment:FALSE",
)
SEPARATOR = ";"
FIELDS = """
    frame.number frame.protocols frame.len frame.cap_len
    ip.src ip.dst ip.id ip.dsfield ip.proto ip.len ip.frag_offset ip.flags.mf
    ipv6.src ipv6.dst ipv6.tclass ipv6.nxt ipv6.plen ipv6.fraghdr.ident
    tcp.srcport tcp.dstport tcp.seq_raw tcp.ack_raw tcp.len tcp.flags tcp.window_size_value tcp.hdr_len
    tcp.options.timestamp.tsval tcp.options.timestamp.tsecr tcp.option_kind
    udp.srcport udp.dstport udp.length sctp.srcport sctp.dstport
    icmp.type icmp.ident icmp.seq icmpv6.type icmpv6.echo.identifier icmpv6.echo.sequence_number
    dns.id dns.flags.response ntp.flags.mode ntp.org ntp.xmt
    quic.header_form quic.dcid quic.spin_bit quic.version
    esp.spi esp.sequence wg.type wg.sender wg.receiver wg.counter
""".split()

# What tshark dissects as an IP packet inside another one and wirelag follows, too (columns.md, "Tunnels"); behind any other
# layer (an ICMP error's quotation, 802.11 in GRE, Teredo, decrypted WireGuard ...) the row stays with the carrier.
FOLLOWED = {"ip", "ipv6", "udp", "gre", "vxlan", "geneve", "gtp", "erspan", "ppp", "pppoes"}
FOLLOWED |= {"eth", "ethertype", "vlan", "ieee8021ad", "mpls", "llc"}
EXTENSIONS = {"ipv6.hopopts": "ipv6.hopopts.nxt", "ipv6.routing": "ipv6.routing.nxt", "ipv6.fraghdr": "ipv6.fraghdr.nxt"}
EXTENSIONS |= {"ipv6.dstopts": "ipv6.dstopts.nxt", "ah": "ah.next_header", "mipv6": "mip6.proto"}
FIELDS += EXTENSIONS.values()
TRANSPORTS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "esp": 50, "sctp": 132}
APPLICATIONS = {
    "dns": Kind.DNS,
    "mdns": Kind.DNS,
    "llmnr": Kind.DNS,
    "ntp": Kind.NTP,
    "quic": Kind.QUIC,
    "wg": Kind.WIREGUARD,
    "udpencap:esp": Kind.ESP,
}
ECHO_TYPES = (0, 8, 13, 14, 15, 16, 17, 18)


class Layers(NamedTuple):
    """The layers of a packet that its row describes; each with how many of the same name come before it."""

    ip: str = ""
    ip_at: int = 0
    extension: str = ""
    extension_at: int = 0
    transport: str = ""
    transport_at: int = 0
    application: str = ""


def layers(protocols: str, innermost: bool) -> Layers:
    names = protocols.split(":")
    nth = [names[:i].count(name) for i, name in enumerate(names)]
    places = [i for i, name in enumerate(names) if name in ("ip", "ipv6")]
    if not places:
        return Layers()
    at = places[0]
    if innermost:
        at = max(i for i in places if {*names[places[0] : i]} <= FOLLOWED)
    ip, extension, extension_at = at, "", 0
    while at + 1 < len(names) and names[at + 1] in EXTENSIONS:
        at += 1
        extension, extension_at = names[at], nth[at]
    above = names[at + 1 :]
    if not above or above[0] not in TRANSPORTS:
        return Layers(names[ip], nth[ip], extension, extension_at)
    application = next((name for name in APPLICATIONS if f"{':'.join(above[1:])}:".startswith(f"{name}:")), "")
    return Layers(names[ip], nth[ip], extension, extension_at, above[0], nth[at + 1], application)


def dissected(tshark: str, path: Path) -> pl.DataFrame:
    """tshark's fields as text, a row per packet; null where a packet has not got the field."""
    preferences = [word for preference in PREFERENCES for word in ("-o", preference)]
    fields = [word for field in FIELDS for word in ("-e", field)]
    command = [tshark, "-n", "-r", path, *preferences, "-T", "fields", "-E", "occurrence=a", "-E", f"aggregator={SEPARATOR}"]
    quiet = os.environ | {"XDG_CONFIG_HOME": "/nonexistent", "TZ": "UTC", "LC_ALL": "C"}  # nobody's own preferences
    output = subprocess.run([*command, *fields], capture_output=True, check=False, env=quiet).stdout
    return pl.read_csv(output, separator="\t", has_header=False, new_columns=FIELDS, infer_schema=False, quote_char=None)


def nth(field: str, at: str = "first") -> pl.Expr:
    """The value of a field in the layer that the row describes."""
    position = pl.lit(0) if at == "first" else pl.col(at)
    return pl.col(field).str.split(SEPARATOR).list.get(position, null_on_oob=True)


def integer(text: pl.Expr) -> pl.Expr:
    """tshark writes some numbers as 0x1f, others as 31."""
    digits = text.str.strip_prefix("0x")
    return (
        pl.when(text.str.starts_with("0x"))
        .then(digits.str.to_integer(base=16, dtype=pl.UInt64, strict=False))
        .otherwise(digits.str.to_integer(dtype=pl.UInt64, strict=False))
    )


def address_half(text: pl.Expr, high: bool) -> pl.Expr:
    """Half of an address as an integer; IPv4 as ::ffff:a.b.c.d."""

    def half(value: str) -> int:
        address = ipaddress.ip_address(value)
        number = int(address) | (0xFFFF << 32 if address.version == 4 else 0)
        return number >> 64 if high else number & 2**64 - 1

    return mapped(text, half, pl.UInt64)


def mapped(text: pl.Expr, function: Callable[[str], int], dtype: type[pl.DataType]) -> pl.Expr:
    """A function of text, called once for each distinct value."""

    def apply(values: pl.Series) -> pl.Series:
        known = values.drop_nulls().unique()
        if known.is_empty():
            return pl.Series(values.name, [None] * len(values), dtype=dtype)
        return values.replace_strict(known, pl.Series([function(value) for value in known], dtype=dtype), return_dtype=dtype)

    return text.map_batches(apply, return_dtype=dtype)


def ntp_ns(text: str) -> int:
    """tshark's date of an NTP timestamp as ns since 1970; it writes 0 as NULL."""
    if text == "NULL":
        return -NTP_EPOCH_S * 10**9
    date, fraction = text.removesuffix(" UTC").split(".")
    moment = datetime.strptime(date, "%b %d, %Y %H:%M:%S").replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * 10**9 + int(fraction)


NTP_EPOCH_S = 2_208_988_800


def expected(table: pl.DataFrame, innermost: bool) -> pl.DataFrame:
    """The columns as tshark has them, under the columns' names; null where it has none."""
    distinct = table["frame.protocols"].unique().to_list()
    places = pl.DataFrame([{"frame.protocols": text, **layers(text, innermost)._asdict()} for text in distinct])
    table = table.join(places, on="frame.protocols", how="left", maintain_order="left")
    is_v4, tcp, udp, icmp, icmpv6 = pl.col("ip") == "ip", *(pl.col("transport") == name for name in ("tcp", "udp", "icmp", "icmpv6"))

    def by_version(v4: str, v6: str) -> pl.Expr:
        return pl.when(is_v4).then(nth(v4, "ip_at")).otherwise(nth(v6, "ip_at"))

    def by_transport(suffix: str) -> pl.Expr:
        chosen = pl.lit(None, dtype=pl.UInt64)
        for name in ("tcp", "udp", "sctp"):
            found = integer(nth(f"{name}.{suffix}", "transport_at"))
            chosen = pl.when(pl.col("transport") == name).then(found).otherwise(chosen)
        return chosen

    def of_tcp(field: str, at: str = "transport_at") -> pl.Expr:
        return pl.when(tcp).then(integer(nth(field, at)))

    def of(application: Kind, value: pl.Expr) -> pl.Expr:
        names = [name for name, kind in APPLICATIONS.items() if kind == application]
        direct = pl.col("transport") == "esp" if application == Kind.ESP else False
        return pl.when(pl.col("application").is_in(names) | direct).then(value)

    protocol = integer(by_version("ip.proto", "ipv6.nxt"))
    for name, field in EXTENSIONS.items():
        protocol = pl.when(pl.col("extension") == name).then(integer(nth(field, "extension_at"))).otherwise(protocol)
    icmp_type = pl.when(icmp).then(integer(nth("icmp.type", "transport_at")))
    icmp_type = pl.when(icmpv6).then(integer(nth("icmpv6.type", "transport_at"))).otherwise(icmp_type)
    ident = pl.when(icmp & icmp_type.is_in(ECHO_TYPES)).then(integer(nth("icmp.ident")))
    ident = pl.when(icmpv6 & icmp_type.is_in([128, 129])).then(integer(nth("icmpv6.echo.identifier"))).otherwise(ident)
    sequence = pl.when(icmp & icmp_type.is_in(ECHO_TYPES)).then(integer(nth("icmp.seq")))
    sequence = pl.when(icmpv6 & icmp_type.is_in([128, 129])).then(integer(nth("icmpv6.echo.sequence_number"))).otherwise(sequence)
    mode = integer(nth("ntp.flags.mode"))
    ntp = pl.when(mode.is_in([2, 4])).then(nth("ntp.org")).when(mode.is_in([1, 3, 5])).then(nth("ntp.xmt"))
    kinds = {name: int(kind) for name, kind in APPLICATIONS.items()} | {"": None}
    kind = pl.when(tcp).then(Kind.TCP).when(icmp | icmpv6).then(Kind.ICMP).when(pl.col("transport") == "esp").then(Kind.ESP)
    return table.select(
        integer(pl.col("frame.number")).alias("number"),
        "frame.protocols",
        pl.col("ip").ne("").alias("is_ip"),
        address_half(by_version("ip.src", "ipv6.src"), True).alias("src_high"),
        address_half(by_version("ip.src", "ipv6.src"), False).alias("src_low"),
        address_half(by_version("ip.dst", "ipv6.dst"), True).alias("dst_high"),
        address_half(by_version("ip.dst", "ipv6.dst"), False).alias("dst_low"),
        integer(by_version("ip.dsfield", "ipv6.tclass")).alias("traffic_class"),
        pl.when(is_v4)
        .then(integer(nth("ip.id", "ip_at")))
        .when(pl.col("extension") == "ipv6.fraghdr")
        .then(integer(nth("ipv6.fraghdr.ident", "extension_at")) & 0xFFFF)
        .alias("ip_id"),
        protocol.alias("protocol"),
        by_transport("srcport").alias("src_port"),
        by_transport("dstport").alias("dst_port"),
        of_tcp("tcp.seq_raw").alias("tcp_seq"),
        of_tcp("tcp.ack_raw").alias("ack"),
        of_tcp("tcp.len").alias("tcp_payload"),
        (of_tcp("tcp.flags") & 0xFF).alias("tcp_flags"),
        of_tcp("tcp.window_size_value").alias("window"),
        of_tcp("tcp.options.timestamp.tsval", "first").alias("tsval"),
        of_tcp("tcp.options.timestamp.tsecr", "first").alias("tsecr"),
        pl.when(tcp).then(pl.col("tcp.options.timestamp.tsval").is_not_null()).cast(pl.UInt64).alias("has_timestamps"),
        pl.when(tcp).then(pl.col("tcp.option_kind").fill_null("").str.split(SEPARATOR).list.contains("5")).cast(pl.UInt64).alias("has_sack"),
        pl.when(udp).then(integer(nth("udp.length", "transport_at"))).alias("udp_length"),
        icmp_type.alias("icmp_type"),
        ident.alias("icmp_ident"),
        sequence.alias("icmp_seq"),
        kind.otherwise(pl.col("application").replace_strict(kinds, return_dtype=pl.Int32)).cast(pl.UInt64).alias("kind"),
        of(Kind.DNS, integer(nth("dns.id"))).alias("dns_id"),
        of(Kind.DNS, integer(nth("dns.flags.response"))).alias("dns_response"),
        of(Kind.NTP, mode).alias("ntp_mode"),
        of(Kind.NTP, mapped(ntp, ntp_ns, pl.Int64)).alias("ntp_ns"),
        of(Kind.QUIC, integer(nth("quic.header_form"))).alias("quic_long"),
        of(Kind.QUIC, nth("quic.dcid")).alias("quic_id"),
        of(Kind.QUIC, pl.when(nth("quic.header_form") == "0").then(integer(nth("quic.spin_bit")))).alias("quic_spin"),
        of(Kind.ESP, integer(nth("esp.spi"))).alias("esp_spi"),
        of(Kind.ESP, integer(nth("esp.sequence"))).alias("esp_seq"),
        of(Kind.WIREGUARD, integer(nth("wg.type"))).alias("wg_type"),
        of(Kind.WIREGUARD, integer(nth("wg.sender"))).alias("wg_sender"),
        of(Kind.WIREGUARD, integer(nth("wg.receiver"))).alias("wg_receiver"),
        of(Kind.WIREGUARD, integer(nth("wg.counter")) & 0xFFFFFFFF).alias("wg_counter"),
    )


def found(batch: PacketBatch) -> pl.DataFrame:
    """The same columns out of a batch."""
    message, transaction = batch.message.astype(np.uint64), batch.transaction
    ntp_s, ntp_fraction = transaction >> np.uint64(32), transaction & np.uint64(0xFFFFFFFF)
    ntp_ns = (ntp_s.astype(np.int64) - NTP_EPOCH_S) * 10**9 + (ntp_fraction * np.uint64(10**9) >> np.uint64(32)).astype(np.int64)
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
            "message": message,
            "payload_length": batch.payload_length,
            "captured_length": batch.captured_length,
            "payload_offset": batch.payload_offset,
        }
    )
