"""What commands would answer: `info` tries them on the first packets of a capture, with their own functions.

Law: on a capture of at most `MOST_TRIED` packets a trial is the command itself, with its default settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.source import Statistics
    from wirelag.measure.marks import Marks, MarksSeeker
    from wirelag.measure.points import Progress
    from wirelag.measure.response_method import Chosen
    from wirelag.packets.batch import PacketBatch
    from wirelag.synopses.epochs import Epochs
    from wirelag.synopses.request_response import Exchanges
    from wirelag.twopoint.sketch import Sighting

Observer: TypeAlias = "Callable[[PacketBatch], object]"
MOST_TRIED: Final = 100_000  # packets


@dataclass(eq=False)
class Trial:
    """What `rtt` and `response` found in the first packets of captures."""

    whole: bool = True  # whether these were all packets
    delays: int = 0  # round trips
    timed: int = 0  # servers whose responses were timed
    servers: int = 0
    requests: int = 0  # packets from clients to servers
    whys: Counter[str] = field(default_factory=Counter)  # why servers have no estimate
    marks: Marks | None = None

    def add(self, other: Trial) -> None:
        """Add the trial of another capture."""
        self.whole &= other.whole
        self.delays += other.delays
        self.timed += other.timed
        self.servers += other.servers
        self.requests += other.requests
        self.whys.update(other.whys)
        if self.marks and other.marks:
            self.marks.add(other.marks)
        self.marks = self.marks or other.marks

    @property
    def reason(self) -> str:
        """The most common reason why a server has no estimate; empty if there is no server."""
        return self.whys.most_common(1)[0][0] if self.whys else ""

    @property
    def why_not(self) -> str:
        """The same in words."""
        from wirelag.synopses.epochs import MEANING

        nothing = "no flow that can be followed" if self.requests else "no packets from clients to servers"
        return MEANING.get(self.reason, self.reason) or nothing


class _FirstPackets:
    """The first packets of a capture; observers see all of them, unless only the first are read."""

    def __init__(
        self, capture: Capture, observers: Sequence[Observer], progress: Progress, memory: int, only_first: bool
    ) -> None:
        from wirelag.estimators.match import Match

        self._capture, self._observers, self._progress = capture, observers, progress
        self.round_trips = (Match(memory=memory) if memory else Match()).meter("tap")  # as `rtt` does by default
        self.rows, self.whole, self.read = 0, True, False
        self._only_first = only_first
        self.marks: MarksSeeker | None = None

    def __iter__(self) -> Iterator[PacketBatch]:
        for batch in self._progress(self._capture):
            self.whole = self.rows < MOST_TRIED
            if not self.whole and self._only_first:
                break
            for observe in self._observers:
                observe(batch)
            if not self.whole:
                continue
            self.rows += len(batch)
            self.round_trips.observe(batch)
            self._look_for_marks(batch)
            yield batch
        self.read = True

    def _look_for_marks(self, batch: PacketBatch) -> None:
        """Hardly any capture has some: what looks for them is loaded when packets may carry one."""
        from wirelag.packets.batch import Flag, Kind

        if self.marks is None:
            may = batch.of_kind(Kind.QUIC) | batch.has(Flag.OPTIONS) | (batch.dscp != batch.dscp[:1])
            if not may.any():
                return
            from wirelag.measure.marks import MarksSeeker

            self.marks = MarksSeeker()
        self.marks.observe(batch)

    @property
    def statistics(self) -> Statistics:
        """Of all packets."""
        return self._capture.statistics

    @property
    def warnings(self) -> list[str]:
        """What could not be read."""
        return self._capture.warnings

    @property
    def names(self) -> list[str]:
        """The name of the capture."""
        return self._capture.names


def try_commands(
    capture: Capture, observers: Sequence[Observer], progress: Progress, memory: int = 0, only_first: bool = False
) -> Trial:
    """Read a capture once: observers see all of it, `rtt` and `response` its first packets, with this memory for each.

    0: as much as they have by default. With `only_first` nobody sees more than the first packets.
    """
    from wirelag.measure.response_heard import ResponseSettings, hear
    from wirelag.measure.response_method import Chooser
    from wirelag.packets.interval import Interval

    packets, trial = _FirstPackets(capture, observers, progress, memory, only_first), Trial()
    settings = ResponseSettings(cores=capture.files[0].cores)
    settings = replace(settings, memory=memory or settings.memory)
    try:
        _, heard = hear(packets, settings)
        trial.requests = heard.from_clients
        _count_servers(trial, Chooser(settings.method, settings.fewest).choose(heard))
    except WirelagError:
        if not packets.read:
            raise  # the capture cannot be read; otherwise `response` has nothing to measure
    trial.whole, trial.marks = packets.whole, packets.marks.found() if packets.marks else None
    trial.delays = packets.round_trips.cut(Interval(0, 0)).distribution().samples
    return trial


def _count_servers(trial: Trial, chosen: Chosen) -> None:
    """Which servers `response` would have a row for, and why some of them have no estimate."""
    servers: dict[str, Exchanges | Epochs] = dict(chosen.main.groups("server"))
    for name, epochs in chosen.beside.groups("server") if chosen.beside else ():
        servers.setdefault(name, epochs)
    for part in servers.values():
        trial.servers += 1
        if part.mean is not None:
            trial.timed += 1
            continue
        report = part.report()
        if abstained := report.details.get("abstained"):
            trial.whys[max(abstained, key=abstained.__getitem__)] += 1
        elif report.reason:
            trial.whys[report.reason] += 1


def unrelated(up: Sighting, down: Sighting, names: tuple[str, str]) -> str:
    """Why `oneway` cannot measure between two captures; empty if it can."""
    from wirelag.twopoint.alignment import align

    try:
        align(up, down, names=names)
    except WirelagError as error:
        return str(error)
    return ""
