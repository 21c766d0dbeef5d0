"""`wirelag agent`: measures at a vantage point and sends a synopsis of each interval to the collector."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from wirelag.cli.options import ANSWER, FILTERS, METHOD
from wirelag.cli.parser import Argument, Option
from wirelag.errors import WirelagError

COLLECTOR = "Collector"
REFERENCES = "Reference packets"


def _option(flag: str, metavar: str | None, says: str, panel: str) -> Any:
    return Option(flag, metavar=metavar, help=says, panel=panel)


def agent(
    file: Annotated[str | None, Argument(metavar="[FILE]", help="Settings file (TOML). Options override it.")] = None,
    check: Annotated[bool, Option("--check", help="Check the settings, print the plan, and exit.")] = False,
    point: Annotated[str | None, _option("--point", "NAME", "Name of this vantage point.", FILTERS)] = None,
    interface: Annotated[str | None, _option("--interface", "IFACE", "Interface to capture on.", FILTERS)] = None,
    read: Annotated[list[str] | None, _option("-r", "CAPTURE", "Replay this capture instead.", FILTERS)] = None,
    speed: Annotated[str | None, _option("--speed", "Nx", "Replay speed (1x).", FILTERS)] = None,
    expression: Annotated[str | None, _option("--filter", "EXPRESSION", "Filter in tcpdump's syntax.", FILTERS)] = None,
    promiscuous: Annotated[
        bool | None, _option("--promiscuous", None, "Capture packets to other hosts, too.", FILTERS)
    ] = None,
    tunnels: Annotated[bool | None, _option("--tunnels", None, "Measure packets inside tunnels.", FILTERS)] = None,
    ring: Annotated[str | None, _option("--ring", "SIZE", "Size of the capture buffer (64MiB).", FILTERS)] = None,
    cores: Annotated[int | None, _option("--cores", "N", "Cores that capture packets (1).", FILTERS)] = None,
    clock: Annotated[
        str | None, _option("--clock", "kernel|hardware", "Source of timestamps (kernel).", FILTERS)
    ] = None,
    in_kernel: Annotated[
        bool | None, _option("--in-kernel", None, "lda: measure inside the kernel (eBPF).", FILTERS)
    ] = None,
    then: Annotated[str | None, _option("--then", "PINNED", "XDP program to run after wirelag's.", FILTERS)] = None,
    segment: Annotated[
        list[str] | None, _option("--segment", "A>B", "Segment to measure; one for each --direction.", FILTERS)
    ] = None,
    direction: Annotated[
        list[str] | None, _option("--direction", "SRC>DST", "Addresses of the segment's packets.", FILTERS)
    ] = None,
    nat: Annotated[bool | None, _option("--nat", None, "Leave addresses and ports out of packet ids.", FILTERS)] = None,
    prefix: Annotated[int | None, _option("--prefix", "BYTES", "Payload bytes in packet ids (16).", FILTERS)] = None,
    estimator: Annotated[str | None, _option("--estimator", "lda|finecomb|rda|rli", "Estimator (rda).", METHOD)] = None,
    interval: Annotated[str | None, _option("--interval", "D", "Length of intervals (1s).", METHOD)] = None,
    grace: Annotated[str | None, _option("--grace", "D", "Wait before an idle interval is cut (50ms).", METHOD)] = None,
    rows: Annotated[int | None, _option("--rows", "N", "lda, finecomb: number of rows.", METHOD)] = None,
    loss: Annotated[str | None, _option("--loss", "SHARES", "lda, finecomb: loss rates to tune for.", METHOD)] = None,
    packets_per_interval: Annotated[
        int | None, _option("--packets-per-interval", "N", "lda: packets per interval to tune for.", METHOD)
    ] = None,
    banks: Annotated[int | None, _option("--banks", "K", "rda: number of banks (3).", METHOD)] = None,
    buckets: Annotated[int | None, _option("--buckets", "N", "rda: send N buckets instead of symbols.", METHOD)] = None,
    deviation: Annotated[
        str | None, _option("--deviation", "rows|collapse", "Method for the standard deviation.", METHOD)
    ] = None,
    tail: Annotated[int | None, _option("--tail", "N", "Packets kept for quantiles (512).", METHOD)] = None,
    memory: Annotated[str | None, _option("--memory", "SIZE", "rda: memory per interval (64MiB).", METHOD)] = None,
    past: Annotated[str | None, _option("--past", "SIZE", "rda: memory for past intervals (256MiB).", METHOD)] = None,
    seed: Annotated[int | None, _option("--seed", "S", "Seed of all random choices.", METHOD)] = None,
    cut_by: Annotated[str | None, _option("--cut", "packets|clock", "lda: where intervals end.", METHOD)] = None,
    control_port: Annotated[
        int | None, _option("--control-port", "PORT", "lda: cut at control packets to this port.", METHOD)
    ] = None,
    control_to: Annotated[
        str | None, _option("--control-to", "ADDRESS", "lda: send control packets to this address.", METHOD)
    ] = None,
    clock_error: Annotated[
        str | None, _option("--clock-error", "D", "Error bound of the clock; default: as its daemon reports.", METHOD)
    ] = None,
    by: Annotated[
        str | None,
        _option("--by", "flow|source|destination|prefix|dscp", "Cut a synopsis of each traffic class, too.", ANSWER),
    ] = None,
    most_groups: Annotated[int | None, _option("--most-groups", "N", "Classes to keep (100).", ANSWER)] = None,
    ipv4_prefix: Annotated[
        int | None, _option("--ipv4-prefix", "BITS", "Prefix length of IPv4 networks (24).", ANSWER)
    ] = None,
    ipv6_prefix: Annotated[
        int | None, _option("--ipv6-prefix", "BITS", "Prefix length of IPv6 networks (48).", ANSWER)
    ] = None,
    collector: Annotated[
        str | None, _option("--collector", "URL", "https://HOST:PORT or tls://HOST:PORT (NATS).", COLLECTOR)
    ] = None,
    token_file: Annotated[str | None, _option("--token-file", "FILE", "File that holds the token.", COLLECTOR)] = None,
    ca: Annotated[str | None, _option("--ca", "FILE", "CA that signed the collector's certificate.", COLLECTOR)] = None,
    insecure: Annotated[
        bool | None, _option("--insecure", None, "Allow plain text and any certificate.", COLLECTOR)
    ] = None,
    source: Annotated[str | None, _option("--from", "ADDRESS", "Source address of messages.", COLLECTOR)] = None,
    spool: Annotated[str | None, _option("--spool", "FOLDER", "Folder for messages not yet sent.", COLLECTOR)] = None,
    spool_most: Annotated[
        str | None, _option("--spool-most", "SIZE", "Size limit of the spool (1GiB).", COLLECTOR)
    ] = None,
    status: Annotated[str | None, _option("--status", "D", "How often to send a status (10s).", COLLECTOR)] = None,
    reference: Annotated[
        list[str] | None, _option("--reference", "ADDRESS", "Send reference packets to this address.", REFERENCES)
    ] = None,
    every: Annotated[str | None, _option("--every", "D", "Time between reference packets (10ms).", REFERENCES)] = None,
    link: Annotated[str | None, _option("--link", "RATE", "Rate of the link (1Gbps).", REFERENCES)] = None,
    share: Annotated[
        str | None, _option("--share", "SHARE", "Largest share of the link they may use (0.5%).", REFERENCES)
    ] = None,
    receive_references: Annotated[
        bool | None, _option("--receive-references", None, "Receive reference packets of other agents.", REFERENCES)
    ] = None,
    m_set: Annotated[
        str | None, _option("--m-set", "collector", "Measure the m-set that the collector assigns.", REFERENCES)
    ] = None,
) -> None:
    """Measure one point for a collector.

    The agent captures without end, and sends a synopsis of each interval to the collector, which compares it with that
    of the segment's other end. Use the same settings at both ends.
    """
    from wirelag.agent.config import Config
    from wirelag.agent.settings import SCHEMA

    settings = SCHEMA.load(file)
    given = {
        "--point": point, "--interface": interface, "-r": read, "--speed": speed, "--filter": expression,
        "--promiscuous": promiscuous, "--tunnels": tunnels, "--ring": ring, "--cores": cores, "--nat": nat,
        "--prefix": prefix, "--clock": clock,
        "--in-kernel": in_kernel, "--then": then,
        "--estimator": estimator, "--interval": interval, "--grace": grace, "--rows": rows, "--loss": loss,
        "--packets-per-interval": packets_per_interval, "--banks": banks, "--buckets": buckets,
        "--deviation": deviation, "--tail": tail, "--memory": memory, "--past": past, "--seed": seed,
        "--cut": cut_by, "--control-port": control_port, "--control-to": control_to, "--clock-error": clock_error,
        "--by": by, "--most-groups": most_groups, "--ipv4-prefix": ipv4_prefix, "--ipv6-prefix": ipv6_prefix,
        "--collector": collector, "--token-file": token_file, "--ca": ca, "--insecure": insecure, "--spool": spool,
        "--spool-most": spool_most, "--status": status, "--receive-references": receive_references,
        "--m-set": m_set, "--from": source,
    }  # fmt: skip
    settings.put_flags(given)
    settings.put_tables("segments", {"name": ("--segment", segment), "direction": ("--direction", direction)})
    settings.put_tables(
        "references",
        {
            "to": ("--reference", reference),
            "every": ("--every", every),
            "link": ("--link", link),
            "share": ("--share", share),
        },
    )
    config = Config.of(settings)
    if check:
        from wirelag.agent.forecast import forecast

        for line in forecast(config):
            print(line)
        return
    if config.collector is None:
        raise WirelagError("collector (--collector) is missing: give its URL; only --check works without it")
    from wirelag.agent.loop import Agent

    Agent(config, lambda line: print(f"wirelag agent: {line}", file=sys.stderr, flush=True)).run()
