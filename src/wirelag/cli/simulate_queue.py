"""The part of `wirelag simulate` that is about a queue: its options, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wirelag.cli.options import duration_ns, one_of, ranged, rate_of
from wirelag.units import format_rate

if TYPE_CHECKING:
    from wirelag.packets.injection import Injection
    from wirelag.sim.frames import Frames
    from wirelag.sim.queue import QueueSimulation

QUEUE: Final = "Queue"
OF_QUEUES: Final = ("drain", "limit", "discipline", "injection", "most_share")
OF_OTHERS: Final = (
    "packets", "points", "direction", "servers", "dns", "ipv6", "unanswered", "rtt", "delay", "loss", "reorder",
    "duplicate", "clock_offset", "clock_skew",
)  # fmt: skip
SHORTEST_S, LONGEST_S = 0.001, 600
MOST_BY_TIME: Final = 1 << 24  # references: what the kernel takes
INJECTIONS: Final = "adaptive, none, 1-in-n:100, tau:1ms or both:100,1ms"

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
        help=f"When reference packets are sent: {INJECTIONS}.",
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


def simulate_queue(
    utilisation: float,
    seed: int,
    duration: str,
    drain: str,
    limit: int,
    discipline: str,
    injection: str,
    most_share: float,
) -> QueueSimulation:
    """The simulation that the options ask for, or a usage error."""
    from wirelag.sim.bursts import LINE, TooManyFlowsError
    from wirelag.sim.queue import QueueScenario, Red, run

    one_of(discipline, ("red", "droptail"), "--discipline")
    ranged(limit, 1, (1 << 24) - 1, "--limit")
    ranged(seed, 0, (1 << 63) - 1, "--seed")
    if not 0 < utilisation <= 2:
        raise typer.BadParameter(f"{utilisation:g} is not above 0 and at most 2", param_hint="--queue")
    if not 0 < most_share <= 1:
        raise typer.BadParameter(f"{most_share:g} is not above 0 and at most 1", param_hint="--most-share")
    bytes_per_s = rate_of(drain, "--drain")
    if 8 * bytes_per_s * max(utilisation, 1) > LINE * 1e9:
        line = format_rate(LINE * 1e9)
        raise typer.BadParameter(f"traffic comes over a line of {line}: choose a slower queue", param_hint="--drain")
    seconds = duration_ns(duration, "--duration") / 1e9
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise typer.BadParameter(f"is 1ms to {LONGEST_S}s with --queue", param_hint="--duration")
    references = injection_of(injection, bytes_per_s, most_share)
    if references and references.kind in ("1-in-tau", "both") and seconds * 1e9 / references.tau_ns >= MOST_BY_TIME:
        says = f"{MOST_BY_TIME:,} references by time or more: choose a longer tau or a shorter --duration"
        raise typer.BadParameter(says, param_hint="--injection")
    scenario = QueueScenario(
        utilisation,
        seed,
        seconds,
        bytes_per_s,
        limit,
        Red(limit * 2 // 5, max(1, limit * 9 // 10)) if discipline == "red" else None,
        references or False,
    )
    try:
        return run(scenario)
    except TooManyFlowsError as error:
        raise typer.BadParameter(f"{error}: choose a shorter one", param_hint="--duration") from None


def injection_of(text: str, bytes_per_s: int, most_share: float) -> Injection | None:
    """When references are sent, or a usage error.

    >>> injection_of("both:50,2ms", 250_000_000, 0.005).tau_ns
    2000000
    """
    from wirelag.packets.injection import Injection

    if text == "none":
        return None
    word, _, rest = text.partition(":")
    every, _, after = rest.partition(",") if word == "both" else (rest, "", rest)
    if every.isdecimal():
        ranged(int(every), 1, 1 << 32, "--injection")
    try:
        if text == "adaptive":
            return Injection(bytes_per_s, most_share=most_share)
        if word == "1-in-n" and every.isdecimal():
            return Injection(bytes_per_s, "1-in-n", n=int(every), most_share=most_share)
        if word == "tau" and after:
            return Injection(bytes_per_s, "1-in-tau", tau_ns=duration_ns(after, "--injection"), most_share=most_share)
        if word == "both" and every.isdecimal() and after:
            tau_ns = duration_ns(after, "--injection")
            return Injection(bytes_per_s, "both", n=int(every), tau_ns=tau_ns, most_share=most_share)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--injection") from None
    raise typer.BadParameter(f"{text!r} is not one of {INJECTIONS}", param_hint="--injection")


def queue_captures(simulation: QueueSimulation, snaplen: int) -> Iterator[tuple[Iterable[Frames], str]]:
    """The frames before the queue and behind it, and how many they are."""
    from wirelag.packets.stamp import NONE
    from wirelag.sim.queue_frames import downstream_frames, upstream_frames

    regular, references = (int((times != NONE).sum()) for times in (simulation.left_ns, simulation.reference_left_ns))
    yield upstream_frames(simulation, snaplen), f"{len(simulation.bursts):,} packets"
    said = f"{regular + references:,} packets, {references:,} of them references"
    yield downstream_frames(simulation, snaplen), said
