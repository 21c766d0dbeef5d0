"""`wirelag stamp`: a STAMP session-sender and session-reflector."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import METHOD, Output, OutputFormat, check_outputs, one_of
from wirelag.cli.parser import Argument, Option, UsageError
from wirelag.cli.run import conclude
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.transport.stamp import Net


def stamp(
    role: Annotated[str, Argument(metavar="send|reflect", help="Ask a reflector, or be one.")],
    address: Annotated[
        str, Argument(metavar="HOST[:PORT]", help="The reflector; with reflect, where to listen. Port: 862.")
    ],
    count: Annotated[int, Option(metavar="N", help="send: how many packets.", panel=METHOD)] = 100,
    every: Annotated[str, Option(metavar="D", help="send: time between them.", panel=METHOD)] = "100ms",
    wait: Annotated[str, Option(metavar="D", help="send: how long to wait for the last reply.", panel=METHOD)] = "1s",
    length: Annotated[int, Option(metavar="BYTES", help="send: bytes of UDP payload, 44 to 1472.", panel=METHOD)] = 44,
    session: Annotated[int, Option(metavar="ID", help="send: identifier of the session (RFC 8972).", panel=METHOD)] = 1,
    allow: Annotated[
        list[str] | None, Option(metavar="NETWORK", help="reflect: whom to answer. Default: everybody.", panel=METHOD)
    ] = None,
    output_format: OutputFormat = None,
    output: Output = None,
) -> None:
    """Measure to a STAMP reflector, or be one.

    The sender finds round trips, loss in each direction, and bounds of what the clocks differ by (RFC 8762, without
    authentication; reflectors of TWAMP Light work, too). The reflector answers until it is stopped.
    """
    one_of(role, ("send", "reflect"), "ROLE")
    host, port = _address(address)
    if role == "reflect":
        _reflect(host, port, _networks(allow or []))
        return
    form = check_outputs(output_format, {"-o": output})
    from wirelag.measure.stamp import stamp as measure

    conclude(measure(host, port, count=count, every=every, wait=wait, length=length, session=session), form, output)


def _address(text: str) -> tuple[str, int]:
    """Host and port; IPv6 with a port needs brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, "862"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is not HOST or HOST:PORT", option="ADDRESS")
    return host, int(port)


def _networks(texts: list[str]) -> list[Net]:
    import ipaddress

    try:
        return [ipaddress.ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise UsageError(f"{error}; write 10.0.0.0/8", option="--allow") from None


def _reflect(host: str, port: int, allowed: list[Net]) -> None:
    """Answer until SIGINT or SIGTERM, and say how many packets."""
    from wirelag.transport.stamp import Reflector

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    reflector = Reflector(host, port, allowed)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        print(f"reflecting at {host} port {reflector.port}", flush=True)
        while True:
            try:
                reflector.answer()
            except OSError as error:
                raise WirelagError(f"{host} port {port}: {error.strerror}") from None
    except KeyboardInterrupt:
        said = ", ".join(f"{count:,} {what}" for what, count in sorted(reflector.counts.items()))
        print(said or "no packets", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
        reflector.close()
