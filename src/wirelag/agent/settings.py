"""The settings of an agent, as a schema: what a file and the command line may say."""

from __future__ import annotations

from typing import Any, Final

from wirelag.estimators.catalogue import between_points
from wirelag.network.segments import parse_segment
from wirelag.packets.addresses import Direction
from wirelag.settings import (
    ADDRESS,
    FLAG,
    PATH,
    RATE,
    SHARE,
    SPEED,
    TEXT,
    Key,
    Kind,
    Schema,
    choice,
    duration,
    listed,
    named,
    size,
    whole,
)

MOST_REFERENCES: Final = 64
MOST_SEGMENTS: Final = 64
MOST_SPREAD: Final = 64  # ports that the references of a virtual link come from
ESTIMATORS: Final = between_points(live=True)


def _estimator(value: Any) -> str:
    if value in between_points(live=False):
        raise ValueError(f"{value!r} sends every packet, so it is for captures; known: {', '.join(ESTIMATORS)}")
    return str(choice(*ESTIMATORS).read(value))


def _direction(value: Any) -> str:
    Direction.parse(TEXT.read(value))
    return str(value)


DIRECTION: Final = Kind("`SRC>DST`", _direction)
# It becomes part of URLs, subjects and file names.
POINT: Final = named("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, - and _")
SEGMENT: Final = Kind("segment", lambda value: str(parse_segment(TEXT.read(value))))
ESTIMATOR: Final = Kind(choice(*ESTIMATORS).words, _estimator)

