"""Any pair of messages, an attacker's and an honest one: the collector stays within its memory, and has no error."""

import re
import subprocess
import sys

import pytest


def attacked(seed: int, count: int) -> tuple[int, int, int]:
    """Valid messages, those that were not, and replies, in a process of its own with a limit of memory."""
    command = [sys.executable, "-m", "tests.support.hostile_pairs", str(seed), str(count)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stderr == ""
    valid, garbage, answers = map(int, re.findall(r"(\d+) (?:valid|garbage|answers)", ran.stdout))
    return valid, garbage, answers


def test_pairs_of_messages_stay_within_bounds() -> None:
    valid, garbage, answers = attacked(1, 20)
    assert valid > 40
    assert garbage > 10
    assert answers > 3


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(2, 10))
def test_pairs_of_messages_stay_within_bounds_in_a_long_run(seed: int) -> None:
    attacked(seed, 1000)
