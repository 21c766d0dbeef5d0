"""Law: an option that only changes what is shown changes no figure of the total, and no uncertainty: not by a bit."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import wirelag
from tests.support.places import DATA, SIX_ROUTERS

MPTCP = "twopoint/mptcpanalyzer-0.3.2"
HTTP = "rtt/zeek/1000-requests-one-dropped-response.pcap.gz"
INPUTS = {
    "rtt": ("rtt", HTTP),
    "response": ("response", HTTP),
    "response, one direction": ("response", DATA / "response.pcap.gz"),
    "oneway": ("oneway", f"{MPTCP}/client_1_tcp_only.pcap.gz", f"{MPTCP}/server_1_tcp_only.pcap.gz"),
    "oneway, lda": (
        *("oneway", f"{MPTCP}/client_1_tcp_only.pcap.gz", f"{MPTCP}/server_1_tcp_only.pcap.gz"),
        *("--estimator", "lda"),
    ),
    "oneway, rda": (
        *("oneway", f"{MPTCP}/client_1_tcp_only.pcap.gz", f"{MPTCP}/server_1_tcp_only.pcap.gz"),
        *("--estimator", "rda"),
    ),
    "oneway, finecomb": (
        *("oneway", f"{MPTCP}/client_1_tcp_only.pcap.gz", f"{MPTCP}/server_1_tcp_only.pcap.gz"),
        *("--estimator", "finecomb"),
    ),
    "rtt, fridge": ("rtt", HTTP, "--memory", "64k"),
    "flows": ("flows", f"{MPTCP}/server_2_filtered.pcapng.gz", "--upstream", f"{MPTCP}/client_2_filtered.pcapng.gz"),
    "plan": ("plan", SIX_ROUTERS, "--upgrade", "2"),
}
GROUPED = ("--top 1", "--top 50", "--sort max", "--html PAGE", "-o OUT", "--format jsonl -o OUT")
OPTIONS = {
    "rtt": (
        *GROUPED, "--interval 1s", "--by server", "--by flow --sort mean --top 2", "--by subnet --ipv4-prefix 8",
        "--samples ROWS", "--samples TEXT", "--by client --interval 2s --html PAGE --samples ROWS",
    ),
    "response": (
        *GROUPED, "--interval 1s", "--interval auto", "--by client", "--by flow --sort p99", "--exchanges ROWS",
        "--exchanges TEXT", "--epochs ROWS", "--by client --interval 2s --html PAGE --exchanges ROWS",
    ),
    "response, one direction": (*GROUPED, "--interval 100ms", "--by flow --sort mean", "--epochs ROWS"),
    "oneway": (
        *GROUPED, "--by destination", "--by flow --sort max --top 1", "--segment A>B", "--samples ROWS",
        "--samples TEXT", "--by source --html PAGE --samples ROWS", "--interval 5s", "--interval 5s --samples ROWS",
    ),
    "oneway, lda": (*GROUPED, "--by destination", "--segment A>B"),
    "oneway, rda": ("--top 1 --sort max", "--html PAGE", "--by destination --format jsonl -o OUT"),
    "oneway, finecomb": ("--top 1 --sort max", "--html PAGE", "--by destination"),
    "rtt, fridge": ("--interval 1s", "--by server --top 1", "--html PAGE", "--samples ROWS"),
    "flows": ("--interval 1s", "--by server", "--by client", "--most-flows 1", "--html PAGE", "-o OUT"),
    "plan": ("--html PAGE", "-o OUT"),
}  # fmt: skip
FIGURES = (
    *("estimator", "quantity", "packets", "skipped", "samples", "mean", "std", "min", "max", "quantiles", "ci95"),
    *("legs", "both_legs", "counts", "sent", "received", "lost", "duplicated", "clock", "left_out", "used", "reason"),
    *(
        "exchanges",
        "first_byte",
        "server",
        "transfer",
        "think",
        "network",
        "felt",
        "abstained",
        "confidence",
        "clients",
    ),
    *("upgraded", "probe_hops", "granularity", "references"),
)


def figures(text: str) -> str:
    """The total's figures and their uncertainty, as the JSON has them."""
    plain: dict[str, Any] = json.loads(text)
    return json.dumps({name: plain[name] for name in FIGURES if name in plain})


