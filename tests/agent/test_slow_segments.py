"""lda on slow and idle segments: intervals end where packets end them, however few there are; idle is not silent."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import delimiters as oracle
from tests.oracles.join import Packet
from tests.support.agent_settings import config_of
from tests.support.two_points import EPOCH_NS, SECOND_NS, batch_of
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import AtPackets, CutPart, Unseen, cutter
from wirelag.agent.history import History
from wirelag.collector.metrics import _outcome
from wirelag.collector.tally import Tally
from wirelag.packets import intervals
from wirelag.packets.intervals import Delimiters, split_at_delimiters
from wirelag.protocol.messages import Message, decode
from wirelag.protocol.results import Ends, Rank, Result
from wirelag.protocol.session import LINGER_NS, Rounds

SETTINGS = """
point = "{}"
interface = "lo"
[[segments]]
name = "A>B"
[estimator]
name = "lda"
"""
STEP_NS = SECOND_NS // 10  # how often the capture is polled
DELAY_NS = 30_000_000


def measured(point: str, folder: Path, bits: int | None = None) -> Measured:
    """As an agent with default settings measures; `bits`: as one before 0.2 did."""
    (found,) = config_of(SETTINGS.format(point), folder).measured
    assert found.terms.delimiters is not None
    if bits is None:
        return found
    return replace(found, terms=replace(found.terms, delimiters=replace(found.terms.delimiters, bits=bits)))


def parts_of(measured: Measured, packets: Sequence[Packet], seconds: int) -> list[CutPart]:
    """What an agent cuts that listens for so long."""
    cuts = cutter((measured,), SECOND_NS, 50_000_000, Unseen(SECOND_NS, EPOCH_NS))
    assert isinstance(cuts, AtPackets)
    cuts.begin(EPOCH_NS)
    found, at, batch = list[CutPart](), 0, batch_of(packets)
    for now_ns in range(EPOCH_NS, EPOCH_NS + seconds * SECOND_NS, STEP_NS):
        before, at = at, int(np.searchsorted(batch.time_ns, now_ns))
        found += cuts.take(batch[before:at]) if at > before else cuts.passed(now_ns)
    return found


def results_of(parts: dict[str, list[CutPart]], seconds: int) -> list[Result]:
    """What a collector makes of them."""
    rounds, found = Rounds([Ends("A>B", "A", "B")]), list[Result]()
    messages = []
    for point, several in parts.items():
        for part in several:
            about = Message(
                "synopsis", point, "A>B", part.cut.interval, part.measured.terms, seen=part.seen,
                sent_ns=part.cut.interval.end_ns,
            )  # fmt: skip
            messages.append(decode(encoded(part, about, History(point, 0, 0))[0]))
    now_ns = EPOCH_NS + seconds * SECOND_NS
    for message in sorted(messages, key=lambda one: one.interval.end_ns):
        found += [one for one in rounds.take(message, now_ns) if isinstance(one, Result)]
    for passed_ns in range(0, 2 * LINGER_NS, SECOND_NS):
        found += [one for one in rounds.pass_time(now_ns + passed_ns) if isinstance(one, Result)]
    return found


def sent(rate: float, seconds: int, seed: int = 1) -> list[Packet]:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, seconds, int(rate * seconds)))
    ids = rng.integers(0, 1 << 64, len(times), np.uint64)
    return [(int(one), EPOCH_NS + int(at * 1e9)) for one, at in zip(ids, times, strict=True)]


def received(packets: Sequence[Packet]) -> list[Packet]:
    return [(one, at_ns + DELAY_NS) for one, at_ns in packets]


@pytest.mark.parametrize("bits", [0, 1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_few_markers_decide_as_all_do(bits: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of any size, times that go back a little, copies: the same cuts as the twin's, which looks at all."""
    rng = np.random.default_rng(seed)
    times = EPOCH_NS + np.cumsum(rng.integers(-3, 20, 400))
    ids = rng.integers(0, 300 if seed % 2 else 1 << 64, 400, np.uint64)
    packets = [(int(one), int(at)) for one, at in zip(ids, times, strict=True)]
    edges = np.sort(rng.integers(0, 401, 9)).tolist()
    monkeypatch.setattr(intervals, "FEW", 0)
    batches = [batch_of(packets[a:b]) for a, b in zip([0, *edges], [*edges, 400], strict=True)]
    found = list[int]()
    for _, edge in split_at_delimiters(batches, Delimiters(300, bits, 7)):
        if edge is not None:
            found = [*(found[:-1] if edge.instead else found), edge.name]
    assert found == [piece.name for piece in oracle.by_markers(packets, 300, bits, 7)[1:]]
    assert len(found) > 5


@pytest.mark.every(3)
@pytest.mark.parametrize("rate", [2, 20, 200])
def test_a_slow_segment_has_results(rate: int, tmp_path: Path) -> None:
    """20 packets a second gave no result in 40 s, and then one of "1 s" with 5,651 packets."""
    packets, seconds = sent(rate, 40), 45
    parts = {
        point: parts_of(measured(point, tmp_path), some, seconds)
        for point, some in (("A", packets), ("B", received(packets)))
    }
    results = [one for one in results_of(parts, seconds) if one.crossings and one.crossings[None].sent]
    assert len(results) >= 20
    assert sum(one.crossings[None].sent for one in results) >= 0.9 * len(packets)
    for one, other in pairwise(results):
        assert abs(one.interval.end_ns - other.interval.start_ns) <= SECOND_NS // 2  # its end is real, but rounded
    for one in results:
        crossing = one.crossings[None]
        assert crossing.sent == crossing.received <= 8 * rate
        assert crossing.moments.mean_ns == pytest.approx(DELAY_NS)


def test_an_idle_segment_is_idle(tmp_path: Path) -> None:
    """No packets for half a minute: intervals without packets, not silence, and none that one end has missed."""
    packets, seconds = [*sent(20, 5), *((one, at + 35 * SECOND_NS) for one, at in sent(20, 5, 2))], 45
    parts = {
        point: parts_of(measured(point, tmp_path), some, seconds)
        for point, some in (("A", packets), ("B", received(packets)))
    }
    assert [part for part in parts["A"] if part.idle]
    results = results_of(parts, seconds)
    outcomes = [_outcome(Tally.of(one, None)) for one in results]
    assert outcomes.count("empty") >= 25
    assert outcomes.count("measured") >= 5
    assert set(outcomes) == {"empty", "measured"}
    assert all(one.rank > Rank.UNSEEN for one in results)
    nothing = {point: parts_of(measured(point, tmp_path), [], 60) for point in "AB"}
    assert len(results_of(nothing, 60)) >= 55
    assert {_outcome(Tally.of(one, None)) for one in results_of(nothing, 60)} == {"empty"}


def test_an_end_that_cuts_at_rarer_markers_can_be_compared(tmp_path: Path) -> None:
    """An older agent at one end: its cuts are some of the other's."""
    packets, seconds = sent(2000, 8), 12
    older = parts_of(measured("A", tmp_path, bits=10), packets, seconds)
    newer = parts_of(measured("B", tmp_path), received(packets), seconds)
    results = [one for one in results_of({"A": older, "B": newer}, seconds) if one.crossings]
    assert len(results) >= 2
    assert all(one.reason is None for one in results)
    assert all(one.crossings[None].sent == one.crossings[None].received for one in results)
    assert sum(one.crossings[None].sent for one in results) > 0.5 * len(packets)
