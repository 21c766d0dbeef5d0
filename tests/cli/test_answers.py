"""Results that must not mislead: legs, the same packets twice, files that can be read together."""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.command import WIRELAG, wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    write_simulation(simulate(Scenario(packets=8_000, seed=4)), folder / "one.pcap")
    write_simulation(simulate(Scenario(packets=8_000, seed=5)), folder / "other.pcap")
    write_simulation(simulate(Scenario(packets=4_000, seed=6, points=2)), folder / "up.pcap", folder / "down.pcap")
    (folder / "one.pcap.gz").write_bytes(gzip.compress((folder / "one.pcap").read_bytes()))
    return folder


# ---- legs ----


def test_an_agreement_must_hold_on_both_legs(shared_data: Path) -> None:
    """A mixture of both legs has a median of 77 us here, and passed."""
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    told = wirelag("rtt", capture, "--sla", "p50<10ms", code=3).stdout
    assert "p50<10ms: does not hold to the server; to the server it is 53.6 ms, to the client it is 42.2 us" in told
    wirelag("rtt", capture, "--sla", "client.p50<10ms", code=0)
    wirelag("rtt", capture, "--sla", "server.p50<10ms", code=3)
    for leg in ("server", "client", "both", "mixed"):  # a mixture decides nothing
        wirelag("rtt", capture, "--sla", "p50<10ms", "--leg", leg, code=3)
    for others in ("response", "flows"):
        assert "only rtt has legs" in wirelag(others, capture, "--sla", "server.mean<1s", code=2).stderr


def test_an_sla_says_that_the_server_has_no_delays(shared_data: Path) -> None:
    told = wirelag("rtt", shared_data / "rtt/zeek/fin_retransmission.pcap", "--sla", "p50<10ms").stdout
    assert "p50<10ms: holds; to the client it is 2.19 ms" in told
    assert ", to the server there are no delays" in told


def test_an_agreement_about_the_sum_of_both_legs(shared_data: Path) -> None:
    """For each connection; the median of its legs is 53.6 ms and 42 us, and that of their sum 78.6 ms."""
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    both = json.loads(wirelag("rtt", capture, "--leg", "both", "--by", "server", "--format", "json").stdout)
    assert both["quantiles"]["0.5"] == pytest.approx(0.0786, abs=1e-4)
    assert (
        "both.p50<70ms: does not hold; on both legs together it is 78.6 ms"
        in wirelag("rtt", capture, "--sla", "both.p50<70ms", code=3).stdout.splitlines()
    )
    wirelag("rtt", capture, "--sla", "p50<70ms", code=0)  # on each leg
    wirelag("rtt", capture, "--sla", "both.p50<90ms", code=0)
    for leg, question in (("both", "p50<70ms"), ("server", "both.p50<70ms"), ("both", "both.p50<70ms")):
        words = ("--leg", leg, "--sla", question, "--by", "server", "--format", "json")
        said = json.loads(wirelag("rtt", capture, *words, code=3).stdout)
        (verdict,) = said["sla"]
        assert verdict["holds"] is False
        assert verdict["legs"] == {"both": {"holds": False, "value": both["quantiles"]["0.5"]}}
        medians = {group["key"]: group["quantiles"]["0.5"] for group in both["groups"] if group["samples"]}
        told = {group["key"]: group["sla"][0] for group in said["groups"]}
        assert {key: told[key]["value"] for key in medians} == medians
        assert {key for key, one in told.items() if one["holds"] is False} == {
            key for key, median in medians.items() if median >= 0.07
        }
        failing = sum(median >= 0.07 for median in medians.values())
        text = wirelag("rtt", capture, *words[:-2], code=3).stdout
        assert f"{question}: does not hold for {failing} of {len(said['groups'])} groups: " in text


def test_servers_are_ranked_by_the_delay_to_them(shared_data: Path) -> None:
    capture = shared_data / "rtt/redart/long_cap_2.pcap.gz"
    for by in ("server", "client"):
        groups = json.loads(wirelag("rtt", capture, "--by", by, "--format", "json").stdout)["groups"]
        legs = [group["legs"][by] for group in groups if by in group["legs"]]
        places = [(leg["samples"] < 6, -leg["quantiles"]["0.5"]) for leg in legs]  # one sample leads no list
        assert len(places) > 1
        assert places == sorted(places)


