"""LDA's statistics: means within their bounds, deviations, sample sizes as in theory, edges of intervals.

Tolerances come from theory: the mean of S out of R delays has a mean error of sqrt(2/pi) sigma sqrt((1 - S/R)/S), and
over n runs that has a standard error of sqrt(pi/2 - 1) of it over sqrt(n). The error of a deviation between r rows is
half that of its square, whose variance is 2/r, and a little more for heavy tails.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import wirelag
from tests.support.lda_traces import SECOND_NS, Times, Trace, batch, per_second, weibull_ns
from wirelag.estimators.lda import Lda, tuned
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.stats.moments import bound_ns
from wirelag.synopses.crossing import Crossing
from wirelag.twopoint.spans import Span, cuts, spans_between

ROWS = 1024
NORMAL_MEAN = math.sqrt(2 / math.pi)  # mean of |z|
SPREAD = math.sqrt(math.pi / 2 - 1)  # deviation of |z| over its mean


def pareto_ns(rng: np.random.Generator, count: int, shape: float) -> Times:
    return np.rint((rng.pareto(shape, count) + 1) * (200.0 * (shape - 1) / shape)).astype(np.int64)


def delays_of(name: str, count: int, seed: int) -> Times:
    rng = np.random.default_rng(seed)
    kind, shape = name.split()
    return weibull_ns(rng, count) if kind == "Weibull" else pareto_ns(rng, count, float(shape))


def losing(delays_ns: Times, lost: int, seed: int = 0, start_ns: int = 0) -> Trace:
    """A packet every 200 ns, `lost` of which are lost."""
    arrived = np.ones(len(delays_ns), bool)
    arrived[np.random.default_rng(seed).permutation(len(delays_ns))[:lost]] = False
    return Trace(start_ns + np.arange(len(delays_ns)) * 200, delays_ns, arrived, seed << 32)


def crossings_of(trace: Trace, rows: int, shifts: tuple[int, ...], seeds: Sequence[int]) -> Iterator[list[Crossing]]:
    """For each seed: LDA's result, with its own deviation and with the papers'."""
    sources = trace.sources()
    for seed in seeds:
        estimator = Lda(rows, shifts, tail=1, seed=seed)
        synopses = []
        for point in estimator.points:
            meter = estimator.meter(point)
            meter.observe(sources[point][0])
            synopses.append(meter.cut(Interval(0, 0)))
        yield [estimator.cross(*synopses), replace(estimator, deviation="collapse").cross(*synopses)]


def error(estimated: float | None, true: float) -> float:
    assert estimated is not None
    return abs(estimated - true) / true


# ---- exact without loss ----


@pytest.mark.parametrize("estimator", [Lda(), Lda(1024, (0,)), Lda(7, (0, 1, 2))])
def test_without_loss_the_mean_is_that_of_all_packets(estimator: Lda) -> None:
    trace = losing(weibull_ns(np.random.default_rng(1), 50_000), 0)
    ((crossing, _),) = crossings_of(trace, estimator.rows, estimator.shifts, [5])
    assert (crossing.used, crossing.sum_ns) == (50_000, int(trace.delays_ns.sum()))
    assert (crossing.sent, crossing.received, crossing.lost) == (50_000, 50_000, 0)
    (report,) = wirelag.run(estimator, trace.sources())
    assert report.mean == int(trace.delays_ns.sum()) / 50_000 / 1e9
    assert report.details["lost"] == 0


def test_one_late_packet_contradicts_nothing() -> None:
    """Without loss sums are exact, also where the sample of single packets misses the only slow one."""
    for late in range(20):
        delays_ns = 1_000 + np.random.default_rng(late).integers(0, 100, 200)
        delays_ns[late] = SECOND_NS // 2
        (report,) = wirelag.run(Lda(64, (0,), tail=64), losing(delays_ns, 0).sources())
        assert report.mean == int(delays_ns.sum()) / 200 / 1e9
        assert "contradicted" not in report.details


@pytest.mark.parametrize("start_ns", [1_700_000_000 * SECOND_NS, 2**63 - SECOND_NS, -(2**63), -5_000_000])
def test_sums_wrap_around_and_the_mean_is_the_same(start_ns: int) -> None:
    """Times up to the largest ns: a row's sum wraps many times, its difference does not."""
    delays_ns = weibull_ns(np.random.default_rng(2), 50_000)
    for lost in (0, 500):
        said, expected = (
            next(crossings_of(losing(delays_ns, lost, 1, start), 256, (0, 3), [9]))[0] for start in (start_ns, 0)
        )
        assert said.moments == expected.moments
    assert said.used < 49_500


