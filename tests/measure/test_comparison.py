"""`wirelag compare`: its error rates are as stated, and it finds real changes."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.support.command import wirelag
from tests.support.effort import scaled
from tests.support.places import SCHEMAS
from wirelag.measure import comparison as comparing
from wirelag.measure.comparison import Comparison, FigureChange, ReportError, benjamini_hochberg, compare, simes
from wirelag.render.compare import table
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import Samples, facts

SCHEMA = SCHEMAS / "compare.json"
SIGMA = 0.5
NORMAL = NormalDist()


def delays(rng: np.random.Generator, n: int, scale: float = 1.0) -> Any:
    return (scale * 20e6 * np.exp(SIGMA * rng.standard_normal(n))).astype(np.int64)


def report(rng: np.random.Generator, n: int, scale: float = 1.0) -> dict[str, Any]:
    samples = Samples()
    rows, legs, found = np.arange(n, dtype=np.uint32), np.arange(n) % 2, delays(rng, n, scale)
    samples.add(legs, found)
    samples.spread.add(rng.integers(0, 2**64, n, np.uint64), np.arange(n) << 30, rows, legs.astype(np.uint8), found)
    return samples.report("match", "round_trip").to_json("rtt")


def with_groups(rng: np.random.Generator, sizes: Sequence[int], scales: Sequence[float]) -> dict[str, Any]:
    groups, total = [], Distribution()
    for i, (n, scale) in enumerate(zip(sizes, scales, strict=True)):
        mine = Distribution()
        mine.add(delays(rng, n, scale))
        total.merge(mine)
        groups.append({"key": f"group {i}", **facts(mine)})
    return {"command": "rtt", "estimator": "match", "quantity": "round_trip", **facts(total), "groups": groups}


def constant(ns: int, n: int = 1000) -> dict[str, Any]:
    distribution = Distribution()
    distribution.add(np.full(n, ns))
    return {"quantity": "round_trip", **facts(distribution)}


def told(mean: float, ci95: Any, **more: Any) -> dict[str, Any]:
    return {"quantity": "one_way", "estimator": "join", "samples": 1000, "mean": mean, "ci95": ci95} | more


def named(result: Comparison, name: str) -> FigureChange:
    return next(change for change in result.total.changes if change.name == name)


def about(share: float, runs: int) -> float:
    """Four standard errors of a share counted in this many runs."""
    return 4 * math.sqrt(share * (1 - share) / runs)


# False positives.


@pytest.mark.every(2)
@pytest.mark.parametrize("n", [200, 1000])
def test_an_unchanged_network_differs_in_at_most_one_run_of_twenty(n: int) -> None:
    """Somewhat fewer: intervals that allow for correlation are a little wide where there is none."""
    rng, runs = np.random.default_rng(n), scaled(600, 150)
    results = [compare(report(rng, n), report(rng, n)) for _ in range(runs)]
    told = [result for result in results if named(result, "mean").p_value is not None]
    assert len(told) > 0.9 * runs
    p_values = np.array([named(result, "mean").p_value for result in told], float)
    for level in (0.05, 0.2, 0.5):
        assert 0.5 * level - about(level, runs) < np.mean(p_values <= level) < level + about(level, runs)
    covered = [low <= 1 <= high for low, high in (named(result, "mean").ratio_ci95 or (0, 0) for result in told)]
    assert np.mean(covered) >= 0.95 - about(0.05, runs)
    medians = np.array([named(result, "0.5").p_value for result in told], float)
    assert np.mean(medians <= 0.05) <= 0.05 + about(0.05, runs)
    # All numbers of the whole together: no more often than a single one.
    called = np.mean([result.total.main.is_called for result in results])
    assert 0 < called <= 0.05 + about(0.05, runs)


def test_few_samples_say_nothing() -> None:
    rng = np.random.default_rng(5)
    for n in (2, 3, 5, 10, 30):
        change = named(compare(report(rng, n), report(rng, n, 5.0)), "mean")
        assert (change.p_value, change.reason) == (None, "no 95% interval before"), n


def rare(runs: int, n: int, level: float) -> float:
    """How often, relative to `level`, the median's p-value of an unchanged network is at most `level`."""
    rng, hits = np.random.default_rng(n), 0
    for _ in range(runs):
        both = []
        for _ in range(2):
            mine = Distribution()
            mine.add(delays(rng, n))
            low, high = mine.sure.quantile_ci_ns(0.5) or (0.0, 0.0)
            median = {"0.5": (mine.quantile_ns(0.5) or 0.0) / 1e9}
            both.append(told(0.0, {"0.5": [low / 1e9, high / 1e9]}, quantiles=median, samples=n))
        hits += (named(compare(*both), "0.5").p_value or 0.0) <= level
    return hits / runs / level


