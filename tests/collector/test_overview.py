"""What the collector's page shows of each segment: its last minute, objectives and sites."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.agent_messages import SECOND_NS
from tests.support.stored_results import START_NS, result
from wirelag.collector.loop import Collector
from wirelag.collector.objectives import Objective, Objectives
from wirelag.collector.overview import Overview, Sites, row
from wirelag.collector.recent import PART_NS, PARTS, Recent
from wirelag.collector.settings import Settings
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import MINUTE_NS, Kept
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Ends, Rank
from wirelag.protocol.session import Rounds

ENDS = Ends("A>B", "A", "B")


def kept(start_ns: int, delays_ns: np.ndarray, lost: int = 0, rank: Rank = Rank.SETTLED) -> Kept:
    made = result(delays_ns, start_ns, lost, rank)
    tally = Tally.of(made, None)
    return Kept(made, tally, None, True)


def test_a_minute_is_the_sum_of_its_intervals_in_any_order() -> None:
    rng, recent, whole = np.random.default_rng(1), Recent(), Tally()
    seconds = [kept(START_NS + i * SECOND_NS, rng.exponential(5e6, 30), lost=i % 2) for i in range(60)]
    assert "0.99" not in seconds[0].report["ci95"]  # too few delays
    for one in rng.permutation(np.array(seconds, object)):
        recent.settle(one)
    for one in seconds:
        whole.add(one.tally)
    found, wanted = recent.minute("A>B"), whole.to_json(START_NS, 60 * SECOND_NS, True)
    assert found is not None
    assert found["std"] == pytest.approx(wanted["std"])  # floats, in another order
    assert {**found, "std": 0, "ci95": 0} == {**wanted, "std": 0, "ci95": 0}
    assert found["ci95"]["0.99"][0] < found["quantiles"]["0.99"] < found["ci95"]["0.99"][1]
    assert found["lost"] == 30


def test_a_minute_moves_on_and_what_is_older_does_not_count() -> None:
    recent = Recent()
    assert recent.minute("A>B") is None
    for i in range(200):
        recent.settle(kept(START_NS + i * SECOND_NS, np.full(10, 1e6)))
    before = recent.minute("A>B")
    assert before is not None
    assert PARTS * PART_NS <= (before["end"] - before["start"]) * 1e9 <= (PARTS + 1) * PART_NS
    recent.settle(kept(START_NS, np.full(10, 1e9)))
    assert recent.minute("A>B") == before
    recent.settle(kept(START_NS + 3600 * SECOND_NS, np.full(10, 2e6)))
    after = recent.minute("A>B")
    assert after is not None
    assert after["mean"] == 2e-3
    recent.forget({"A>B"})
    assert recent.minute("A>B") is None


@pytest.mark.parametrize(
    ("text", "report", "verdict"),
    [
        ("mean<5ms", {"mean": 0.004, "ci95": {"mean": (0.0039, 0.0041)}}, "holds"),
        ("mean<5ms", {"mean": 0.006, "ci95": {"mean": (0.0059, 0.0061)}}, "missed"),
        ("mean<5ms", {"mean": 0.006, "ci95": {"mean": (0.004, 0.008)}}, "unsure"),
        ("mean<5ms", {"mean": 0.004, "ci95": {"mean": (0.003, 0.008)}}, "unsure"),
        ("mean<5ms", {"mean": 0.006, "ci95": {}}, "unsure"),  # clocks are not synchronised
        ("mean<5ms", {"mean": None, "ci95": {}}, None),
        ("loss<0.1%", {"loss": 0.01, "ci95": {"loss": (0.009, 0.011)}}, "missed"),
        ("p99.9<1s", {"quantiles": {"0.999": 0.5}, "ci95": {"0.999": (0.4, 0.6)}}, "holds"),
    ],
)
def test_an_objective_is_judged_by_the_whole_interval(text: str, report: dict[str, Any], verdict: str | None) -> None:
    assert Objective.parse(text).judge({"quantiles": {}} | report)[1] == verdict


def test_the_last_objective_of_a_figure_counts() -> None:
    texts = ("p99<20ms", "loss<1%", "B[*: p99<1ms", "fra-*>ber-*: p99<5ms")
    objectives = Objectives(map(Objective.parse, texts))
    assert [one.text for one in objectives.of("A>B")] == ["p99<20ms", "loss<1%"]
    assert [one.text for one in objectives.of("fra-1>ber-2")] == ["p99<5ms", "loss<1%"]
    assert [one.text for one in objectives.of("B[A>C]")] == ["p99<1ms", "loss<1%"]  # a bracket is a bracket


@pytest.mark.parametrize("text", ["p98<1ms", "p99", "p99>1ms", "mean<1", "loss<2ms", "mean<0s", "", ": p99<1ms"])
def test_what_is_no_objective_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(WirelagError, match=r"^here: slo: "):
        Settings.of({"slo": [text]}, "here")


def test_a_row_says_nothing_that_is_not_known() -> None:
    """No clock where one end is missing; no figures where nothing came."""
    nothing = row("A>B", ENDS, None, None, Objectives(), Sites({}))
    assert nothing == {"segment": "A>B", "upstream": "A", "downstream": "B", "sites": ["A", "B"], "end": None}
    missed = Tally(missed=1).to_json(START_NS, SECOND_NS, False)
    told = row("A>B", ENDS, missed, None, Objectives([Objective.parse("p99<1ms")]), Sites({}))
    assert told["clock"] is None
    assert (told["mean"], told["p99"], told["loss"], told["verdict"]) == (None, None, None, None)


def test_points_have_sites() -> None:
    sites = Settings.of({"sites": {"fra-*": "Frankfurt", "ffm*": "Frankfurt"}}, "here").sites
    assert [Sites(sites).of(point) for point in ("fra-1", "ffm2", "ber_3", "A", "-x")] == [
        "Frankfurt", "Frankfurt", "ber", "A", "-x",
    ]  # fmt: skip


def test_what_the_store_alone_knows_is_shown_and_what_others_told_stays(tmp_path: Path) -> None:
    """After a restart; and of segments of other collectors, whose intervals may be longer than their word is kept."""
    minute, end_ns = Tally.of(result(np.full(50, 2e6)), None), START_NS + MINUTE_NS
    told: dict[bool, dict[str, Any]] = {}
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        store.begin()
        store.put("A>B", None, Interval(START_NS, end_ns), Rank.SETTLED, minute)
        store.put("A>B", None, Interval(end_ns, end_ns + SECOND_NS), Rank.SETTLED, Tally.of(result(np.ones(9)), None))
        store.put("A>C", None, Interval(START_NS, START_NS + SECOND_NS), Rank.SETTLED, minute)
        store.commit()
        collector = Collector(Rounds([], named_by_agents=True), store)
        collector.elsewhere = lambda segment, settled: told.get(settled) if segment == "A>C" else None
        overview = Overview(collector, Objectives(), Sites({}))

        def shown() -> list[tuple[str, float, float]]:
            overview.judge_by(Objectives(), Sites({}))  # made anew
            return [(one["segment"], one["end"] - START_NS / 1e9, one["mean"]) for one in
                    json.loads(overview.text())["segments"]]  # fmt: skip

        assert shown() == [("A>B", 61, 2e-3), ("A>C", 1, 2e-3)]
        later = kept(START_NS + 9 * SECOND_NS, np.full(9, 7e6)).report
        told |= {False: later, True: later}
        assert shown() == [("A>B", 61, 2e-3), ("A>C", 10, 7e-3)]
        told.clear()
        assert shown() == [("A>B", 61, 2e-3), ("A>C", 10, 7e-3)]
