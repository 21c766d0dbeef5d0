"""`wirelag compare`: whether it got slower from one report to another, where, and by more than chance."""

from __future__ import annotations

from typing import Annotated

import typer

from wirelag.cli.options import check_outputs
from wirelag.cli.run import conclude
from wirelag.render.compare import MOST_GROUPS


def compare(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE.json", help="JSON of rtt, response, oneway, flows; - is standard input.")
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER.json", help="JSON of the same, later.")],
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show every group, not only the {MOST_GROUPS} that changed most.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit code 3 if something got slower by more than chance.")
    ] = False,
    output_format: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print it.")] = "table",
) -> None:
    """Say whether it got slower from one report to another, where, by how much, and whether that is more than chance.

    The whole first, then its legs, then the groups that both reports have, those that changed most before the others.
    """
    check_outputs(output_format, {}, forms=("table", "json"))
    from wirelag.measure.compare import compare as measure

    result = measure(before, after, everything=everything)
    conclude(result, output_format, None)
    if exit_code and result.is_worse:
        raise typer.Exit(3)
