"""The queue of `wirelag simulate`: its options and their checks."""

from __future__ import annotations

from typing import Annotated, Final

from wirelag.cli.options import share_of
from wirelag.cli.parser import Given, Option, UsageError

QUEUE: Final = "Queue"
OF_QUEUES: Final = ("drain", "limit", "discipline", "injection", "most_share")
OF_OTHERS: Final = (
    "packets", "points", "direction", "servers", "dns", "ipv6", "unanswered", "rtt", "delay", "loss", "reorder",
    "duplicate", "clock_offset", "clock_skew",
)  # fmt: skip

Queue = Annotated[
    float | None,
    Option(
        metavar="U",
        help="Simulate a queue at this load, such as 0.7; give -o twice: before and behind it.",
        panel=QUEUE,
    ),
]
DrainRate = Annotated[str, Option("--drain", metavar="RATE", help="Rate of the queue's link.", panel=QUEUE)]
Limit = Annotated[int, Option(metavar="N", help="Most packets that the queue holds.", panel=QUEUE)]
Discipline = Annotated[
    str, Option(metavar="red|droptail", help="Drop early at random, or only when full.", panel=QUEUE)
]
InjectionText = Annotated[
    str,
    Option(
        "--injection",
        metavar="WHEN",
        help="When reference packets are sent: adaptive, none, 1-in-n:100, tau:1ms or both:100,1ms.",
        panel=QUEUE,
    ),
]
MostShare = Annotated[
    float, Option(parser=share_of, metavar="SHARE", help="Largest share of the link for references.", panel=QUEUE)
]


def refuse_others(given: Given, queue: float | None) -> None:
    """Raise a usage error for options without effect here."""
    for name in OF_QUEUES if queue is None else OF_OTHERS:
        if name in given:
            says = "needs --queue" if queue is None else "has no effect with --queue: leave it out"
            raise UsageError(says, option="--" + name.replace("_", "-"))
