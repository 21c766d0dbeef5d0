"""tshark's fields of a capture, as columns to compare with ours."""

import ipaddress
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl

from wirelag.packets.batch import Kind

# Raw numbers, and each packet by itself.
PREFERENCES = (
    "tcp.relative_sequence_numbers:FALSE",
    "tcp.desegment_tcp_streams:FALSE",
    "tcp.analyze_sequence_numbers:FALSE",
    "ip.defragment:FALSE",
    "ipv6.defragment:FALSE",
)
SEPARATOR = ";"
FIELDS = [
    *("frame.number", "frame.protocols"),
    *("ip.src", "ip.dst", "ip.id", "ip.dsfield", "ip.proto", "ip.len", "ip.hdr_len"),
    *("ipv6.src", "ipv6.dst", "ipv6.tclass", "ipv6.nxt", "ipv6.plen", "ipv6.fraghdr.ident"),
    *(
        "tcp.srcport",
        "tcp.dstport",
        "tcp.seq_raw",
        "tcp.ack_raw",
        "tcp.len",
        "tcp.flags",
        "tcp.window_size_value",
        "tcp.hdr_len",
    ),
    *("tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr", "tcp.option_kind"),
    *("udp.srcport", "udp.dstport", "udp.length", "sctp.srcport", "sctp.dstport"),
    *("icmp.type", "icmp.ident", "icmp.seq", "icmpv6.type", "icmpv6.echo.identifier", "icmpv6.echo.sequence_number"),
    *("dns.id", "dns.flags.response", "ntp.flags.mode", "ntp.org", "ntp.xmt"),
    *("quic.header_form", "quic.dcid", "quic.spin_bit", "quic.version"),
    *("esp.spi", "esp.sequence", "wg.type", "wg.sender", "wg.receiver", "wg.counter"),
]

# IP packets inside another one that both tshark and wirelag follow (columns.md, "Tunnels"). After any other layer (an
# ICMP error's quotation, 802.11 in GRE, Teredo, decrypted WireGuard) the row stays with the carrier.
FOLLOWED = {"ip", "ipv6", "udp", "gre", "vxlan", "geneve", "gtp", "erspan"}
LOWER = {"eth", "ethertype", "vlan", "ieee8021ad", "mpls", "llc", "pppoes", "ppp", "sll", "null", "raw", "chdlc"}
FOLLOWED |= LOWER
EXTENSIONS = {
    "ipv6.hopopts": "ipv6.hopopts.nxt",
    "ipv6.routing": "ipv6.routing.nxt",
    "ipv6.fraghdr": "ipv6.fraghdr.nxt",
}
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
    """The layers of a packet that its row describes; each with the number of earlier layers of the same name."""

    ip: str = ""
    ip_at: int = 0
    extension: str = ""
    extension_at: int = 0
    transport: str = ""
    transport_at: int = 0
    application: str = ""  # if wirelag knows it
    lower: str = ""  # the layers below IP
    payload: str = ""  # tshark's protocol for the payload of a UDP datagram


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
        return Layers(names[ip], nth[ip], extension, extension_at, lower=":".join(names[: places[0]]))
    payload = ":".join(above[1:]) if above[0] == "udp" else ""
    application = next((name for name in APPLICATIONS if f"{payload}:".startswith(f"{name}:")), "")
    return Layers(
        names[ip], nth[ip], extension, extension_at, above[0], nth[at + 1], application, payload.split(":")[0]
    )


def dissected(tshark: str, path: Path, most: int) -> pl.DataFrame:
    """tshark's fields of the first `most` packets as text, one row each; null where a packet lacks the field."""
    preferences = [word for preference in PREFERENCES for word in ("-o", preference)]
    fields = [word for field in FIELDS for word in ("-e", field)]
    command = [
        tshark,
        "-n",
        "-r",
        str(path),
        "-c",
        str(most),
        *preferences,
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        f"aggregator={SEPARATOR}",
    ]
    quiet = os.environ | {"XDG_CONFIG_HOME": "/nonexistent", "TZ": "UTC", "LC_ALL": "C"}  # no personal preferences
    output = subprocess.run([*command, *fields], capture_output=True, check=False, env=quiet).stdout
    schema = dict.fromkeys(FIELDS, pl.String)
    if not output:
        return pl.DataFrame(schema=schema)
    table = pl.read_csv(output, separator="\t", has_header=False, schema=schema, quote_char=None)
    return table.with_columns(pl.col("frame.protocols").fill_null(""))


def nth(field: str, at: str = "first") -> pl.Expr:
    """The value of a field in the layer that the row describes."""
    position = pl.lit(0) if at == "first" else pl.col(at)
    return pl.col(field).str.split(SEPARATOR).list.get(position, null_on_oob=True)