@pytest.mark.acceptance
def test_small_p_values_are_as_rare_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    # With many groups the far tail decides. The width of a quantile's interval is less certain than n - 1 degrees of
    # freedom suggest: with these, p-values of 0.2% would occur twice as often.
    runs, level = scaled(15_000, 6_000), 0.002
    most = 1 + 4 * math.sqrt((1 - level) / (runs * level))
    assert rare(runs, 60, level) < 1
    monkeypatch.setattr(comparing, "_freedom", lambda name, samples: samples - 1.0)
    assert rare(runs, 60, level) > most


def test_a_slow_down_is_found_as_often_as_the_samples_allow() -> None:
    rng, runs, n = np.random.default_rng(7), scaled(400), 400
    results = [compare(report(rng, n), report(rng, n, 1.1)) for _ in range(runs)]
    spread = math.sqrt(math.expm1(SIGMA**2))  # standard deviation over mean
    errors = {"mean": spread, "0.5": SIGMA * math.sqrt(math.pi / 2)}
    for name, error in errors.items():
        shift = math.log(1.1) / (error * math.sqrt(2 / n))
        power = NORMAL.cdf(shift - comparing.Z95)
        found = np.mean([(named(result, name).p_value or 0.0) <= 0.05 for result in results])
        assert found == pytest.approx(power, abs=about(power, runs) + 0.03), name
    # The verdict uses five numbers; it detects at least as often as the mean at a fifth of the level.
    shift = math.log(1.1) / (spread * math.sqrt(2 / n))
    least = NORMAL.cdf(shift - NORMAL.inv_cdf(1 - 0.05 / 5 / 2))
    assert np.mean([result.total.verdict == "slower" for result in results]) > least - about(least, runs)
    # The wrong direction only by the p99, which scatters most; by the mean once in 300,000 runs.
    tail = math.log(1.1) / (SIGMA * math.sqrt(0.99 * 0.01 * 2 / n) / NORMAL.pdf(NORMAL.inv_cdf(0.99)))
    expected = runs * NORMAL.cdf(NORMAL.inv_cdf(0.05 / 5 / 2) - tail)
    assert sum(result.total.verdict == "faster" for result in results) <= expected + 4 * math.sqrt(expected)
    assert all(named(result, "mean").verdict != "faster" for result in results)
    ratios = np.array([named(result, "mean").ratio for result in results], float)
    assert np.median(ratios) == pytest.approx(1.1, rel=0.01)


SOME = scaled(60, 20)  # runs


def false_discoveries(runs: int, changed: int) -> tuple[float, float]:
    """Some of 40 groups got 40% slower: the mean share of false ones among those called, and of changed ones found."""
    rng = np.random.default_rng(changed)
    scales = [1.4] * changed + [1.0] * (40 - changed)
    wrong, found = [], []
    for _ in range(runs):
        sizes = rng.integers(20, 300, 40).tolist()
        result = compare(with_groups(rng, sizes, [1.0] * 40), with_groups(rng, sizes, scales))
        called = {int(part.key.split()[1]) for part in result.groups if part.main.is_called}
        false = sum(i >= changed for i in called)
        wrong.append(false / max(len(called), 1))
        found.append((len(called) - false) / max(changed, 1))
    return float(np.mean(wrong)), float(np.mean(found))


def test_of_the_groups_called_one_in_twenty_is_wrong() -> None:
    # The share over a few groups scatters by less than 0.1 from run to run; without any change it is 0 or 1.
    wrong, found = false_discoveries(SOME, changed=10)
    assert wrong <= 0.05 + 4 * 0.1 / math.sqrt(SOME)
    assert found > 0.6
    wrong, _ = false_discoveries(SOME, changed=0)
    assert wrong <= 0.05 + about(0.05, SOME)