def test_the_leg_that_is_shown_has_the_first_figures(made: Path) -> None:
    words = ("--interval", "20s", "--format", "json")
    found = {
        leg: json.loads(wirelag("rtt", made / "one.pcap", "--leg", leg, *words).stdout)
        for leg in ("server", "client", "mixed", "both")
    }
    for leg in ("server", "client"):
        for part in (found[leg], *found[leg]["intervals"]):
            assert part["leg"] == leg
            assert {name: part[name] for name in ("samples", "mean", "quantiles", "ci95")} == {
                name: part["legs"][leg][name] for name in ("samples", "mean", "quantiles", "ci95")
            }
    assert found["mixed"]["samples"] == sum(leg["samples"] for leg in found["mixed"]["legs"].values())
    assert found["server"]["legs"] == found["both"]["legs"]


def test_both_legs_are_the_sum_of_each_connection(made: Path, tmp_path: Path) -> None:
    wirelag("rtt", made / "one.pcap", "--samples", tmp_path / "samples.parquet")
    ends = ["client", "server", "client_port", "server_port"]
    means = pl.read_parquet(tmp_path / "samples.parquet").group_by(*ends, "leg").agg(pl.col("delay_ns").mean())
    there, back = (means.filter(leg=leg).drop("leg") for leg in ("server", "client"))
    both = there.join(back, on=ends, suffix="_back")
    sums = (both["delay_ns"] + both["delay_ns_back"]).to_numpy() / 1e9
    found = json.loads(wirelag("rtt", made / "one.pcap", "--leg", "both", "--format", "json").stdout)
    assert found["samples"] == len(sums)
    assert found["mean"] == pytest.approx(float(np.mean(sums)), rel=1e-3)
    assert found["max"] == pytest.approx(float(np.max(sums)), rel=1e-3)


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", ["join", "lda", "rda", "finecomb"])
def test_the_total_does_not_depend_on_the_length_of_intervals(made: Path, estimator: str) -> None:
    """A sum over intervals counted only the scatter within them: at 1 ms the mean seemed known to the ns.

    Nor does its sample: before, each interval had its own, so that the total of many rested on more packets.
    """
    found = []
    for interval in ([], ["--interval", "10s"], ["--interval", "50ms"]):
        words = ("oneway", made / "up.pcap", made / "down.pcap", "--estimator", estimator, *interval)
        found.append(json.loads(wirelag(*words, "--format", "json").stdout))
    same = ("ci95", "mean", "std", "quantiles", "samples", "tail_samples", "sent", "received", "lost", "wire_bytes")
    assert [[one[name] for name in same] for one in found] == [[found[0][name] for name in same]] * len(found)
    assert found[0]["ci95"]["mean"]
    assert len(found[2]["intervals"]) > 100


def test_sums_that_contradict_single_packets_are_not_believed(tmp_path: Path) -> None:
    """Cut by the clock, packets that straddle an edge spoil sums; before, a wrong mean had a narrow interval."""
    network = Scenario(packets=120_000, seed=7, points=2, reorder=0.2, delay="lognormal:10ms,1.0", loss=0.01)
    write_simulation(simulate(network), tmp_path / "up.pcap", tmp_path / "down.pcap")
    words = ("oneway", tmp_path / "up.pcap", tmp_path / "down.pcap", "--format", "json")
    exact = json.loads(wirelag(*words).stdout)
    found = json.loads(wirelag(*words, "--estimator", "lda", "--interval", "2s", "--cut", "clock").stdout)
    assert any("contradict" in note for note in found["notes"])
    assert not any(row["ci95"] for row in found["intervals"])
    assert found["mean"] == pytest.approx(exact["mean"], rel=0.04)
    agreeing = json.loads(wirelag(*words, "--estimator", "lda", "--interval", "2s").stdout)
    assert not any("contradict" in note for note in agreeing["notes"])


@pytest.fixture(scope="module")
def mptcp(shared_data: Path) -> tuple[Path, Path]:
    folder = shared_data / "twopoint" / "mptcpanalyzer-0.3.2"
    return folder / "client_2_filtered.pcapng.gz", folder / "server_2_filtered.pcapng.gz"


