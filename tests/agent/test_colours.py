"""Agents whose intervals end where the colour of marked packets changes (RFC 9341)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.marking import blocks
from tests.support.agent_messages import batch
from tests.support.agent_settings import config_of
from tests.support.two_points import EPOCH_NS, SECOND_NS
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import AtPackets, CutPart, Unseen, cutter
from wirelag.agent.history import History
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketBatch
from wirelag.packets.colours import split_at_colours
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import Message, decode
from wirelag.protocol.results import Ends, Result
from wirelag.protocol.session import Rounds

SETTINGS = """
point = "{}"
interface = "lo"
interval = "{}"
[[segments]]
name = "A>B"
[estimator]
name = "lda"
rows = {}
[cut]
at = "colours"
"""
Times = npt.NDArray[np.int64]
Colours = npt.NDArray[np.bool_]


def coloured(ids: npt.NDArray[np.uint64], times_ns: Times, colours: Colours) -> PacketBatch:
    """Packets whose colour is the lowest bit of the DSCP."""
    found = batch(ids, times_ns)
    found.traffic_class[:] = colours.astype(np.uint8) << 2
    return found


@given(st.lists(st.tuples(st.integers(-30, 120), st.booleans()), max_size=40), st.integers(2, 100), st.integers(1, 41))
def test_colours_cut_as_the_twin_does(steps: list[tuple[int, bool]], period: int, split: int) -> None:
    """Whatever comes, also backwards in time, and however it is split into batches."""
    times = np.cumsum([10**18, *(step for step, _ in steps)])[1:].astype(np.int64)
    colours = np.array([colour for _, colour in steps], np.bool_)
    packets = coloured(np.arange(len(times), dtype=np.uint64), times, colours)
    found: list[tuple[int, list[int]]] = []
    parts = split_at_colours(
        (packets[start : start + split] for start in range(0, len(times), split)), Delimiters(period, colour=0)
    )
    for part in parts:
        if len(part.packets) and not found:
            found.append((int(part.packets.dscp[0]), []))
        if len(part.packets):
            found[-1][1].extend(part.packets.time_ns.tolist())
        if len(part.late):
            found[-2][1].extend(part.late.time_ns.tolist())
        if part.edge is not None:
            found.append((part.edge.name, []))
    expected = blocks(zip(times.tolist(), colours.tolist(), strict=True), period)
    assert [(colour, sorted(some)) for colour, some in found] == [(colour, sorted(some)) for colour, some in expected]


def measured(point: str, folder: Path, rows: int = 64, interval: str = "1s") -> Measured:
    (found,) = config_of(SETTINGS.format(point, interval, rows), folder).measured
    return found


def parts_of(measured: Measured, packets: PacketBatch, every_ns: int) -> list[CutPart]:
    """What an agent cuts whose capture is polled so often."""
    cuts = cutter((measured,), SECOND_NS, SECOND_NS // 20, Unseen(SECOND_NS, EPOCH_NS))
    assert isinstance(cuts, AtPackets)
    found, at = list[CutPart](), 0
    for now_ns in range(EPOCH_NS, int(packets.time_ns.max()) + 2 * every_ns, every_ns):
        before, at = at, int(np.searchsorted(packets.time_ns, now_ns))
        found += cuts.take(packets[before:at]) if at > before else cuts.passed(now_ns)
    return found


def results_of(parts: dict[str, list[CutPart]]) -> list[Result]:
    rounds, messages = Rounds([Ends("A>B", "A", "B")]), []
    for point, several in parts.items():
        for part in several:
            terms, seen = part.measured.terms, part.seen
            about = Message("synopsis", point, "A>B", part.cut.interval, terms, seen=seen, sent_ns=1)
            messages.append(decode(encoded(part, about, History(point, 0, 0))[0]))
    found = [rounds.take(message, 1) for message in sorted(messages, key=lambda one: one.interval.end_ns)]
    return [one for several in found for one in several if isinstance(one, Result)]


def marked(
    seconds: int, rate: int, delay_ns: int, ahead_ns: int, lost: Sequence[int] = (), phase_ns: int = 0
) -> tuple[PacketBatch, PacketBatch, Times, Times]:
    """Packets of a marked segment at both ends, the times at which they were sent, and their delays (-1: lost).

    `lost`: periods of which no packet arrives; of every other period one packet in 500 is lost.
    """
    draw = np.random.default_rng(5)
    sent = EPOCH_NS + np.sort(draw.integers(0, seconds * SECOND_NS, seconds * rate))
    delays = draw.integers(1, delay_ns, len(sent))
    numbers = (sent - phase_ns) // SECOND_NS
    delays[np.isin(numbers - (EPOCH_NS - phase_ns) // SECOND_NS, lost) | (draw.random(len(sent)) < 0.002)] = -1
    ids, colours = draw.integers(0, 1 << 64, len(sent), np.uint64), numbers % 2 == 1
    got, arrived = sent + delays + ahead_ns, delays >= 0
    order = np.flatnonzero(arrived)[np.argsort(got[arrived], kind="stable")]
    return coloured(ids, sent, colours), coloured(ids[order], got[order], colours[order]), sent, delays


@pytest.mark.parametrize("rows", [64, 1])
@pytest.mark.parametrize(("ahead_ns", "phase_ns"), [(0, 0), (3 * 10**8, 5 * 10**8), (-3 * 10**8, 10**8)])
def test_loss_and_delay_of_each_period(rows: int, ahead_ns: int, phase_ns: int, tmp_path: Path) -> None:
    """Equal to the packets' own, whatever the markers' phase, with clocks that differ, and with late packets."""
    up, down, sent, delays = marked(12, 400, 150_000_000, ahead_ns, phase_ns=phase_ns)
    parts = {
        point: parts_of(measured(point, tmp_path, rows), some, 70_000_000) for point, some in (("A", up), ("B", down))
    }
    results = results_of(parts)
    assert len(results) >= 8
    exact = 0
    for result in results:
        assert result.reason is None
        number = (result.interval.start_ns - phase_ns) // SECOND_NS
        mine = (sent - phase_ns) // SECOND_NS == number
        crossing = result.crossings[None]
        assert (crossing.sent, crossing.received) == (mine.sum(), (delays[mine] >= 0).sum())
        loss = result.losses[None]
        assert loss.lost == (delays[mine] < 0).sum()
        if crossing.sent == crossing.received:
            exact += 1
            mean_ns = crossing.moments.sum_ns / crossing.used
            assert mean_ns == pytest.approx(delays[mine].mean() + ahead_ns, abs=1e-3)
    assert 0 < exact < len(results)


def test_a_period_that_got_lost_is_joined_with_its_neighbours(tmp_path: Path) -> None:
    """Downstream sees one colour go on: what it saw from change to change is compared with all that was sent."""
    up, down, sent, delays = marked(12, 400, 50_000_000, 0, lost=(5,))
    parts = {point: parts_of(measured(point, tmp_path), some, 70_000_000) for point, some in (("A", up), ("B", down))}
    joined = [one for one in results_of(parts) if one.crossings[None].sent > 1000]
    assert len(joined) == 1
    mine = np.isin((sent - EPOCH_NS) // SECOND_NS, (4, 5, 6))
    crossing = joined[0].crossings[None]
    assert (crossing.sent, crossing.received) == (mine.sum(), (delays[mine] >= 0).sum())


def test_a_flood_of_both_colours_still_has_intervals(tmp_path: Path) -> None:
    """Somebody sends each colour in turn: intervals are half a period at least, and every packet counts once."""
    times = EPOCH_NS + np.arange(30_000) * 200_000
    packets = coloured(np.arange(30_000, dtype=np.uint64), times, np.arange(30_000) % 2 == 1)
    parts = parts_of(measured("A", tmp_path), packets, 70_000_000)
    assert 8 <= len(parts) <= 13
    assert all(part.cut.interval.length_ns >= SECOND_NS // 2 for part in parts[1:])
    assert sum(part.seen.packets for part in parts) <= 30_000
    assert sum(part.seen.packets for part in parts) >= 24_000  # the open interval is not cut


def test_points_with_other_periods_are_told_apart(tmp_path: Path) -> None:
    up, down, *_ = marked(12, 200, 50_000_000, 0)
    parts = {
        "A": parts_of(measured("A", tmp_path), up, 70_000_000),
        "B": parts_of(measured("B", tmp_path, interval="1100ms"), down, 70_000_000),
    }
    reasons = {one.reason for one in results_of(parts)}
    assert len(reasons) == 1
    assert "set up differently (delimiters.length_ns: 1000000000 and 1100000000" in str(reasons.pop())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('colour = "ttl"', "colour: 'ttl' is not one of dscp:0"),
        ("control_port = 5862", "cuts at control packets: leave cut.at out"),
    ],
)
def test_what_is_refused(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match=says):
        config_of(SETTINGS.format("A", "1s", 64) + more, tmp_path)
    with pytest.raises(WirelagError, match="only lda is cut at packets"):
        config_of(SETTINGS.format("A", "1s", 64).replace('"lda"', '"rda"'), tmp_path)
