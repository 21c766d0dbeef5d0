"""What `rli` trusts: impossible references, clock steps, and traffic without a queue."""

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from wirelag.estimators.rli import LEARNING, Rli
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.sim.queue import QueueScenario, run
from wirelag.stats.queue_drain import FEWEST_REFERENCES, Drain, learn_drain, serialises
from wirelag.synopses.flows import COLUMN, Flows

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

RATE = 250_000_000
BUSY = Rli(bytes_per_s=RATE, noise_ns=0.0, memory=16 << 20)
LINEAR = replace(BUSY, method="linear")
MS, SECOND = 10**6, 10**9
both_methods = pytest.mark.parametrize("estimator", [LINEAR, BUSY], ids=["linear", "busy"])


def batch(times_ns: Ints, sizes: npt.NDArray[np.uint32], keys: npt.NDArray[np.uint64]) -> PacketBatch:
    rows = len(times_ns)
    columns = {name: np.zeros((rows, width) if width > 1 else rows, dtype) for name, dtype, width in COLUMNS}
    columns["time_ns"], columns["wire_length"], columns["flow_key"] = times_ns, sizes, keys
    columns["packet_id"] = np.arange(rows, dtype=np.uint64)
    return PacketBatch(columns)


class Seen:
    """Packets with references among them: their rows, and their sending times."""

    def __init__(self, packets: PacketBatch, rows: Rows, sent_ns: Ints) -> None:
        self.packets, self.rows, self.sent_ns = packets, rows, sent_ns

    def measured(self, estimator: Rli) -> Flows:
        meter = estimator.meter("downstream")
        meter.observe_with(self.packets, self.rows, self.sent_ns)
        return meter.cut(Interval(0, 1 << 62))

    def with_false(self, behind: Rows, delay_ns: int, copies: int = 1) -> "Seen":
        """Add `copies` false references after each of these rows, at its time, with this delay."""
        at = np.repeat(behind, copies)
        order = np.argsort(np.append(np.arange(len(self.packets)), at), kind="stable")
        place = np.empty(len(order), np.intp)
        place[order] = np.arange(len(order))
        packets = self.packets[np.append(np.arange(len(self.packets)), at)[order]]
        rows = np.append(place[self.rows], place[len(self.packets) :])
        sent_ns = np.append(self.sent_ns, self.packets.time_ns[at] - delay_ns)
        rising = np.argsort(rows)
        return Seen(packets, rows[rising], sent_ns[rising])


@cache
def queue(utilisation: float = 0.55, seconds: float = 0.3) -> Seen:
    r = run(QueueScenario(utilisation, seed=3, seconds=seconds)).receiver()
    rows = np.flatnonzero(r.is_reference)
    return Seen(batch(r.time_ns + SECOND * 100, r.size, r.key), rows, r.sent_ns[rows] + SECOND * 100)


def same(one: Flows, other: Flows) -> bool:
    return bool((one.merged().records == other.merged().records).all())


# ---- a queue serves in order ----


@pytest.mark.parametrize("utilisation", [0.2, 0.55, 0.7, 0.88])
def test_no_true_reference_is_rejected(utilisation: float) -> None:
    seen = queue(utilisation)
    counts = seen.measured(BUSY).counts
    assert counts["accepted"] == len(seen.rows) > 100
    assert counts["restarts"] == sum(n for name, n in counts.items() if name.startswith("rejected")) == 0


@both_methods
@pytest.mark.parametrize("delay_ns", [5 * SECOND, 9 * SECOND, 50 * MS, -5 * MS, -5 * SECOND])
def test_a_reference_that_overtook_others_is_rejected_and_changes_nothing(estimator: Rli, delay_ns: int) -> None:
    """5 s are a possible delay (late_ns is 10 s), but true references that were sent later are already there."""
    seen = queue()
    false = seen.with_false(seen.rows[10::10] + 2, delay_ns)
    flows, expected = false.measured(estimator), seen.measured(estimator)
    assert flows.counts["rejected_time"] == len(seen.rows[10::10]) > 50
    assert flows.counts["accepted"] == expected.counts["accepted"]
    assert flows.counts["restarts"] == 0
    assert same(flows, expected)


@both_methods
@pytest.mark.parametrize("copies", [2, 7, 20])
def test_agreeing_false_references_do_not_outvote_two_true_ones(estimator: Rli, copies: int) -> None:
    """While true ones arrive: a restart takes eight false ones, and a second without a true one."""
    seen = queue()
    flows = seen.with_false(seen.rows[10::10] + 2, 5 * SECOND, copies).measured(estimator)
    assert flows.counts["restarts"] == 0
    assert flows.counts["rejected_time"] == copies * len(seen.rows[10::10])
    assert same(flows, seen.measured(estimator))


# ---- two references outvote one ----


