"""The required figures of `wirelag response`: the lab's scenarios in full, with default settings.

Each scenario runs as it is, and as a held-back variant with other service times, sizes and seed. Needs root and an
idle machine: the truth is the time at which the client's application has read a response, and a client that waits
for a processor reads it late. Bounds that hold on a busy machine, too, have their own test.
"""

from collections.abc import Iterable

import pytest

from tests.support import needs
from tests.support.experiment_tables import Table, tables_of
from tests.support.in_lab import IN_LAB
from tests.support.response_figures import (
    ASKED,
    HIDDEN,
    LEAST_ABSTAINED,
    MOST_BUSY,
    ORDERS,
    REACHED,
    TODAY,
    UNKNOWABLE,
    Asked,
    as_required,
    busy,
    holds,
)

pytestmark = [pytest.mark.acceptance, IN_LAB]

MOST_FAR_OFF = 2.0  # % of answered epochs, over all scenarios

BATCHES = {f"w{w}-batch-{order}": Asked(1, 98) for w in (4, 16) for order in ORDERS}


@pytest.fixture(scope="module", params=["as they are", "held back"])
def tables(request: pytest.FixtureRequest) -> dict[str, Table]:
    if busy() > MOST_BUSY:
        pytest.skip(needs.IDLE)
    held_back = ["--held-back", "--seed", "2"] if request.param == "held back" else []
    return tables_of("pirate_methods", *held_back, quick=False)


@pytest.mark.parametrize(
    "kind", [ASKED, REACHED, HIDDEN, TODAY, UNKNOWABLE], ids=["asked", "reached", "hidden", "today", "unknowable"]
)
def test_scenarios_have_the_required_figures(tables: dict[str, Table], kind: Iterable[str]) -> None:
    """Those that this machine can run."""
    found = {name: row for name, row in tables["auto: epochs, %"].items() if name in kind}
    assert {name: row for name, row in found.items() if not as_required(name, row)} == {}
    assert len(found) >= 0.7 * len(list(kind))


def test_silence_has_a_reason(tables: dict[str, Table]) -> None:
    for row in tables["auto: epochs, %"].values():
        if float(row["abstained"]) >= LEAST_ABSTAINED:
            assert row["abstained because"] != "-"


def test_completion_of_batches(tables: dict[str, Table]) -> None:
    found = tables["auto, completion of batches: epochs, %"]
    missed = {name: found[name] for name, asked in BATCHES.items() if not holds(found[name], asked)}
    assert missed == {}


def test_few_answers_are_far_off(tables: dict[str, Table]) -> None:
    far = answered = 0.0
    for row in tables["auto: epochs, %"].values():
        if row["median"] != "-":
            epochs = int(row["epochs"]) * (1 - float(row["abstained"]) / 100)
            answered, far = answered + epochs, far + epochs * float(row["off by > 50%"])
    assert far / answered <= MOST_FAR_OFF


def test_the_algorithm_read_literally_fails(tables: dict[str, Table]) -> None:
    assert float(tables["over all scenarios"]["modes, literal"]["off by > 50%"]) > 10 * MOST_FAR_OFF


def test_estimates_lie_between_arrival_and_reading() -> None:
    """However long clients wait, no estimate is before a response arrived or after it was read."""
    tables = tables_of("pirate_accuracy", quick=False)
    (found,) = (table for title, table in tables.items() if "waits for a processor" in title)
    assert all(float(row["between, give or take 2%, %"]) >= 95 for row in found.values()), found
