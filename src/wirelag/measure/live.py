"""The questions of one point on live traffic: a report for each interval and in total, in bounded memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from wirelag.estimators.drive import drive
from wirelag.estimators.protocol import Meter
from wirelag.measure.groups import Groups
from wirelag.measure.response import BothWays, Heard, ResponseMeter, ResponseSettings, by_group
from wirelag.measure.result import Entry
from wirelag.measure.rtt import RANKED, legs
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER_KEY, Grouping
from wirelag.packets.intervals import Event, Interval
from wirelag.report import Report
from wirelag.stats.distribution import Z95, Distribution
from wirelag.stats.random_groups import RandomGroups
from wirelag.synopses.epochs import Epochs
from wirelag.synopses.request_response import Exchanges
from wirelag.synopses.samples import LEGS, Samples, facts

if TYPE_CHECKING:
    from wirelag.capture.live import Source
    from wirelag.ebpf.pirate import KernelPirate

FEWEST: Final = 4  # intervals needed for a confidence interval of the mean
GROUP_BYTES: Final = 320_000  # of a group: its delays in total, in this interval and in the last minute


@dataclass(slots=True)
class Sums:
    """Delays known only by their mean, with a confidence interval from how intervals differ."""

    samples: int = 0
    sum_ns: int = 0
    parts: int = 0
    _squares: tuple[int, int, int] = (0, 0, 0)  # over parts: sums of sum^2, sum * samples, samples^2

    def add(self, samples: int, sum_ns: int) -> None:
        """Add an interval."""
        self.samples += samples
        self.sum_ns += sum_ns
        self.parts += samples > 0
        a, b, c = self._squares
        self._squares = a + sum_ns * sum_ns, b + sum_ns * samples, c + samples * samples

    def merge(self, other: Sums) -> None:
        """Add the sums of other intervals."""
        self.samples += other.samples
        self.sum_ns += other.sum_ns
        self.parts += other.parts
        a, b, c = (one + more for one, more in zip(self._squares, other._squares, strict=True))
        self._squares = a, b, c

    @property
    def mean(self) -> float | None:
        """The mean in seconds."""
        return self.sum_ns / self.samples / 1e9 if self.samples else None

    @property
    def ci95(self) -> dict[str, tuple[float, float]]:
        """The interval of the mean, a ratio of two sums over intervals."""
        if self.parts < FEWEST or self.mean is None:
            return {}
        mean_ns = self.sum_ns / self.samples
        a, b, c = self._squares
        off = max(0.0, a - 2 * mean_ns * b + mean_ns * mean_ns * c)
        bound = Z95 * math.sqrt(off * self.parts / (self.parts - 1)) / self.samples / 1e9
        return {"mean": (max(0.0, self.mean - bound), self.mean + bound)}


@dataclass(slots=True)
class LiveInterval:
    """The report of one interval, and of each group in it. It knows every delay, or only sums."""

    interval: Interval
    report: Report
    delays: Distribution
    random_groups: RandomGroups | None = None  # for the uncertainty of the delays
    groups: dict[str, Report] = field(default_factory=dict)
    group_delays: dict[str, Distribution] = field(default_factory=dict)
    legs: dict[str, tuple[Distribution, RandomGroups | None]] = field(default_factory=dict)  # of round trips


class LiveGroups:
    """Delays of each group, summed over intervals: at most `most` groups, those with the most samples.

    After an interval that brought more, those with the fewest leave for "other". A group that comes later counts as if
    it had had as many samples as any that left (Space-Saving, synopses/group_delays.py): so one that has more is kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.floor = 0  # the largest count that left
        self.delays: dict[str, Distribution] = {}
        self.sums: dict[str, Sums] = {}
        self._before: dict[str, int] = {}  # the floor when a group came

    def add(self, part: LiveInterval) -> None:
        """Add an interval."""
        for key, report in part.groups.items():
            mean_ns = (report.mean or 0.0) * 1e9
            self._before.setdefault(key, self.floor)
            self.sums.setdefault(key, Sums()).add(report.samples, round(mean_ns * report.samples))
            if key in part.group_delays:
                self.delays.setdefault(key, Distribution()).merge(part.group_delays[key])
        more = len(self.sums) - (OTHER_KEY in self.sums) - self.most
        if more > 0:
            counts = {key: self.sums[key].samples + self._before[key] for key in self.sums if key != OTHER_KEY}
            for key in sorted(counts, key=counts.__getitem__)[:more]:
                self._leave(key)
                self.floor = max(self.floor, counts[key])

    def _leave(self, key: str) -> None:
        del self._before[key]
        self._before.setdefault(OTHER_KEY, 0)
        self.sums.setdefault(OTHER_KEY, Sums()).merge(self.sums.pop(key))
        if key in self.delays:
            self.delays.setdefault(OTHER_KEY, Distribution()).merge(self.delays.pop(key))

    def reports(self, estimator: str, quantity: Any) -> Iterator[tuple[str, Report, Distribution]]:
        """The report of each group, slowest first; "other" last."""
        found = []
        for key, sums in self.sums.items():
            delays = self.delays.get(key, Distribution())
            found.append((key, Report(estimator, quantity, **numbers(delays, sums)), delays))
        yield from sorted(found, key=lambda one: (one[0] == OTHER_KEY, -(one[1].mean or -1.0)))


