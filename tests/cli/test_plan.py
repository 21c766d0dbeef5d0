"""`wirelag plan`: its text, JSON, page, and errors."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from tests.support import command
from tests.support.html_pages import Walk, asked_by_the_page, browse, figures, series
from tests.support.html_pages import drawn as drawn_in
from tests.support.places import SCHEMAS
from tests.support.topologies import SIX, SIX_FILE

SCHEMA = SCHEMAS / "plan.json"
CHARTS = ("hops", "granularity", "network")


def wirelag(*words: object, code: int = 0) -> str:
    return command.wirelag("plan", *words, code=code).text


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def answer(validator: jsonschema.Draft202012Validator, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wirelag(*words, "--format", "json"))
    validator.validate(found)
    return found


# ---- JSON ----


def test_the_contract(validator: jsonschema.Draft202012Validator) -> None:
    found = answer(validator, SIX_FILE, "--upgrade", 2)
    assert found["command"] == "plan"
    assert found["upgraded"] == ["F", "C"]
    assert found["probe_hops"] == {"before": 64, "after": 20}
    assert found["granularity"] == {"before": 64 / 36, "after": 20 / 18}
    assert (found["shortest"], found["longest"]) == ({"before": 1, "after": 1}, {"before": 3, "after": 2})
    assert [step["probe_hops"] for step in found["steps"]] == [24, 20]
    assert found["fail"] is None
    watched = {entry["router"]: entry for entry in found["routers"]}
    assert watched["A"]["segments"] == ["A>B", "A>F"]
    assert {"F>C", "F>>D", "F[A>C]", "F[>A]", "F[B>]"} <= set(watched["F"]["segments"])
    for entry in found["routers"]:
        assert len(entry["segments"]) == entry["links"] + entry["virtual"] + entry["inside"]
        assert entry["upgraded"] == (entry["router"] in ("C", "F"))


def test_every_option(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    given = answer(validator, SIX_FILE, "--upgraded", "C,F", "--fail", "C-F", "--fail", "A>B", "--brief")
    assert given["upgraded"] == ["C", "F"]
    assert all(step["given"] for step in given["steps"])
    assert given["fail"]["links"] == [["C", "F"], ["A", "B"]]
    changes = {entry["router"]: entry for entry in given["fail"]["routers"]}
    assert "F>>C" in changes["F"]["new"]
    assert "F>C" in changes["F"]["gone"]
    assert not any("segments" in entry for entry in given["routers"])
    drawn = answer(validator, SIX_FILE, "--strategy", "random", "--seed", 7, "--upgrade", 3)
    assert drawn["seed"] == 7
    assert len(drawn["upgraded"]) == 3
    assert answer(validator, SIX_FILE, "--strategy", "random", "--seed", 7, "--upgrade", 3) == drawn
    more = answer(validator, SIX_FILE, "--upgraded", "C", "--upgraded", "F", "--upgrade", 1, "--strategy", "reduction")
    assert len(more["upgraded"]) == 3
    assert [step["given"] for step in more["steps"]] == [True, True, False]
    assert len(answer(validator, SIX_FILE)["upgraded"]) == 1  # 15%
    assert answer(validator, SIX_FILE, "--upgrade", 6)["notes"] != []
    assert answer(validator, SIX_FILE, "--upgrade", 0)["classes"]["routers"] == []
    saved = tmp_path / "plan.json"
    assert wirelag(SIX_FILE, "--format", "json", "-o", saved) == ""
    validator.validate(json.loads(saved.read_text()))


def test_memory_and_control_traffic(validator: jsonschema.Draft202012Validator) -> None:
    words = (SIX_FILE, "--router", "F", "--interval", "500ms", "--classes", 4)
    found = answer(validator, *words, "--synopsis", "1000B")["classes"]
    (cost,) = found["routers"]
    assert (found["interval"], found["classes"], found["bytes"], found["estimator"]) == (0.5, 4, 1000, "given")
    assert (cost["ports"], cost["ways"], cost["synopses"]) == (5, 25, 200)
    assert cost["memory_bytes"] == 400 * 1000
    assert cost["control_bps"] == 2 * 8 * 100 * 1066
    lda = answer(validator, *words, "--rows", 1024, "--tail", 1)["classes"]
    assert lda["bytes"] == 16 * 1024 + 16
    rda = answer(validator, *words, "--estimator", "rda", "--packets-per-interval", 10_000_000, "--loss", 0.01)[
        "classes"
    ]
    assert rda["bytes"] == 160_000_000
    assert rda["wire_bytes"] == (48 << 10) + 3_000_000
    few = answer(validator, *words, "--estimator", "rda", "--packets-per-interval", 100)["classes"]
    assert few["bytes"] == few["wire_bytes"] == 1600


def test_the_schema_is_strict(validator: jsonschema.Draft202012Validator) -> None:
    whole = answer(validator, SIX_FILE, "--upgrade", 2, "--fail", "C-F")
    for name in whole:
        assert not validator.is_valid({key: value for key, value in whole.items() if key != name}), name
    wrong: dict[str, Any]
    for wrong in ({"more": 1}, {"upgraded": "C"}, {"granularity": {"before": 1}}, {"fail": {}}):
        assert not validator.is_valid(whole | wrong), wrong
    for name in ("steps", "routers"):
        assert not validator.is_valid(whole | {name: [whole[name][0] | {"more": 1}]})


# ---- other formats ----


def test_the_curve_as_rows(tmp_path: Path) -> None:
    rows = list(csv.DictReader(wirelag(SIX_FILE, "--upgrade", 2, "--format", "csv").splitlines()))
    assert [row["probe_hops"] for row in rows] == ["64", "24", "20"]
    assert [row["router"] for row in rows] == ["", "F", "C"]
    lines = [json.loads(line) for line in wirelag(SIX_FILE, "--upgrade", 2, "--format", "jsonl").splitlines()]
    assert [line["upgraded"] for line in lines] == [0, 1, 2]
    wirelag(SIX_FILE, "--upgrade", 2, "--format", "parquet", "-o", tmp_path / "plan.parquet")
    assert pl.read_parquet(tmp_path / "plan.parquet")["probe_hops"].to_list() == [64, 24, 20]
    assert "cannot print Parquet on a terminal" in wirelag(SIX_FILE, "--format", "parquet", code=2)


def test_the_table() -> None:
    table = wirelag(SIX_FILE, "--upgraded", "C,F", "--fail", "C-F")
    assert "probe hops 64 -> 20, 3.2 times fewer; a path to measure has 1.78 -> 1.11 hops, at most 3 -> 2" in table
    assert "1  C (given)" in table
    assert "F *" in table
    assert "if C-F fails: segments: 2 appear, 12 vanish" in table
    assert "while routes converge, old and new segments are both measured" in table
    assert "nothing is measured inside routers" in wirelag(SIX_FILE, "--upgrade", 0)


def test_a_network_that_falls_apart(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    line = tmp_path / "line.csv"
    line.write_text("a-b,b-c,1\nb-c,c,1\n")
    found = answer(validator, line, "--upgrade", 1, "--fail", "a-b-b-c")  # names with hyphens
    assert found["fail"]["links"] == [["a-b", "b-c"]]
    assert any("cannot reach each other" in note for note in found["notes"])


def test_router_names_with_commas(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    comma = tmp_path / "comma.json"
    links = [{"source": "x,y", "target": "z", "weight": 1}, {"source": "z", "target": "w", "weight": 1}]
    comma.write_text(json.dumps({"routers": ["x,y", "z", "w"], "links": links}))
    assert answer(validator, comma, "--upgraded", "x,y", "--upgraded", "z,w")["upgraded"] == ["x,y", "z", "w"]


# ---- errors ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.json",), "nowhere.json"),
        ((SIX_FILE, "--upgraded", "G"), "there is no router G"),
        ((SIX_FILE, "--upgraded", "C,C"), "C is upgraded twice; name it once"),
        ((SIX_FILE, "--router", "f"), "did you mean F?"),
        ((SIX_FILE, "--fail", "A-D"), "no link joins A and D"),
        ((SIX_FILE, "--fail", "A-Z"), "--fail A-Z does not name two routers; write it as 'A>B'"),
        ((SIX_FILE, "--upgrade", "7"), "cannot upgrade 7 more routers, only 6 are left"),
        ((SIX_FILE, "--upgrade", "-1"), "is not between"),
        ((SIX_FILE, "--strategy", "best"), "'best' is not one of count, reduction, random"),
        ((SIX_FILE, "--loss", "2"), "'2' is not a share: write 1% or 0.01"),
        ((SIX_FILE, "--estimator", "join"), "'join' is not one of lda, finecomb, rda"),
        ((SIX_FILE, "--interval", "0s"), "longer than 0"),
        ((SIX_FILE, "--html", SIX_FILE), "would be overwritten"),
    ],
)
def test_mistakes_are_one_line(words: tuple[object, ...], said: str) -> None:
    text = wirelag(*words, code=2)
    assert said in " ".join(text.split())
    assert "Traceback" not in text


# ---- the page ----


def test_every_chart_is_drawn_without_requests(tool: Callable[[str], str], tmp_path: Path) -> None:
    path, log = tmp_path / "page.html", tmp_path / "net.json"
    found = json.loads(wirelag(SIX_FILE, "--upgrade", 2, "--fail", "C-F", "--html", path, "--format", "json"))
    shown = browse(tool("chromium"), path, tmp_path, "--dump-dom", f"--log-net-log={log}")
    for name in CHARTS:
        assert 'class="series ' in drawn_in(shown, name), name
    assert asked_by_the_page(log) == []
    text = path.read_text(encoding="utf-8")
    chart, walk = figures(text), Walk(text)
    assert walk.addresses == []
    (plan, drawn) = series(chart["hops"])
    assert plan["y"] == [64, *(step["probe_hops"] for step in found["steps"])]
    assert len(drawn["y"]) == 3
    assert series(chart["granularity"])[0]["y"] == pytest.approx([64 / 36, 24 / 20, 20 / 18], rel=1e-5)
    _, others, upgraded = series(chart["network"])
    assert upgraded["labels"] == ["1 F", "2 C"]
    assert sorted(others["tips"] + upgraded["tips"]) == list(SIX.routers)
    for said in ("If a link fails", "F>>C", "Measuring inside routers"):
        assert said in walk.text


def test_the_same_plan_gives_the_same_page(tmp_path: Path) -> None:
    pages = []
    for _ in range(2):
        wirelag(SIX_FILE, "--html", tmp_path / "page.html")
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


def test_names_in_a_page_are_escaped(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    names = ["<script>alert(1)</script>", "a&b", "c"]
    links = [{"source": one.replace(">", ""), "target": "c", "weight": 1} for one in names[:2]]
    odd.write_text(json.dumps({"routers": [name.replace(">", "") for name in names], "links": links}))
    wirelag(odd, "--upgrade", 1, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" in text
    assert "<scriptalert" not in text
    assert "&lt;scriptalert(1)" in text
