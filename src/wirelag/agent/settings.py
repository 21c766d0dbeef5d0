"""The settings of an agent, as the schema of its file and command line."""

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
MOST_PORTS: Final = 64  # of a router, to other routers
MOST_WAYS: Final = 256  # pairs of ports that packets take, measured at a time
MOST_REFLECTORS: Final = 64
MOST_SPREAD: Final = 64  # source ports of the references of a virtual link
ESTIMATORS: Final = between_points(live=True)


def _estimator(value: Any) -> str:
    if value in between_points(live=False):
        raise ValueError(f"{value!r} sends every packet, so it needs captures; known: {', '.join(ESTIMATORS)}")
    return str(choice(*ESTIMATORS).read(value))


def _direction(value: Any) -> str:
    Direction.parse(TEXT.read(value))
    return str(value)


DIRECTION: Final = Kind("`SRC>DST`", _direction)
# Part of URLs, subjects and file names.
POINT: Final = named("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, - and _")
SEGMENT: Final = Kind("segment", lambda value: str(parse_segment(TEXT.read(value))))
ESTIMATOR: Final = Kind(choice(*ESTIMATORS).words, _estimator)

# fmt: off
SCHEMA: Final = Schema(
    (
        Key("point", POINT, None, "name of this vantage point; unique at its collector", "--point", required=True),
        Key("interface", TEXT, None, "interface to capture on; `any` is every Ethernet port", "--interface"),
        Key("read", listed(PATH), None, "captures to replay instead", "-r"),
        Key("speed", SPEED, "1x", "replay speed", "--speed"),
        Key("filter", TEXT, None, "filter in tcpdump's syntax; the same at both ends", "--filter"),
        Key("interval", duration("10ms", "1d"), "1s", "length of intervals", "--interval"),
        Key("grace", duration(), "50ms", "wait after the end of an interval before it is cut, if no later packet comes",
            "--grace"),
        Key("status", duration(), "10s", "how often the agent sends its status", "--status"),
        Key("by", choice("flow", "source", "destination", "prefix", "dscp"), None, "also cut a synopsis per class",
            "--by"),
        Key("most_groups", whole(1, 4000), 100, "classes per interval; the rest is `other`", "--most-groups"),
        Key("ipv4_prefix", whole(0, 32), 24, "prefix length of IPv4 networks in `by`", "--ipv4-prefix"),
        Key("ipv6_prefix", whole(0, 128), 48, "prefix length of IPv6 networks in `by`", "--ipv6-prefix"),
        Key("collector.url", TEXT, None, "`https://HOST:PORT`, `tls://HOST:PORT` (NATS); plain text only on loopback",
            "--collector"),
        Key("collector.token_file", PATH, None, "file with the token, or `user:password` for NATS", "--token-file"),
        Key("collector.ca", PATH, None, "CA that signed the collector's certificate", "--ca", "the system's"),
        Key("collector.certificate", PATH, None, "certificate to show to the collector; needs `key`"),
        Key("collector.key", PATH, None, "private key of that certificate"),
        Key("collector.from", ADDRESS, None, "source address of messages (HTTPS); on a router its own", "--from"),
        Key("collector.insecure", FLAG, False, "allow plain text to other hosts and any certificate", "--insecure"),
        Key("capture.promiscuous", FLAG, False, "also capture packets to other hosts", "--promiscuous"),
        Key("capture.tunnels", FLAG, False, "measure inside GRE, IP-in-IP, VXLAN, Geneve and GTP-U", "--tunnels"),
        Key("capture.ring", size(), "64MiB", "size of the capture buffer", "--ring"),
        Key("capture.clock", choice("kernel", "hardware"), "kernel", "whose timestamps; `hardware`: the network card's",
            "--clock"),
        Key("capture.cores", whole(1, 4096), 1, "cores that capture packets", "--cores"),
        Key("capture.in_kernel", FLAG, False, "measure [inside the kernel](../guides/in-the-kernel.md) (eBPF)",
            "--in-kernel"),
        Key("capture.then", PATH, None, "with `in_kernel`: pinned XDP program to run after ours", "--then"),
        Key("estimator.name", ESTIMATOR, "rda", "the estimator", "--estimator"),
        Key("estimator.method", choice("linear", "left", "busy"), "busy", "rli: interpolation ([flows](flows.md))"),
        Key("estimator.rows", whole(1, 1 << 16), None, "lda (all banks), finecomb: rows; rda: rows for sigma", "--rows",
            "1024; rda: 256"),
        Key("estimator.loss", TEXT, None, 'lda, finecomb: loss rates to tune for, `"0.1%,5%"`', "--loss"),
        Key("estimator.packets_per_interval", whole(1, 1 << 40), None, "packets to tune for", "--packets-per-interval"),
        Key("estimator.banks", whole(2, 4), 3, "rda: number of banks", "--banks"),
        Key("estimator.buckets", whole(2, 1 << 19), None, "rda: send buckets, not symbols", "--buckets"),
        Key("estimator.deviation", choice("rows", "collapse"), "rows", "`collapse`: as in the papers", "--deviation"),
        Key("estimator.tail", whole(1, 1 << 16), 512, "packets sampled for quantiles, at most", "--tail"),
        Key("estimator.memory", size("1KiB", "128GiB"), "64MiB", "rda: memory for packets; rli: for flows", "--memory",
            "`64MiB`; rli: `16MiB`"),
        Key("estimator.past", size(), "256MiB", "rda: memory for past intervals, for a second round", "--past"),
        Key("estimator.seed", whole(0, (1 << 64) - 1), 0, "seed of all random choices and of packet ids", "--seed"),
        Key("packet_id.nat", FLAG, False, "leave addresses and ports out of packet ids", "--nat"),
        Key("packet_id.prefix", whole(0, 64), 16, "payload bytes in packet ids", "--prefix"),
        Key("cut.at", choice("packets", "colours", "clock"), None,
            "where intervals end; `colours`: of [marked packets](#marked-packets)", "--cut",
            "lda: `packets`; others: `clock`"),
        Key("cut.colour", choice(*(f"dscp:{bit}" for bit in range(6))), "dscp:0", "lda: the bit that is the colour"),
        Key("cut.control_port", whole(1, 65535), None, "lda: cut at control packets to this port", "--control-port"),
        Key("cut.control_to", ADDRESS, None, "lda: send control packets to this address", "--control-to"),
        Key("push.ipfix", TEXT, None, "also send [each interval](exports.md#segments) as IPFIX: `ipfix+udp://HOST:4739`"),
        Key("spool.folder", PATH, None, "folder for messages not yet sent", "--spool", "see below"),
        Key("spool.most", size(), "1GiB", "size limit of the spool; beyond it the oldest are dropped", "--spool-most"),
        Key("clock.error", duration(), None, "error bound of the clock, instead of its daemon's", "--clock-error"),
        Key("receive_references", FLAG, False, "receive reference packets (port 862)", "--receive-references"),
        Key("m_set.by", choice("collector"), None, "who assigns the [m-set](#m-sets-of-the-collector) to measure",
            "--m-set"),
        Key("m_set.every", duration("1ms"), "100ms", "time between reference packets of a segment"),
        Key("m_set.link", RATE, "1Gbps", "rate of the links"),
        Key("m_set.share", SHARE, "0.5%", "largest share of the link's bytes for references"),
        Key("m_set.dscp", whole(0, 63), 0, "DSCP of reference packets"),
        Key("inside.by", choice("ports", "collector"), None, "measure [inside this router](#inside-a-router); "
            "who says where its ports lead: `ports` below, or the collector"),
        Key("inside.estimator", choice(*between_points(live=True, one_sided=False)), "lda", "estimator of each way"),
        Key("inside.rows", whole(2, 1 << 16), None, "rows, as `estimator.rows`", otherwise="1024; rda: 256"),
        Key("inside.packets_per_interval", whole(1, 1 << 40), None, "packets of a way to tune for"),
        Key("inside.memory", size("1KiB", "128GiB"), "1MiB", "rda: memory for packets of each way and end"),
    ),
    {
        "segments": (MOST_SEGMENTS, (
            Key("name", SEGMENT, None, "a segment that begins or ends here: `A>B`, `A>>D`, `B[A>C]`",
                "--segment"),
            Key("direction", DIRECTION, None, "direction of its packets, by address or network", "--direction", "both"),
            Key("packets", choice("all", "references"), "all", "`references`: only reference packets"),
            Key("references", DIRECTION, None, "rli: direction of its references, if different",
                otherwise="its direction"),
        )),
        "ports": (MOST_PORTS, (
            Key("to", POINT, None, "the router that a port of this one leads to", required=True),
            Key("interface", TEXT, None, "the port, by the name of its interface"),
            Key("address", ADDRESS, None, "or by this router's address there"),
        )),
        "reflectors": (MOST_REFLECTORS, (
            Key("name", POINT, None, "a router that [reflects test packets](#reflectors): segments `A>R` and `R>A`",
                required=True),
            Key("to", ADDRESS, None, "its address", required=True),
            Key("link", FLAG, True, "`false`: routers lie in between, and the segments are `A>>R` and `R>>A`"),
            Key("port", whole(1, 65535), 862, "its port"),
            Key("every", duration("10ms"), "100ms", "time between requests"),
            Key("key_file", PATH, None, "file with the key of authenticated packets"),
            Key("for", choice("segments", "clock"), "segments",
                "`clock`: only to compare its clock, since another agent is there"),
        )),
        "references": (MOST_REFERENCES, (
            Key("to", ADDRESS, None, "destination of reference packets (STAMP)", "--reference", required=True),
            Key("from", ADDRESS, None, "their source address", otherwise="chosen by routing"),
            Key("hops", whole(0, 255), 0, "their hop limit, 1 for a link; 0: the usual one"),
            Key("spread", whole(1, MOST_SPREAD), 1, "source ports used in turn, for equal paths"),
            Key("policy", choice("adaptive", "1-in-n", "1-in-tau", "both"), None,
                "when to send one ([policies](#when-references-are-sent))",
                otherwise="rli without `every`: `adaptive`; others: `1-in-tau`"),
            Key("n", whole(1, 1 << 20), 100, "`1-in-n`, `both`: packets per reference packet"),
            Key("every", duration("1ms"), "10ms", "`1-in-tau`, `both`: time between reference packets", "--every"),
            Key("among", DIRECTION, None, "direction of the packets that they travel among",
                otherwise="rli: of segments that begin here; others: all"),
            Key("link", RATE, "1Gbps", "rate of the link", "--link"),
            Key("share", SHARE, "0.5%", "largest share of the link's bytes for references", "--share"),
            Key("source_port", whole(0, 65535), 0, "their source port; 0: any"),
            Key("dscp", whole(0, 63), 0, "DSCP of reference packets"),
        )),
    },
)
# fmt: on