@both_methods
@pytest.mark.parametrize("delay_ns", [5 * MS, 5 * SECOND, 500 * SECOND])
def test_a_false_first_reference_costs_two_more(estimator: Rli, delay_ns: int) -> None:
    """The second seems too early; the third agrees with it, and both outvote the first."""
    seen = queue()
    sent_ns = seen.sent_ns.copy()
    sent_ns[0] -= delay_ns
    flows = Seen(seen.packets, seen.rows, sent_ns).measured(estimator)
    expected = seen.measured(estimator)
    assert (flows.counts["restarts"], flows.counts["rejected_time"]) == (1, 1)
    assert flows.counts["before"] == seen.rows[2] - 2  # regular packets before the third
    assert flows.timed == expected.timed - (flows.counts["before"] - expected.counts["before"])
    assert flows.base_ns == expected.base_ns


def test_later_flows_are_not_affected() -> None:
    """With `linear`, which learns nothing from earlier references."""
    seen = queue()
    sent_ns = seen.sent_ns.copy()
    sent_ns[0] -= 5 * MS
    flows, expected = (Seen(seen.packets, seen.rows, sent).measured(LINEAR) for sent in (sent_ns, seen.sent_ns))
    third_ns = seen.packets.time_ns[seen.rows[2]]
    later = expected.merged().column("first_ns") > third_ns
    assert later.sum() > 1000
    columns = [COLUMN[name] for name in ("key", "packets", "timed", "sum_ns", "squares", "brackets")]
    assert (flows.merged().records[later][:, columns] == expected.merged().records[later][:, columns]).all()


def test_one_false_reference_after_the_first_outvotes_none() -> None:
    seen = queue()
    flows = seen.with_false(seen.rows[:1] + 1, 50 * MS).measured(LINEAR)
    assert (flows.counts["restarts"], flows.counts["rejected_time"]) == (0, 1)
    assert same(flows, seen.measured(LINEAR))


# ---- the sender's clock is set ----


