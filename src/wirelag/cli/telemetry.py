"""`wirelag telemetry`: what packets tell themselves of a path."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import (
    METHOD,
    Captures,
    Force,
    Output,
    OutputFormat,
    Quiet,
    Tunnels,
    check_outputs,
    with_filter,
)
from wirelag.cli.parser import Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter


@with_filter
def telemetry(
    captures: Captures,
    wanted: "Filter",
    tunnels: Tunnels = False,
    force: Force = False,
    timestamps: Annotated[
        str, Option(metavar="auto|posix|ptp|ntp", help="Form of IOAM's timestamps; auto: as they look.", panel=METHOD)
    ] = "auto",
    every_port: Annotated[
        bool, Option(help="Take all UDP packets as QUIC, also without long headers.", panel=METHOD)
    ] = False,
    block: Annotated[
        int | None, Option(metavar="N", help="Packets of a block of QUIC's Q bit; default: found.", panel=METHOD)
    ] = None,
    output_format: OutputFormat = None,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Read delay and loss that packets carry.

    Routers write when a packet passed into its IOAM trace (RFC 9197): the delay of every hop, from one capture. QUIC's
    loss bits (RFC 9506) tell how many packets were lost before the capture point, and how many on the whole path.
    """
    form = check_outputs(output_format, {"-o": output}, captures)
    from wirelag.measure.telemetry import telemetry as measure

    result = measure(
        *captures,
        timestamps=timestamps,
        every_port=every_port,
        block=block,
        filter=wanted,
        tunnels=tunnels,
        force=force,
        progress=stoppable(quiet),
    )
    conclude(result, form, output)