def test_without_control_the_same_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def each_alone(p_values: Iterable[float | None], level: float) -> float:
        return level

    monkeypatch.setattr(comparing, "benjamini_hochberg", each_alone)
    wrong, _ = false_discoveries(SOME, changed=10)
    assert wrong > 0.05 + 4 * 0.1 / math.sqrt(SOME)
    wrong, _ = false_discoveries(scaled(20, 10), changed=0)
    assert wrong > 0.9


def test_numbers_are_called_in_a_part_exactly_when_the_part_is() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        p_values = (rng.random(int(rng.integers(1, 8))) ** 4).tolist()
        level = float(rng.random()) * 0.1
        assert (benjamini_hochberg(p_values, level) > 0) == ((simes(p_values) or 0.0) <= level)
    assert simes([]) is simes([None]) is None
    assert benjamini_hochberg([None], 0.05) == 0


def test_the_known_example_of_benjamini_and_hochberg() -> None:
    # The 15 p-values of their paper: four are called at 5%.
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    p_values += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    limit = benjamini_hochberg(p_values, 0.05)
    assert limit == pytest.approx(0.05 * 4 / 15)
    assert sum(p <= limit for p in p_values) == 4


def test_students_quantiles() -> None:
    for freedom, quantile in ((3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1e6, 1.960)):
        assert 0.9995 < comparing._far(freedom) / quantile < 1.015  # the tables have four digits; never too narrow
        assert comparing._p_value(comparing._far(freedom), 1.0, freedom) == pytest.approx(0.05)


# Comparisons.


def test_delay_is_compared_by_ratio() -> None:
    before = told(0.010, {"mean": [0.009, 0.010 / 0.9]}, quantiles={"0.5": 0.008, "0.99": 0.02})
    result = compare(before, told(0.020, {"mean": [0.018, 0.020 / 0.9]}, quantiles={"0.5": 0.009}))
    mean, median = result.total.changes
    assert (mean.verdict, mean.ratio, mean.difference) == ("slower", pytest.approx(2), pytest.approx(0.01))
    reach = math.log(1 / 0.9) * math.sqrt(2)
    assert mean.ratio_ci95 == pytest.approx((2 * math.exp(-reach), 2 * math.exp(reach)), rel=2e-3)
    assert mean.difference_ci95 is not None
    assert 0 < mean.difference_ci95[0] < 0.01 < mean.difference_ci95[1]
    assert (median.name, median.verdict, median.reason) == ("0.5", "cannot say", "no 95% interval before")
    back = compare(told(0.020, {"mean": [0.018, 0.020 / 0.9]}), told(0.010, {"mean": [0.009, 0.010 / 0.9]}))
    assert back.total.verdict == "faster"
    assert back.total.main.difference_ci95 == pytest.approx(tuple(-x for x in reversed(mean.difference_ci95)))


def test_delay_around_zero_is_compared_in_seconds() -> None:
    result = compare(told(-0.002, {"mean": [-0.003, -0.001]}), told(0.002, {"mean": [0.001, 0.003]}))
    (mean,) = result.total.changes
    assert (mean.verdict, mean.ratio, mean.ratio_ci95) == ("slower", None, None)
    reach = 0.001 * math.sqrt(2)
    assert mean.difference_ci95 == pytest.approx((0.004 - reach, 0.004 + reach), rel=2e-3)
    cut = compare(told(0.001, {"mean": [0.0, 0.003]}), told(0.001, {"mean": [0.0, 0.003]})).total.main
    assert cut.difference_ci95 == pytest.approx((-0.002 * math.sqrt(2), 0.002 * math.sqrt(2)), rel=2e-3)
    assert cut.verdict == "no more than chance"


