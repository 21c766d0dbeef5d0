"""The required figures of RLI, from the full experiments: 8 s of traffic, median of 5 seeds."""

import pytest

from tests.support.experiment_tables import tables_of

pytestmark = pytest.mark.acceptance

LINEAR = {"0.88": 0.07, "0.70": 0.16, "0.55": 0.27}
BUSY = {"0.88": 0.06, "0.70": 0.085, "0.55": 0.07, "0.20": 0.075}
DEVIATION = 0.15  # error of a flow's deviation, at 0.88
BETTER = 4  # times better than trajectory sampling and the multiflow estimator
MOST_BYTES = 0.5  # % of the link
MOST_LOSS = 0.01  # % of packets


def test_errors_of_flows() -> None:
    burstiness, means, _, _, _, deviations, _ = tables_of("rli_accuracy", quick=False).values()
    assert list(burstiness) == list(BUSY)
    # Unlike Poisson traffic, which would be easy: 1 at every width.
    assert all(float(row["dispersion 1 ms"]) > 15 for row in burstiness.values())
    assert all(float(row["dispersion 100 ms"]) > 100 for row in burstiness.values())
    assert all(float(row["peak/mean 1 ms"]) > 2.5 for row in burstiness.values())
    for method, asked in (("linear", LINEAR), ("busy", BUSY)):
        found = {u: float(means[f"{method}, u = {u}"]["50%"]) for u in asked}
        assert {u: found[u] <= most for u, most in asked.items()} == dict.fromkeys(asked, True), found
    for method in ("linear", "busy"):
        assert float(deviations[f"{method}, u = 0.88"]["50%"]) <= DEVIATION


def test_better_than_trajectory_sampling_and_the_multiflow_estimator() -> None:
    """On the same flows: against the truth of whole flows, and with sample and hold against that of held packets."""
    burstiness, interest, held, *_ = tables_of("rli_comparison", quick=False).values()
    assert all(float(row["dispersion 1 ms"]) > 15 for row in burstiness.values())
    for table in (interest, held):
        for method in ("linear", "busy"):
            assert all(float(table[f"better of the two over {method}"][f"u = {u}"]) >= BETTER for u in ("0.88", "0.70"))


def test_bytes_and_added_loss() -> None:
    """With RED, the queue of all figures, the bound holds for the mean added loss plus two standard errors.

    With DropTail it holds for the mean only: at 0.88 the mean plus two standard errors is just at the bound. From 0.92
    on nothing is asserted: experiments/README.md gives the figures.
    """
    burstiness, sizes, _, losses = tables_of("rli_overhead", quick=False).values()
    assert all(float(row["dispersion 1 ms"]) > 15 for row in burstiness.values())
    assert all(float(row["largest, rounded up"]) <= MOST_BYTES for row in sizes.values())
    for u in ("0.88", "0.80", "0.70"):
        red, tail = losses[f"RED, u = {u}"], losses[f"DropTail, u = {u}"]
        assert float(red["added"]) + 2 * float(red["standard error"]) <= MOST_LOSS
        assert float(tail["added"]) <= MOST_LOSS
