"""`wirelag report`: one page over many captures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import Cores, QuestionsOfAll, Quiet, Tunnels, check_outputs, with_filter
from wirelag.cli.parser import Argument, Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter

FORMS = ("table", "json", "jsonl", "csv")


@with_filter
def report(
    folders: Annotated[
        list[str], Argument(metavar="FOLDER...", help="Folders with captures, also in folders below; or captures.")
    ],
    wanted: Filter,
    tunnels: Tunnels = False,
    output: Annotated[
        str, Option("-o", "--output", metavar="FOLDER", help="Folder for the pages; begin with its index.html.")
    ] = "wirelag-report",
    sla: QuestionsOfAll = None,
    output_format: Annotated[str, Option("--format", metavar="|".join(FORMS), help="Output format.")] = "table",
    cores: Cores = None,
    quiet: Quiet = False,
) -> None:
    """Write one page over many captures.

    It measures round-trip delay and response latency of every capture, each by itself, and lists the captures, worst
    first. Each name leads to a page with charts of that capture. The pages work offline.
    """
    form = check_outputs(output_format, {}, forms=FORMS)
    from wirelag.measure.overview import overview
    from wirelag.render.overview import INDEX, write_pages

    try:
        os.makedirs(output, exist_ok=True)
    except OSError as error:
        raise WirelagError(f"{output}: cannot be a folder ({error.strerror}); choose another with -o") from None
    result = overview(
        *folders,
        filter=wanted,
        tunnels=tunnels,
        sla=sla or [],
        write=write_pages(output, folders),
        cores=cores,
        progress=stoppable(quiet),
    )
    result.notes.append(f"pages: {os.path.join(output, INDEX)}")
    conclude(result, form, None, os.path.join(output, INDEX))
    if result.errors:
        raise SystemExit(2)