def test_quantiles_are_no_finer_than_their_bins() -> None:
    # Neighbouring bins: with any number of samples, their quantiles may be equal. The means are exact.
    result = compare(constant(10_000_000, 100_000), constant(10_060_000, 100_000))
    assert named(result, "0.5").before != named(result, "0.5").after
    assert named(result, "0.5").verdict == "no more than chance"
    assert named(result, "mean").verdict == "slower"
    assert named(compare(constant(10_000_000), constant(10_300_000)), "0.5").verdict == "slower"
    same = compare(constant(10_000_000), constant(10_000_000))
    assert {change.verdict for change in same.total.changes if change.p_value is not None} == {"no more than chance"}


def test_rates_are_compared_as_proportions() -> None:
    same = {"mean": [0.0099, 0.0101]}
    before = told(0.01, same, sent=10_000, received=9_900, lost=100, reordered=50, duplicated=None)
    after = told(0.01, same, sent=10_000, received=9_850, lost=150, reordered=50, duplicated=3)
    mean, loss, reordering = compare(before, after).total.changes
    assert mean.verdict == "no more than chance"
    # Pooled 0.0125: z = (0.005 - 0.0001) / sqrt(0.0125 * 0.9875 * 2 / 10000).
    assert loss.p_value == pytest.approx(2 * NORMAL.cdf(-0.0049 / math.sqrt(0.0125 * 0.9875 * 2e-4)))
    assert (loss.verdict, loss.ratio, loss.ratio_ci95) == ("higher", pytest.approx(1.5), None)
    assert loss.difference_ci95 == pytest.approx((0.0019, 0.0081), abs=2e-4)
    assert reordering.verdict == "no more than chance"
    result = compare(before, after)
    assert (result.total.verdict, result.is_worse) == ("higher", True)
    assert compare(after, before).total.verdict == "lower"
    assert not compare(after, before).is_worse
    none = compare(told(0.01, same, sent=0, lost=0), told(0.01, same, sent=5, lost=0)).total.changes[1]
    assert (none.verdict, none.reason) == ("cannot say", "no packets to take a share of")


def test_rare_losses_are_not_overrated() -> None:
    rng, runs = np.random.default_rng(11), 4000
    lost = rng.binomial(1000, 0.003, (runs, 2)).tolist()
    p_values = [comparing._rate("loss", (was, 1000), (now, 1000)).p_value or 0.0 for was, now in lost]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05


def test_groups_and_flows() -> None:
    def flow(key: str, mean: float) -> dict[str, Any]:
        return {"key": key, "packets": 9, "mean": mean, "std": 0.1, "ci95": {"mean": [0.9 * mean, 1.1 * mean]}}

    before = {"command": "flows", "flows": [flow("a", 1), flow("b", 1), flow("c", 1), flow("d", 1), flow("other", 1)]}
    after = {"command": "flows", "flows": [flow("b", 1), flow("c", 4), flow("d", 0.5), flow("e", 2), flow("other", 9)]}
    result = compare(before, after)
    assert [(part.key, part.verdict) for part in result.groups] == [
        ("c", "slower"),
        ("d", "faster"),
        ("b", "no more than chance"),
    ]
    assert (result.only_before, result.only_after) == (("a",), ("e",))
    assert result.total.verdict == "cannot say"
    assert result.notes == ("the groups 'other' are not compared: they may hold different traffic",)
    assert result.is_worse
    plain = flow("a", 1) | {"ci95": [0.9, 1.1]}
    assert compare({"flows": [plain]}, {"flows": [plain]}).groups[0].verdict == "no more than chance"


def test_mixed_results() -> None:
    def moved(mean: float, tail: float) -> dict[str, Any]:
        bounds = {"mean": [0.95 * mean, 1.05 * mean], "0.99": [0.95 * tail, 1.05 * tail]}
        return told(mean, bounds, quantiles={"0.99": tail})

    result = compare(moved(1, 3), moved(0.5, 6))
    assert [change.verdict for change in result.total.changes] == ["faster", "slower"]
    assert (result.total.verdict, result.is_worse) == ("mixed", True)


