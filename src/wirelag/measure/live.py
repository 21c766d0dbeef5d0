"""The questions of one point on live traffic: a report for each interval and in total, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from wirelag.estimators.drive import drive
from wirelag.estimators.protocol import Meter
from wirelag.measure.groups import LEAST_MEMORY, Groups
from wirelag.measure.response import guess_note
from wirelag.measure.response_entries import GroupParts
from wirelag.measure.response_heard import ResponseSettings
from wirelag.measure.response_method import Chooser, Chosen, Heard, ResponseMeter
from wirelag.measure.result import Entry
from wirelag.measure.rtt import RANKED, legs
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER_KEY, Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Event
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.ranking import fewest
from wirelag.stats.spread import Spread, spread_of
from wirelag.synopses.epoch_sums import EpochSums
from wirelag.synopses.epochs import Epochs
from wirelag.synopses.group_delays import Group
from wirelag.synopses.request_response import Exchanges
from wirelag.synopses.samples import LEGS, Samples, facts
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.live import Source
    from wirelag.ebpf.pirate import KernelPirate

WAITS: Final = "the first second shows who is a client; its figures come in a later interval"
JUDGED: Final = (
    "which servers are paired is judged where an interval ends: another --interval may give another total; "
    "--interval 1s, or whole seconds, all give the same"
)
STEP_NS: Final = 10**9  # how often it is judged which servers are paired
ESTIMATES: Final = "pirate"  # the estimator whose figures stand beside exact ones

GroupKey: TypeAlias = tuple[str, str, str]  # a group, and the estimator and the leg of its figures
GROUP_BYTES: Final = 2_000  # of a group, without its delays
BIN_BYTES: Final = 24  # of each bin of a group that holds delays
ENTRY_BYTES: Final = 10_000  # of a group's report in one interval
_NO_DELAYS: Final = Distribution().compact()


@dataclass(slots=True)
class Sums:
    """Delays known only by their mean. How they vary is not kept: a million groups would need as many spreads."""

    samples: int = 0
    sum_ns: int = 0

    def add(self, samples: int, sum_ns: int) -> None:
        """Add an interval."""
        self.samples += samples
        self.sum_ns += sum_ns

    def merge(self, other: Sums) -> None:
        """Add the sums of other intervals."""
        self.add(other.samples, other.sum_ns)

    @property
    def mean(self) -> float | None:
        """The mean in seconds."""
        return self.sum_ns / self.samples / 1e9 if self.samples else None


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What an interval adds to a group, by one method, on one leg."""

    key: str
    estimator: str
    leg: str  # of round trips
    sums: Sums
    methods: tuple[str, ...]
    delays: Distribution

    @classmethod
    def of(cls, entry: Entry) -> GroupPart:
        """The part that an entry tells."""
        report, sums = entry.report, Sums()
        sums.add(report.samples, round((report.mean or 0.0) * 1e9 * report.samples))
        return cls(entry.key, report.estimator, "", sums, tuple(report.details.get("method", ())), entry.delays)


@dataclass(slots=True)
class LiveInterval:
    """The report of one interval, and of each group in it. It knows every delay, or only sums."""

    interval: Interval
    report: Report
    delays: Distribution
    spread: Spread | None = None  # for the uncertainty of the delays
    by_group: list[GroupPart] = field(default_factory=list)
    groups: Callable[[], list[Entry]] = list  # made when asked for: a report takes longer than all else about a group
    legs: dict[str, tuple[Distribution, Spread | None]] = field(default_factory=dict)  # of round trips
    estimated: Report | None = None  # of responses: estimates beside paired exchanges
    epochs: EpochSums = field(default_factory=EpochSums)  # of these
    samples: list[tuple[Sequence[int], Samples]] = field(default_factory=list)  # of groups of round trips, by words

    def by_method(self) -> list[Report]:
        """The report, and that of the estimates beside it."""
        return [self.report] if self.estimated is None else [self.report, self.estimated]


