"""The queue of `wirelag simulate`: its options and their checks."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from wirelag.cli.options import share_of

QUEUE: Final = "Queue"
OF_QUEUES: Final = ("drain", "limit", "discipline", "injection", "most_share")
OF_OTHERS: Final = (
    "packets", "points", "direction", "servers", "dns", "ipv6", "unanswered", "rtt", "delay", "loss", "reorder",
    "duplicate", "clock_offset", "clock_skew",
)  # fmt: skip

Queue = Annotated[
    float | None,
    typer.Option(
        metavar="U",
        help="Simulate a queue at this load, such as 0.7; give -o twice: before and behind it.",
        rich_help_panel=QUEUE,
    ),
]
DrainRate = Annotated[
    str, typer.Option("--drain", metavar="RATE", help="Rate of the queue's link.", rich_help_panel=QUEUE)
]
Limit = Annotated[int, typer.Option(metavar="N", help="Most packets that the queue holds.", rich_help_panel=QUEUE)]
Discipline = Annotated[
    str,
    typer.Option(metavar="red|droptail", help="Drop early at random, or only when full.", rich_help_panel=QUEUE),
]
InjectionText = Annotated[
    str,
    typer.Option(
        "--injection",
        metavar="WHEN",
        help="When reference packets are sent: adaptive, none, 1-in-n:100, tau:1ms or both:100,1ms.",
        rich_help_panel=QUEUE,
    ),
]
MostShare = Annotated[
    float,
    typer.Option(
        parser=share_of, metavar="SHARE", help="Largest share of the link for references.", rich_help_panel=QUEUE
    ),
]


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse_others(context: typer.Context, queue: float | None) -> None:
    """Raise a usage error for options without effect here."""
    for name in OF_QUEUES if queue is None else OF_OTHERS:
        if given(context, name):
            says = "needs --queue" if queue is None else "has no effect with --queue: leave it out"
            raise typer.BadParameter(says, param_hint="--" + name.replace("_", "-"))
