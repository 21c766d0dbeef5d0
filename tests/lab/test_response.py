"""Response latency in the lab, in short: real connections of a few seconds.

Estimates from one direction are compared with the exchanges of a capture beside it, which include the same delays of
this machine. Comparison with the client's log is for `make acceptance`: a client that waits for a processor logs a
response late. tests/docs/test_response_figures.py has the required bounds.
"""

from dataclasses import dataclass, replace

import polars as pl
import pytest

from experiments.pirate_lab import LITERAL, answered, answers, estimator_of, recorded, scored
from lab.scenarios import SCENARIOS
from lab.score import score
from tests.support.in_lab import IN_LAB
from wirelag.capture.files import Capture
from wirelag.estimators.pairs import Pairs
from wirelag.packets.interval import Interval

pytestmark = IN_LAB
SECONDS = 3.0


@dataclass(frozen=True)
class Asked:
    """For answered epochs: the largest signed median error, and the least share within 15%."""

    median: float
    close: float
    abstained: float = 0.2  # at most


ASKED = {
    "w1-exponential-20ms": Asked(0.05, 0.9),
    "w4-parallel-lan": Asked(0.10, 0.8),
    "think-tenth": Asked(0.10, 0.6, 0.5),  # until the tick of the server's clock is known
    "w1-loss": Asked(0.05, 0.8),
    "udp-w4": Asked(0.10, 0.8),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["w1-exponential-20ms", "w1-bimodal"])
def test_estimates_equal_the_exchanges_of_the_capture(name: str) -> None:
    with recorded(replace(SCENARIOS[name], both=True), 2.0) as record:
        epochs = answers(answered(record.capture, estimator_of("auto")))
        exchanges = Pairs().meter("tap")
        for batch in Capture([str(record.both)]):
            exchanges.observe(batch)
    rows = exchanges.cut(Interval(0, 1)).single.rows
    seen = {"flow_key": "key", "t_request_ns": "begin_ns", "t_response_ns": "last_ns"}
    found = score(pl.DataFrame({name: rows[column] for name, column in seen.items()}), epochs)
    print(found)
    assert found.epochs >= 10
    assert abs(found.median) <= 0.05
    assert found.close >= 0.8
    assert found.abstained <= 0.5


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ASKED)
def test_estimates_are_near_the_client_s_log(name: str) -> None:
    with recorded(SCENARIOS[name], SECONDS) as record:
        found = scored(record)
    print(found)
    assert found.epochs >= 60
    assert abs(found.median) <= ASKED[name].median
    assert found.close >= ASKED[name].close
    assert found.abstained <= ASKED[name].abstained


@pytest.mark.acceptance
def test_the_algorithm_read_literally_fails() -> None:
    """Algorithm 2 to the letter takes one outlier for the gap between batches: this variant must fail."""
    with recorded(SCENARIOS["w1-exponential"], SECONDS) as record:
        modes, literal = (scored(record, method) for method in ("modes", LITERAL))
    print(modes, literal, sep="\n")
    assert abs(modes.median) <= 0.05
    assert modes.close * (1 - modes.abstained) >= 0.9
    assert literal.abstained < 1
    assert literal.close * (1 - literal.abstained) < 0.3
    assert abs(literal.median) > 0.5


@pytest.mark.acceptance
def test_a_tunnel_of_many_connections_is_abstained_on() -> None:
    with recorded(SCENARIOS["tunnel"], SECONDS) as record:
        found = scored(record)
    print(found)
    assert found.epochs >= 20
    assert found.abstained >= 0.9
