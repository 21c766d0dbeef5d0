"""`wirelag collect`: pairs points into segments, keeps what they say, serves it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wirelag.errors import WirelagError

SERVED, MEASURED, KEPT = "Who may ask", "What is measured", "What is kept"


def _option(flag: str, metavar: str | None, says: str, panel: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=says, rich_help_panel=panel)


def collect(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Settings as TOML; options take the place of what it says.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would happen, and end.")] = False,
    listen: Annotated[
        str | None, _option("--listen", "ADDRESS:PORT", "Where to listen; 127.0.0.1:8321.", SERVED)
    ] = None,
    token_file: Annotated[
        str | None, _option("--token-file", "FILE", "Tokens, a line each; needed beyond loopback.", SERVED)
    ] = None,
    certificate: Annotated[str | None, _option("--certificate", "FILE", "For HTTPS, with --key.", SERVED)] = None,
    key: Annotated[str | None, _option("--key", "FILE", "Of the certificate.", SERVED)] = None,
    nats: Annotated[
        str | None, _option("--nats", "URL", "Take messages from this broker, too: tls://HOST:4222.", SERVED)
    ] = None,
    nats_secret: Annotated[str | None, _option("--nats-secret", "FILE", "Its token, or user:password.", SERVED)] = None,
    ca: Annotated[str | None, _option("--ca", "FILE", "Who vouches for the broker.", SERVED)] = None,
    insecure: Annotated[
        bool | None, _option("--insecure", None, "Speak to the broker in plain text, or whoever it is.", SERVED)
    ] = None,
    segment: Annotated[
        list[str] | None,
        _option("--segment", "A>B", "Its two points; NAME=UP,DOWN by name. Without any: what agents say.", MEASURED),
    ] = None,
    topology: Annotated[
        str | None, _option("--topology", "FILE", "Routers and links, for paths: as `wirelag plan` reads.", MEASURED)
    ] = None,
    slow: Annotated[
        str | None, _option("--slow", "D", "On a path, blame a segment that adds more than this; 1ms.", MEASURED)
    ] = None,
    follow: Annotated[
        str | None, _option("--follow", "D", "Read the topology so often, and tell agents what to measure.", MEASURED)
    ] = None,
    upgraded: Annotated[
        list[str] | None,
        _option("--upgraded", "R", "With --follow: this router measures; without any: whose agents live.", MEASURED),
    ] = None,
    store: Annotated[str | None, _option("--store", "FILE", "Where results are kept; wirelag.db.", KEPT)] = None,
    retain: Annotated[
        list[str] | None,
        _option("--retain", "WHAT=HOW", "intervals=2d, minutes=60d, hours=2y, messages=1d, size=10GiB.", KEPT),
    ] = None,
) -> None:
    """Take in what agents send: pair points into segments, keep and serve results, a page, /metrics and an API."""
    from wirelag.collector.settings import Settings
    from wirelag.settings import read_toml

    plain: dict[str, Any] = {} if file is None else read_toml(file)
    flags = {
        "listen": listen, "token_file": token_file, "certificate": certificate, "key": key, "segments": segment,
        "topology": topology, "slow": slow, "store": store,
    }  # fmt: skip
    plain |= {name: value for name, value in flags.items() if value is not None}
    broker = {"url": nats, "secret_file": nats_secret, "ca": ca, "insecure": insecure}
    if any(value is not None for value in broker.values()):
        plain["nats"] = plain.get("nats", {}) | {name: value for name, value in broker.items() if value is not None}
    network = {"every": follow, "upgraded": upgraded}
    if any(value is not None for value in network.values()):
        plain["follow"] = plain.get("follow", {}) | {
            name: value for name, value in network.items() if value is not None
        }
    if retain is not None:
        plain["retain"] = plain.get("retain", {}) | dict(_pair(one) for one in retain)
    settings = Settings.of(plain, file or "wirelag collect")

    from wirelag.collector.serve import serve

    if check:
        from wirelag.collector.check import told

        for line in told(settings):
            print(line)
        return
    import asyncio

    asyncio.run(serve(settings))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WirelagError(f"--retain: {text!r} is not WHAT=HOW, intervals=2d for example")
    return name.strip(), value.strip()
