"""`wirelag info`: what is in a capture, and what can be measured from it."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import Captures, Cores, Quiet, Tunnels, check_outputs, with_filter, with_fleet
from wirelag.cli.parser import Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude

if TYPE_CHECKING:
    from wirelag.measure.fleet import Fleet
    from wirelag.packets.filters import Filter


@with_filter
@with_fleet
def info(
    captures: Captures,
    wanted: "Filter",
    tunnels: Tunnels = False,
    output_format: Annotated[str, Option("--format", metavar="table|json", help="Output format.")] = "table",
    cores: Cores = None,
    quiet: Quiet = False,
    fleet: "Fleet | None" = None,
) -> None:
    """Show what is in a capture.

    It also lists which wirelag commands can measure it, and why.
    """
    check_outputs(output_format, {}, forms=("table", "json"))
    from wirelag.measure.info import info as measure

    result = measure(*captures, filter=wanted, tunnels=tunnels, cores=cores, progress=stoppable(quiet), on=fleet)
    conclude(result, output_format, None)