@pytest.fixture(scope="module")
def exact(mptcp: tuple[Path, Path]) -> float:
    """The mean of all packets, joined."""
    return float(json.loads(wirelag("oneway", *mptcp, "--format", "json").stdout)["mean"])


@pytest.mark.every(8)
@pytest.mark.parametrize("interval", ["1ms", "100ms", "1s"])
@pytest.mark.parametrize("estimator", ["finecomb", "lda", "rda"])
def test_rows_add_up_to_the_whole(mptcp: tuple[Path, Path], exact: float, estimator: str, interval: str) -> None:
    """A packet belongs to the interval in which it was sent: before, those under way at an edge were lost, and slow.

    At 1 ms, packets take 66 ms: rows lost 62, all of them 17, and the mean of the rest was 9.34 us.
    """
    words = ("oneway", *mptcp, "--estimator", estimator, "--interval", interval, "--sla", "mean<1ms")
    said = json.loads(wirelag(*words, "--format", "json", code=3).stdout)
    assert [verdict["holds"] for verdict in said["sla"]] == [False]
    rows = said["intervals"]
    for name in ("sent", "received", "lost"):
        assert sum(row[name] for row in rows) == said[name] > 0
    weights = [row["stands_for"] for row in rows]
    assert sum(weights) == pytest.approx(said["received"], rel=0.01)
    mean = sum(row["mean"] * weight for row, weight in zip(rows, weights, strict=True) if weight) / sum(weights)
    assert mean == pytest.approx(exact, rel=0.01 if estimator == "lda" else 1e-6)


def test_packets_through_a_queue_have_one_wide_interval(shared_data: Path) -> None:
    """1,405 packets, delayed by 61 to 222 ms in tenths of the capture; at 1 ms, it was 115.2498 to 115.2508 ms."""
    pair = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/{side}_1_tcp_only.pcap.gz" for side in ("client", "server")]
    found = [
        json.loads(wirelag("oneway", *pair, *shown, "--format", "json").stdout)
        for shown in ((), ("--interval", "1s"), ("--interval", "100ms", "--by", "flow"))
    ]
    low, high = found[0]["ci95"]["mean"]
    assert all(one["ci95"] == found[0]["ci95"] for one in found)
    assert low < 0.09
    assert 0.18 < high < 1


def test_no_interval_ends_where_nothing_was_seen(shared_data: Path) -> None:
    """Before: 694 us, 274 us to 3.45 s, while no response took more than 140 ms; the median might be 140 ms."""
    path = shared_data / "hidden" / "l4s-tests" / "skype_bi_fq_codel.pcap.gz"
    found = json.loads(wirelag("response", path, "--format", "json").stdout)
    assert found["ci95"]["mean"][1] < 4.5 * found["mean"]
    assert found["ci95"]["0.5"][1] <= 2 * found["ci95"]["mean"][1]  # half of all delays are no shorter than the median


def test_groups_without_an_answer_are_counted(shared_data: Path) -> None:
    """Before, an agreement "held" while most flows had no answer, and nothing said so."""
    (path,) = (shared_data / "wild").glob("*netflix.pcap.gz")
    words = ("response", path, "--filter", "src host 192.168.1.7", "--by", "flow", "--sla", "mean<200ms")
    said = wirelag(*words, code=None).stdout
    assert re.search(r"^mean<200ms: .*cannot say for \d+ of \d+ groups", said, re.MULTILINE)


def test_groups_are_in_the_order_that_was_asked_for(made: Path) -> None:
    for sort in ("p50", "p99", "mean", "samples"):
        words = ("rtt", made / "one.pcap", "--by", "server", "--sort", sort)
        groups = json.loads(wirelag(*words, "--format", "json").stdout)["groups"]
        legs = [group["legs"]["server"] for group in groups if "server" in group["legs"]]
        values = [leg["quantiles"][f"{int(sort[1:]) / 100:g}"] if sort.startswith("p") else leg[sort] for leg in legs]
        few = [leg["samples"] < 6 and sort != "samples" for leg in legs]  # these come after the others
        assert few == sorted(few)
        for some in (True, False):
            mine = [value for value, one in zip(values, few, strict=True) if one == some]
            assert mine == sorted(mine, reverse=True)
        table = wirelag(*words, "--top", "3").stdout
        assert [group["key"] in table for group in groups[:4]] == [True, True, True, False]
        assert f"and {len(groups) - 3} more groups" in table