def test_a_clock_ahead_by_hours_keeps_the_deviation_exact() -> None:
    offset_ns = 10_000 * SECOND_NS
    trace = losing(weibull_ns(np.random.default_rng(3), 50_000), 100)
    ahead = replace(trace, delays_ns=trace.delays_ns + offset_ns)
    ((right, _),), ((said, _),) = (crossings_of(one, 256, (0, 3), [1]) for one in (trace, ahead))
    assert said.sum_ns - offset_ns * said.used == right.sum_ns
    assert error(said.std_ns, right.std_ns or 0.0) < 1e-6


# ---- used packets ----


@pytest.mark.parametrize(("count", "seeds"), [(500_000, 40), pytest.param(5_000_000, 60, marks=pytest.mark.acceptance)])
def test_usable_packets_follow_theory_and_alpha_1_is_best(count: int, seeds: int) -> None:
    """E[S] = alpha exp(-alpha) m/(L + 1) R. A share of exp(-alpha) of 1,024 rows is usable, independently."""
    lost = 8 * ROWS - 1  # makes the best shift a whole number
    trace = losing(np.full(count, 200, np.int64), lost)
    means, errors = {}, {}
    for alpha in (0.5, 1.0, 2.0):
        (shift,) = tuned(count, (lost / count,), ROWS, alpha)
        assert 2.0**-shift == alpha / 8
        used = [ours.used for ours, _ in crossings_of(trace, ROWS, (shift,), range(seeds))]
        expected = alpha * math.exp(-alpha) * ROWS / (lost + 1) * (count - lost)
        rows = ROWS * math.exp(-alpha)
        variance = (expected / rows) ** 2 * rows * (1 - math.exp(-alpha)) + expected
        means[alpha], errors[alpha] = float(np.mean(used)), math.sqrt(variance / seeds)
        assert abs(means[alpha] - expected) < 4 * errors[alpha]
    gain = means[1.0] / means[0.5]
    doubt = gain * math.hypot(errors[1.0] / means[1.0], errors[0.5] / means[0.5])
    assert abs(gain - 2 * math.exp(-0.5)) < 4 * doubt  # 1.21
    assert gain > 1 + 4 * doubt
    assert means[1.0] > means[2.0]


def test_tuned_samples_at_most_everything() -> None:
    assert tuned(1000, (0.0, 0.0001), 1024) == (0,)
    assert tuned(2**62, (1.0,), 1) == (31,)
    assert tuned(5_000_000, (0.005, 0.1), 512) == (6, 10)
    assert tuned(5_000_000, (0.005, 0.1), 512, 0.5) == (7, 11)


# ---- the mean and its bound ----


