"""What packets say about responses: which method listens to them, and what it hears.

`info` asks it as well, to try the command: what only a result needs is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.groups import Groups
from wirelag.measure.questions import Questions
from wirelag.units import one_of, within

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.estimators.pirate import Pirate
    from wirelag.measure.points import Progress
    from wirelag.measure.response_method import Heard, ResponseMeter
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.frames import Frames
    from wirelag.packets.interval import Interval
    from wirelag.packets.roles import Server
    from wirelag.report import Report

METHODS: Final = ("auto", "pairs", "blind", "modes", "gap", "ack", "window", "syn")
GROUPS: Final = ("server", "flow", "client")
LONGEST_EPOCH_NS: Final = 1 << 34
LONGEST_GAP_NS: Final = 1 << 40
LEAST_MEMORY: Final = 8 << 10


@dataclass(frozen=True, kw_only=True)
class ResponseSettings:
    """Which method times responses, and what to report besides the total."""

    method: str | None = None  # None: for each server pairs where both directions pass, else auto
    servers: tuple[Server, ...] = ()
    epoch_ns: int = 500_000_000
    fewest: int = 4
    gap_ns: int = 1_000_000
    literal: bool = False
    memory: int = 64 << 20
    interval_ns: int | None = None
    choose_interval: bool = False
    cores: int = 1
    groups: Groups = field(default_factory=lambda: Groups("server", GROUPS))
    each_group: bool = False  # whether agreements must hold for each group
    questions: Questions = field(default_factory=Questions)

    def __post_init__(self) -> None:
        if self.method is not None:
            one_of(self.method, METHODS, "method")
        within(self.fewest, 1, 1 << 20, "fewest")
        if self.epoch_ns > LONGEST_EPOCH_NS:
            raise SettingError("epoch", "must be at most 17s")
        if self.gap_ns > LONGEST_GAP_NS:
            raise SettingError("gap", "must be at most 18min")
        if self.memory < LEAST_MEMORY:
            raise SettingError("memory", "must be at least 8KiB")
        within(self.memory, LEAST_MEMORY, 1 << 37, "memory")

    @property
    def may_pair(self) -> bool:
        """Whether requests and responses are paired where both directions pass."""
        return self.method in (None, "pairs")

    def pirate(self) -> Pirate:
        """The estimator of one direction."""
        from wirelag.estimators.pirate import Pirate

        method: Any = "auto" if self.may_pair else self.method
        return Pirate(method, self.memory, self.epoch_ns, self.fewest, self.gap_ns, self.literal)


class Hearing:
    """The meter as the loop needs it."""

    points: ClassVar[tuple[str, ...]] = ("tap",)

    def __init__(self, settings: ResponseSettings, frames: Frames | None) -> None:
        self.settings, self.frames = settings, frames

    def meter(self, point: str) -> ResponseMeter:
        from wirelag.measure.response_method import ResponseMeter

        return ResponseMeter(self.settings, at_end=True, frames=self.frames)

    def estimate(self, *synopses: Heard) -> Report:
        return synopses[0].epochs.report()


def hear(
    packets: Packets, settings: ResponseSettings, frames: Frames | None = None, progress: Progress = iter
) -> tuple[Interval, Heard]:
    """Both methods over all packets; an error if there is nothing to measure."""
    if len(packets.names) > 1:
        from wirelag.measure.response_pieces import hear_pieces

        when, heard = hear_pieces(packets, settings, frames, progress)
    else:
        when, heard = hear_piece(progress(packets), settings, frames)
    need_clients(heard, packets, settings.servers)
    return when, heard


def hear_piece(
    packets: Iterable[PacketBatch], settings: ResponseSettings, frames: Frames | None
) -> tuple[Interval, Heard]:
    """Both methods over packets that one meter hears."""
    from wirelag.measure.loop import cut

    ((when, (heard,)),) = cut(Hearing(settings, frames), {"tap": packets})
    return when, heard


def need_clients(heard: Heard, packets: Packets, servers: tuple[Server, ...]) -> None:
    """Without a packet from a client: say why, and what to do."""
    if heard.from_clients:
        return
    from wirelag.measure.hints import in_tunnels

    names = ", ".join(packets.names)
    if not heard.from_servers + heard.left_out:
        if not getattr(packets, "ended", True):
            raise WirelagError(f"{names}: no packets to measure")
        return  # the result says so
    if servers:
        wanted = ", ".join(str(server) for server in servers)
        way_out = in_tunnels(packets, "response") or "name servers with --server PREFIX"
        raise WirelagError(f"{names}: no packet goes to {wanted}; {way_out}")
    way_out = in_tunnels(packets, "response") or "capture where requests pass, or name servers with --server PREFIX"
    raise WirelagError(f"{names}: all packets come from servers, which do not show when a request was sent; {way_out}")