def test_a_note_says_how_much_was_not_kept(made: Path) -> None:
    """Packets, not delays: of groups that did not fit, perhaps only a sample of packets is timed."""
    words = ("oneway", made / "up.pcap", made / "down.pcap", "--by", "source", "--group-memory", "1MiB")
    found = json.loads(wirelag(*words, "--format", "json").stdout)
    kept = sum(group["sent"] for group in found["groups"] if group["key"] != "other")
    assert f"other: {1 - kept / found['sent']:.1%} of the packets" in wirelag(*words).stdout
    assert "other:" not in wirelag(*words[:5]).stdout


# ---- the same packets twice ----


@pytest.mark.parametrize("command", ["rtt", "response"])
def test_the_same_packets_are_not_counted_twice(made: Path, command: str) -> None:
    same = ("one.pcap", "one.pcap.gz"), ("up.pcap", "down.pcap")
    for names in same:
        paths = [made / name for name in names]
        assert "hold the same packets" in wirelag(command, *paths, code=2).stderr
        wirelag(command, *paths, "--force")
    assert "is the same file" in wirelag(command, made / "one.pcap", made / "one.pcap", code=2).stderr
    wirelag(command, made / "one.pcap", made / "other.pcap")


# ---- files ----


@pytest.mark.parametrize(
    ("command", "options"),
    [("rtt", ["--by", "server"]), ("response", []), ("response", ["--method", "auto"])],
)
def test_rows_of_several_captures_can_be_read_together(
    made: Path, tmp_path: Path, command: str, options: list[str]
) -> None:
    write_simulation(simulate(Scenario(packets=3)), tmp_path / "tiny.pcap")
    for name, capture in (("big", made / "one.pcap"), ("tiny", tmp_path / "tiny.pcap")):
        wirelag(command, capture, *options, "-o", tmp_path / f"{name}.parquet")
    frames = [pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("big", "tiny")]
    assert frames[0].schema == frames[1].schema
    assert pl.Null not in frames[0].dtypes
    assert pl.concat(frames).height == sum(frame.height for frame in frames)


def test_both_methods_of_response_have_one_schema(made: Path, tmp_path: Path) -> None:
    for method in ("pairs", "auto"):
        wirelag("response", made / "one.pcap", "--method", method, "-o", tmp_path / f"{method}.parquet")
    pairs, auto = (pl.read_parquet(tmp_path / f"{method}.parquet") for method in ("pairs", "auto"))
    assert pairs.schema == auto.schema


@pytest.mark.parametrize(
    ("ports", "expression"),
    [
        ("https", "port 443"),
        ("80,443", "port 80 or port 443"),
        ("1-1024", "portrange 1-1024"),
        ("domain,440-450", "port 53 or portrange 440-450"),
    ],
)
def test_ports_are_written_as_people_do(shared_data: Path, ports: str, expression: str) -> None:
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    by_port, by_filter = (
        json.loads(wirelag("rtt", capture, *words, "--by", "flow", "--format", "json").stdout)
        for words in (("--port", ports), ("--filter", expression))
    )
    assert by_port == by_filter
    assert by_port["samples"] > 0
    assert "is not a port" in wirelag("rtt", capture, "--port", f"{ports},wrong", code=2).stderr


def test_shares_and_sizes_are_written_as_people_do(made: Path, shared_data: Path) -> None:
    pair = ("oneway", made / "up.pcap", made / "down.pcap", "--estimator", "lda", "--format", "json")
    fridge = ("rtt", shared_data / "rtt/PcapPlusPlus/example.pcap.gz", "--format", "json")
    for words, same, other in ((pair, ("--loss", "5%"), "0.05"), (fridge, ("--memory", "16k"), "16000")):
        told = wirelag(*words, *same).stdout
        assert told == wirelag(*words, same[0], other).stdout
        assert told != wirelag(*words).stdout, "it has an effect"