def words_of(case: str, shared_data: Path) -> list[object]:
    return [shared_data / word if "/" in str(word) and isinstance(word, str) else word for word in INPUTS[case]]


@cache
def plain(case: str, shared_data: Path) -> str:
    return figures(wirelag(*words_of(case, shared_data), "--format", "json").stdout)


@pytest.mark.parametrize(("case", "options"), [(case, options) for case in OPTIONS for options in OPTIONS[case]])
def test_what_is_shown_changes_no_figure(case: str, options: str, shared_data: Path, tmp_path: Path) -> None:
    files = {"PAGE": "page.html", "OUT": "out.json", "ROWS": "rows.parquet", "TEXT": "rows.csv"}
    words = [tmp_path / files[word] if word in files else word for word in options.split()]
    as_lines = "jsonl" in words
    form = [] if as_lines else ["--format", "json"]
    printed = wirelag(*words_of(case, shared_data), *words, *form).stdout
    text = (tmp_path / "out.json").read_text() if "OUT" in options else printed
    expected = plain(case, shared_data)
    if as_lines:  # a line for the total, without what only the whole has
        told, known = json.loads(figures(text)), json.loads(expected)
        assert told
        assert all(known[name] == value for name, value in told.items())
    else:
        assert figures(text) == expected
    assert len(json.loads(expected)) >= 3
    assert all((tmp_path / name).stat().st_size for word, name in files.items() if word in options)


PARTS = {
    "rtt": ("--by client --interval 500ms", ("--top 1", "--sort mean", "--html PAGE", "--samples ROWS", "-o OUT")),
    "response": ("--by flow --interval 500ms", ("--top 1", "--sort p99", "--html PAGE", "--exchanges ROWS", "-o OUT")),
    "oneway": ("--by destination --interval 5s", ("--top 1", "--sort max", "--html PAGE", "--samples ROWS", "-o OUT")),
}


@pytest.mark.parametrize(("case", "options"), [(case, options) for case in PARTS for options in PARTS[case][1]])
def test_what_is_shown_changes_no_figure_of_a_row_or_group(
    case: str, options: str, shared_data: Path, tmp_path: Path
) -> None:
    """Rows and groups know how slowly delays of the whole change: not from what is shown of it."""
    files = {"PAGE": "page.html", "OUT": "out.json", "ROWS": "rows.parquet"}
    base = [*words_of(case, shared_data), *PARTS[case][0].split(), "--format", "json"]
    words = [tmp_path / files[word] if word in files else word for word in options.split()]
    printed = wirelag(*base, *words).stdout
    told = json.loads((tmp_path / "out.json").read_text() if "OUT" in options else printed)
    known = json.loads(wirelag(*base).stdout)
    assert told["intervals"] == known["intervals"] != []
    by_key = [sorted(one["groups"], key=lambda group: group["key"]) for one in (told, known)]
    assert by_key[0] == by_key[1] != []


@pytest.mark.parametrize("case", PARTS)
def test_rows_change_no_figure_of_a_group_and_groups_none_of_a_row(case: str, shared_data: Path) -> None:
    by, interval = (" ".join(PARTS[case][0].split()[place : place + 2]).split() for place in (0, 2))
    both, groups, rows = (
        json.loads(wirelag(*words_of(case, shared_data), *more, "--format", "json").stdout)
        for more in ([*by, *interval], by, interval)
    )
    assert both["groups"] == groups["groups"] != []
    assert both["intervals"] == rows["intervals"] != []


@pytest.mark.parametrize("leg", ["client", "both", "mixed"])
def test_the_leg_only_chooses(leg: str, shared_data: Path) -> None:
    told = json.loads(wirelag("rtt", shared_data / HTTP, "--leg", leg, "--format", "json").stdout)
    known = json.loads(plain("rtt", shared_data))
    assert json.dumps(told["legs"]) == json.dumps(known["legs"])
    if leg == "client":
        assert {name: told[name] for name in told["legs"]["client"]} == told["legs"]["client"]


def test_all_groups_are_compared_however_many_are_shown(shared_data: Path, tmp_path: Path) -> None:
    report = tmp_path / "rtt.json"
    wirelag("rtt", shared_data / HTTP, "--by", "flow", "--format", "json", "-o", report)
    told = [wirelag("compare", report, report, *more, "--format", "json").stdout for more in ((), ("--all",))]
    assert told[0] == told[1]
