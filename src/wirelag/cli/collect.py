"""`wirelag collect`: pairs points into segments, stores the results and serves them."""

from __future__ import annotations

from typing import Annotated, Any

from wirelag.cli.parser import Argument, Option
from wirelag.errors import WirelagError

SERVED, MEASURED, KEPT = "Server", "Measurement", "Storage"


def _option(flag: str, metavar: str | None, says: str, panel: str) -> Any:
    return Option(flag, metavar=metavar, help=says, panel=panel)


def collect(
    file: Annotated[str | None, Argument(metavar="[FILE]", help="Settings file (TOML). Options override it.")] = None,
    check: Annotated[bool, Option("--check", help="Check the settings, print the plan, and exit.")] = False,
    forget: Annotated[
        str | None, Option("--forget", metavar="POINT", help="Forget an agent that was removed, and exit.")
    ] = None,
    listen: Annotated[
        str | None, _option("--listen", "ADDRESS:PORT", "Address to listen on (127.0.0.1:8321).", SERVED)
    ] = None,
    token_file: Annotated[
        str | None, _option("--token-file", "FILE", "Tokens, one per line; required beyond loopback.", SERVED)
    ] = None,
    certificate: Annotated[
        str | None, _option("--certificate", "FILE", "Certificate for HTTPS; needs --key.", SERVED)
    ] = None,
    key: Annotated[str | None, _option("--key", "FILE", "Private key of the certificate.", SERVED)] = None,
    nats: Annotated[
        str | None, _option("--nats", "URL", "Receive messages from this broker, too: tls://HOST:4222.", SERVED)
    ] = None,
    nats_secret: Annotated[
        str | None, _option("--nats-secret", "FILE", "The broker's token, or user:password.", SERVED)
    ] = None,
    nats_replicas: Annotated[
        int | None, _option("--nats-replicas", "N", "Copies of each stream that is made; 3 in a cluster.", SERVED)
    ] = None,
    ca: Annotated[str | None, _option("--ca", "FILE", "CA that signed the broker's certificate.", SERVED)] = None,
    insecure: Annotated[
        bool | None, _option("--insecure", None, "Allow plain text to the broker, and any certificate.", SERVED)
    ] = None,
    segment: Annotated[
        list[str] | None,
        _option("--segment", "A>B", "Segment to measure, or NAME=UP,DOWN; default: as agents name them.", MEASURED),
    ] = None,
    topology: Annotated[
        str | None,
        _option("--topology", "FILE", "Routers and links, for paths; formats as in `wirelag plan`.", MEASURED),
    ] = None,
    slow: Annotated[
        str | None,
        _option("--slow", "D", "Blame a segment of a path that adds more than this (1ms).", MEASURED),
    ] = None,
    slo: Annotated[
        list[str] | None,
        _option("--slo", "OBJECTIVE", "Colours of the page: p99<20ms, loss<0.1%, 'fra-*: mean<5ms'.", MEASURED),
    ] = None,
    follow: Annotated[
        str | None, _option("--follow", "D", "How often to read the topology and assign m-sets to agents.", MEASURED)
    ] = None,
    upgraded: Annotated[
        list[str] | None,
        _option("--upgraded", "R", "--follow: a router that measures; default: those with live agents.", MEASURED),
    ] = None,
    store: Annotated[
        str | None, _option("--store", "FILE", "Database of results; wirelag.db. Or postgresql://...", KEPT)
    ] = None,
    retain: Annotated[
        list[str] | None,
        _option(
            "--retain", "WHAT=HOW", "Retention: intervals=2d, minutes=60d, hours=2y, messages=1d, size=10GiB.", KEPT
        ),
    ] = None,
) -> None:
    """Collect what agents measure, and serve it.

    It pairs points into segments, stores results, and serves a page, /metrics and an API.
    """
    from wirelag.collector.settings import Settings

    given = {
        "listen": listen, "token_file": token_file, "certificate": certificate, "key": key, "segments": segment,
        "topology": topology, "slow": slow, "slo": slo, "store": store,
        "nats": {"url": nats, "secret_file": nats_secret, "replicas": nats_replicas, "ca": ca, "insecure": insecure},
        "follow": {"every": follow, "upgraded": upgraded},
        "retain": dict(map(_pair, retain or ())),
    }  # fmt: skip
    settings = Settings.load(file, given)

    from wirelag.collector.serve import serve

    if forget is not None:
        from wirelag.collector.forget import tell_to_forget

        print(tell_to_forget(settings, forget))
        return
    if check:
        from wirelag.collector.check import told

        for line in told(settings):
            print(line)
        return
    import asyncio

    asyncio.run(serve(settings, lambda: Settings.load(file, given)))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WirelagError(f"--retain: {text!r} is not WHAT=HOW; write intervals=2d, for example")
    return name.strip(), value.strip()
