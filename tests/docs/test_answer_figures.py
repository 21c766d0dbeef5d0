"""The experiments about answers run, and support what experiments/README.md says of them."""

import re
import subprocess
import sys

import pytest

from tests.support.experiment_tables import ROOM, tables_of


def test_lists_and_verdicts_of_known_captures_are_right() -> None:
    """A twelfth of the captures: too few for shares of intervals, which the long run prints."""
    lists, verdicts, intervals = tables_of("answers").values()
    for table in (lists, verdicts):
        assert all(float(row["right"].rstrip("%")) >= 95 for row in table.values())
        assert sum(int(row["answers"]) for row in table.values()) > 40
    whole = intervals["all"]
    assert int(whole["answers"]) > 400
    assert float(whole["right"].rstrip("%")) + float(whole["+-"].rstrip("%")) >= 93


@pytest.mark.acceptance
def test_intervals_of_each_command_and_kind_hold_the_truth() -> None:
    words = [sys.executable, str(ROOM / "coverage.py"), "--quick"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout
    assert printed.splitlines()[-1] == "verdict: holds for every command and kind"


@pytest.mark.acceptance
def test_few_delays_of_a_queue_would_be_too_sure() -> None:
    """Each share is of about 50 to 100 groups: its standard error is 2 to 3 points."""
    (table,) = tables_of("few_delays").values()
    held = {delays: float(re.match(r"[\d.]+", row["queues"])[0]) for delays, row in table.items()}  # type: ignore[index]
    assert held["32 to 47"] < 90
    assert all(held[delays] > 95 - 4 * 3 for delays in ("64 to 79", "80 to 95", "96 to 127"))
    assert held["32 to 47"] < min(held["64 to 79"], held["96 to 127"])
