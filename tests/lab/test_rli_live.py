"""Agents that measure every flow through a real queue, in the lab: `python experiments/rli_live.py` prints the same."""

import sys

import numpy as np
import pytest

from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

from rli_live import LEAST, LOADS, SECONDS, figures, show_figures


@pytest.mark.acceptance
@IN_LAB
def test_rli_live_flows_are_near_the_truth() -> None:
    found = figures(SECONDS)
    show_figures("a queue (tbf) between two agents", found)
    for load in LOADS:
        ours, before = (found[load, name] for name in ("adaptive, busy", "1-in-tau, linear"))
        errors = ours.errors(LEAST)
        assert ours.lost == before.lost == 0
        assert len(errors) >= 0.98 * (ours.packets >= LEAST).sum()
        assert np.median(errors) <= 0.15
        assert 2 * np.median(errors) <= np.median(before.errors(LEAST))