class LiveGroups:
    """Delays of each group, method and leg, summed over intervals: those with the most samples that fit `memory`.

    A group takes 2,000 bytes and 24 for each bin that holds delays. After an interval that brought more than fits,
    those with the fewest samples leave for "other". A group that comes later counts as if it had had as many samples
    as any that left (Space-Saving, synopses/group_delays.py): so one that has more is kept. A group has the figures
    of `leg`; those of the other one, and it says so, if this leg has none.
    """

    def __init__(self, memory: int, leg: str = "") -> None:
        self.memory, self._leg = memory, leg
        self.floor = 0  # the largest count that left
        self.delays: dict[GroupKey, Distribution] = {}
        self.sums: dict[GroupKey, Sums] = {}
        self.methods: dict[GroupKey, set[str]] = {}
        self._before: dict[str, int] = {}  # the floor when a group came
        self._bytes = 0

    def add(self, part: LiveInterval) -> None:
        """Add an interval."""
        for one in part.by_group:
            self._before.setdefault(one.key, self.floor)
            self._take((one.key, one.estimator, one.leg), one.sums, one.methods, one.delays)
        if self._bytes > self.memory:
            self._make_room()

    def _take(self, key: GroupKey, sums: Sums, methods: Iterable[str], delays: Distribution | None) -> None:
        if key not in self.sums:
            self.sums[key], self.methods[key] = Sums(), set()
            self._bytes += self._size(key)
        self.sums[key].merge(sums)
        self.methods[key].update(methods)
        if delays is not None and delays.samples:
            self._bytes -= self._size(key)
            self.delays[key] = self.delays.get(key, _NO_DELAYS).plus(delays)
            self._bytes += self._size(key)

    def _size(self, key: GroupKey) -> int:
        held = len(self.delays[key].bins) if key in self.delays else 0
        return GROUP_BYTES + BIN_BYTES * held if key[0] != OTHER_KEY else 0

    def _make_room(self) -> None:
        """Let those with the fewest samples leave."""
        counts = {name: before for name, before in self._before.items() if name != OTHER_KEY}
        for (name, *_), sums in self.sums.items():
            if name in counts:
                counts[name] += sums.samples
        keys: dict[str, list[GroupKey]] = {}
        for key in self.sums:
            keys.setdefault(key[0], []).append(key)
        for name in sorted(counts, key=counts.__getitem__)[:-1]:
            if self._bytes <= self.memory:
                return
            self.floor = max(self.floor, counts[name])
            del self._before[name]
            for key in keys[name]:
                self._bytes -= self._size(key)
                leaving = self.sums.pop(key), self.methods.pop(key), self.delays.pop(key, None)
                self._take((OTHER_KEY, *key[1:]), *leaving)

    def notes(self) -> list[str]:
        """How many samples the groups have that did not fit."""
        held = sum(sums.samples for (name, *_), sums in self.sums.items() if name == OTHER_KEY)
        every = sum(sums.samples for sums in self.sums.values())
        if not held:
            return []
        return [f"other: {held / every:.1%} of the samples, of groups that did not fit --group-memory"]

    def __len__(self) -> int:
        """How many groups there are, "other" included."""
        return len({name for name, *_ in self.sums})

    def merge(self, other: LiveGroups) -> None:
        """Add the groups of other intervals."""
        for key, sums in other.sums.items():
            self._take(key, sums, other.methods[key], other.delays.get(key))

    def entries(self, quantity: Any, most: int | None = None) -> list[Entry]:
        """The reports of groups, at most this number, slowest first; "other" last. Estimates stand beside exchanges."""
        found: dict[str, list[GroupKey]] = {}
        for key in sorted(self.sums, key=lambda key: (key[1] == ESTIMATES, key[2] != self._leg)):
            if key[0] not in found or not key[2]:  # of the other leg only where this one has no delays
                found.setdefault(key[0], []).append(key)

        def place(name: str) -> tuple[bool, bool, bool, bool, float]:
            sums, apart = self.sums[found[name][0]], found[name][0][2] != self._leg
            return name == OTHER_KEY, sums.mean is None, apart, sums.samples < fewest("mean"), -(sums.mean or 0.0)

        entries = []
        for name in sorted(found, key=place)[:most]:
            first, *beside = (self._entry(key, quantity) for key in found[name])
            first.estimated = beside[0] if beside else None
            entries.append(first)
        return entries

    def _entry(self, key: GroupKey, quantity: Any) -> Entry:
        (name, estimator, leg), delays = key, self.delays.get(key, _NO_DELAYS)
        sums = self.sums[key]
        said = facts(delays) if delays.samples else {"samples": sums.samples, "mean": sums.mean}
        figures = {**said, "ci95": {}}  # how they vary is not kept
        details = method_details(self.methods[key]) | ({"leg": leg} if leg else {})
        report = Report(estimator, quantity, **figures, details=details)
        return Entry("group", name, report, delays)