def integer(text: pl.Expr) -> pl.Expr:
    """A number that tshark writes as 0x1f or as 31."""
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
        return values.replace_strict(
            known, pl.Series([function(value) for value in known], dtype=dtype), return_dtype=dtype
        )

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
    """tshark's values under the columns' names; null where it has none."""
    distinct = table["frame.protocols"].unique().to_list()
    found = [{"frame.protocols": text, **layers(text, innermost)._asdict()} for text in distinct]
    places = pl.DataFrame(found or [{"frame.protocols": "", **Layers()._asdict()}])
    table = table.join(places, on="frame.protocols", how="left", maintain_order="left")
    is_v4, tcp, udp, icmp, icmpv6 = (
        pl.col("ip") == "ip",
        *(pl.col("transport") == name for name in ("tcp", "udp", "icmp", "icmpv6")),
    )

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

    def signed(field: str, at: str) -> pl.Expr:
        return integer(nth(field, at)).cast(pl.Int64)

    def of(application: Kind, value: pl.Expr) -> pl.Expr:
        names = [name for name, kind in APPLICATIONS.items() if kind == application]
        direct = pl.col("transport") == "esp" if application == Kind.ESP else False
        return pl.when(pl.col("application").is_in(names) | direct).then(value)

    protocol = integer(by_version("ip.proto", "ipv6.nxt"))
    for name, field in EXTENSIONS.items():
        protocol = pl.when(pl.col("extension") == name).then(integer(nth(field, "extension_at"))).otherwise(protocol)
    icmp_type: pl.Expr = pl.when(icmp).then(integer(nth("icmp.type", "transport_at")))
    icmp_type = pl.when(icmpv6).then(integer(nth("icmpv6.type", "transport_at"))).otherwise(icmp_type)
    ident: pl.Expr = pl.when(icmp & icmp_type.is_in(ECHO_TYPES)).then(integer(nth("icmp.ident")))
    ident = pl.when(icmpv6 & icmp_type.is_in([128, 129])).then(integer(nth("icmpv6.echo.identifier"))).otherwise(ident)
    sequence: pl.Expr = pl.when(icmp & icmp_type.is_in(ECHO_TYPES)).then(integer(nth("icmp.seq")))
    sequence = (
        pl.when(icmpv6 & icmp_type.is_in([128, 129]))
        .then(integer(nth("icmpv6.echo.sequence_number")))
        .otherwise(sequence)
    )
    segment = (
        pl.when(is_v4)
        .then(signed("ip.len", "ip_at") - signed("ip.hdr_len", "ip_at"))
        .otherwise(signed("ipv6.plen", "ip_at"))
    )
    claimed = segment - signed("tcp.hdr_len", "transport_at")
    mode = integer(nth("ntp.flags.mode"))
    ntp = pl.when(mode.is_in([2, 4])).then(nth("ntp.org")).when(mode.is_in([1, 3, 5])).then(nth("ntp.xmt"))
    quic_id = nth("quic.dcid").str.head(16)
    kinds = {name: int(kind) for name, kind in APPLICATIONS.items()} | {"": None}
    kind = (
        pl.when(tcp)
        .then(Kind.TCP)
        .when(icmp | icmpv6)
        .then(Kind.ICMP)
        .when(pl.col("transport") == "esp")
        .then(Kind.ESP)
    )
    return table.select(
        integer(pl.col("frame.number")).alias("number"),
        pl.col("ip").ne("").alias("is_ip"),
        "lower",
        pl.col("payload").alias("udp_payload"),
        claimed.alias("claimed"),
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
        pl.when(tcp)
        .then(pl.col("tcp.option_kind").fill_null("").str.split(SEPARATOR).list.contains("5"))
        .cast(pl.UInt64)
        .alias("has_sack"),
        pl.when(udp).then(integer(nth("udp.length", "transport_at"))).alias("udp_length"),
        icmp_type.alias("icmp_type"),
        ident.alias("icmp_ident"),
        sequence.alias("icmp_seq"),
        kind.otherwise(pl.col("application").replace_strict(kinds, return_dtype=pl.Int32))
        .cast(pl.UInt64)
        .alias("kind"),
        of(Kind.DNS, integer(nth("dns.id"))).alias("dns_id"),
        of(Kind.DNS, integer(nth("dns.flags.response"))).alias("dns_response"),
        of(Kind.NTP, mode).alias("ntp_mode"),
        of(Kind.NTP, mapped(ntp, ntp_ns, pl.Int64)).alias("ntp_ns"),
        of(Kind.QUIC, integer(nth("quic.header_form"))).alias("quic_long"),
        of(Kind.QUIC, mapped(quic_id, lambda text: int(text, 16), pl.UInt64)).alias("quic_id"),
        of(Kind.QUIC, quic_id.str.len_bytes() * 4).alias("quic_id_bits"),
        of(Kind.QUIC, pl.when(nth("quic.header_form") == "0").then(integer(nth("quic.spin_bit")))).alias("quic_spin"),
        of(Kind.ESP, integer(nth("esp.spi"))).alias("esp_spi"),
        of(Kind.ESP, integer(nth("esp.sequence"))).alias("esp_seq"),
        of(Kind.WIREGUARD, integer(nth("wg.type"))).alias("wg_type"),
        of(Kind.WIREGUARD, integer(nth("wg.sender"))).alias("wg_sender"),
        of(Kind.WIREGUARD, integer(nth("wg.receiver"))).alias("wg_receiver"),
        of(Kind.WIREGUARD, integer(nth("wg.counter")) & 0xFFFFFFFF).alias("wg_counter"),
    )
