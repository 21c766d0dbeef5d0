"""`wirelag compare`: what got slower between two reports, where, and whether by more than chance."""

from typing import Annotated

from wirelag.cli.options import Html, check_outputs
from wirelag.cli.parser import Argument, Option
from wirelag.cli.run import conclude
from wirelag.render.compare import MOST_GROUPS


def compare(
    before: Annotated[
        str, Argument(metavar="BEFORE.json", help="JSON of rtt, response, oneway, flows; - is standard input.")
    ],
    after: Annotated[str, Argument(metavar="AFTER.json", help="JSON of the same command, later.")],
    everything: Annotated[
        bool, Option("--all", help=f"Show all groups, not only the {MOST_GROUPS} that changed most.")
    ] = False,
    exit_code: Annotated[
        bool, Option("--exit-code", help="Exit with 3 if anything got slower by more than chance.")
    ] = False,
    output_format: Annotated[str, Option("--format", metavar="table|json", help="Output format.")] = "table",
    html: Html = None,
) -> None:
    """Compare two reports for what got slower.

    It shows where, by how much, and whether by more than chance: all traffic first, then its legs, then the groups that
    both reports have, the largest changes first.
    """
    check_outputs(output_format, {"--html": html}, [before, after], forms=("table", "json"))
    from wirelag.measure.compare import compare as measure

    result = measure(before, after, everything=everything)
    conclude(result, output_format, None, html)
    if exit_code and result.is_worse:
        raise SystemExit(3)