@pytest.mark.parametrize("step_ns", [3 * MS, 2 * SECOND, 400 * SECOND, -3 * MS, -2 * SECOND, -400 * SECOND])
def test_a_step_of_the_sender_s_clock_is_accepted(step_ns: int) -> None:
    """For a second it seems false; then it is accepted, and delays change by the step."""
    seen = queue(0.2, 3.0)
    times_ns = seen.packets.time_ns
    step_at = times_ns[0] + SECOND
    stepped = Seen(seen.packets, seen.rows, seen.sent_ns + np.where(seen.sent_ns > step_at, step_ns, 0))
    flows, expected = stepped.measured(LINEAR).merged(), seen.measured(LINEAR).merged()
    first_ns, last_ns = expected.column("first_ns"), expected.column("last_ns")
    before, after = last_ns < step_at - SECOND // 100, first_ns > step_at + SECOND + SECOND // 100
    assert min(before.sum(), after.sum()) > 1000
    columns = [COLUMN[name] for name in ("timed", "sum_ns", "squares", "brackets")]
    assert (flows.records[before][:, columns] == expected.records[before][:, columns]).all()
    timed = expected.column("timed")[after].astype(np.int64)
    assert (flows.column("timed")[after] == expected.column("timed")[after]).all()
    assert (flows.column("sum_ns")[after] == expected.column("sum_ns")[after] - step_ns * timed).all()
    within = (times_ns > step_at - SECOND // 100) & (times_ns < step_at + SECOND + SECOND // 100)
    assert flows.timed >= expected.timed - within.sum()
    assert flows.counts["restarts"] <= 1


def test_a_step_back_of_a_few_milliseconds_causes_no_restart() -> None:
    """After these milliseconds references are in order again."""
    seen = queue(0.2, 3.0)
    step_at = seen.packets.time_ns[0] + SECOND
    stepped = Seen(seen.packets, seen.rows, seen.sent_ns - np.where(seen.sent_ns > step_at, 3 * MS, 0))
    counts = stepped.measured(LINEAR).counts
    wrong = (seen.sent_ns > step_at) & (seen.sent_ns < step_at + 3 * MS)
    assert counts["restarts"] == 0
    assert 0 < counts["rejected_time"] <= wrong.sum()


# ---- traffic without a queue ----


def paced(swing_ns: int) -> tuple[Seen, Ints]:
    """A pacing sender, which resembles a queue: every packet follows an idle gap. Delays vary slowly."""
    rows = np.arange(20_000)
    times_ns = 100 * SECOND + 10_000 * rows
    delays_ns = 50_000 + np.rint(swing_ns / 2 * (1 + np.sin(rows / 1000))).astype(np.int64)
    packets = batch(times_ns, np.full(len(rows), 500, np.uint32), np.uint64(2) * (rows // 50).astype(np.uint64))
    return Seen(packets, rows[::20], (times_ns - delays_ns)[::20]), delays_ns


def test_busy_is_given_up_where_linear_predicts_far_better() -> None:
    """The link is idle before every packet: busy would see no waiting, but delays swing by 9 us."""
    seen, delays_ns = paced(9_000)
    busy, linear = seen.measured(BUSY).merged(), seen.measured(LINEAR).merged()
    assert not busy.trusted
    assert busy.fallback
    regular = np.delete(np.arange(len(delays_ns)), seen.rows)
    true_ns = np.bincount(regular // 50, delays_ns[regular]) / np.bincount(regular // 50)
    for flows in (linear, busy):  # 20 packets are a fiftieth of a radian: the line is right to a ns
        assert np.median(np.abs(flows.table()["mean"] * 1e9 - true_ns)) < 2
    assert busy.counts["untrusted"] > 0.9 * busy.counts["regular"]


@pytest.mark.parametrize("utilisation", [0.2, 0.55, 0.7, 0.88])
def test_busy_is_kept_for_a_queue(utilisation: float) -> None:
    flows = queue(utilisation, 1.0).measured(BUSY)
    assert flows.trusted
    assert flows.fallback is None


# ---- plausible drain rates ----


def test_delays_of_a_queue_confirm_its_rate() -> None:
    """A slow link: most of the variation of delays is the packets' own transmission time."""
    rng = np.random.default_rng(1)
    sizes, waited_ns = rng.integers(64, 1500, 200), np.cumsum(rng.normal(0, 1000, 200))
    rate = 10_000_000
    delays_ns = np.rint(MS + waited_ns + sizes * 1e9 / rate).astype(np.int64)
    assert serialises(Drain(rate, 0.0), delays_ns, sizes)
    assert serialises(Drain(10 * rate, 0.0), delays_ns, sizes)  # it explains less, and contradicts nothing
    assert not serialises(Drain(rate // 10, 0.0), delays_ns, sizes)


def test_delays_independent_of_sizes_contradict_a_slow_rate() -> None:
    """Sizes differ by 480 bytes on average: 48 us at 10 MB/s, compared with 1 us between neighbours."""
    rng = np.random.default_rng(2)
    sizes, delays_ns = rng.integers(64, 1500, 200), np.rint(rng.normal(MS, 1000, 200)).astype(np.int64)
    assert not serialises(Drain(10_000_000, 0.0), delays_ns, sizes)
    assert serialises(Drain(10**10, 0.0), delays_ns, sizes)  # 48 ns: too small to detect
    assert serialises(Drain(10_000_000, 50_000.0), delays_ns, sizes)  # nor with such a clock
    assert serialises(Drain(10_000_000, 0.0), delays_ns, np.full(200, 500))  # nor with packets of one size


def test_few_references_allow_no_conclusion() -> None:
    few = FEWEST_REFERENCES - 1
    delays_ns, sizes = np.full(few, MS), np.arange(few) * 200
    assert serialises(Drain(10_000_000, 0.0), delays_ns, sizes)
    assert not serialises(Drain(0, 0.0), delays_ns, sizes)
    assert not serialises(Drain(10_000_000, 0.0), np.full(few + 1, MS), np.arange(few + 1) * 200)
    assert not serialises(Drain(0, 0.0), np.full(100, MS), np.full(100, 200))


def test_a_rate_that_delays_contradict_is_not_used() -> None:
    """Packets paced by their size, but not delayed by it."""
    rng = np.random.default_rng(3)
    sizes = rng.choice(np.array([100, 1500], np.uint32), 2 * LEARNING)
    times_ns = 100 * SECOND + np.cumsum(sizes.astype(np.int64) * 100)  # 10 MB/s
    assert learn_drain(times_ns[:LEARNING], sizes[:LEARNING]).bytes_per_s == pytest.approx(10_000_000, rel=0.01)
    rows = np.arange(0, len(sizes), 20)
    delays_ns = 50_000 + rng.integers(0, 1000, len(rows))
    packets = batch(times_ns, sizes, np.arange(len(sizes), dtype=np.uint64) // np.uint64(50) * np.uint64(2))
    flows = Seen(packets, rows, times_ns[rows] - delays_ns).measured(Rli(memory=1 << 20))
    assert flows.drain.bytes_per_s == 0
    assert "not known" in str(flows.fallback)
    means_ns = flows.table()["mean"] * 1e9
    assert np.nanmax(np.abs(means_ns - 50_500)) <= 501
    queued = Seen(packets, rows, times_ns[rows] - delays_ns - sizes[rows].astype(np.int64) * 100)
    assert queued.measured(Rli(memory=1 << 20)).drain.bytes_per_s == pytest.approx(10_000_000, rel=0.01)
