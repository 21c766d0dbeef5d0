"""No result depends on how many cores work on it, byte for byte."""

from pathlib import Path

import pytest

from tests.support import command
from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate

CORES = (1, 2, 8)
COMMANDS = (
    "info ONE",
    "info ONE TWO",
    "rtt ONE",
    "rtt ONE --by flow --interval 5s",
    "rtt ONE --table-memory 300KiB --by server",
    "rtt ONE --memory 16KiB",
    "rtt ONE --leg both --by server --group-memory 1MiB",
    "rtt CUT",
    "response ONE",
    "response ONE --method auto --by flow --interval 5s",
    "oneway ONE TWO --interval 10s --by destination",
    "oneway ONE TWO --estimator lda",
    "flows TWO --upstream ONE",
)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("cores")
    one, two, cut = (folder / name for name in ("one.pcap", "two.pcap", "cut.pcap"))
    write_simulation(simulate(Scenario(packets=30_000, points=2, loss=0.01)), one, two)
    cut.write_bytes(one.read_bytes()[:-7])
    return {"ONE": str(one), "TWO": str(two), "CUT": str(cut)}


@pytest.mark.every(8)
@pytest.mark.parametrize("words", COMMANDS)
def test_the_result_is_the_same_for_any_number_of_cores(captures: dict[str, str], words: str) -> None:
    given = [captures.get(word, word) for word in words.split()]
    ran = [command.wirelag(*given, "--format", "json", "--cores", cores) for cores in CORES]
    assert len({one.stdout for one in ran}) == 1
    assert len({one.stderr for one in ran}) == 1
