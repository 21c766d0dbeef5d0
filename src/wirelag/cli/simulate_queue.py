"""The part of `wirelag simulate` that is about a queue: its options, and what they ask for."""

from __future__ import annotations

from typing import Annotated, Final

import typer

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
        help="Bursty traffic that fills a queue's link to this share, 0.7 say; -o twice: before and behind the queue.",
        rich_help_panel=QUEUE,
    ),
]
DrainRate = Annotated[str, typer.Option("--drain", metavar="RATE", help="Rate of its link.", rich_help_panel=QUEUE)]
Limit = Annotated[int, typer.Option(metavar="N", help="Packets that it holds at most.", rich_help_panel=QUEUE)]
Discipline = Annotated[
    str,
    typer.Option(metavar="red|droptail", help="What it drops: early at random, or when full.", rich_help_panel=QUEUE),
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
    float, typer.Option(metavar="P", help="Share of the link's bytes that references may have.", rich_help_panel=QUEUE)
]


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was written, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse_others(context: typer.Context, queue: float | None) -> None:
    """A usage error for options that were given and say nothing here."""
    for name in OF_QUEUES if queue is None else OF_OTHERS:
        if given(context, name):
            says = "is about a queue: give --queue, too" if queue is None else "says nothing with --queue: leave it out"
            raise typer.BadParameter(says, param_hint="--" + name.replace("_", "-"))
