"""Epochs: their sums are those of all together, however they are split; a stream has no estimate."""

import numpy as np
import pytest

from wirelag.synopses.epoch_sums import MOST_FLOWS, EpochSums
from wirelag.synopses.epochs import EPOCH, PACED, REASONS, Epochs


def drawn(flows: int, epochs: int) -> Epochs:
    """Epochs of flows that differ, some without an estimate."""
    rng = np.random.default_rng(flows)
    rows = np.zeros(epochs, EPOCH)
    of = rng.integers(0, flows, epochs)
    rows["key"] = of.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows["count"] = rng.integers(0, 20, epochs)
    rows["sum_ns"] = rows["count"] * rng.lognormal(16, 0.5, flows)[of] * rng.lognormal(0, 0.2, epochs)
    return Epochs(rows)


def summed(epochs: Epochs, parts: int, by_merging: bool) -> EpochSums:
    total = EpochSums()
    for rows in np.array_split(np.arange(len(epochs.rows)), parts):
        part = EpochSums()
        (part if by_merging else total).add(epochs.of(rows))
        total.merge(part)
    return total


@pytest.mark.parametrize(("flows", "epochs"), [(1, 3), (1, 50), (3, 50), (4, 60), (200, 1_000)])
def test_the_interval_is_that_of_all_epochs(flows: int, epochs: int) -> None:
    found = drawn(flows, epochs)
    report = found.report()
    for parts in (1, 7, 30):
        for by_merging in (False, True):
            sums = summed(found, parts, by_merging)
            assert (sums.samples, sums.mean) == (report.samples, report.mean)
            assert sums.ci95.keys() == report.ci95.keys()
            assert all(sums.ci95[name] == pytest.approx(report.ci95[name], rel=1e-9) for name in sums.ci95)
            assert sums == summed(found, 1, by_merging=False)
    assert bool(report.ci95) == (epochs > 3)


def test_more_flows_than_are_kept() -> None:
    found = drawn(3 * MOST_FLOWS, 20_000)
    report, sums = (
        found.report(),
        [summed(found, parts, by_merging) for parts in (1, 9) for by_merging in (True, False)],
    )
    assert all(one == sums[0] for one in sums)
    assert len(sums[0]._flows) <= MOST_FLOWS
    assert (sums[0].samples, sums[0].mean) == (report.samples, report.mean)
    told, plain = (high - low for low, high in (sums[0].ci95["mean"], report.ci95["mean"]))
    assert told == pytest.approx(plain, rel=0.05)  # an error of 4,096 groups is within 1.1%, three times


def test_nothing() -> None:
    assert (EpochSums().mean, EpochSums().ci95) == (None, {})


def test_a_flow_that_mostly_had_a_pace_has_no_estimate() -> None:
    """A stream needs a few epochs to show its pace: what was answered before is taken back, but not of other flows."""
    rows = np.zeros(16, EPOCH)
    rows["src_low"] = [1] * 8 + [2] * 8
    rows["count"] = [0, 5, 5, 5, 0, 0, 0, 0, 5, 5, 5, 5, 0, 0, 5, 0]
    rows["sum_ns"] = rows["count"] * 1_000_000
    rows["reason"] = [REASONS.index("too_few"), 0, 0, 0, *[PACED] * 4, 0, 0, 0, 0, PACED, PACED, 0, PACED]
    found = Epochs(rows).without_paced().rows
    assert found["count"].tolist() == [0] * 8 + rows["count"][8:].tolist()
    assert found["reason"].tolist() == [REASONS.index("too_few"), *[PACED] * 7, *rows["reason"][8:].tolist()]
    assert found["sum_ns"].sum() == 25_000_000
    assert rows["count"].sum() == 40  # the epochs themselves stay