def method_details(methods: Iterable[str]) -> dict[str, Any]:
    """The field of a report that names its methods; round trips have none."""
    names = sorted(methods)
    return {"method": names} if names else {}


def numbers(delays: Distribution, spread: Spread, epochs: EpochSums) -> dict[str, Any]:
    """The figures of a report: all of a distribution, or the mean if single delays are unknown."""
    if delays.samples:
        return facts(spread.sure(delays))
    return {"samples": epochs.samples, "mean": epochs.mean, "ci95": epochs.ci95}


class RoundTrips:
    """Requests with their responses, both legs."""

    quantity: Final = "round_trip"

    def __init__(self, meter: Meter[Samples], name: str, groups: Groups | None = None) -> None:
        self.estimator = name
        self.total = Samples()
        memory = groups.memory // 4 if groups else 0  # for this interval, for all, and for the last minute two
        self.groups = LiveGroups(memory, self.leg_of(groups.by) if groups else "")
        self.lock = threading.Lock()  # held while the sums change
        self._meter = meter
        self._grouping = replace(groups, memory=max(LEAST_MEMORY, memory)).delays() if groups else None
        self._begin()

    def _begin(self) -> None:
        """Tell the meter of the grouping: one in the kernel gets no packets, but adds samples to it."""
        self._meter.observe(PacketBatch.empty(), self._grouping)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take packets of the open interval."""
        self._meter.observe(packets, self._grouping)

    def cut(self, interval: Interval) -> LiveInterval:
        """End an interval."""
        samples = self._meter.cut(interval)
        report = samples.report(self.estimator, "round_trip", leg=LEGS[0]).during(interval)
        part = LiveInterval(interval, report, samples.distribution(0), samples.spread.of_leg(0))
        part.legs = {name: (samples.distribution(i), samples.spread.of_leg(i)) for i, name in enumerate(LEGS)}
        if self._grouping is not None:
            found = list(self._grouping.few(max(1, self.groups.memory // GROUP_BYTES)))
            part.by_group = [
                self._part(named.key, leg, delays)
                for named, group in found
                for i, leg in enumerate(LEGS)
                if (delays := group.distribution(i)).samples
            ]
            part.groups = partial(self._entries, found, LEGS.index(self.leg_of(self._grouping.by)))
            part.samples = [(named.words, samples) for named, samples in found]
            # Groups last one interval: a silent one costs nothing later.
            self._grouping = self._grouping.anew()
            self._begin()
        with self.lock:
            self._add(samples)
            self.groups.add(part)
        return part

    def leg_of(self, by: str | None) -> str:
        """The leg that the figures of such groups are of."""
        return RANKED.get(by or "", LEGS[0])

    def _part(self, key: str, leg: str, delays: Distribution) -> GroupPart:
        sums = Sums()
        sums.add(delays.samples, round((delays.mean_ns or 0.0) * delays.samples))
        return GroupPart(key, self.estimator, leg, sums, (), delays)

    def _entries(self, found: list[tuple[Group, Samples]], ranked: int) -> list[Entry]:
        entries = []
        for named, group in found:
            leg = ranked if group.distribution(ranked).samples else 1 - ranked
            report = group.report(self.estimator, "round_trip", LEGS[leg])
            entries.append(Entry("group", named.key, report, group.distribution(leg)))
        return entries

    def step_of(self, interval_ns: int) -> int:
        """How often it must be cut: only where an interval ends."""
        return interval_ns

    def step(self, interval: Interval) -> None:
        """Nothing ends inside an interval."""

    def finish(self) -> None:
        """End the measurement: a request without its response has no delay."""

    def _add(self, samples: Samples) -> None:
        for leg in range(len(LEGS)):
            mine = self.total.distributions.setdefault(leg, Distribution())
            mine.merge(samples.distribution(leg))
        self.total.spread.merge(samples.spread)
        self.total.packets += samples.packets
        self.total.count(**samples.counts)

    def report(self) -> Report:
        """All intervals together, to the server; the report holds both legs."""
        return self.total.report(self.estimator, "round_trip", leg=LEGS[0])

    def estimated(self) -> Report | None:
        """None: every round trip is timed."""
        return None

    def notes(self) -> list[str]:
        """Lines under the final table."""
        return self.groups.notes()

    def delays(self) -> dict[str, Distribution]:
        """All single delays, by leg."""
        return {side: self.total.distribution(leg) for leg, side in enumerate(LEGS)}

    def entries(self) -> list[Entry]:
        """The final figures of each leg."""
        return legs(self.estimator, self.total) or [Entry("all", "all", self.report(), Distribution())]


class Responses:
    """Requests with their whole responses where both directions of a server pass, else estimates from client packets.

    Each second is judged by the packets so far, and what it added stays; so does each interval that has no whole number
    of seconds. Of whole seconds, the total does not depend on the interval.
    """

    quantity: Final = "response"

    def __init__(self, settings: ResponseSettings, meter: KernelPirate | None = None) -> None:
        self.lock = threading.Lock()  # held while the sums change
        self.groups = LiveGroups(settings.groups.memory // 4)  # beside this interval, and the last minute
        self.exchanges = Samples()
        self.sums = EpochSums()
        self.abstained: dict[str, int] = {}
        self.epochs = self.packets = self.left_out = self.guessed = 0
        self._methods: set[str] = set()
        self._settings = settings
        self._meter = ResponseMeter(settings, at_end=False, pirate=meter)
        self._chooser = Chooser(settings.method, settings.fewest)
        self._judged: list[Chosen] = []  # of the open interval
        self._odd = False  # whether intervals have no whole number of seconds

    def step_of(self, interval_ns: int) -> int:
        """How often packets are judged."""
        self._odd = interval_ns % STEP_NS != 0
        return interval_ns if self._odd else STEP_NS

    @property
    def estimator(self) -> str:
        """The method of the figures that come first."""
        return "pairs" if self._chooser.pairs else ESTIMATES

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Take packets of the open interval."""
        self._meter.observe(packets)

    def cut(self, interval: Interval) -> LiveInterval:
        """End an interval; what steps in it have judged is not judged again."""
        if not self._judged:
            self.step(interval)
        return self._end(interval)

    def step(self, interval: Interval) -> None:
        """Judge what was seen until the end of a part of the open interval."""
        self._judge(self._meter.cut(interval), last=False)

    def finish(self) -> None:
        """End the measurement: open flows report what they can."""
        self._judge(self._meter.finish(), last=True)
        self._end(Interval(0, 0))

    def _judge(self, heard: Heard, last: bool) -> None:
        with self.lock:
            self.packets += heard.from_clients + heard.from_servers
            self.left_out += heard.left_out
            self.guessed = heard.guessed
            self._judged.append(self._chooser.choose(heard, last))

    def _end(self, interval: Interval) -> LiveInterval:
        with self.lock:
            chosen, self._judged = Chosen.together(self._judged), []
            spread = None if chosen.paired is None else self._add(chosen.paired)
            epochs = EpochSums()
            if chosen.estimated is not None:
                epochs.add(chosen.estimated)
                self._add_estimates(chosen.estimated, epochs)
            found, beside, groups = chosen.main, chosen.beside, self._settings.groups
            report = found.report().during(interval)
            report = replace(report, reason=WAITS) if self._meter.waits else report
            part = LiveInterval(interval, report, found.delays, spread)
            part.epochs = epochs
            part.estimated = None if beside is None else beside.report().during(interval)
            most = max(1, self.groups.memory // ENTRY_BYTES)
            parts = GroupParts(found, groups.by, most, beside) if groups.by else None
            entries = [parts.entry(place) for place in parts.order()[0].tolist()] if parts else []
            part.groups, part.by_group = entries.copy, [GroupPart.of(one) for e in entries for one in e.by_method()]
            self.groups.add(part)
        return part

    def _add(self, exchanges: Exchanges) -> Spread:
        single = exchanges.single
        spread = spread_of(single.rows["key"], single.times_ns, single.response_ns)
        if len(single):
            self.exchanges.add(np.zeros(len(single), np.uint8), np.ascontiguousarray(single.response_ns))
            self.exchanges.spread.merge(spread)
        return spread

    def _add_estimates(self, epochs: Epochs, sums: EpochSums) -> None:
        said = epochs.report().details
        self.sums.merge(sums)
        self.epochs += len(epochs)
        self._methods.update(said["method"])
        for reason, count in said["abstained"].items():
            self.abstained[reason] = self.abstained.get(reason, 0) + count

    def report(self) -> Report:
        """All intervals together: of paired exchanges, if there are any."""
        if not self._chooser.pairs:
            return self._estimates()
        times = self.exchanges.distribution()
        reason = None if times.samples else "no request was seen together with its whole response"
        said = facts(times)
        details = method_details(["pairs"])
        return Report("pairs", "response", packets=self.packets, reason=reason, details=details, **said)

    def estimated(self) -> Report | None:
        """All estimates beside paired exchanges."""
        return self._estimates() if self._chooser.pairs and self.epochs else None

    def _estimates(self) -> Report:
        said = method_details(self._methods) | {"epochs": self.epochs, "abstained": dict(self.abstained)}
        return Report(
            ESTIMATES,
            "response",
            packets=self.packets,
            samples=self.sums.samples,
            mean=self.sums.mean,
            ci95=self.sums.ci95,
            reason=None if self.sums.samples else "no epoch has an estimate",
            details=said,
        )

    def notes(self) -> list[str]:
        """Lines under the final table."""
        lines = self.groups.notes()
        if self._chooser.pairs and self.epochs:
            answered = self.epochs - sum(self.abstained.values())
            paired = self.exchanges.distribution().samples
            lines.append(f"{many(paired, 'exchange')} paired; {answered:,} of {many(self.epochs, 'epoch')} estimated")
        lines += guess_note(self.guessed)
        if self._odd:
            lines.append(JUDGED)
        if self.left_out:
            lines.append(f"{self.left_out:,} packets neither to nor from the named servers were left out (--server)")
        return lines

    def leg_of(self, by: str | None) -> str:
        """Responses have no legs."""
        return ""

    def delays(self) -> dict[str, Distribution]:
        """All single delays, where known; they are to the server and back."""
        return {"server": self.exchanges.distribution()} if self._chooser.pairs else {}

    def entries(self) -> list[Entry]:
        """The final figures."""
        delays = self.exchanges.distribution() if self._chooser.pairs else Distribution()
        beside = self.estimated()
        return [
            Entry("all", "all", self.report(), delays),
            *([Entry("all", "all", beside, Distribution())] if beside else []),
        ]


LiveMeasure: TypeAlias = RoundTrips | Responses


def watch(
    source: Source, measure: LiveMeasure, interval_ns: int, length_ns: int | None = None
) -> Iterator[tuple[LiveInterval, int]]:
    """The report of each interval once it has ended, and the packets dropped in it; for `length_ns`."""
    step_ns = measure.step_of(interval_ns)
    happening = _watched(source, step_ns, length_ns)
    happening = happening if step_ns == interval_ns else _by_steps(happening, source, measure, interval_ns)
    for interval, part in drive(measure, happening):
        yield part, source.dropped_during(interval)


def _by_steps(steps: Iterable[Event], source: Source, measure: LiveMeasure, interval_ns: int) -> Iterator[Event]:
    """Events of intervals from those of their steps, at whose ends the measure judges."""
    current: Interval | None = None
    for step, packets in steps:
        start_ns = step.start_ns // interval_ns * interval_ns
        if current is not None and current.end_ns <= start_ns:  # its last steps were empty
            yield _seen(source, current), None
        current = Interval(start_ns, start_ns + interval_ns)
        if packets is not None:
            yield current, packets
            continue
        measure.step(step)
        if step.end_ns == current.end_ns:
            yield _seen(source, current), None
            current = None
    if current is not None:
        yield _seen(source, current), None


def _watched(source: Source, interval_ns: int, length_ns: int | None) -> Iterator[Event]:
    """Events of a live source; the first and the last interval cover only the time watched."""
    from wirelag.capture.live import by_clock

    for interval, packets in by_clock(source, interval_ns):
        if packets is None:
            interval = _seen(source, interval)
        yield interval, packets
        if length_ns is not None and source.now_ns() >= (source.began_ns or 0) + length_ns:
            source.stop()


def _seen(source: Source, interval: Interval) -> Interval:
    """The part of an interval that was watched."""
    end_ns = min(interval.end_ns, max(source.now_ns(), interval.start_ns + 1))
    return Interval(min(max(interval.start_ns, source.began_ns or 0), end_ns - 1), end_ns)
