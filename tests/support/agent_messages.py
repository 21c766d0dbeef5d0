"""Agents without a network, for tests of the collector: messages about packets of two points, and answers to asks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda, RdaSynopsis
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import ClockReading, Message, Seen
from wirelag.protocol.pairing import answer
from wirelag.protocol.terms import Terms, records_of
from wirelag.synopses.cache import Cached
from wirelag.synopses.reordering import with_order
from wirelag.synopses.symbols import SymbolSynopsis, numbers_of
from wirelag.twopoint.spans import Cut, cuts

SECOND_NS = 10**9
EPOCH_NS = 1_700_000_000 * SECOND_NS
CLOCK = ClockReading(True, 20_000, "chrony")
Words = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Path:
    """Packets that travelled from one point to another, and which of them never arrived."""

    ids: Words
    sent_ns: Times
    delays_ns: Times
    lost: npt.NDArray[np.bool_]
    start_ns: int

    @classmethod
    def made(
        cls, seconds: int, rate: int, seed: int, loss: float = 0.01, delay_ns: float = 5e6, start_ns: int = EPOCH_NS
    ) -> "Path":
        rng = np.random.default_rng(seed)
        count = seconds * rate
        sent_ns = start_ns + np.sort(rng.integers(0, seconds * SECOND_NS, count))
        delays_ns = np.rint(delay_ns * (0.5 + rng.exponential(0.5, count))).astype(np.int64)
        ids = rng.integers(0, 2**64, count, dtype=np.uint64)
        return cls(ids, sent_ns, delays_ns, rng.random(count) < loss, start_ns)

    @property
    def points(self) -> tuple[PacketBatch, PacketBatch]:
        """The packets of both points, each in order of time."""
        arrived = np.flatnonzero(~self.lost)
        received_ns = (self.sent_ns + self.delays_ns)[arrived]
        order = np.argsort(received_ns, kind="stable")
        return batch(self.ids, self.sent_ns), batch(self.ids[arrived][order], received_ns[order])

    def during(self, start_ns: int, end_ns: int) -> npt.NDArray[np.bool_]:
        return (self.sent_ns >= start_ns) & (self.sent_ns < end_ns)


def batch(ids: Words, times_ns: Times) -> PacketBatch:
    columns = {name: np.zeros((len(ids), width) if width > 1 else len(ids), dtype) for name, dtype, width in COLUMNS}
    columns["packet_id"], columns["time_ns"] = ids, times_ns
    return PacketBatch(columns)


@dataclass
class Agent:
    """A point that has cut all of its packets, and remembers them."""

    point: str
    terms: Terms
    packets: PacketBatch
    start_ns: int = EPOCH_NS
    segment: str | None = None
    clock: ClockReading = CLOCK
    kept: dict[int, Cached] = field(default_factory=dict)
    unseen: dict[int, int] = field(default_factory=dict)  # by the beginning of an interval
    captured: dict[int, int] = field(default_factory=dict)  # likewise

    def messages(self, first: int, count: int) -> list[Message]:
        """A synopsis of every interval, also of empty ones."""
        made = {cut.interval.start_ns: cut for cut in self._cuts()}
        length_ns = self.terms.interval_ns or SECOND_NS
        nothing = self.terms.estimator.meter("upstream")
        found = []
        for start_ns in range(
            self.start_ns + first * length_ns, self.start_ns + (first + count) * length_ns, length_ns
        ):
            interval = Interval(start_ns, start_ns + length_ns)
            cut = made.get(start_ns) or Cut(interval, {0: nothing.cut(interval)})
            more = self.captured.get(start_ns, 0)
            seen = Seen(cut.synopses[0].packets, self.unseen.get(start_ns, 0), length_ns, more)
            found.append(self.message(cut, seen))
        return found

    def message(self, cut: Cut, seen: Seen) -> Message:
        estimator = self.terms.estimator
        if isinstance(estimator, Rda):
            self.kept[cut.interval.start_ns] = cut.synopses[0]
            cut = Cut(cut.interval, {tag: bound(estimator, cached) for tag, cached in cut.synopses.items()})
        records = tuple(records_of(cut, {}))
        return Message(
            "synopsis",
            self.point,
            self.segment,
            cut.interval,
            self.terms,
            self.clock,
            seen,
            records,
            cut.interval.end_ns,
        )

    def answer(self, ask: Message) -> Message:
        estimator = self.terms.estimator
        assert isinstance(estimator, Rda)
        records = tuple(answer(estimator, self.kept.get(ask.interval.start_ns), record) for record in ask.records)
        return replace(ask, type="times", records=records, clock=self.clock)

    def _cuts(self) -> Iterator[Cut]:
        return cuts(self.terms.estimator, "upstream", [self.packets], self.terms.interval_ns)


def bound(estimator: Rda, cached: Cached) -> RdaSynopsis | SymbolSynopsis:
    found = estimator.bind(cached)
    return with_order(found, cached, numbers_of(cached.ids)) if isinstance(found, SymbolSynopsis) else found


def usual(name: str) -> Rda | Lda:
    """An estimator as an agent is set up by default."""
    from wirelag.agent.config import Config
    from wirelag.agent.settings import SCHEMA

    settings = SCHEMA.load(None)
    for key, value in (("point", "edge1"), ("interface", "lo"), ("estimator.name", name)):
        settings.put(key, value, key)
    found = Config.of(settings).measured[0].terms.estimator
    assert isinstance(found, Rda | Lda)
    return found


def pair(path: Path, estimator: Lda | Finecomb | Rda, interval_ns: int = SECOND_NS) -> tuple[Agent, Agent]:
    terms = Terms(estimator, interval_ns=interval_ns)
    up, down = path.points
    return Agent("A", terms, up, path.start_ns), Agent("B", terms, down, path.start_ns)