def test_the_extension_says_the_format(made: Path, tmp_path: Path) -> None:
    for name in ("out.json", "out.jsonl", "out.csv", "out.parquet", "out.txt"):
        wirelag("rtt", made / "one.pcap", "-o", tmp_path / name)
    assert json.loads((tmp_path / "out.json").read_text())["command"] == "rtt"
    assert json.loads((tmp_path / "out.jsonl").read_text())["samples"]
    assert pl.read_csv(tmp_path / "out.csv").height == pl.read_parquet(tmp_path / "out.parquet").height == 2
    assert "to the server" in (tmp_path / "out.txt").read_text()
    wirelag("rtt", made / "one.pcap", "--format", "table", "-o", tmp_path / "out.json")
    assert "to the server" in (tmp_path / "out.json").read_text()
    wirelag("rtt", made / "one.pcap", "--format", "json", "-o", tmp_path / "out.xml")
    assert json.loads((tmp_path / "out.xml").read_text())["command"] == "rtt"
    for name in ("out", "out.2026-11-17", "out.log"):
        wirelag("rtt", made / "one.pcap", "-o", tmp_path / name)
        assert "to the server" in (tmp_path / name).read_text()


def test_a_terminal_that_is_not_utf_8_gets_a_table(made: Path, tmp_path: Path) -> None:
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([*WIRELAG, "rtt", made / "one.pcap"], capture_output=True, env=plain, check=True)
    assert b"to the server" in ran.stdout
    assert ran.stdout.isascii()
    other = tmp_path / "\N{LATIN SMALL LETTER U WITH DIAERESIS}.pcap"
    other.symlink_to(made / "one.pcap")
    for words in (("report", other, "-o", tmp_path / "pages", "--format", "csv"), ("cut", other, "-o", f"{other}.syn")):
        ran = subprocess.run([*WIRELAG, *words], capture_output=True, env=plain, check=True)
        assert b"?.pcap" in ran.stdout


def test_cut_lists_the_estimators_that_it_has(made: Path, tmp_path: Path) -> None:
    assert "join" not in wirelag("cut", "--help").stdout.split("--estimator")[1].split("\n")[0]
    for name in ("up", "down"):
        wirelag("cut", made / f"{name}.pcap", "-o", tmp_path / f"{name}.syn")


# ---- recordings that were put together in another order ----


def test_times_that_go_back_make_no_response_instant(shared_data: Path) -> None:
    """Before, requests after a time that went back by hours were answered in 0 ns, and a row was "not listed", too."""
    capture = shared_data / "hidden" / "nDPI" / "ipsec_isakmp_esp.pcap.gz"
    ran = wirelag("response", capture, "--format", "json").stdout
    groups = {group["key"]: group for group in json.loads(ran)["groups"]}
    server = groups["109.237.187.195:500"]
    assert server["samples"] == 18
    assert 0.025 < server["min"] <= server["max"] < 0.03  # as tshark's times say
    told = wirelag("response", capture).stdout
    unlisted = re.findall(r"not listed: [^(]*\(([^)]*)\)", told)
    assert not {name for names in unlisted for name in names.split(", ")} & set(groups)


def test_parts_say_of_how_many_responses_they_are(shared_data: Path) -> None:
    """Before, 1.38 s in the server stood beside 1.28 s in all, unsaid: some responses have no known network time."""
    capture = shared_data / "rtt" / "redart" / "long_cap_2.pcap.gz"
    said = json.loads(wirelag("response", capture, "--format", "json").stdout)
    assert said["server"] > said["mean"]
    assert 0 < said["network_samples"] < said["samples"]
    assert said["server"] + said["network"] <= said["network_mean"]
    line = f"server and network are means of {said['network_samples']} of {said['samples']} responses"
    assert line in wirelag("response", capture).stdout


def test_a_confidence_has_no_more_digits_than_it_means(shared_data: Path) -> None:
    """Before: 0.9499999999999998."""
    found = []
    for name in ("hidden/zeek/ssh.client-side-half-duplex.pcap", "hidden/PcapPlusPlus/4KHttpRequests.pcap.gz"):
        said = json.loads(wirelag("response", shared_data / name, "--method", "auto", "--format", "json").stdout)
        found += [one["confidence"] for one in (said, *said["groups"]) if one.get("confidence")]
    assert found
    assert found == [round(one, 4) for one in found]


