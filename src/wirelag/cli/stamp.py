"""`wirelag stamp`: a STAMP session-sender and session-reflector."""

import sys
from typing import Annotated

from wirelag.cli.options import DELAY_FORMATS, METHOD, DelayFormat, Output, check_outputs, one_of
from wirelag.cli.parser import Argument, Option
from wirelag.cli.run import conclude


def stamp(
    role: Annotated[str, Argument(metavar="send|reflect", help="Ask a reflector, or be one.")],
    address: Annotated[
        str, Argument(metavar="HOST[:PORT]", help="The reflector; with reflect, where to listen. Port: 862.")
    ],
    count: Annotated[int, Option(metavar="N", help="send: how many packets.", panel=METHOD)] = 100,
    every: Annotated[str, Option(metavar="D", help="send: time between them.", panel=METHOD)] = "100ms",
    wait: Annotated[str, Option(metavar="D", help="send: how long to wait for the last reply.", panel=METHOD)] = "1s",
    length: Annotated[int, Option(metavar="BYTES", help="send: bytes of UDP payload, up to 1472.", panel=METHOD)] = 0,
    session: Annotated[int, Option(metavar="ID", help="send: identifier of the session (RFC 8972).", panel=METHOD)] = 1,
    allow: Annotated[
        list[str] | None, Option(metavar="NETWORK", help="reflect: whom to answer. Default: everybody.", panel=METHOD)
    ] = None,
    key_file: Annotated[
        str | None, Option(metavar="FILE", help="Authenticate packets by the key in this file.", panel=METHOD)
    ] = None,
    output_format: DelayFormat = None,
    output: Output = None,
) -> None:
    """Measure to a STAMP reflector, or be one.

    The sender finds round trips, loss in each direction, and bounds of what the clocks differ by (RFC 8762; reflectors
    of TWAMP Light work, too). The reflector answers until it is stopped.
    """
    one_of(role, ("send", "reflect"), "ROLE")
    from wirelag.transport.stamp import Reflector, host_and_port, key_of, networks_of

    host, port = host_and_port(address)
    key = None if key_file is None else key_of(key_file)
    if role == "reflect":
        reflector = Reflector(host, port, networks_of(allow or []), key)
        reflector.run(lambda: print(f"reflecting at {host} port {reflector.port}", flush=True))
        said = ", ".join(f"{count:,} {what}" for what, count in sorted(reflector.counts.items()))
        print(said or "no packets", file=sys.stderr)
        return
    form = check_outputs(output_format, {"-o": output}, forms=DELAY_FORMATS)
    from wirelag.measure.stamp import stamp as measure

    asked = measure(host, port, count=count, every=every, wait=wait, length=length, session=session, key=key)
    conclude(asked, form, output)
