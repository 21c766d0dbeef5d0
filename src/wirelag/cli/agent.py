"""`wirelag agent`: at a vantage point, a synopsis of each interval for the collector."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from wirelag.cli.options import ANSWER, FILTERS, METHOD
from wirelag.errors import WirelagError

COLLECTOR = "Where to"
REFERENCES = "Reference packets"


def _option(flag: str, metavar: str | None, says: str, panel: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=says, rich_help_panel=panel)


def agent(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Settings as TOML; options take the place of what it says.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would happen, and end.")] = False,
    point: Annotated[str | None, _option("--point", "NAME", "What this vantage point is called.", FILTERS)] = None,
    interface: Annotated[str | None, _option("--interface", "NAME", "Where to listen.", FILTERS)] = None,
    read: Annotated[
        list[str] | None, _option("-r", "CAPTURE", "Read this instead, as if it happened now.", FILTERS)
    ] = None,
    speed: Annotated[str | None, _option("--speed", "Nx", "How fast to read it; 1x.", FILTERS)] = None,
    expression: Annotated[
        str | None, _option("--filter", "EXPRESSION", "Packets as tcpdump selects them.", FILTERS)
    ] = None,
    promiscuous: Annotated[
        bool | None, _option("--promiscuous", None, "Packets for other hosts, too.", FILTERS)
    ] = None,
    tunnels: Annotated[bool | None, _option("--tunnels", None, "Look inside tunnels.", FILTERS)] = None,
    ring: Annotated[str | None, _option("--ring", "SIZE", "For packets that wait; 64MiB.", FILTERS)] = None,
    cores: Annotated[int | None, _option("--cores", "N", "That take packets in; 1.", FILTERS)] = None,
    in_kernel: Annotated[
        bool | None, _option("--in-kernel", None, "lda: measure inside the kernel, by eBPF.", FILTERS)
    ] = None,
    then: Annotated[str | None, _option("--then", "PINNED", "An XDP program to run after ours.", FILTERS)] = None,
    segment: Annotated[
        list[str] | None, _option("--segment", "A>B", "What is measured; once for each --direction.", FILTERS)
    ] = None,
    direction: Annotated[
        list[str] | None, _option("--direction", "SRC>DST", "Packets of the segment, by address.", FILTERS)
    ] = None,
    nat: Annotated[bool | None, _option("--nat", None, "Addresses and ports change in between.", FILTERS)] = None,
    prefix: Annotated[
        int | None, _option("--prefix", "BYTES", "Of payload that tell packets apart; 16.", FILTERS)
    ] = None,
    estimator: Annotated[str | None, _option("--estimator", "lda|finecomb|rda", "The method; rda.", METHOD)] = None,
    interval: Annotated[str | None, _option("--interval", "D", "How long intervals are; 1s.", METHOD)] = None,
    grace: Annotated[
        str | None, _option("--grace", "D", "How long after its end a quiet interval is cut; 50ms.", METHOD)
    ] = None,
    rows: Annotated[int | None, _option("--rows", "N", "lda, finecomb: rows.", METHOD)] = None,
    loss: Annotated[str | None, _option("--loss", "SHARES", "lda, finecomb: loss to tune for.", METHOD)] = None,
    packets_per_interval: Annotated[
        int | None, _option("--packets-per-interval", "N", "lda: packets to tune for.", METHOD)
    ] = None,
    banks: Annotated[int | None, _option("--banks", "K", "rda: banks; 3.", METHOD)] = None,
    buckets: Annotated[int | None, _option("--buckets", "N", "rda: send N buckets, not symbols.", METHOD)] = None,
    deviation: Annotated[str | None, _option("--deviation", "rows|collapse", "How sigma is told.", METHOD)] = None,
    tail: Annotated[int | None, _option("--tail", "N", "Packets kept for quantiles; 512.", METHOD)] = None,
    memory: Annotated[str | None, _option("--memory", "SIZE", "rda: of an interval; 64MiB.", METHOD)] = None,
    past: Annotated[str | None, _option("--past", "SIZE", "rda: of past intervals; 256MiB.", METHOD)] = None,
    seed: Annotated[int | None, _option("--seed", "S", "Of all coins.", METHOD)] = None,
    cut_by: Annotated[str | None, _option("--cut", "packets|clock", "lda: where intervals end.", METHOD)] = None,
    control_port: Annotated[
        int | None, _option("--control-port", "PORT", "lda: intervals end at control packets to it.", METHOD)
    ] = None,
    control_to: Annotated[
        str | None, _option("--control-to", "ADDRESS", "lda: send control packets there.", METHOD)
    ] = None,
    clock_error: Annotated[
        str | None, _option("--clock-error", "D", "The clock is right within this; do not ask it.", METHOD)
    ] = None,
    by: Annotated[
        str | None,
        _option("--by", "flow|source|destination|prefix|dscp", "A synopsis for each class of traffic, too.", ANSWER),
    ] = None,
    most_groups: Annotated[int | None, _option("--most-groups", "N", "Classes to keep; 100.", ANSWER)] = None,
    ipv4_prefix: Annotated[int | None, _option("--ipv4-prefix", "BITS", "Of networks in --by; 24.", ANSWER)] = None,
    ipv6_prefix: Annotated[int | None, _option("--ipv6-prefix", "BITS", "Of networks in --by; 48.", ANSWER)] = None,
    collector: Annotated[
        str | None, _option("--collector", "URL", "https://HOST:PORT or tls://HOST:PORT (NATS).", COLLECTOR)
    ] = None,
    token_file: Annotated[str | None, _option("--token-file", "FILE", "Holds the token.", COLLECTOR)] = None,
    ca: Annotated[str | None, _option("--ca", "FILE", "Who signs the collector's certificate.", COLLECTOR)] = None,
    insecure: Annotated[
        bool | None, _option("--insecure", None, "Allow plain text, and any certificate.", COLLECTOR)
    ] = None,
    source: Annotated[
        str | None, _option("--from", "ADDRESS", "To speak from; of a router its own.", COLLECTOR)
    ] = None,
    spool: Annotated[str | None, _option("--spool", "FOLDER", "Where messages wait.", COLLECTOR)] = None,
    spool_most: Annotated[str | None, _option("--spool-most", "SIZE", "How much of them; 1GiB.", COLLECTOR)] = None,
    status: Annotated[str | None, _option("--status", "D", "How often to tell how it is; 10s.", COLLECTOR)] = None,
    reference: Annotated[
        list[str] | None, _option("--reference", "ADDRESS", "Send reference packets there.", REFERENCES)
    ] = None,
    every: Annotated[str | None, _option("--every", "D", "How often; 10ms.", REFERENCES)] = None,
    link: Annotated[str | None, _option("--link", "RATE", "The rate of the link; 1Gbps.", REFERENCES)] = None,
    share: Annotated[
        str | None, _option("--share", "SHARE", "Of the link, that they never exceed; 0.5%.", REFERENCES)
    ] = None,
    receive_references: Annotated[
        bool | None, _option("--receive-references", None, "Take those of others.", REFERENCES)
    ] = None,
    m_set: Annotated[
        str | None, _option("--m-set", "collector", "Measure the m-set that the collector tells.", REFERENCES)
    ] = None,
) -> None:
    """Measure at a vantage point for ever: what the other end of a segment must know goes to the collector.

    Use the same settings at both ends.
    """
    from wirelag.capture.privileges import no_threads

    no_threads()
    from wirelag.agent.config import Config
    from wirelag.agent.settings import SCHEMA

    settings = SCHEMA.load(file)
    given = {
        "--point": point, "--interface": interface, "-r": read, "--speed": speed, "--filter": expression,
        "--promiscuous": promiscuous, "--tunnels": tunnels, "--ring": ring, "--cores": cores, "--nat": nat,
        "--prefix": prefix,
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
        raise WirelagError("collector (--collector) is missing: where do messages go? --check does without")
    from wirelag.agent.loop import Agent

    Agent(config, lambda line: print(f"wirelag agent: {line}", file=sys.stderr, flush=True)).run()
