"""Law: an option that only changes what is shown changes no figure of the total, and no uncertainty: not by a bit."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import wirelag
from tests.support.places import DATA, SIX_ROUTERS
from tests.support.router_captures import with_prefixes, write_network
from wirelag.cli import NAMES, command

MPTCP = "twopoint/mptcpanalyzer-0.3.2"
NODES = f"{MPTCP}/node0filtered.pcapng.gz", f"{MPTCP}/node1filtered.pcapng.gz"  # more packets than --tail
HTTP = "rtt/zeek/1000-requests-one-dropped-response.pcap.gz"
INPUTS = {
    "rtt": ("rtt", HTTP),
    "response": ("response", HTTP),
    "response, one direction": ("response", DATA / "response.pcap.gz"),
    "oneway": ("oneway", f"{MPTCP}/client_1_tcp_only.pcap.gz", f"{MPTCP}/server_1_tcp_only.pcap.gz"),
    "oneway, lda": ("oneway", *NODES, "--estimator", "lda"),
    "oneway, rda": ("oneway", *NODES, "--estimator", "rda"),
    "oneway, finecomb": ("oneway", *NODES, "--estimator", "finecomb"),
    "rtt, fridge": ("rtt", HTTP, "--memory", "64k"),
    "flows": ("flows", f"{MPTCP}/server_2_filtered.pcapng.gz", "--upstream", f"{MPTCP}/client_2_filtered.pcapng.gz"),
    "plan": ("plan", SIX_ROUTERS, "--upgrade", "2"),
    "path": ("path", "TOPOLOGY", "CAPTURES", "--from", "A", "--to", "D"),
    "info": ("info", HTTP),
    "watch rtt": ("watch", "rtt", "-r", HTTP, "--speed", "max"),
    "watch rtt, fridge": ("watch", "rtt", "-r", HTTP, "--speed", "max", "--memory", "64k"),
    "watch response": ("watch", "response", "-r", HTTP, "--speed", "max"),
    "watch response, one direction": ("watch", "response", "-r", DATA / "response.pcap.gz", "--speed", "max"),
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
    "oneway, lda": (*GROUPED, "--by destination", "--segment A>B", "--interval 1s", "--interval 100ms --html PAGE"),
    "oneway, rda": (
        "--top 1 --sort max", "--html PAGE", "--by destination --format jsonl -o OUT", "--interval 1s",
        "--interval 100ms --by destination",
    ),
    "oneway, finecomb": ("--top 1 --sort max", "--html PAGE", "--by destination", "--interval 1s", "--interval 100ms"),
    "rtt, fridge": ("--by server --top 1", "--html PAGE", "--samples ROWS", "--interval 300ms", "--interval 2s"),
    "flows": (
        *("--interval 1s", "--interval 100ms --by server", "--by server", "--by client"),
        *("--most-flows 1", "--html PAGE", "-o OUT"),
    ),
    "plan": ("--html PAGE", "-o OUT", "--brief"),
    "path": (
        "--interval 500ms", "--interval 2s --html PAGE", "--html PAGE", "-o OUT", "--quiet", "--sla mean<1h",
    ),
    "info": ("--cores 1", "--cores 2", "--quiet"),
    "watch rtt": (
        "--interval 100ms", "--interval 10s", "--by server", "--by flow --group-memory 1MiB --interval 300ms",
        "--by subnet", "--for 1h", "--prometheus 127.0.0.1:0",
    ),
    "watch rtt, fridge": ("--by server", "--by flow --group-memory 1MiB", "--interval 300ms"),
    "watch response": (
        "--interval 100ms", "--interval 10s", "--by server", "--by flow --group-memory 1MiB --interval 300ms",
        "--by client", "--for 1h",
    ),
    "watch response, one direction": ("--interval 300ms", "--by client --interval 5s"),
}  # fmt: skip
QUESTIONS = "--cores 1", "--cores 2 --quiet", "--sla mean<1h", "--above 1ms --sla p99<1h"
OPTIONS["rtt"] += *QUESTIONS, "--by server --group-memory 1MiB", "--by subnet --ipv6-prefix 64"
OPTIONS["response"] += *QUESTIONS, "--by client --group-memory 1MiB"
OPTIONS["oneway"] += *QUESTIONS, "--by flow --group-memory 1MiB", "--by prefix --ipv4-prefix 8 --ipv6-prefix 64"
OPTIONS["flows"] += "--by server --group-memory 1MiB", "--by subnet --ipv4-prefix 8 --ipv6-prefix 64", *QUESTIONS[:3]
MEASURING = {  # options that choose what is measured, of which packets, or how: figures may depend on them
    *("--host", "--net", "--port", "--proto", "--from", "--to", "--filter", "--tunnels", "--force", "--direction"),
    *("--match", "--retransmitted", "--table-memory", "--memory", "--slots", "--entry-probability", "--seed"),
    *("--leg", "--server", "--method", "--epoch", "--fewest", "--gap", "--literal"),
    *("--nat", "--prefix", "--estimator", "--rows", "--loss", "--packets-per-interval", "--banks", "--no-check"),
    *("--buckets", "--rateless", "--deviation", "--tail", "--cut", "--control-port", "--clock", "--offset", "--ask"),
    *("--drain", "--overhead", "--reference", "--mark", "--upstream", "--every", "--inactive", "--active", "--hold"),
    *("--baseline", "--slow"),
    *("--upgrade", "--strategy", "--upgraded", "--fail", "--router", "--classes", "--synopsis", "--write-agents"),
    *("--servers", "--follow", "--collector", "--token-file"),
    *("--on", "--resume", "--task-size"),  # in parts: tests/measure/test_fleet.py says when figures are equal
    *("--read", "--speed", "--promiscuous", "--ring", "--in-kernel", "--then"),
}
OTHER_COMMANDS = {
    "report",
    "compare",
    "score",
    "simulate",
    "cut",
    "agent",
    "collect",
    "balance",
    "marking",
    "stamp",
    "telemetry",
}  # print no figures, or see below
MEASURING_OF = {"plan": {"--interval"}, "watch": {"--cores"}}  # of agents that it sets up; of an interface
FIGURES = (
    *("estimator", "quantity", "packets", "skipped", "samples", "mean", "std", "min", "max", "quantiles", "ci95"),
    *("legs", "counts", "sent", "received", "lost", "duplicated", "clock", "left_out", "used", "reason"),
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


PARTLY = {"intervals", "groups", "slowest", "changes", "sla"}  # what is shown beside the figures


def figures(text: str) -> str:
    """The total's figures and their uncertainty, as the JSON has them; of `path` and `info` all but intervals."""
    plain: dict[str, Any] = json.loads(text)
    names = set(plain) - PARTLY if plain.get("command") == "path" or "conversations" in plain else FIGURES
    return json.dumps({name: plain[name] for name in sorted(names) if name in plain})


