"""The figures that are asked of `wirelag response`: the lab's scenarios in full, all settings as they are by default.

Each scenario runs as it is, and held back: with other service times and sizes, and another seed. Needs root.
"""

from dataclasses import dataclass

import pytest

from test_experiments import Table, tables_of
from test_lab import IN_LAB

pytestmark = [pytest.mark.acceptance, IN_LAB]

FEWEST = 200  # epochs of a scenario
MOST_FAR_OFF = 2.0  # %, of answered epochs, over all scenarios
LEAST_ABSTAINED = 95.0  # %, where nobody can know
TITLES = ("auto: epochs, %", "auto, completion of batches: epochs, %", "over all scenarios")


@dataclass(frozen=True)
class Asked:
    """%: the largest |median| of signed errors, and the least share within 15%, of answered epochs."""

    median: float
    close: float


ASKED = {
    **dict.fromkeys(("w1-constant", "w1-exponential", "w1-exponential-20ms", "w1-bimodal"), Asked(1, 99)),
    **dict.fromkeys(("w1-post-8k", "w1-20k", "w1-300k", "w1-nginx"), Asked(1, 99)),
    **{
        f"w{w}-{order}-{where}": Asked(1, 98)
        for w in (4, 16)
        for order in ("parallel", "serial")
        for where in ("lan", "far")
    },
    **{f"w{w}-batch-{order}": Asked(8, 85) for w in (4, 16) for order in ("parallel", "serial")},
    **dict.fromkeys(("pages-equal", "pages-varied"), Asked(8, 85)),
    **dict.fromkeys(("think-tenth", "think-all"), Asked(3, 93)),
    **dict.fromkeys(("w1-loss", "w4-loss"), Asked(2, 90)),
    **dict.fromkeys(("w1-reordering", "w4-reordering"), Asked(5, 95)),
    **dict.fromkeys(("redis-w1", "memcached-w1"), Asked(5, 99)),
    **dict.fromkeys(("redis-w4", "memcached-w4"), Asked(10, 85)),
    "open-equal": Asked(8, 90),
    **dict.fromkeys(("udp-w1", "http3-w1"), Asked(2, 95)),
    **dict.fromkeys(("udp-w4", "http3-w4"), Asked(5, 95)),
}
BATCHES = {f"w{w}-batch-{order}": Asked(1, 98) for w in (4, 16) for order in ("parallel", "serial")}
NOBODY_KNOWS = ("open-varied", "tunnel", "joined")


@pytest.fixture(scope="module", params=["as they are", "held back"])
def tables(request: pytest.FixtureRequest) -> dict[str, Table]:
    held_back = ["--held-back", "--seed", "2"] if request.param == "held back" else []
    return tables_of("pirate_methods", *held_back, quick=False)


def test_errors_of_epochs(tables: dict[str, Table]) -> None:
    found = tables[TITLES[0]]
    missed = {name: found[name] for name, asked in ASKED.items() if not _holds(found[name], asked)}
    assert missed == {}


def test_completion_of_batches(tables: dict[str, Table]) -> None:
    found = tables[TITLES[1]]
    missed = {name: found[name] for name, asked in BATCHES.items() if not _holds(found[name], asked)}
    assert missed == {}


def test_abstains_where_nobody_can_know(tables: dict[str, Table]) -> None:
    found = tables[TITLES[0]]
    for name in NOBODY_KNOWS:
        assert float(found[name]["abstained"]) >= LEAST_ABSTAINED
        assert found[name]["abstained because"] != "-"


def test_few_answers_are_far_off(tables: dict[str, Table]) -> None:
    assert float(tables[TITLES[2]]["auto"]["off by > 50%"]) <= MOST_FAR_OFF


def test_the_algorithm_read_literally_fails(tables: dict[str, Table]) -> None:
    assert float(tables[TITLES[2]]["modes, literal"]["off by > 50%"]) > 10 * MOST_FAR_OFF


def _holds(row: dict[str, str], asked: Asked) -> bool:
    """Whether answers are as near as is asked; or there are none, with a reason."""
    if row["median"] == "-":
        return float(row["abstained"]) == 100
    enough = int(row["epochs"]) >= FEWEST
    return enough and abs(float(row["median"])) <= asked.median and float(row["within 15%"]) >= asked.close
