"""Why a command has nothing to say about packets, and what to try instead: one line.

Only an empty result asks for it. Commands are then tried on the first packets, as `info` tries them, where these can be
read again; so a command that has an answer does no work for this. Law: what a line says to try has an answer there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.source import Packets
    from wirelag.measure.survey import Survey
    from wirelag.measure.trial import Trial
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter

BATCHES: Final = 25  # that are read again: about 200,000 packets
MEMORY: Final = 8 << 20  # of each command that is tried: a hint must not cost more than the command
_SETTINGS: Final = {"rtt": "--match", "response": "--server or --method"}  # that may leave out what there is


def hint(packets: Packets, command: str) -> str:
    """Why `command` found nothing in these packets, and what to try; empty if that is not known."""
    from wirelag.capture.files import Capture

    statistics = packets.statistics
    skipped = sum(statistics.skipped.values())
    filtered = getattr(statistics, "filtered", 0)
    if not statistics.packets:
        return ""  # the result says so itself
    if filtered and filtered + skipped >= statistics.packets:
        return _filtered(packets, filtered, command)
    if skipped >= statistics.packets:
        return _skipped(statistics.skipped)
    if not isinstance(packets, Capture) or (tried := _Tried.of(packets)) is None:
        return ""
    inside = "" if tried.answers(command) else _tunnelled(packets, tried, command)
    return inside or tried.line(command)


def because(packets: Packets | None, command: str) -> str:
    """The same as the rest of an error's line."""
    line = hint(packets, command) if packets is not None else ""
    return f": {line}" if line else ""


def in_tunnels(packets: Packets, command: str) -> str:
    """What to try if most packets are tunnelled; empty if not."""
    from wirelag.capture.files import Capture

    if not isinstance(packets, Capture) or (tried := _Tried.of(packets)) is None:
        return ""
    return _tunnelled(packets, tried, command)


def inside_tunnels(captures: Iterable[Capture]) -> tuple[Survey, Trial] | None:
    """What commands find inside the tunnels of captures; None if one of these can be read only once."""
    from wirelag.measure.survey import Survey
    from wirelag.measure.trial import Trial

    survey, trial = Survey(), Trial()
    for capture in captures:
        tried = _Tried.of(capture, tunnels=True)
        if tried is None:
            return None
        survey.merge(tried.survey)
        trial.add(tried.trial)
    return survey, trial


def _filtered(packets: Packets, filtered: int, command: str) -> str:
    import numpy as np

    from wirelag.capture.files import Capture
    from wirelag.packets.filters import Filter

    text = f"the filter leaves out all {filtered:,} packets"
    if not isinstance(packets, Capture) or (again := _read_again(packets, Filter())) is None:
        return text
    wanted = packets.files[0].filter
    if not any(file.tunnels for file in packets.files):
        inside = _Tried.of(packets, tunnels=True)  # with the same filter
        if inside is not None and inside.answers(command):
            return f"{text}, and passes some inside tunnels: --tunnels"
    if wanted.from_ns != Filter().from_ns or wanted.to_ns != Filter().to_ns:
        from wirelag.units import format_time

        known = packets.statistics
        first, last = (format_time(ns) for ns in (known.first_ns or 0, known.last_ns or 0))
        return f"{text}: the capture is from {first} to {last} UTC"
    ports: Counter[int] = Counter()
    for batch in _first(again):  # the lower port is the service's
        ports.update(port for port in np.minimum(batch.src_port, batch.dst_port).tolist() if port)
    if wanted.ports and ports:
        return f"{text}: most are of port {', '.join(str(port) for port, _ in ports.most_common(3))}"
    return f"{text}: see what there is with `wirelag info`"


def _skipped(skipped: dict[str, int]) -> str:
    from wirelag.measure.verdicts import ENOUGH_BYTES
    from wirelag.render.info import SKIPPED
    from wirelag.units import many

    reason = max(skipped, key=skipped.__getitem__)
    text = f"{many(skipped[reason], 'packet')} {SKIPPED[reason]}"
    return f"{text}: {ENOUGH_BYTES}" if reason == "cut" else text


def _read_again(capture: Capture, wanted: Filter | None = None, tunnels: bool = False) -> Capture | None:
    """The same capture with another filter, or inside tunnels; None if it can be read only once."""
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import can_be_read_again

    if not all(can_be_read_again(file.path) for file in capture.files):
        return None
    first = capture.files[0]
    chosen = first.filter if wanted is None else wanted
    names = {file.path: file.name for file in capture.files}
    return Capture(list(names), names=names, filter=chosen, tunnels=tunnels or first.tunnels)


def _first(packets: Iterable[PacketBatch]) -> Iterable[PacketBatch]:
    return islice(packets, BATCHES)


class _Tried(NamedTuple):
    """What commands found in the first packets."""

    survey: Survey
    trial: Trial

    @classmethod
    def of(cls, capture: Capture, tunnels: bool = False) -> _Tried | None:
        """Try them, on packets or inside tunnels; None if the packets can be read only once."""
        from wirelag.measure.survey import Survey
        from wirelag.measure.trial import try_commands

        survey, again = Survey(), _read_again(capture, tunnels=tunnels)
        return None if again is None else cls(survey, try_commands(again, [survey.observe], _first, MEMORY))

    def answers(self, command: str) -> bool:
        """Whether a command has an answer."""
        from wirelag.packets.batch import Kind

        found = {"rtt": self.trial.delays, "response": self.trial.timed, "flows": self.survey.kinds[Kind.STAMP]}
        return bool(found.get(command))

    def instead(self, command: str) -> str:
        """Another command that has an answer; empty if there is none."""
        other = {"rtt": "response", "response": "rtt"}.get(command, "")
        return other if self.answers(other) else ""

    def line(self, command: str) -> str:
        """Why the command has no answer, and what to try."""
        from wirelag.measure.verdicts import no_response, no_round_trip

        if command not in _SETTINGS:
            return ""
        if self.answers(command):
            return f"there is an answer with other settings: leave {_SETTINGS[command]} out"
        nothing = no_round_trip(self.survey) if command == "rtt" else no_response(self.survey, self.trial)
        other = self.instead(command)
        return ": ".join(part for part in (nothing.why, f"try `wirelag {other}`" if other else nothing.helps) if part)


def _tunnelled(capture: Capture, outside: _Tried, command: str) -> str:
    """What to try inside tunnels, if most packets are tunnelled; empty if not."""
    from wirelag.measure.verdicts import tunnelled

    what = tunnelled(outside.survey)
    if not what or any(file.tunnels for file in capture.files):
        return ""
    inside = _Tried.of(capture, tunnels=True)
    assert inside is not None  # it was read again before
    if inside.answers(command):
        return f"{what}: --tunnels"
    if other := inside.instead(command):
        return f"{what}: try `wirelag {other} --tunnels`"
    if outside.instead(command):
        return ""  # outside there is something
    return f"{what}, and there is nothing inside, either: {inside.line(command)}" if command in _SETTINGS else ""