@pytest.mark.parametrize(("count", "seeds"), [(400_000, 20), pytest.param(5_000_000, 20, marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(("loss", "paper"), [(0.001, 0.003), (0.2, 0.04)])
def test_error_of_the_mean(count: int, seeds: int, loss: float, paper: float) -> None:
    """Figure 4a, Weibull 0.6: on average below 0.3% with 0.1% loss, below 4% with 20%."""
    trace = losing(delays_of("Weibull 0.6", count, 4), round(count * loss))
    true_ns, std_ns = trace.truth_ns
    errors, expected = [], []
    for ours, _ in crossings_of(trace, ROWS, tuned(count, (loss,), ROWS), range(seeds)):
        errors.append(error(ours.mean_ns, true_ns))
        expected.append(NORMAL_MEAN * std_ns / true_ns * math.sqrt((1 - ours.used / ours.received) / ours.used))
        assert ours.lost == round(count * loss)
    theory = float(np.mean(expected))
    assert theory < paper
    assert abs(np.mean(errors) - theory) < 4 * theory * SPREAD / math.sqrt(seeds)


def covered(name: str, count: int, seeds: int) -> tuple[float, float]:
    """How often the truth is within the 98% bound with 20% loss: with the deviation between rows, and by collapse."""
    inside = np.zeros(2)
    for seed in range(seeds):
        trace = losing(delays_of(name, count, seed), count // 5, seed)
        true_ns, _ = trace.truth_ns
        for said in crossings_of(trace, ROWS, tuned(count, (0.2,), ROWS), [seed]):
            bounds = [bound_ns(one.std_ns or 0.0, one.used, 0.02) for one in said]
            inside += [error(one.mean_ns, true_ns) * true_ns <= b for one, b in zip(said, bounds, strict=True)]
    return float(inside[0] / seeds), float(inside[1] / seeds)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["Weibull 0.6", "Pareto 3", "Pareto 5"])
@pytest.mark.parametrize(("count", "seeds"), [(50_000, 300), pytest.param(500_000, 500, marks=pytest.mark.acceptance)])
def test_98_percent_bounds_hold(name: str, count: int, seeds: int) -> None:
    """1,024 rows and 20% loss leave 1,500 used packets, whatever the number of packets."""
    rows, collapse = covered(name, count, seeds)
    assert rows >= 0.97
    if name != "Weibull 0.6":
        assert collapse < 0.97  # the papers' deviation is too small too often


# ---- the deviation ----


def deviation_errors(trace: Trace, shifts: tuple[int, ...], seeds: int) -> npt.NDArray[np.float64]:
    """For each seed: between rows, and by collapse."""
    _, std_ns = trace.truth_ns
    found = crossings_of(trace, ROWS, shifts, range(seeds))
    return np.array([[error(one.std_ns, std_ns) for one in said] for said in found])


@pytest.mark.parametrize(
    ("count", "lost"),
    [
        (409_600, 511),  # 0.12%: the best shift is 0
        (409_600, 4095),  # 1%: 2
        pytest.param(5_000_000, 4095, marks=pytest.mark.acceptance),  # 0.08%
        pytest.param(5_000_000, 32_767, marks=pytest.mark.acceptance),  # 0.66%
    ],
)
def test_error_of_the_deviation(count: int, lost: int) -> None:
    """Weibull 0.6, at most 1% loss: 377 rows are usable, so the error is 0.8 sqrt(2/377)/2 = 2.9% on average."""
    trace = losing(delays_of("Weibull 0.6", count, 6), lost)
    rows, collapse = deviation_errors(trace, tuned(count, (lost / count,), ROWS), 20).mean(axis=0)
    assert rows < 0.04
    assert collapse > rows


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["Pareto 3", "Pareto 4", "Pareto 5"])
@pytest.mark.parametrize("loss", [0.001, 0.01])
def test_error_of_the_deviation_with_heavy_tails(name: str, loss: float) -> None:
    """Figure 4c has 20% to 50% with the papers' collapse; between rows it is below 10%."""
    count = 5_000_000
    trace = losing(delays_of(name, count, 7), round(count * loss))
    rows, collapse = deviation_errors(trace, tuned(count, (loss,), ROWS), 10).mean(axis=0)
    assert rows < 0.1
    assert collapse > (1.5 if name == "Pareto 3" else 4) * rows


def test_collapse_fails_where_the_delay_is_long_and_the_jitter_short() -> None:
    """100 us with 5 us of jitter: rows differ in their packet counts, which collapse takes for jitter."""
    rng = np.random.default_rng(8)
    trace = losing(100_000 + np.rint(rng.normal(0, 5000, 200_000)).astype(np.int64), 200)
    errors = deviation_errors(trace, (0,), 40)
    rows, collapse = (bool(column.mean() < 0.04) for column in errors.T)
    assert rows
    assert not collapse
    assert np.median(errors[:, 1]) > 0.8
    assert 0.2 < np.mean(errors[:, 1] == 1.0) < 0.8  # no variance is left: it was negative


# ---- edges of intervals ----


def right(interval: Interval, mean_ns: float | None, bound98_ns: float, lost: int | None, trace: Trace) -> bool:
    """Whether an interval of a trace without loss reports its mean, within its bound and that of the truth."""
    delays_ns = trace.within(interval)
    if mean_ns is None or not len(delays_ns):
        return False
    allowed = min(bound98_ns, bound_ns(float(delays_ns.std()), len(delays_ns), 0.02))
    return lost == 0 and abs(mean_ns - float(delays_ns.mean())) <= allowed + 1e-6


def spans_right(spans: Sequence[Span], trace: Trace) -> list[bool]:
    bounds = [bound_ns(span.whole.std_ns or 0.0, max(1, span.whole.used), 0.02) for span in spans]
    return [
        right(span.interval, span.whole.mean_ns, bound, span.whole.lost, trace)
        for span, bound in zip(spans, bounds, strict=True)
    ]


@pytest.mark.every(2)
@pytest.mark.parametrize("jitter", [False, True])
def test_delimited_intervals_are_right_and_the_clock_s_need_rows_left_out(jitter: bool) -> None:
    trace = per_second(4.5, jitter)
    reports = list(wirelag.run(Lda(), trace.sources(), SECOND_NS))
    assert len(reports) >= 4
    assert sum(report.details["sent"] for report in reports) == len(trace.sent_ns)
    for report in reports:
        assert report.interval
        assert report.mean is not None
        assert right(
            report.interval, report.mean * 1e9, report.details["bound98"] * 1e9, report.details["lost"], trace
        ), report
    bare = spans_right(list(spans_between(Lda(tail=1), trace.sources(), SECOND_NS)), trace)  # without single packets
    assert len(bare) == 5
    assert not any(bare[1:-1])  # the first and the last have only one edge among packets
    by_clock = list(spans_between(Lda(), trace.sources(), SECOND_NS))
    assert all(span.whole.details["unlike_rows"] for span in by_clock[1:-1])
    for span in by_clock:  # the remaining error: a 32nd of the interval among a million packets
        assert abs((span.whole.mean_ns or 0.0) - float(trace.within(span.interval).mean())) < SECOND_NS / 32 / 1e6


LENGTH_NS, EACH_NS = SECOND_NS, 125_000  # 8,000 packets a second


def through_edges(seed: int, law: bool) -> tuple[Crossing, float]:
    """An interval with packets in flight at both edges, and the mean of those sent in it that arrived.

    2 ms of delay; one in a hundred is lost, one in twenty delayed by 1 ms, past a control packet that was not.
    """
    rng = np.random.default_rng(seed)
    sent_ns = np.arange(-400, 8400, dtype=np.int64) * EACH_NS + rng.integers(0, EACH_NS, 8800)
    delays_ns = 2_000_000 + rng.integers(-200_000, 200_000, 8800) + 1_000_000 * (rng.random(8800) < 0.05)
    ids, arrived = np.arange(8800, dtype=np.uint64) + np.uint64(seed << 32), rng.random(8800) > 0.01
    inside = (sent_ns >= 0) & (sent_ns < LENGTH_NS)
    came_ns = sent_ns + delays_ns
    seen = arrived & (came_ns >= 2_000_000) & (came_ns < LENGTH_NS + 2_000_000)
    estimator = Lda(256, (0,), tail=64 if law else 1, seed=seed)
    synopses = []
    for times_ns, rows in ((sent_ns, inside), (came_ns, seen)):
        meter = estimator.meter("any")
        meter.observe(batch(time_ns=times_ns[rows], packet_id=ids[rows]))
        synopses.append(meter.cut(Interval(0, 0)))
    return estimator.cross(*synopses), float(delays_ns[inside & arrived].mean())


def test_rows_with_packets_of_another_interval_are_left_out() -> None:
    """A row that lost one packet and gained another has the same count. The remaining error is a 32nd of the interval,
    divided by some 5,800 packets: a quarter of a percent; and 95% intervals hold."""
    runs = [through_edges(seed, law=True) for seed in range(200)]
    errors = np.array([abs((crossing.mean_ns or 0) - true_ns) / true_ns for crossing, true_ns in runs])
    assert errors.max() < 0.005
    bounds = [crossing.moments.bound_ns(0.05) or 0.0 for crossing, _ in runs]
    assert np.mean(errors * [true_ns for _, true_ns in runs] <= bounds) > 0.95
    assert sum(crossing.details["unlike_rows"] for crossing, _ in runs) > 40
    bare = [through_edges(seed, law=False) for seed in range(200)]
    wrong = [abs((crossing.mean_ns or 0) - true_ns) / true_ns for crossing, true_ns in bare]
    assert np.mean(np.array(wrong) > 0.005) > 0.15


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["Weibull 0.6", "Pareto 1.5", "Pareto 2.5"])
def test_heavy_tails_lose_no_row(name: str) -> None:
    """Delays of 1 ms on average in intervals of a second: far less than the distance of packets of two intervals."""
    left_out = 0
    for seed in range(40):
        delays_ns = 5000 * delays_of(name, 8000, seed)
        arrived = np.random.default_rng(seed).random(8000) > 0.01
        trace = Trace(np.arange(8000, dtype=np.int64) * EACH_NS, delays_ns, arrived, seed << 32)
        (said,) = wirelag.run(Lda(256, (0,), tail=512, seed=seed), trace.sources())
        left_out += said.details["unlike_rows"]
    assert left_out <= (4 if name == "Pareto 1.5" else 0)  # 10,240 rows; its variance is infinite


def test_delimiters_do_not_depend_on_batches() -> None:
    trace = per_second(2.5, True)
    sources = trace.sources()
    in_parts = {
        point: [whole[start : start + 8200] for start in range(0, len(whole), 8200)]
        for point, (whole,) in sources.items()
    }
    one, other = (list(wirelag.run(Lda(), source, SECOND_NS)) for source in (sources, in_parts))
    assert one == other


@pytest.mark.every(2)
@pytest.mark.parametrize("point", ["upstream", "downstream"])
def test_a_lost_delimiter_joins_the_intervals_on_both_sides(point: str) -> None:
    delimiters, trace = Delimiters(SECOND_NS), per_second(6.2, True, seed=15)
    sources = trace.sources()
    names = [cut.interval.name for cut in cuts(Lda(), "upstream", sources["upstream"], None, delimiters)]
    whole = list(spans_between(Lda(), sources, SECOND_NS, delimiters))
    assert [span.interval.name for span in whole] == names
    assert [span.lost_delimiters for span in whole] == [0] * len(names)

    unseen = names[3]
    (seen,) = sources[point]
    sources[point] = [seen[seen.packet_id != np.uint64(unseen or 0)]]
    spans = list(spans_between(Lda(), sources, SECOND_NS, delimiters))
    assert [span.interval.name for span in spans] == [name for name in names if name != unseen]
    assert [span.lost_delimiters > 0 for span in spans] == [i == 2 for i in range(len(spans))]
    joined = spans[2].whole
    assert (joined.sent, joined.received) == tuple(
        whole[2].whole.sent + whole[3].whole.sent - (point == name) for name in ("upstream", "downstream")
    )
    # One bucket is damaged, and the others are a fair sample.
    delays_ns = trace.within(Interval(spans[2].interval.start_ns, spans[2].interval.end_ns))
    assert abs((joined.mean_ns or 0.0) - delays_ns.mean()) < bound_ns(delays_ns.std(), joined.used, 0.02)
    assert joined.lost == (1 if point == "downstream" else 0)
    others = [span for i, span in enumerate(spans) if i != 2]
    assert all(spans_right(others, trace))