def test_notes() -> None:
    plain = told(1.0, {"mean": [0.9, 1.1]})
    group = [{"key": "a", "mean": 1.0}]
    assert compare(plain, plain).notes == ()
    assert compare(plain, plain | {"estimator": "lda", "command": "oneway"}).notes == (
        "the command changed: unknown before, oneway after",
        "the estimator changed: join before, lda after",
    )
    assert compare(plain | {"groups": group}, plain).notes == ("only the report before has groups",)
    apart = compare(plain | {"groups": group}, plain | {"groups": [{"key": "b"}]})
    assert apart.notes == ("no group is in both reports: were they made with the same --by?",)
    rng = np.random.default_rng(1)
    assert compare(report(rng, 1000), report(rng, 1000, 2)).notes == ()


def test_legs() -> None:
    rng = np.random.default_rng(2)
    before, after = report(rng, 1000), report(rng, 1000, 1.5)
    result = compare(before, after)
    assert [(leg.key, leg.verdict, leg.samples) for leg in result.legs] == [
        ("server", "slower", (500, 500)),
        ("client", "slower", (500, 500)),
    ]
    first = table(compare(before | {"leg": "server"}, after | {"leg": "server"}))
    assert first[0].startswith("to the server: slower: mean ")
    assert first[1].startswith("to the client: slower: mean ")  # --exit-code counts it, too
    del after["legs"]["client"]
    assert [leg.key for leg in compare(before, after).legs] == ["server"]


# Invalid reports.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantity": None}, 'not a report of delays (no "quantity"); give the JSON of wirelag rtt'),
        ({"quantity": None, "command": "info"}, "not a report of delays (printed by wirelag info)"),
        ({"command": "score"}, "printed by wirelag score"),
        ({"mean": "1"}, '"mean" is not a number'),
        ({"mean": True}, '"mean" is not a number'),
        ({"mean": math.inf}, '"mean" is not a number'),
        ({"mean": 10**400}, '"mean" is not a number'),
        ({"samples": -1}, '"samples" is not a count'),
        ({"lost": 0.5}, '"lost" is not a count'),
        ({"quantiles": []}, '"quantiles" is not an object'),
        ({"quantiles": {"p50": 1}}, 'quantile "p50" is not between 0 and 1'),
        ({"ci95": {"mean": [1]}}, 'interval of "mean" is not [low, high]'),
        ({"ci95": {"mean": [2, 1]}}, 'interval of "mean" ends before it begins'),
        ({"ci95": 3}, '"ci95" is not an object'),
        ({"groups": {}}, '"groups" is not a list'),
        ({"groups": [{}]}, 'a group has no "key"'),
        ({"groups": [1]}, 'a group has no "key"'),
        ({"groups": [{"key": "a"}, {"key": "a"}]}, "two groups have the key 'a'"),
        ({"groups": [{"key": "a", "mean": "x"}]}, 'a: "mean" is not a number'),
        ({"legs": {"server": 1}}, '"server" is not an object'),
    ],
)
def test_an_invalid_report_is_named(change: dict[str, Any], said: str) -> None:
    good = told(1.0, {"mean": [0.9, 1.1]}, groups=[{"key": "a", "mean": 1.0}])
    for reports, side in (((good | change, good), "before"), ((good, good | change), "after")):
        with pytest.raises(ReportError) as caught:
            compare(*reports)
        assert said in str(caught.value)
        assert caught.value.side == side


def test_different_quantities_are_not_compared() -> None:
    plain = told(1.0, {"mean": [0.9, 1.1]})
    with pytest.raises(ReportError, match="one measures one-way delay, the other response delay") as caught:
        compare(plain, plain | {"quantity": "response"})
    assert caught.value.side == "both"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read: No such file or directory; name a report in JSON"),
        (b"\xd4\xc3\xb2\xa1", "binary data, not JSON; write it with --format json -o FILE"),
        (b"all 3", "is not JSON (line 1: Expecting value); write it with --format json -o FILE"),
        (b"{}\n{}\n", "holds several JSON objects, needs one; write it with --format json -o FILE, not jsonl"),
        (b"[" * 100_000, "cannot be read as JSON; write it with --format json -o FILE"),
        (b"[]", "not a report: needs one JSON object; write it with --format json -o FILE"),
        (b"{}", 'not a report of delays (no "quantity"); give the JSON of wirelag rtt, response, oneway or flows'),
    ],
)
def test_an_unreadable_file_is_one_clear_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(told(1.0, {"mean": [0.9, 1.1]})))
    if content is not None:
        bad.write_bytes(content)
    for names in ((good, bad), (bad, good)):
        assert wirelag("compare", *names, code=2).stderr == f"wirelag: {bad}: {said}\n"