def words_of(case: str, shared_data: Path) -> list[object]:
    places = _network() if case == "path" else {}
    words = [places.get(word, word) for word in INPUTS[case]]
    return [shared_data / word if "/" in str(word) and isinstance(word, str) else word for word in words]


@cache
def _network() -> dict[object, Path]:
    """A topology with two paths from A to D, and captures at its routers."""
    folder = Path(tempfile.mkdtemp(prefix="wirelag-path-"))
    atexit.register(shutil.rmtree, folder)
    found = {"TOPOLOGY": with_prefixes(folder), "CAPTURES": folder / "captures"}
    write_network(found["CAPTURES"], found["TOPOLOGY"], packets=1_500)
    return found  # type: ignore[return-value]


@cache
def plain(case: str, shared_data: Path) -> str:
    return figures(_printed(case, shared_data))


def _printed(case: str, shared_data: Path, *more: object) -> str:
    """The JSON of a command; `watch` prints a line for each interval, and the total last."""
    live = case.startswith("watch")
    printed = wirelag(*words_of(case, shared_data), *more, "--format", "jsonl" if live else "json").stdout
    return printed.splitlines()[-1] if live else printed


@pytest.mark.parametrize(("case", "options"), [(case, options) for case in OPTIONS for options in OPTIONS[case]])
@pytest.mark.every(8)
def test_what_is_shown_changes_no_figure(case: str, options: str, shared_data: Path, tmp_path: Path) -> None:
    files = {"PAGE": "page.html", "OUT": "out.json", "ROWS": "rows.parquet", "TEXT": "rows.csv"}
    words = [tmp_path / files[word] if word in files else word for word in options.split()]
    as_lines = "jsonl" in words
    ran = wirelag(*words_of(case, shared_data), *words).stdout if as_lines else _printed(case, shared_data, *words)
    text = (tmp_path / "out.json").read_text() if "OUT" in options else ran
    expected = plain(case, shared_data)
    if as_lines:  # a line for the total, without what only the whole has
        told, known = json.loads(figures(text)), json.loads(expected)
        assert told
        assert all(known[name] == value for name, value in told.items())
    else:
        assert figures(text) == expected
    assert len(json.loads(expected)) >= 3
    assert all((tmp_path / name).stat().st_size for word, name in files.items() if word in options)


EVERYWHERE = ("--interval", "--by", "--html")  # a new method, or memory, may make the total depend on them
NOT_THERE = {"plan": EVERYWHERE[:2], "path": ("--by",), "info": EVERYWHERE, "watch": ("--html",)}


@pytest.mark.parametrize("case", INPUTS)
def test_every_method_is_tried_with_rows_and_groups(case: str) -> None:
    """Before, one case of a command was enough: `oneway --interval` changed the total of every method but one."""
    tried = {word for words in OPTIONS[case] for word in words.split()}
    assert {*EVERYWHERE} - {*NOT_THERE.get(case.split(",")[0].split()[0], ())} <= tried


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_tried_or_measures(name: str) -> None:
    """An option that is neither is new: say in OPTIONS or MEASURING what it is."""
    mine = [case for case in INPUTS if case.split(",")[0].split()[0] == name]
    shown = {word for case in mine for words in OPTIONS[case] for word in words.split() if word.startswith("-")}
    shown |= {"-o", "--output", "--format", "--export"}
    options = [option.flags for option in command(name).options if not option.declared.hidden]
    untold = [names for names in options if not {*names} & (shown | MEASURING | MEASURING_OF.get(name, set()))]
    if name in OTHER_COMMANDS:
        assert not mine
        return
    assert not untold


PARTS = {
    "rtt": ("--by client --interval 500ms", ("--top 1", "--sort mean", "--html PAGE", "--samples ROWS", "-o OUT")),
    "response": ("--by flow --interval 500ms", ("--top 1", "--sort p99", "--html PAGE", "--exchanges ROWS", "-o OUT")),
    "oneway": ("--by destination --interval 5s", ("--top 1", "--sort max", "--html PAGE", "--samples ROWS", "-o OUT")),
}


@cache
def in_parts(case: str, shared_data: Path) -> str:
    return wirelag(*words_of(case, shared_data), *PARTS[case][0].split(), "--format", "json").stdout


@pytest.mark.every(4)
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
    known = json.loads(in_parts(case, shared_data))
    assert told["intervals"] == known["intervals"] != []
    by_key = [sorted(one["groups"], key=lambda group: group["key"]) for one in (told, known)]
    assert by_key[0] == by_key[1] != []


@pytest.mark.every(2)
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
