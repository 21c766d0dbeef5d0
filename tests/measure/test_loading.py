"""What is loaded while packets are read: a thread imports it, if there is a core for that."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate

READ = """
import sys, threading
from wirelag.capture.source import open_packets
from wirelag.measure.loading import meanwhile

started, start = [], threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread), start(thread))
shown = meanwhile(iter, ["wirelag.stats.in_order", "wirelag.not_there"], int(sys.argv[2]))
packets = sum(map(len, shown(open_packets(sys.argv[1]))))
loading = [thread for thread in started if thread.name == "wirelag loading"]
for thread in loading:
    thread.join()
print(packets, len(loading), "wirelag.stats.in_order" in sys.modules)
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_a_thread_loads_what_will_be_needed(cores: int, tmp_path: Path) -> None:
    """A module that is not there is told by whoever needs it, and not by the thread."""
    path = tmp_path / "capture.pcap"
    write_simulation(simulate(Scenario(packets=500)), path)
    command = [sys.executable, "-c", READ, str(path), str(cores)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packets, loading, there = done.stdout.split()
    assert (int(packets) >= 500, loading, there) == (True, str(cores - 1), str(cores > 1))
    assert done.stderr == ""
