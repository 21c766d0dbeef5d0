"""The options of two-point methods, shared by `oneway`, `cut` and `path`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from wirelag.cli.options import METHOD, replace_parameter
from wirelag.units import size_bytes

IDS = "Which packets are the same"

Direction = Annotated[
    str | None,
    typer.Option(
        "--direction",
        metavar="SRC>DST",
        help="Packets from SRC to DST alone; each an address, a network, or nothing.",
        rich_help_panel="Which packets",
    ),
]
Nat = Annotated[
    bool, typer.Option("--nat", help="Addresses and ports change in between: leave them out.", rich_help_panel=IDS)
]
Prefix = Annotated[
    int,
    typer.Option("--prefix", metavar="BYTES", help="Bytes of payload that tell packets apart.", rich_help_panel=IDS),
]
EstimatorName = Annotated[
    str,
    typer.Option(
        "--estimator",
        metavar="join|lda|finecomb|rda",
        help="join: every packet, exact. The others: from what few kilobytes tell.",
        rich_help_panel=METHOD,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option("--rows", metavar="N", help="Rows of lda (of all banks) and finecomb.", rich_help_panel=METHOD),
]
Losses = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="SHARES", help="lda, finecomb: loss to tune banks for, 0.1%,5% say.", rich_help_panel=METHOD
    ),
]
PerInterval = Annotated[
    int | None,
    typer.Option("--packets-per-interval", metavar="N", help="lda: packets to tune banks for.", rich_help_panel=METHOD),
]
Banks = Annotated[
    int, typer.Option("--banks", metavar="K", help="rda: banks (2 as in the paper, or 3, 4).", rich_help_panel=METHOD)
]
NoCheck = Annotated[
    bool, typer.Option("--no-check", help="rda: without the check field, as in the paper.", rich_help_panel=METHOD)
]
Buckets = Annotated[
    int | None,
    typer.Option(
        "--buckets", metavar="N", help="rda: in all; default: what is needed (cut: 1023).", rich_help_panel=METHOD
    ),
]
Rateless = Annotated[
    bool, typer.Option("--rateless", help="rda: coded symbols until it decodes.", rich_help_panel=METHOD)
]
Deviation = Annotated[
    str,
    typer.Option(
        "--deviation",
        metavar="rows|collapse",
        help="Between rows, or the papers' collapse of rows.",
        rich_help_panel=METHOD,
    ),
]
Tail = Annotated[
    int,
    typer.Option(
        "--tail", metavar="N", help="Packets whose times are kept for quantiles (not join).", rich_help_panel=METHOD
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="join, rda: for ids and times.", rich_help_panel=METHOD)
]
Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Of all coins.", rich_help_panel=METHOD)]
CutBy = Annotated[
    str | None,
    typer.Option(
        "--cut",
        metavar="packets|clock",
        help="Where intervals end: lda at packets both points see (default), others by the clock.",
        rich_help_panel=METHOD,
    ),
]
ControlPort = Annotated[
    int | None,
    typer.Option(
        "--control-port", metavar="PORT", help="Intervals end at control packets to it.", rich_help_panel=METHOD
    ),
]

_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "nat": (Nat, False),
    "prefix": (Prefix, 16),
    "estimator": (EstimatorName, "join"),
    "rows": (Rows, None),
    "loss": (Losses, None),
    "packets_per_interval": (PerInterval, None),
    "banks": (Banks, 3),
    "no_check": (NoCheck, False),
    "buckets": (Buckets, None),
    "rateless": (Rateless, False),
    "deviation": (Deviation, "rows"),
    "tail": (Tail, 2048),
    "memory": (Memory, "512MiB"),
    "seed": (Seed, 0),
    "cut": (CutBy, None),
    "control_port": (ControlPort, None),
}


def with_method(without: tuple[str, ...] = (), **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with the options of a two-point method, which it gets as one `Method`, its argument `method`."""
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, default), annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
        if name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def chosen(**given: Any) -> None:
            from wirelag.measure.methods import Method

            parts = {option.name: given.pop(option.name) for option in options}
            parts["memory"] = size_bytes(parts["memory"], "memory")
            command(**given, method=Method(**parts))

        return replace_parameter(chosen, command, "method", options)

    return decorate
