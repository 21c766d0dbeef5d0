"""The figures that are asked of `wirelag response`: the lab's scenarios in full, all settings as they are by default.

Each scenario runs as it is, and held back: with other service times and sizes, and another seed. Needs root, and a
machine that does nothing else: the truth is when the client's application has read a response, and a client that waits
for a processor reads it late. What holds on a busy machine, too, is asked for by itself.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.test_experiments import Table, tables_of
from tests.lab.test_lab import IN_LAB
from tests.support import needs

pytestmark = [pytest.mark.acceptance, IN_LAB]

FEWEST = 200  # epochs of a scenario
MOST_FAR_OFF = 2.0  # %, of answered epochs, over all scenarios
LEAST_ABSTAINED = 95.0  # %, where nobody can know
MOST_ABSTAINED = 25.0  # %, where there is an answer
MOST_BUSY = 0.1  # of all processors, by others
ORDERS = ("parallel", "serial")


@dataclass(frozen=True)
class Asked:
    """%: the largest |median| of signed errors, and the least share within 15%, of answered epochs."""

    median: float
    close: float


ASKED = {
    **dict.fromkeys(("w1-constant", "w1-exponential", "w1-exponential-20ms", "w1-bimodal"), Asked(1, 99)),
    **dict.fromkeys(("w1-post-8k", "w1-20k", "w1-300k", "w1-nginx"), Asked(1, 99)),
    **{f"w{w}-{order}-{at}": Asked(1, 98) for w in (4, 16) for order in ORDERS for at in ("lan", "far")},
    **{f"w{w}-batch-{order}": Asked(8, 85) for w in (4, 16) for order in ORDERS},
    **dict.fromkeys(("pages-equal", "pages-varied"), Asked(8, 85)),
    **dict.fromkeys(("think-tenth", "think-all"), Asked(3, 93)),
    **dict.fromkeys(("w1-loss", "w4-loss"), Asked(2, 90)),
    **dict.fromkeys(("w1-reordering", "w4-reordering"), Asked(5, 95)),
    **dict.fromkeys(("redis-w1", "memcached-w1"), Asked(5, 99)),
    **dict.fromkeys(("redis-w4", "memcached-w4"), Asked(10, 85)),
    "open-equal": Asked(8, 90),
}
HIDDEN = {  # or abstains
    **dict.fromkeys(("udp-w1", "http3-w1"), Asked(2, 95)),
    **dict.fromkeys(("udp-w4", "http3-w4"), Asked(5, 95)),
}
BATCHES = {f"w{w}-batch-{order}": Asked(1, 98) for w in (4, 16) for order in ORDERS}
REACHED = {  # where what is asked for is not always reached on two idle processors: what is, and why it is not more
    "memcached-w4": (Asked(10, 75), "a client that is interrupted reads late what its kernel has acknowledged"),
    "udp-w4": (Asked(5, 90), "one that is interrupted in its opening flight seems to have fewer in flight"),
}
NOBODY_KNOWS = ("open-varied", "tunnel", "joined")


def busy() -> float:
    """The share of a second in which processors work for others."""

    def times() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]  # all; idle, and waiting for a disk

    before = times()
    time.sleep(1)
    whole, idle = (after - at for after, at in zip(times(), before, strict=True))
    return 1 - idle / whole


@pytest.fixture(scope="module", params=["as they are", "held back"])
def tables(request: pytest.FixtureRequest) -> dict[str, Table]:
    if busy() > MOST_BUSY:
        pytest.skip(needs.IDLE)
    held_back = ["--held-back", "--seed", "2"] if request.param == "held back" else []
    return tables_of("pirate_methods", *held_back, quick=False)


def test_errors_of_epochs(tables: dict[str, Table]) -> None:
    found = tables["auto: epochs, %"]
    asked = {name: bounds for name, bounds in ASKED.items() if name not in REACHED}
    missed = {name: found[name] for name, bounds in asked.items() if not _holds(found[name], bounds)}
    assert missed == {}


def test_what_is_reached_where_it_is_less_than_asked(tables: dict[str, Table]) -> None:
    found = tables["auto: epochs, %"]
    missed = {name: (found[name], why) for name, (least, why) in REACHED.items() if not _holds(found[name], least)}
    assert missed == {}


def test_hidden_headers(tables: dict[str, Table]) -> None:
    found = tables["auto: epochs, %"]
    abstained = {name for name in HIDDEN if float(found[name]["abstained"]) >= LEAST_ABSTAINED}
    assert all(found[name]["abstained because"] != "-" for name in abstained)
    asked = {name: bounds for name, bounds in HIDDEN.items() if name not in abstained | REACHED.keys()}
    missed = {name: found[name] for name, bounds in asked.items() if not _holds(found[name], bounds, 50)}
    assert missed == {}


def test_completion_of_batches(tables: dict[str, Table]) -> None:
    found = tables["auto, completion of batches: epochs, %"]
    missed = {name: found[name] for name, asked in BATCHES.items() if not _holds(found[name], asked)}
    assert missed == {}


def test_abstains_where_nobody_can_know(tables: dict[str, Table]) -> None:
    found = tables["auto: epochs, %"]
    for name in NOBODY_KNOWS:
        assert float(found[name]["abstained"]) >= LEAST_ABSTAINED
        assert found[name]["abstained because"] != "-"


def test_few_answers_are_far_off(tables: dict[str, Table]) -> None:
    assert float(tables["over all scenarios"]["auto"]["off by > 50%"]) <= MOST_FAR_OFF


def test_the_algorithm_read_literally_fails(tables: dict[str, Table]) -> None:
    assert float(tables["over all scenarios"]["modes, literal"]["off by > 50%"]) > 10 * MOST_FAR_OFF


def test_answers_lie_between_arrival_and_application() -> None:
    """However long clients wait: no answer is before a response has come, none after it was read."""
    tables = tables_of("pirate_accuracy", quick=False)
    (found,) = (table for title, table in tables.items() if "waits for a processor" in title)
    assert all(float(row["between, give or take 2%, %"]) >= 95 for row in found.values()), found


def _holds(row: dict[str, str], asked: Asked, most_abstained: float = MOST_ABSTAINED) -> bool:
    """Whether there are enough epochs, and answers as near as is asked."""
    if int(row["epochs"]) < FEWEST or row["median"] == "-":
        return False
    near = abs(float(row["median"])) <= asked.median and float(row["within 15%"]) >= asked.close
    return near and float(row["abstained"]) <= most_abstained