def numbers(delays: Distribution, sums: Sums, random_groups: RandomGroups | None = None) -> dict[str, Any]:
    """The figures of a report: all of a distribution, or the mean if single delays are unknown."""
    if delays.samples:
        return facts(delays, random_groups)
    return {"samples": sums.samples, "mean": sums.mean, "ci95": sums.ci95}


class RoundTrips:
    """Requests with their responses, both legs."""

    quantity: Final = "round_trip"

    def __init__(self, meter: Meter[Samples], name: str, groups: Groups | None = None) -> None:
        self.estimator = name
        self.total = Samples()
        self.groups = LiveGroups(groups.fit(GROUP_BYTES) if groups else 0)
        self.lock = threading.Lock()  # held while the sums change
        self._meter = meter
        self._grouping = groups.delays() if groups else None

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take packets of the open interval."""
        self._meter.observe(packets, self._grouping)

    def cut(self, interval: Interval) -> LiveInterval:
        """End an interval."""
        samples = self._meter.cut(interval)
        report = samples.report(self.estimator, "round_trip", leg=LEGS[0]).during(interval)
        part = LiveInterval(interval, report, samples.distribution(0), samples.random_groups.of_leg(0))
        part.legs = {name: (samples.distribution(i), samples.random_groups.of_leg(i)) for i, name in enumerate(LEGS)}
        if self._grouping is not None:
            leg = LEGS.index(RANKED.get(self._grouping.by, LEGS[0]))
            for key, group in self._grouping.few(self.groups.most):
                part.groups[key] = group.report(self.estimator, "round_trip", LEGS[leg])
                part.group_delays[key] = group.distribution(leg)
            # Groups last one interval: a silent one costs nothing later.
            self._grouping = self._grouping.anew()
        with self.lock:
            self._add(samples)
            self.groups.add(part)
        return part

    def finish(self) -> None:
        """End the measurement: a request without its response has no delay."""

    def _add(self, samples: Samples) -> None:
        for leg in range(len(LEGS)):
            mine = self.total.distributions.setdefault(leg, Distribution())
            mine.merge(samples.distribution(leg))
        self.total.random_groups.merge(samples.random_groups)
        self.total.packets += samples.packets
        self.total.count(**samples.counts)

    def report(self) -> Report:
        """All intervals together, to the server; the report holds both legs."""
        return self.total.report(self.estimator, "round_trip", leg=LEGS[0])

    def delays(self) -> dict[str, Distribution]:
        """All single delays, by leg."""
        return {side: self.total.distribution(leg) for leg, side in enumerate(LEGS)}

    def entries(self) -> list[Entry]:
        """The final figures of each leg."""
        return legs(self.estimator, self.total) or [Entry("all", "all", self.report(), Distribution())]


class Responses:
    """Requests with their whole responses where both directions pass, else estimates from packets of clients."""

    quantity: Final = "response"

    def __init__(self, settings: ResponseSettings, meter: KernelPirate | None = None) -> None:
        self.lock = threading.Lock()  # held while the sums change
        self.groups = LiveGroups(settings.groups.fit(GROUP_BYTES))
        self.exchanges = Samples()
        self.sums = Sums()
        self.abstained: dict[str, int] = {}
        self.epochs = 0
        self._settings = settings
        self._meter = ResponseMeter(settings, at_end=False, pirate=meter)
        self._seen = BothWays()

    @property
    def both_ways(self) -> bool:
        """Whether requests and responses are paired, judged by the packets so far."""
        return self._seen.applies(self._settings.method)

    @property
    def estimator(self) -> str:
        """The method that applies."""
        return "pairs" if self.both_ways else "pirate"

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take packets of the open interval."""
        self._meter.observe(packets)

    def cut(self, interval: Interval) -> LiveInterval:
        """End an interval."""
        return self._end(interval, self._meter.cut(interval))

    def finish(self) -> None:
        """End the measurement: open flows report what they can."""
        self._end(Interval(0, 0), self._meter.finish())

    def _end(self, interval: Interval, heard: Heard) -> LiveInterval:
        with self.lock:
            self._seen.add(heard)
            random_groups = self._add(heard.exchanges, heard.epochs)
            found: Exchanges | Epochs = heard.exchanges if self.both_ways else heard.epochs
            part = LiveInterval(interval, found.report().during(interval), found.delays, random_groups)
            by = self._settings.groups.by
            for entry in by_group(found, by, self.groups.most)[0] if by else []:
                part.groups[entry.key] = entry.report
                if self.both_ways:
                    part.group_delays[entry.key] = entry.delays
            self.groups.add(part)
        return part

    def _add(self, exchanges: Exchanges, epochs: Epochs) -> RandomGroups:
        single, random_groups = exchanges.single, RandomGroups()
        if len(single):
            keys, times_ns = np.ascontiguousarray(single.rows["key"]), np.ascontiguousarray(single.response_ns)
            legs = np.zeros(len(single), np.uint8)
            self.exchanges.add(legs, times_ns)
            random_groups.add(keys, np.arange(len(keys), dtype=np.uint32), legs, times_ns)
            self.exchanges.random_groups.merge(random_groups)
        answered = epochs.rows[epochs.rows["count"] > 0]
        self.sums.add(int(answered["count"].sum()), int(answered["sum_ns"].sum()))
        self.epochs += len(epochs)
        for reason, count in epochs.report().details["abstained"].items():
            self.abstained[reason] = self.abstained.get(reason, 0) + count
        return random_groups

    def report(self) -> Report:
        """All intervals together."""
        if self.both_ways:
            reason = None if self._seen.single else "no request was seen together with its whole response"
            times = self.exchanges.distribution()
            said = facts(times, self.exchanges.random_groups)
            return Report("pairs", "response", packets=self._seen.packets, reason=reason, **said)
        return Report(
            "pirate",
            "response",
            packets=self._seen.packets,
            samples=self.sums.samples,
            mean=self.sums.mean,
            ci95=self.sums.ci95,
            reason=None if self.sums.samples else "no epoch has an estimate",
            details={"epochs": self.epochs, "abstained": dict(self.abstained)},
        )

    def delays(self) -> dict[str, Distribution]:
        """All single delays, where known; they are to the server and back."""
        return {"server": self.exchanges.distribution()} if self.both_ways else {}

    def entries(self) -> list[Entry]:
        """The final figures."""
        delays = self.exchanges.distribution() if self.both_ways else Distribution()
        return [Entry("all", "all", self.report(), delays)]


LiveMeasure: TypeAlias = RoundTrips | Responses


def watch(
    source: Source, measure: LiveMeasure, interval_ns: int, length_ns: int | None = None
) -> Iterator[tuple[LiveInterval, int]]:
    """The report of each interval once it has ended, and the packets dropped in it; for `length_ns`."""
    for interval, part in drive(measure, _watched(source, interval_ns, length_ns)):
        yield part, source.dropped_during(interval)


def _watched(source: Source, interval_ns: int, length_ns: int | None) -> Iterator[Event]:
    """Events of a live source; the first and the last interval cover only the time watched."""
    from wirelag.capture.live import by_clock

    for interval, packets in by_clock(source, interval_ns):
        if packets is None:
            end_ns = min(interval.end_ns, max(source.now_ns(), interval.start_ns + 1))
            interval = Interval(min(max(interval.start_ns, source.began_ns or 0), end_ns - 1), end_ns)
        yield interval, packets
        if length_ns is not None and source.now_ns() >= (source.began_ns or 0) + length_ns:
            source.stop()