# fmt: off
SCHEMA: Final = Schema(
    (
        Key("point", POINT, None, "the name of this vantage point; unique at its collector", "--point", required=True),
        Key("interface", TEXT, None, "the interface to listen at; `any` is every Ethernet port", "--interface"),
        Key("read", listed(PATH), None, "captures to read instead, as if they happened now", "-r"),
        Key("speed", SPEED, "1x", "how fast to read them", "--speed"),
        Key("filter", TEXT, None, "packets as tcpdump selects them; the same at both ends", "--filter"),
        Key("interval", duration("10ms"), "1s", "length of intervals", "--interval"),
        Key("grace", duration(), "50ms", "how long after its end an interval is cut if no later packet comes",
            "--grace"),
        Key("status", duration(), "10s", "how often the collector hears of the agent's own state", "--status"),
        Key("by", choice("flow", "source", "destination", "prefix", "dscp"), None, "a synopsis for each class, too",
            "--by"),
        Key("most_groups", whole(1, 1 << 20), 100, "classes of an interval; the rest is `other`", "--most-groups"),
        Key("ipv4_prefix", whole(0, 32), 24, "of networks in `by`", "--ipv4-prefix"),
        Key("ipv6_prefix", whole(0, 128), 48, "of networks in `by`", "--ipv6-prefix"),
        Key("collector.url", TEXT, None, "`https://HOST:PORT`, `tls://HOST:PORT` (NATS); plain text within the host",
            "--collector"),
        Key("collector.token_file", PATH, None, "a file with the token, or `user:password` for NATS", "--token-file"),
        Key("collector.ca", PATH, None, "who signs the collector's certificate", "--ca", "the system's"),
        Key("collector.from", ADDRESS, None, "the address to send from (HTTPS), for a router its own", "--from"),
        Key("collector.insecure", FLAG, False, "allow plain text to other hosts, and any certificate", "--insecure"),
        Key("capture.promiscuous", FLAG, False, "packets for other hosts, too", "--promiscuous"),
        Key("capture.tunnels", FLAG, False, "look inside GRE, IP-in-IP, VXLAN, Geneve and GTP-U", "--tunnels"),
        Key("capture.ring", size(), "64MiB", "memory for packets that wait to be read", "--ring"),
        Key("capture.cores", whole(1, 4096), 1, "cores that capture, at most those of the host", "--cores"),
        Key("capture.in_kernel", FLAG, False, "measure [inside the kernel](../guides/in-the-kernel.md), by eBPF",
            "--in-kernel"),
        Key("capture.then", PATH, None, "with `in_kernel`: the pinned XDP program that runs after ours", "--then"),
        Key("estimator.name", ESTIMATOR, "rda", "the method", "--estimator"),
        Key("estimator.method", choice("linear", "left", "busy"), "linear", "of rli ([flows](flows.md))"),
        Key("estimator.rows", whole(2, 1 << 24), None, "of lda (all banks) and finecomb; of rda for sigma", "--rows",
            "1024; rda: 32"),
        Key("estimator.loss", TEXT, None, 'lda, finecomb: shares of loss to tune for, `"0.1%,5%"`', "--loss"),
        Key("estimator.packets_per_interval", whole(1, 1 << 40), None, "packets to tune for", "--packets-per-interval"),
        Key("estimator.banks", whole(2, 4), 3, "of rda", "--banks"),
        Key("estimator.buckets", whole(2, 1 << 26), None, "of rda: send so many buckets, not symbols", "--buckets"),
        Key("estimator.deviation", choice("rows", "collapse"), "rows", "`collapse`: as in the papers", "--deviation"),
        Key("estimator.tail", whole(1, 1 << 24), 512, "most packets whose times are sent for quantiles", "--tail"),
        Key("estimator.memory", size("1KiB", "128GiB"), "64MiB", "of rda for packets, of rli for flows", "--memory",
            "`64MiB`; rli: `16MiB`"),
        Key("estimator.past", size(), "256MiB", "of rda, for past intervals that may be asked about", "--past"),
        Key("estimator.seed", whole(0, (1 << 64) - 1), 0, "of all coins, and of packet ids", "--seed"),
        Key("packet_id.nat", FLAG, False, "addresses and ports change in between", "--nat"),
        Key("packet_id.prefix", whole(0, 64), 16, "bytes of payload that tell packets apart", "--prefix"),
        Key("cut.at", choice("packets", "clock"), None, "where intervals end", "--cut",
            "lda: `packets`; others: `clock`"),
        Key("cut.control_port", whole(1, 65535), None, "lda: control packets to it end intervals", "--control-port"),
        Key("cut.control_to", ADDRESS, None, "lda: send control packets to this address", "--control-to"),
        Key("spool.folder", PATH, None, "where messages wait until the collector has them", "--spool", "see below"),
        Key("spool.most", size(), "1GiB", "bytes of them; beyond that the oldest are dropped", "--spool-most"),
        Key("clock.error", duration(), None, "the clock is right within this; nothing else is asked", "--clock-error"),
        Key("receive_references", FLAG, False, "receive reference packets (port 862)", "--receive-references"),
        Key("m_set.by", choice("collector"), None, "who names [segments](#m-sets-of-the-collector) to measure",
            "--m-set"),
        Key("m_set.every", duration("1ms"), "100ms", "how often a reference packet goes to each of them"),
        Key("m_set.link", RATE, "1Gbps", "the rate of the links"),
        Key("m_set.share", SHARE, "0.5%", "the share of the link's bytes that references never exceed"),
        Key("m_set.dscp", whole(0, 63), 0, "their class of service"),
    ),
    {
        "segments": (MOST_SEGMENTS, (
            Key("name", SEGMENT, None, "the segment that this point is an end of: `A>B`, `A>>D`, `B[A>C]`",
                "--segment"),
            Key("direction", DIRECTION, None, "its packets, between addresses or networks", "--direction", "both"),
            Key("packets", choice("all", "references"), "all", "`references`: the reference packets alone"),
            Key("references", DIRECTION, None, "of rli: its references, if their addresses differ",
                otherwise="its direction"),
        )),
        "references": (MOST_REFERENCES, (
            Key("to", ADDRESS, None, "the address that reference packets (STAMP) go to", "--reference", required=True),
            Key("from", ADDRESS, None, "the address that they come from", otherwise="as routes have it"),
            Key("hops", whole(0, 255), 0, "how far they go at most, 1 for a link; 0: as far as usual"),
            Key("spread", whole(1, MOST_SPREAD), 1, "ports that they come from in turn, for equal paths"),
            Key("every", duration("1ms"), "10ms", "how often", "--every"),
            Key("link", RATE, "1Gbps", "the rate of the link", "--link"),
            Key("share", SHARE, "0.5%", "the share of the link's bytes that references never exceed", "--share"),
            Key("source_port", whole(0, 65535), 0, "the port that they come from; 0: any"),
            Key("dscp", whole(0, 63), 0, "their class of service"),
        )),
    },
)
# fmt: on
