"""What packets say about round trips: samples by interval, and what all of them are added to.

Law: parts of the packets can be heard apart, and merged: by another core, or another machine. The sum is what one meter
would have heard, as long as no connection is in two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from wirelag.capture.pcap import CaptureFile
    from wirelag.capture.source import Packets
    from wirelag.capture.undecoded import Records, Undecoded
    from wirelag.estimators.fridge import FridgeMeter
    from wirelag.estimators.match import MatchMeter
    from wirelag.estimators.records import Into
    from wirelag.measure.points import Progress
    from wirelag.measure.rtt import RttSettings
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.interval import Interval
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_delays import GroupDelays
    from wirelag.synopses.group_times import GroupTimes
    from wirelag.synopses.samples import SampleBatch, Samples, Sink
    from wirelag.synopses.slowest import Slowest
    from wirelag.synopses.timeline import Timeline

Cut: TypeAlias = "tuple[Interval, Samples, Connections | None]"
"""The samples of an interval, and its connections where these are told of each interval."""


class Heard:
    """What all samples are added to, beside the synopses of intervals."""

    def __init__(
        self,
        groups: GroupDelays | None,
        connections: Connections | None,
        slowest: Slowest,
        timeline: Timeline | None,
        of_interval: Connections | None = None,
    ) -> None:
        self.groups, self.connections, self.slowest, self.timeline = groups, connections, slowest, timeline
        self._open = of_interval  # those of the open interval, if they are told
        self.times: GroupTimes | None = None  # delays of groups over time

    @classmethod
    def fresh(cls, settings: RttSettings, charts: bool = False, slowest: bool = True) -> Heard:
        """Nothing yet; `charts`: what only the page needs."""
        from wirelag.synopses.slowest import Slowest

        groups, both = settings.groups.delays(), settings.leg == "both"
        sums = both or any(sla.leg == "both" for sla in settings.questions.of_leg(settings.leg).slas)
        connections = timeline = of_interval = None  # what is not wanted is not imported
        if sums or groups is not None:
            from wirelag.synopses.connections import Connections

            connections, of_interval = Connections(), Connections() if both and settings.interval_ns else None
        if charts:
            from wirelag.synopses.timeline import Timeline

            timeline = Timeline(settings.interval_ns)
        slowest_of = Slowest(settings.groups.slowest if slowest else 0)
        return cls(groups, connections, slowest_of, timeline, of_interval)

    def time_groups(self, settings: RttSettings) -> None:
        """Keep the delays of groups over time, too, here and not where parts are heard."""
        if settings.groups.by is not None:
            from wirelag.synopses.group_times import GroupTimes

            self.times = GroupTimes(settings.ranked)

    def meter(self, settings: RttSettings, sinks: Sequence[Sink] = (), later: bool = False) -> MatchMeter | FridgeMeter:
        """A meter whose samples are added here, and to these sinks."""
        mine: list[Sink] = [partial(self.slowest.of_leg, settings.ranked)] if self.slowest.most else []
        mine += [self.timeline.add] if self.timeline else []
        mine += [self.times.add] if self.times else []
        mine += [*sinks, self._keep] if self.connections is not None else sinks
        return replace(settings.estimator(later), sinks=tuple(mine)).meter("tap")

    @property
    def _taking(self) -> Connections | None:
        """The connections that samples are added to."""
        return self.connections if self._open is None else self._open

    def _keep(self, batch: PacketBatch, samples: SampleBatch) -> None:
        into = self._taking
        assert into is not None
        into.add(batch, samples)

    def cuts_of(
        self, packets: Packets, settings: RttSettings, sinks: Sequence[Sink], progress: Progress
    ) -> Iterator[Cut]:
        """The same as `cuts`, with a meter of its own.

        Packets of one file are decoded and matched at once, on all cores; but a fridge tells no groups or charts like
        that, and sinks need batches.
        """
        from wirelag.capture.files import one_file
        from wirelag.capture.source import Listening

        at_once = not sinks and (settings.method == "match" or not self._into())
        if at_once and (file := one_file(packets)):
            yield from self._undecoded(file, settings, progress)
            return
        meter = self.meter(settings, sinks, later=not isinstance(packets, Listening))
        yield from self.cuts(meter, progress(packets), settings)

    def _into(self) -> Into:
        from wirelag.estimators.records import Into

        return Into(self.groups, self.times, self._taking, self.timeline, self._open is not None)

    def _undecoded(self, file: CaptureFile, settings: RttSettings, progress: Progress) -> Iterator[Cut]:
        from wirelag.capture.undecoded import Undecoded, decoding
        from wirelag.estimators.records import RecordsMeter

        threads = decoding(file, settings.cores)
        rows, into = settings.estimator().rows_meter(threads), self._into()
        meter = RecordsMeter(rows, threads, self.slowest, settings.ranked, into)
        shown = cast("Callable[[Undecoded], Iterable[Records]]", progress)  # it passes on whatever it is given
        for when in meter.intervals(shown(Undecoded(file, meter.finish, settings.cores)), settings.interval_ns):
            yield when, rows.cut(when), self._open
            self._next_interval()
            into.connections = self._taking

    def cuts(
        self, meter: MatchMeter | FridgeMeter, batches: Iterable[PacketBatch], settings: RttSettings
    ) -> Iterator[Cut]:
        """The synopsis of each interval, or one of all packets."""
        from wirelag.estimators.drive import cut_by_time

        for when, samples in cut_by_time(meter, batches, settings.interval_ns, self.groups):
            yield when, samples, self._open
            self._next_interval()

    def _next_interval(self) -> None:
        if self.connections is not None and self._open is not None:
            from wirelag.synopses.connections import Connections

            self.connections.merge(self._open)
            self._open = Connections()

    def merge(self, other: Heard) -> None:
        """Add what was heard elsewhere, in packets after these or beside them."""
        if self.groups is not None and other.groups is not None:
            self.groups.merge(other.groups)
        if self.connections is not None and other.connections is not None:
            self.connections.merge(other.connections)
        if self.timeline is not None and other.timeline is not None:
            self.timeline.merge(other.timeline)
        self.slowest.merge(other.slowest)
