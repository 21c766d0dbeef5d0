"""A queue and its reference packets as people ask for them, as a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from wirelag.errors import SettingError
from wirelag.stats.queue_drain import parse_drain
from wirelag.units import duration_ns, format_rate, one_of, within

if TYPE_CHECKING:
    from wirelag.packets.injection import Injection
    from wirelag.sim.frames import Frames
    from wirelag.sim.queue import QueueSimulation

DISCIPLINES: Final = ("red", "droptail")
SHORTEST_S, LONGEST_S = 0.001, 600
MOST_BY_TIME: Final = 1 << 24  # references: what the kernel takes
INJECTIONS: Final = "adaptive, none, 1-in-n:100, tau:1ms or both:100,1ms"


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
    """The simulation that the options ask for, or a SettingError."""
    from wirelag.sim.bursts import LINE, TooManyFlowsError
    from wirelag.sim.queue import QueueScenario, Red, run

    one_of(discipline, DISCIPLINES, "discipline")
    within(limit, 1, (1 << 24) - 1, "limit")
    within(seed, 0, (1 << 63) - 1, "seed")
    if not 0 < utilisation <= 2:
        raise SettingError("queue", f"{utilisation:g} is not above 0 and at most 2")
    if not 0 < most_share <= 1:
        raise SettingError("most_share", f"{most_share:g} is not above 0 and at most 1")
    bytes_per_s = parse_drain(drain)
    if 8 * bytes_per_s * max(utilisation, 1) > LINE * 1e9:
        line = format_rate(LINE * 1e9)
        raise SettingError("drain", f"traffic comes over a line of {line}: choose a slower queue")
    seconds = duration_ns(duration, "duration") / 1e9
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise SettingError("duration", f"is 1ms to {LONGEST_S}s with --queue")
    references = injection_of(injection, bytes_per_s, most_share)
    if references and references.kind in ("1-in-tau", "both") and seconds * 1e9 / references.tau_ns >= MOST_BY_TIME:
        says = f"{MOST_BY_TIME:,} references by time or more: choose a longer tau or a shorter --duration"
        raise SettingError("injection", says)
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
        raise SettingError("duration", f"{error}: choose a shorter one") from None


def injection_of(text: str, bytes_per_s: int, most_share: float) -> Injection | None:
    """When references are sent, or a SettingError.

    >>> injection_of("both:50,2ms", 250_000_000, 0.005).tau_ns
    2000000
    """
    from wirelag.packets.injection import Injection

    if text == "none":
        return None
    word, _, rest = text.partition(":")
    every, _, after = rest.partition(",") if word == "both" else (rest, "", rest)
    if every.isdecimal():
        within(int(every), 1, 1 << 32, "injection")
    try:
        if text == "adaptive":
            return Injection(bytes_per_s, most_share=most_share)
        if word == "1-in-n" and every.isdecimal():
            return Injection(bytes_per_s, "1-in-n", n=int(every), most_share=most_share)
        if word == "tau" and after:
            return Injection(bytes_per_s, "1-in-tau", tau_ns=duration_ns(after, "injection"), most_share=most_share)
        if word == "both" and every.isdecimal() and after:
            tau_ns = duration_ns(after, "injection")
            return Injection(bytes_per_s, "both", n=int(every), tau_ns=tau_ns, most_share=most_share)
    except ValueError as error:
        raise SettingError("injection", str(error)) from None
    raise SettingError("injection", f"{text!r} is not one of {INJECTIONS}")


def queue_captures(simulation: QueueSimulation, snaplen: int) -> Iterator[tuple[Iterable[Frames], str]]:
    """The frames before the queue and behind it, and how many they are."""
    from wirelag.packets.stamp import NONE
    from wirelag.sim.queue_frames import downstream_frames, upstream_frames

    regular, references = (int((times != NONE).sum()) for times in (simulation.left_ns, simulation.reference_left_ns))
    yield upstream_frames(simulation, snaplen), f"{len(simulation.bursts):,} packets"
    said = f"{regular + references:,} packets, {references:,} of them references"
    yield downstream_frames(simulation, snaplen), said
