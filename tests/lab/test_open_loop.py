"""The lab's open loop: requests come at their rate, whatever becomes of responses and connections."""

import json
from pathlib import Path

import numpy as np
import pytest

from lab.clients import LOG, Load, Task, read_log
from lab.network import SERVICE_ADDRESS, Network
from lab.servers import Httpd
from tests.support.in_lab import IN_LAB

pytestmark = IN_LAB
RATE, CONNECTIONS, SECONDS, SERVICE_MS = 100, 5, 0.8, 150


@pytest.mark.parametrize("pattern", ["open", "sliding"])
def test_slow_responses_do_not_slow_an_open_loop(tmp_path: Path, pattern: str) -> None:
    """A server takes longer than the mean lifetime of a connection: a closed loop asks once in each."""
    with Network("open") as network:
        Httpd(service=f"constant:{SERVICE_MS}000").start(network, tmp_path, 1)
        load = Load(pattern=pattern, rate=RATE, lifetime="exponential:100000")
        client = load.start(network, Task(SERVICE_ADDRESS, Httpd.port, CONNECTIONS, SECONDS, 1, tmp_path))
        said = json.loads(client.finish())
    asked = read_log(tmp_path / LOG)
    assert said["asked"] == said["answered"] == len(asked)
    assert not asked["failed"].any()
    late_ms = (asked["answered_ns"] - asked["asked_ns"]) / 1e6
    assert late_ms.min() > SERVICE_MS
    expected = RATE * CONNECTIONS * SECONDS
    if pattern == "sliding":
        assert len(asked) < expected / 4
        return
    assert abs(len(asked) - expected) < 5 * expected**0.5
    gaps_s = np.diff(np.sort(asked["asked_ns"])) / 1e9
    assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(1, abs=5 * (2 / expected) ** 0.5)  # a Poisson process
    assert len(set(asked["port"].tolist())) > 2 * CONNECTIONS