# The command.


def written(path: Path, content: dict[str, Any]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_the_table_shows_most_groups_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    before = written(tmp_path / "before.json", with_groups(rng, [50] * 31, [1.0] * 31))
    after = written(tmp_path / "after.json", with_groups(rng, [50] * 30, [1.0] * 29 + [3.0]))
    shown = wirelag("compare", before, after).stdout.splitlines()
    start = next(i for i, line in enumerate(shown) if line.startswith("30 groups in both, "))
    assert "the 20 that changed most (--all shows all)" in shown[start]
    assert shown[start + 1].startswith("group 29 ")
    assert "slower (also p50" in shown[start + 1]
    assert len(shown) == start + 20 + 2
    assert shown[-1] == "only in the report before: 1 group: group 30"
    everything = wirelag("compare", before, after, "--all").stdout.splitlines()
    assert len(everything) == len(shown) + 10


def test_the_exit_code_shows_a_slow_down(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    fast, slow = (written(tmp_path / f"{scale}.json", report(rng, 2000, scale)) for scale in (1.0, 1.5))
    wirelag("compare", fast, slow, "--exit-code", code=3)
    wirelag("compare", slow, fast, "--exit-code")
    wirelag("compare", fast, fast, "--exit-code")
    wirelag("compare", fast, slow)
    wirelag("compare", fast, slow, "--format", "xml", code=2)


def test_an_empty_report(tmp_path: Path) -> None:
    path = written(tmp_path / "none.json", Samples().report("match", "round_trip").to_json("rtt"))
    assert wirelag("compare", path, path, "--exit-code").stdout.startswith("cannot say: no delays before\n")


def test_json_follows_its_schema(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    rng = np.random.default_rng(8)
    same = {"mean": [0.9, 1.1]}
    pairs = [
        (report(rng, 500), report(rng, 500, 1.2)),
        (with_groups(rng, [3, 50], [1, 1]), with_groups(rng, [3, 50, 9], [2, 2, 2])),
        (Samples().report("match", "round_trip").to_json("rtt"), report(rng, 50)),
        (constant(1_000_000), constant(2_000_000)),
        (told(1.0, same, sent=9, lost=0), told(1.0, same, sent=9, lost=3)),
        (told(0.0, {"mean": [-1.0, 1.0]}), told(0.0, {})),
    ]
    for i, pair in enumerate(pairs):
        names = [written(tmp_path / f"{i}{j}.json", one) for j, one in enumerate(pair)]
        result = json.loads(wirelag("compare", *names, "--format", "json").stdout)
        validator.validate(result)
        json.dumps(result, allow_nan=False)
        for name in result:
            assert not validator.is_valid({key: value for key, value in result.items() if key != name}), name
        assert not validator.is_valid(result | {"more": 1})


def test_from_captures_to_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, packets, rtt in (("before", 20_000, 20), ("after", 21_000, 30), ("again", 22_000, 20)):
        options = f"--servers 4 --ipv6 0 --packets {packets} --rtt lognormal:{rtt}ms,0.5"
        wirelag("simulate", *options.split(), "-o", f"{name}.pcap")
        question = f"{name}.pcap --match handshake --by server --format json -o {name}.json --quiet"
        assert wirelag("rtt", *question.split()) == ("", "", 0)
    slower = json.loads(wirelag("compare", "before.json", "after.json", "--format", "json").stdout)
    assert slower["total"]["verdict"] == "slower"
    low, high = slower["total"]["changes"][0]["ratio_ci95"]
    assert low < 1.5 < high
    assert {part["verdict"] for part in slower["legs"]} == {"slower"}
    assert [part["verdict"] for part in slower["groups"]] == ["slower"] * 4
    wirelag("compare", "before.json", "after.json", "--exit-code", code=3)
    same = wirelag("compare", "before.json", "again.json", "--exit-code").stdout
    assert same.startswith("no more than chance: mean ")
