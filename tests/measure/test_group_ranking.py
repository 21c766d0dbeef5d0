"""Groups: the slowest are found whenever they come, and memory is what was stated."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import wirelag
from tests.support.command import wirelag as command
from tests.support.pings import write_pings
from wirelag.measure.group_entries import GroupEntries
from wirelag.measure.groups import in_order
from wirelag.measure.result import Entry
from wirelag.measure.rtt import RttResult
from wirelag.render.json_text import indented
from wirelag.report import Report
from wirelag.stats.distribution import Distribution

SERVERS = 3_000
FIGURES = {"p99": lambda delays: delays.quantile_ns(0.99), "mean": lambda delays: delays.mean_ns}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Servers that come one after the other, slower and slower after the first 2,500."""
    path, rng = tmp_path_factory.mktemp("late") / "late.pcap", np.random.default_rng(5)
    of = np.repeat(np.arange(SERVERS), 5)
    scale = 1e6 * (1 + np.maximum(0, of - 2_500) / 20)
    sent = 10**18 + np.arange(len(of)) * 10**6
    write_pings(path, 0x20000000 + of, sent, (scale * rng.lognormal(0, 0.3, len(of))).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def two_legs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Connections and queries: some have delays to the server, some to the client, most to both."""
    path = tmp_path_factory.mktemp("legs") / "legs.pcap"
    options = ("--packets", "4000", "--seed", "3", "--servers", "50", "--dns", "0.7", "--unanswered", "0.1", "--quiet")
    command("simulate", *options, "-o", path)
    return path


def ranked(result: RttResult, figure: str, most: int = 20) -> list[str]:
    """The servers with the largest figure, from single samples; those with fewer than 6 come after the others."""
    assert result.samples is not None
    samples = result.samples.to_polars().filter(pl.col("leg") == "server")
    found = {}
    for (server,), part in samples.group_by("server", maintain_order=True):
        delays = Distribution()
        delays.add(part["delay_ns"].to_numpy())
        found[server] = len(part) < 6, -FIGURES[figure](delays)
    return sorted(found, key=lambda server: found[server])[:most]


@pytest.mark.parametrize("figure", FIGURES)
def test_the_slowest_are_found_on_real_traffic(shared_data: Path, figure: str) -> None:
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    result = wirelag.rtt(capture, by="server", sort=figure, samples=True, charts=False)
    shown = [entry.key for entry in result.groups[:20] if "server" in entry.legs]
    assert shown == ranked(result, figure)[: len(shown)]
    assert len(shown) >= 10


@pytest.mark.every(2)
@pytest.mark.parametrize("figure", FIGURES)
def test_the_slowest_are_found_even_if_they_come_last(late: Path, figure: str) -> None:
    result = wirelag.rtt(late, by="server", sort=figure, samples=True, charts=False)
    assert len(result.groups) == SERVERS
    assert [entry.key for entry in result.groups[:20]] == ranked(result, figure)
    last = [str(ipaddress.IPv4Address(0x20000000 + i)) for i in range(2_800, SERVERS)]
    assert {entry.key for entry in result.groups[:20]} <= set(last)


def pings_to(path: Path, delays_ms: dict[int, list[float]]) -> Path:
    """Pings to servers by the last byte of their address, with these delays."""
    servers = np.repeat([0x0A010000 + host for host in delays_ms], [len(one) for one in delays_ms.values()])
    delays = (np.concatenate([np.array(one) for one in delays_ms.values()]) * 1e6).astype(np.int64)
    write_pings(path, servers, 10**18 + np.arange(len(servers)) * 10**7, delays)
    return path


@pytest.mark.acceptance
def test_one_slow_sample_does_not_lead_the_list_but_is_named(tmp_path: Path) -> None:
    path = pings_to(tmp_path / "few.pcap", {1: [20.0] * 40, 2: [3000.0], 3: [40.0] * 6, 4: [900.0] * 5})
    for sort, first in (("p50", "3"), ("p99", "3"), ("mean", "3"), ("max", "2"), ("samples", "1")):
        result = wirelag.rtt(path, by="server", sort=sort, charts=False)
        assert result.groups[0].key == f"10.1.0.{first}"
        told = [line for line in result.notes if "come after the others" in line]
        assert bool(told) == (sort not in ("max", "samples"))
        if told:
            assert [entry.key[-1] for entry in result.groups] == ["3", "1", "2", "4"]
            assert "2 of 4 groups" in told[0]
            assert told[0].endswith(f"the largest {sort} among them: 10.1.0.2, 3 s (1 sample)")
    only_few = pings_to(tmp_path / "only.pcap", {1: [20.0], 2: [3000.0]})
    notes = wirelag.rtt(only_few, by="server", charts=False).notes
    assert any("all groups have fewer than 6 samples, too few to tell how slow they are" in line for line in notes)


def test_groups_of_other_commands_follow_the_same_rule(shared_data: Path) -> None:
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    result = wirelag.response(capture)
    led = [entry.report.samples >= 6 for entry in result.groups if entry.report.samples]
    assert led == sorted(led, reverse=True)
    assert 0 < sum(led) < len(led)
    assert any(
        f"{led.count(False)} of {len(result.groups)} groups come after the others" in one for one in result.notes
    )
    entries = [Entry("group", key, report_of(n, mean), Distribution()) for key, n, mean in
               (("a", 5, 9.0), ("b", 6, 1.0), ("other", 99, 5.0), ("c", 0, None), ("d", 7, 2.0))]  # fmt: skip
    ordered, few = in_order(entries, "mean")
    assert [entry.key for entry in ordered] == ["d", "b", "a", "c", "other"]
    assert few == (2, 1)


def report_of(samples: int, mean: float | None) -> Report:
    return Report("join", "one_way", packets=samples, samples=samples, mean=mean)


def plain_value(entry: Entry, leg: str, figure: str) -> tuple[bool, bool, float]:
    """What a group is in order of, from the report that it gets when it is shown: its leg, else the other."""
    of_leg = entry.report if leg in ("both", "mixed") else entry.legs[leg].report if leg in entry.legs else None
    own = of_leg.figure(figure) if of_leg is not None and of_leg.samples else None
    others = [one.report.figure(figure) or 0.0 for one in entry.legs.values()]
    samples = max(one.report.samples for one in entry.legs.values()) if own is None else of_leg.samples
    return own is None, samples < 6 and figure != "max", -(max(others) if own is None else own)


@pytest.mark.every(4)
@pytest.mark.parametrize("leg", ["server", "client", "both", "mixed"])
def test_order_is_that_of_the_reports(two_legs: Path, leg: str) -> None:
    for by, figure in (("flow", "p99"), ("flow", "mean"), ("client", "std"), ("subnet", "max")):
        result = wirelag.rtt(two_legs, by=by, leg=leg, sort=figure, charts=False)
        assert result.ranked == (leg if leg in ("both", "mixed") else "client" if by == "client" else "server")
        values = [plain_value(entry, result.ranked, figure) for entry in result.groups]
        assert values == sorted(values)
        assert len(set(values)) > 6


def worst_leg(entry: Entry, question: int) -> tuple[bool, float]:
    """The order in which groups are named: by whether the leg that breaks it most has few samples, and by its value."""
    legs = entry.verdicts.sla[question]["legs"]
    value, leg = max((one["value"], leg) for leg, one in legs.items() if one["holds"] is False)
    return entry.legs[leg].report.samples < 6, -value


def test_groups_that_break_an_agreement_are_those_that_say_so(two_legs: Path) -> None:
    slas = ["p99<60ms", "server.mean<=20ms", "client.above(10ms)<50%", "max<1us", "min<10s"]
    result = wirelag.rtt(two_legs, by="flow", sla=slas, charts=False)
    assert not result.holds
    for i, sla in enumerate(slas):
        broken = {entry.key: worst_leg(entry, i) for entry in result.groups if entry.verdicts.sla[i]["holds"] is False}
        (said,) = [line for line in result.notes if line.startswith(f"{sla}: ")]  # one verdict
        assert said == result.notes[i]  # before anything else
        assert (sla == "min<10s") == (not broken) == said.startswith(f"{sla}: holds")
        told = result.total.verdicts.sla[i].get("groups", {"failing": 0, "worst": []})
        assert told["failing"] == len(broken)
        assert [broken[key] for key in told["worst"]] == sorted(broken.values())[:3]
        assert f"does not hold for {len(broken):,} of {len(result.groups):,} groups: " in said or not broken
        assert all(f"{key} (" in said for key in told["worst"])


def test_only_groups_that_are_shown_are_made(late: Path) -> None:
    """The figures of a group take longer than its packets: a million would take an hour."""
    result = wirelag.rtt(late, by="server", charts=False, top=7)
    result.table()
    assert isinstance(result.groups, GroupEntries)
    assert len(result.groups) == SERVERS
    assert 7 <= len(result.groups._made) <= 21  # by the table, and by notes


@pytest.mark.parametrize(("sort", "words"), [("samples", "most samples first"), ("p99", "largest p99 first")])
def test_table_and_page_say_what_groups_are_in_order_of(late: Path, sort: str, words: str) -> None:
    for memory, of in (("64MiB", ""), ("1MiB", ", of the groups kept")):
        result = wirelag.rtt(late, by="server", sort=sort, group_memory=memory, charts=False)
        said = words.replace(" first", " to the server first") + of
        assert f"by server, {said}" in result.table()
        assert f"Delays by server, {words}{of}" in result.to_html()


def test_groups_change_nothing_else(late: Path) -> None:
    plain = wirelag.rtt(late, charts=False).to_dict() | {"groups": None}
    for memory in ("1MiB", "64MiB"):
        grouped = wirelag.rtt(late, by="server", group_memory=memory, charts=False).to_dict()
        assert grouped | {"groups": None} == plain
        assert sum(group["samples"] for group in grouped["groups"]) == plain["samples"]


def test_json_in_pieces_is_the_same_json(late: Path) -> None:
    result = wirelag.rtt(late, by="server", filter=None, group_memory="1MiB", charts=False)
    assert "".join(result.to_json_text()) == json.dumps(result.to_dict(), indent=2) + "\n"
    odd = {"a": [], "b": {}, "c": [1, '\N{SNOWMAN}"', None, True, {"d": [1e-9, 1e22, -0.0]}], "e": float("inf")}
    assert indented(odd) == json.dumps(odd, indent=2)


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [{}, {"leg": "client"}, {"memory": "4KiB"}, {"group_memory": "1MiB"}])
def test_groups_made_at_once_are_those_made_one_by_one(late: Path, two_legs: Path, options: dict[str, str]) -> None:
    """A million at once take a minute, one by one five."""
    for path, by in ((late, "server"), (two_legs, "flow"), (two_legs, "port")):
        result = wirelag.rtt(path, by=by, charts=False, **options)  # type: ignore[arg-type]
        assert isinstance(result.groups, GroupEntries)
        every = list(result.groups.each())
        assert len(every) == len(result.groups)
        for at_once, alone in zip(every[::7], result.groups[::7], strict=True):
            assert at_once.key == alone.key
            assert json.dumps(at_once.to_dict()) == json.dumps(alone.to_dict())
            assert {leg: one.report for leg, one in at_once.legs.items()} == {
                leg: one.report for leg, one in alone.legs.items()
            }


PEAK = """
import resource, sys, wirelag
result = wirelag.rtt(sys.argv[1], by=sys.argv[2] or None, group_memory="1MiB", charts=False)
print(len(result.table()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(*result.notes, sep="\\n")
"""


def test_memory_is_what_was_stated(tmp_path: Path) -> None:
    """20,000 groups in 1 MiB, with some large ones among them."""
    rng, path = np.random.default_rng(6), tmp_path / "many.pcap"
    of = np.concatenate([np.repeat(np.arange(20_000), 3), np.repeat(np.arange(20), 500)])
    of = rng.permutation(of)
    delays = rng.lognormal(15, 1, len(of)).astype(np.int64)
    write_pings(path, 0x20000000 + of, 10**18 + np.arange(len(of)) * 10**4, delays)
    peaks = {}
    for by in ("", "server"):
        words = [sys.executable, "-c", PEAK, str(path), by]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        peaks[by] = int(said[0].split()[1]) * 1024
    # Besides, connections take up to 2^18 rows, whatever is grouped.
    assert peaks["server"] - peaks[""] < (1 << 20) + (40 << 20)
    assert any(line.startswith("other: ") and "of groups that did not fit 1.05 MB: about" in line for line in said)
    assert any("groups kept came, or came back, when memory was full" in line for line in said)
    result = wirelag.rtt(path, by="server", group_memory="1MiB", charts=False)
    found = {entry.key: entry.report for entry in result.groups}
    for i in range(20):  # the large ones have nearly all of their delays
        report = found[str(ipaddress.IPv4Address(0x20000000 + i))]
        assert report.samples <= 503 <= report.samples + report.details.get("earlier_in_other", 0)
        assert report.samples > 400
    assert sum(report.samples for report in found.values()) == len(of)