def test_what_became_of_requests_that_were_sent_again(shared_data: Path) -> None:
    """Queries that were sent again took up to 2 s: whoever asks for an agreement learns how many are not in it."""
    capture = shared_data / "hidden/PcapPlusPlus/DnsPackets.pcap"
    said = wirelag("rtt", capture, "--sla", "p99<500ms").stdout
    assert "p99<500ms: holds" in said
    assert (
        "3 responses to requests that were sent again: not timed, nor judged; --retransmitted first times them, too"
        in said.splitlines()
    )
    assert "464 packets; 464 examined; 3 responses not timed, since their request was sent again" in said
    counts = [
        json.loads(wirelag("rtt", capture, "--retransmitted", one, "--format", "json").stdout)
        for one in ("drop", "first")
    ]
    assert counts[0]["counts"]["again"] == counts[1]["samples"] - counts[0]["samples"] == 3
    said = wirelag("rtt", capture, "--sla", "p99<500ms", "--retransmitted", "first", code=3).stdout
    assert "sent again" not in said
    assert "a fridge times requests that were sent again, too" in wirelag("rtt", capture, "--memory", "64KiB").stdout


def test_rows_without_an_interval_are_counted_as_they_are_shown(shared_data: Path) -> None:
    """ "1 of 8 rows" did not tell that the leg asked about has an interval in each."""
    said = wirelag("rtt", shared_data / "rtt/nfstream/skype.pcap.gz", "--by", "server", "--top", "6").stdout
    assert "the mean has no 95% interval in 6 of 6 rows to the server and in 4 of 6 rows to the client: too few" in said
    rows = re.findall(r"to the (server|client) +\d.*", said.split("by server, ")[1].split("and 43 more")[0])
    assert [rows.count(leg) for leg in ("server", "client")] == [6, 6]


def test_no_file_gets_another_format_than_its_name_says(made: Path, tmp_path: Path) -> None:
    said = wirelag("rtt", made / "one.pcap", "--samples", tmp_path / "s.json", code=2).stderr
    assert said.endswith("s.json: its name must end in .csv or .parquet, which is its format\n")
    said = wirelag("rtt", made / "one.pcap", "-o", tmp_path / "r.json.gz", code=2).stderr
    assert "nothing is written compressed; leave .gz out" in said
    for name in ("r.xml", "r.yaml", "r.jsn"):
        said = wirelag("rtt", made / "one.pcap", "-o", tmp_path / name, code=2).stderr
        assert f"{name}: .{name[2:]} is not a known format; name the file .json, .jsonl, .csv, .parquet" in said
    assert not list(tmp_path.iterdir())


def test_different_legs_are_not_compared(made: Path, tmp_path: Path) -> None:
    for leg in ("server", "client"):
        wirelag("rtt", made / "one.pcap", "--leg", leg, "-o", tmp_path / f"{leg}.json")
    said = wirelag("compare", tmp_path / "server.json", tmp_path / "client.json", code=2).stderr
    assert "one is of the leg server, the other of client; make both with the same --leg" in said


def test_an_agreement_has_one_verdict_which_comes_first(shared_data: Path) -> None:
    """It said "holds" of all delays, and two lines below "does not hold for 9 of 53 groups"."""
    capture = shared_data / "rtt/redart/long_cap_2.pcap.gz"
    said = wirelag("rtt", capture, "--by", "server", "--sla", "p50<100ms", code=3).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("p50<100ms: ")]
    assert re.match(r"p50<100ms: does not hold for 9 of 53 groups: [\d.]+ \(202 ms\), .*; all together: holds; ", line)
    (strict,) = [
        line
        for line in wirelag("rtt", capture, "--by", "server", "--sla", "p99<10ms", code=3).stdout.splitlines()
        if line.startswith("p99<10ms: ")
    ]
    assert " (906 ms, 15 samples), 10.8.71.80 (524 ms, 82 samples), " in strict  # too few for a p99
    responses = wirelag("response", capture, "--sla", "mean<2s", code=0).stdout  # groups are shown, but not asked for
    (line,) = [line for line in responses.splitlines() if line.startswith("mean<2s: ")]
    assert re.search(r"^mean<2s: holds, .* beside the verdict \(without --by\): does not hold for \d+ of \d+ ", line)
    asked = wirelag("response", capture, "--sla", "mean<2s", "--by", "server", code=3).stdout
    assert re.search(r"^mean<2s: does not hold for \d+ of \d+ groups: [\d.]+:443 \(", asked, re.MULTILINE)
