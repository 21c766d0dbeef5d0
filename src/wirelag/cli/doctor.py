"""`wirelag doctor`: what works on this machine."""

from typing import Annotated

from wirelag.cli.options import check_outputs
from wirelag.cli.parser import Option
from wirelag.cli.run import conclude


def doctor(
    output_format: Annotated[str, Option("--format", metavar="table|json", help="Output format.")] = "table",
) -> None:
    """Show what works, and how to mend what does not.

    It tries what captures, agents, the balancer and programs in the kernel need, and prints the line that mends what is
    missing. It changes nothing, and captures no packet.
    """
    check_outputs(output_format, {}, forms=("table", "json"))
    from wirelag.measure.doctor import doctor as measure

    conclude(measure(), output_format, None)
