"""`wirelag marking`: loss and delay from packets that are marked with alternating colours."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.method import Direction
from wirelag.cli.options import METHOD, Output, OutputFormat, Quiet, Tunnels, check_outputs, with_filter
from wirelag.cli.parser import Argument, Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter


@with_filter
def marking(
    upstream: Annotated[str, Argument(metavar="UPSTREAM", help="Capture that packets pass first; or an interface.")],
    downstream: Annotated[str, Argument(metavar="DOWNSTREAM", help="Capture that they pass later; or an interface.")],
    wanted: "Filter",
    tunnels: Tunnels = False,
    direction: Direction = None,
    field: Annotated[
        str, Option(metavar="dscp:BIT|altmark[:FLOW]", help="The colour: a bit of the DSCP, or RFC 9343.", panel=METHOD)
    ] = "dscp:0",
    period: Annotated[
        str | None, Option(metavar="D", help="How long a colour lasts; default: found in UPSTREAM.", panel=METHOD)
    ] = None,
    offset: Annotated[
        str | None, Option(metavar="D", help="How much the downstream clock is ahead.", panel=METHOD)
    ] = None,
    duration: Annotated[
        str | None, Option(metavar="D", help="How long to listen at interfaces; needs --period.", panel=METHOD)
    ] = None,
    force: Annotated[bool, Option("--force", help="Measure even if both are one capture.", panel=METHOD)] = False,
    in_kernel: Annotated[bool, Option("--in-kernel", help="Count inside the kernel (eBPF).", panel=METHOD)] = False,
    output_format: OutputFormat = None,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure loss and delay of marked packets.

    A bit of each packet is its colour, which changes every period (alternate marking, RFC 9341). Both points count the
    packets of each period and add up their times: loss is exact, and so is the mean delay of periods without loss.
    """
    form = check_outputs(output_format, {"-o": output}, [upstream, downstream])
    from wirelag.measure.marking import marking as measure

    result = measure(
        upstream,
        downstream,
        field=field,
        period=period,
        offset=offset,
        direction=direction,
        filter=wanted,
        tunnels=tunnels,
        duration=duration,
        force=force,
        in_kernel=in_kernel,
        progress=stoppable(quiet),
    )
    conclude(result, form, output)
