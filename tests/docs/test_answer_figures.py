"""The experiments about answers run, and support what experiments/README.md says of them."""

import re

import pytest

from tests.support.experiment_tables import tables_of


@pytest.mark.acceptance
def test_few_delays_of_a_queue_would_be_too_sure() -> None:
    """Each share is of about 50 to 100 groups: its standard error is 2 to 3 points."""
    (table,) = tables_of("few_delays").values()
    held = {delays: float(re.match(r"[\d.]+", row["queues"])[0]) for delays, row in table.items()}  # type: ignore[index]
    assert held["32 to 47"] < 90
    assert all(held[delays] > 95 - 4 * 3 for delays in ("64 to 79", "80 to 95", "96 to 127"))
    assert held["32 to 47"] < min(held["64 to 79"], held["96 to 127"])
